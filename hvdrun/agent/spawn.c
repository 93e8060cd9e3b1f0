#include "hvdrun/agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hvdrun/agent/cgroup.h"
#include "hvdrun/job/proc.h"

int hvi_pidfd_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by itself */
}

int hvi_pidfd_kill(int pidfd)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
}

static _Noreturn void fail(int fd, int stage, int error)
{
    struct hvi_spawn_failure f = {.stage = stage, .error = error};

    (void)!write(fd, &f, sizeof f);
    _exit(stage == HVI_SPAWN_EXEC ? (error == ENOENT ? 127 : 126) : 125);
}

/* No text: a program of another kind of machine, or a damaged one. */
static bool is_binary(const char *path)
{
    char bytes[128];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, bytes, sizeof bytes) : 0;

    if (fd >= 0)
        close(fd);
    return n > 0 && memchr(bytes, '\0', (size_t)n) != NULL;
}

/* As execv, but what the kernel does not know is given to a shell, unless it is a binary,
 * of which that would say "Syntax error". Returns the errno. */
static int run_file(const char *path, char *const argv[])
{
    execv(path, argv);
    if (errno != ENOEXEC)
        return errno;
    if (is_binary(path))
        return ENOEXEC;
    execvp(path, argv);
    return errno;
}

/* As execvp, with run_file. Returns the errno. */
static int run_program(char *const argv[])
{
    const char *dirs = getenv("PATH");
    int why = ENOENT;

    if (strchr(argv[0], '/') != NULL)
        return run_file(argv[0], argv);
    if (dirs == NULL)
        dirs = "/bin:/usr/bin";
    for (const char *d = dirs; argv[0][0] != '\0';) {
        size_t n = strcspn(d, ":");
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%.*s%s%s", (int)n, d,
                              n > 0 ? "/" : "./", argv[0]);
        int error = length < (int)sizeof path ? run_file(path, argv) : ENOENT;

        if (error != ENOENT && error != ENOTDIR && error != EACCES)
            return error;
        if (error == EACCES) /* there may be another one further on */
            why = EACCES;
        if (d[n] == '\0')
            break;
        d += n + 1;
    }
    return why;
}

/* The exec that follows stops the process for its parent. That one lets go; then anybody
 * of this user may attach, also where Yama asks for more than that. */
static void be_held(int err_fd)
{
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* EINVAL: no Yama */
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        fail(err_fd, HVI_SPAWN_TRACE, errno);
}

/* born: it is in its cgroup already. */
static _Noreturn void child(const struct hvi_spawn_plan *p, bool born, pid_t agent,
                            int go, int err_fd)
{
    static const char refused[] =
        "hvdrun: this rank is not bound: the system refused its processors\n";
    char byte;
    ssize_t n;

    if (p->terminal)
        setsid();
    else
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent) /* it died before the line above */
        _exit(125);
    if (p->cgroup_fd >= 0 && !born)
        hvi_cgroup_enter(p->cgroup_fd);
    do
        n = read(go, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n != 1)
        _exit(125);
    hvi_proc_reset_signals();
    if (p->terminal && ioctl(p->in_fd, TIOCSCTTY, 0) != 0)
        fail(err_fd, HVI_SPAWN_FORK, errno);
    if (dup2(p->in_fd, 0) < 0 || dup2(p->out_fd, 1) < 0 || dup2(p->err_fd, 2) < 0)
        fail(err_fd, HVI_SPAWN_FORK, errno);
    if (chdir(p->cwd) != 0)
        fail(err_fd, HVI_SPAWN_CHDIR, errno);
    if (p->cpus != NULL && sched_setaffinity(0, sizeof *p->cpus, p->cpus) != 0)
        (void)!write(2, refused, sizeof refused - 1);
    else if (p->note != NULL)
        (void)!write(2, p->note, strlen(p->note));
    environ = p->envp;
    if (p->hold)
        be_held(err_fd);
    fail(err_fd, HVI_SPAWN_EXEC, run_program(p->argv));
}

enum hvd_status hvi_spawn(const struct hvi_spawn_plan *plan, struct hvi_spawned *out,
                          int *error, struct hvi_err *err)
{
    int go[2], failure[2];
    pid_t agent = getpid();
    bool born = plan->cgroup_fd >= 0;
    sigset_t all, old;
    pid_t pid;

    if (pipe2(go, O_CLOEXEC) != 0) {
        *error = errno;
        return hvi_fail(err, HVD_EIO, "pipe: %s", strerror(*error));
    }
    if (pipe2(failure, O_CLOEXEC) != 0) {
        *error = errno;
        close(go[0]);
        close(go[1]);
        return hvi_fail(err, HVD_EIO, "pipe: %s", strerror(*error));
    }
    sigfillset(&all); /* the child takes them once their handlers are gone */
    sigprocmask(SIG_SETMASK, &all, &old);
    pid = born ? hvi_cgroup_fork(plan->cgroup_fd) : -1;
    if (pid < 0) {
        born = false;
        pid = fork();
    }
    if (pid == 0) {
        close(go[1]); /* its end of file must come when the agent dies */
        child(plan, born, agent, go[0], failure[1]);
    }
    *error = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    close(go[0]);
    close(failure[1]);
    if (pid < 0) {
        close(go[1]);
        close(failure[0]);
        return hvi_fail(err, HVD_EIO, "fork: %s", strerror(*error));
    }
    if (!plan->terminal)   /* a group's leader could not begin a session */
        setpgid(pid, pid); /* both sides: whoever comes first */
    out->pid = pid;
    out->go_fd = go[1];
    out->fail_fd = failure[0];
    return HVD_OK;
}

void hvi_spawn_go(struct hvi_spawned *s)
{
    (void)!write(s->go_fd, "g", 1);
    close(s->go_fd);
    s->go_fd = -1;
}
