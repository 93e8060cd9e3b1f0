#include "hvdrun/job/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/job/vclone.h"
#include "proto/base/limits.h"

enum hvd_status hvi_proc_find(const char *name, char out[PATH_MAX], struct hvi_err *err)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *path = getenv("PATH");
    const char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL) {
        int len = snprintf(out, PATH_MAX, "%.*s/%s", (int)(slash - self), self, name);

        if (len > 0 && len < PATH_MAX && access(out, X_OK) == 0)
            return HVD_OK;
    }
    while (path != NULL && *path != '\0') {
        size_t dir = strcspn(path, ":");
        int len = snprintf(out, PATH_MAX, "%.*s/%s", (int)dir, path, name);

        /* only absolute entries: the rest depends on where the user stands */
        if (path[0] == '/' && len > 0 && len < PATH_MAX && access(out, X_OK) == 0)
            return HVD_OK;
        path += dir + (path[dir] == ':');
    }
    if (n <= 0)
        return hvi_fail(err, HVD_EIO,
                        "%s is not on PATH, and where hvdrun is cannot be told; is "
                        "/proc mounted?",
                        name);
    return hvi_fail(
        err, HVD_EIO,
        "%s is neither beside hvdrun (%s) nor on PATH; is hvd installed whole?", name,
        self);
}

struct birth {
    char *const *argv;
    int in, out, err_fd, fail_fd;
};

/* In the child, which may have hvdrun's memory. Only async-signal-safe calls: hvdrun may
 * have threads. */
static void child(void *data)
{
    const struct birth *b = data;
    int e;

    setpgid(0, 0);
    hvi_proc_reset_signals();
    if (dup2(b->in, 0) == 0 && dup2(b->out, 1) == 1 &&
        (b->err_fd < 0 || dup2(b->err_fd, 2) == 2))
        execvp(b->argv[0], b->argv);
    e = errno;
    if (write(b->fail_fd, &e, sizeof e) < 0)
        _exit(126);
    _exit(127);
}

/* The cheapest way that this system knows. -1 with errno. */
static pid_t give_birth(struct birth *b)
{
    sigset_t all, old;
    pid_t pid;
    int e;

    hvi_proc_note_signals();
    sigfillset(&all); /* the child takes them once their handlers are gone */
    sigprocmask(SIG_SETMASK, &all, &old);
    pid = (pid_t)hvi_vclone(-1, child, b);
    if (pid < 0)
        pid = fork();
    if (pid == 0)
        child(b);
    e = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    errno = e;
    return pid;
}

static void close_pair(int p[2])
{
    for (int i = 0; i < 2; i++)
        if (p[i] >= 0)
            close(p[i]);
}

static enum hvd_status start(char *const argv[], bool with_stderr, struct hvi_proc *out,
                             struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    int in[2] = {-1, -1};
    int from[2] = {-1, -1};
    int words[2] = {-1, -1};
    int fail[2] = {-1, -1};
    int e = 0;
    pid_t pid;
    struct birth b;

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0 ||
        pipe2(fail, O_CLOEXEC) != 0 || (with_stderr && pipe2(words, O_CLOEXEC) != 0)) {
        rc = hvi_fail(err, HVD_EIO, "cannot start %s: pipe: %s", argv[0],
                      strerror(errno));
        goto done;
    }
    (void)fcntl(from[1], F_SETPIPE_SZ,
                1024 * 1024); /* fewer wake-ups; may be refused */
    b = (struct birth){argv, in[0], from[1], words[1], fail[1]};
    pid = give_birth(&b);
    if (pid < 0) {
        rc = hvi_fail(err, HVD_EIO, "cannot start %s: fork: %s%s", argv[0],
                      strerror(errno), hvi_limits_of_processes(errno));
        goto done;
    }
    setpgid(pid, pid); /* both sides: whoever comes first */
    close(fail[1]);
    fail[1] = -1;
    if (read(fail[0], &e, sizeof e) == (ssize_t)sizeof e) {
        rc = hvi_fail(err, HVD_EIO, "cannot start %s: %s", argv[0], strerror(e));
        waitpid(pid, NULL, 0);
        goto done;
    }
    out->pid = pid;
    out->to_fd = in[1];
    out->from_fd = from[0];
    out->err_fd = words[0];
    in[1] = from[0] = words[0] = -1;
done:
    close_pair(in);
    close_pair(from);
    close_pair(words);
    close_pair(fail);
    return rc;
}

enum hvd_status hvi_proc_start(char *const argv[], struct hvi_proc *out,
                               struct hvi_err *err)
{
    return start(argv, false, out, err);
}

enum hvd_status hvi_proc_start_piped(char *const argv[], struct hvi_proc *out,
                                     struct hvi_err *err)
{
    return start(argv, true, out, err);
}

static bool noted, is_changed[NSIG];

void hvi_proc_note_signals(void)
{
    struct sigaction now;

    for (int s = 1; s < NSIG; s++)
        is_changed[s] = sigaction(s, NULL, &now) == 0 && now.sa_handler != SIG_DFL;
    noted = true;
}

void hvi_proc_reset_signals(void)
{
    sigset_t none;

    for (int s = 1; s < NSIG; s++)
        if (!noted || is_changed[s])
            signal(s, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    hvi_limits_restore_fds();
}
