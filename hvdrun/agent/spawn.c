#include "hvdrun/agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/cgroup.h"
#include "hvdrun/job/vclone.h"
#include "hvdrun/job/proc.h"
#include "proto/base/limits.h"

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

/* As execve, but what the kernel does not know is given to a shell, unless it is a binary,
 * of which that would say "Syntax error". Returns the errno. */
static int run_file(const char *path, char *const argv[], char *const envp[])
{
    execve(path, argv, envp);
    if (errno != ENOEXEC)
        return errno;
    if (is_binary(path))
        return ENOEXEC;
    execvpe(path, argv, envp);
    return errno;
}

static const char *path_of(char *const envp[])
{
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    return "/bin:/usr/bin";
}

/* As execvpe, with run_file and the PATH of envp. Returns the errno. */
static int run_program(char *const argv[], char *const envp[])
{
    int why = ENOENT;

    if (strchr(argv[0], '/') != NULL)
        return run_file(argv[0], argv, envp);
    for (const char *d = path_of(envp); argv[0][0] != '\0';) {
        size_t n = strcspn(d, ":");
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%.*s%s%s", (int)n, d,
                              n > 0 ? "/" : "./", argv[0]);
        int error = length < (int)sizeof path ? run_file(path, argv, envp) : ENOENT;

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
 * of this user may attach, also where Yama asks for more than that. Any other signal would
 * stop it too: all wait until then but those that cannot, and the exec's own. */
static void be_held(int err_fd)
{
    sigset_t set;

    sigfillset(&set);
    sigdelset(&set, SIGTRAP);
    sigprocmask(SIG_SETMASK, &set, NULL);
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* EINVAL: no Yama */
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        fail(err_fd, HVI_SPAWN_TRACE, errno);
}

struct birth {
    const struct hvi_spawn_plan *plan;
    pid_t agent;
    int err_fd;
    bool born; /* it is in its cgroup already */
};

/* In the child, which may have the agent's memory: nothing that the agent knows is
 * changed. */
static void child(void *data)
{
    static const char refused[] =
        "hvdrun: this rank is not bound: the system refused its processors\n";
    const struct birth *b = data;
    const struct hvi_spawn_plan *p = b->plan;
    int error;

    if (p->terminal)
        setsid();
    else
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != b->agent) /* it died before the line above */
        _exit(125);
    if (p->cgroup_fd >= 0 && !b->born)
        hvi_cgroup_enter(p->cgroup_fd);
    error = p->keeper != NULL ? hvi_keeper_add(p->keeper, getpid()) : 0;
    if (error != 0)
        fail(b->err_fd, HVI_SPAWN_KEEPER, error);
    hvi_proc_reset_signals();
    if (p->terminal && ioctl(p->in_fd, TIOCSCTTY, 0) != 0)
        fail(b->err_fd, HVI_SPAWN_FORK, errno);
    if (dup2(p->in_fd, 0) < 0 || dup2(p->out_fd, 1) < 0 || dup2(p->err_fd, 2) < 0)
        fail(b->err_fd, HVI_SPAWN_FORK, errno);
    if (chdir(p->cwd) != 0)
        fail(b->err_fd, HVI_SPAWN_CHDIR, errno);
    if (p->cpus != NULL && sched_setaffinity(0, sizeof *p->cpus, p->cpus) != 0)
        (void)!write(2, refused, sizeof refused - 1);
    else if (p->note != NULL)
        (void)!write(2, p->note, strlen(p->note));
    if (p->hold)
        be_held(b->err_fd);
    fail(b->err_fd, HVI_SPAWN_EXEC, run_program(p->argv, p->envp));
}

/* The cheapest way that this system knows. -1 with errno. */
static pid_t start(struct birth *b)
{
    int cgroup = b->plan->cgroup_fd;
    long rc;
    pid_t pid = -1;

    b->born = cgroup >= 0;
    /* one that its tracer must see stop cannot keep it waiting for the exec */
    rc = b->plan->hold ? -1 : hvi_vclone(cgroup, child, b);
    if (rc > 0)
        return (pid_t)rc;
    if (cgroup >= 0)
        pid = hvi_cgroup_fork(cgroup);
    if (pid < 0) {
        b->born = false;
        pid = fork();
    }
    if (pid == 0)
        child(b);
    return pid;
}

enum hvd_status hvi_spawn(const struct hvi_spawn_plan *plan, struct hvi_spawned *out,
                          int *error, struct hvi_err *err)
{
    struct birth b = {.plan = plan, .agent = getpid()};
    int failure[2];
    sigset_t all, old;
    pid_t pid;

    if (pipe2(failure, O_CLOEXEC) != 0) {
        *error = errno;
        return hvi_fail(err, HVD_EIO, "pipe: %s", strerror(*error));
    }
    (void)fcntl(failure[0], F_SETFL, O_NONBLOCK);
    b.err_fd = failure[1];
    sigfillset(&all); /* the child takes them once their handlers are gone */
    sigprocmask(SIG_SETMASK, &all, &old);
    pid = start(&b);
    *error = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    close(failure[1]);
    if (pid < 0) {
        close(failure[0]);
        return hvi_fail(err, HVD_EIO, "fork: %s%s", strerror(*error),
                        hvi_limits_of_processes(*error));
    }
    if (!plan->terminal)   /* a group's leader could not begin a session */
        setpgid(pid, pid); /* both sides: whoever comes first */
    out->pid = pid;
    out->fail_fd = failure[0];
    return HVD_OK;
}

/* Of a child that is stopped, so that the answer stays true. */
static bool has_execed(int fail_fd)
{
    struct pollfd p = {.fd = fail_fd, .events = POLLIN};

    return poll(&p, 1, 0) == 1 && (p.revents & (POLLIN | POLLHUP)) == POLLHUP;
}

enum hvi_spawn_hold hvi_spawn_hold(pid_t pid, int fail_fd)
{
    uint64_t none = 0; /* the kernel's set of blocked signals, as programs begin */
    siginfo_t info = {.si_pid = 0};

    if (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) != 0)
        return errno == EINTR ? HVI_SPAWN_HOLD_UNSET : HVI_SPAWN_HOLD_ENDED;
    if (info.si_pid != pid)
        return HVI_SPAWN_HOLD_UNSET;
    if (info.si_code != CLD_TRAPPED)
        return HVI_SPAWN_HOLD_ENDED;
    if (info.si_status != SIGTRAP || !has_execed(fail_fd)) { /* it will stop anyway */
        (void)ptrace(PTRACE_CONT, pid, NULL, NULL);
        return HVI_SPAWN_HOLD_UNSET;
    }
    (void)ptrace(PTRACE_SETSIGMASK, pid, (void *)sizeof none, &none);
    (void)ptrace(PTRACE_DETACH, pid, NULL, (void *)(intptr_t)SIGSTOP);
    return HVI_SPAWN_HELD;
}
