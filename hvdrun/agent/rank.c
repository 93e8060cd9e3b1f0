#include "hvdrun/agent/rank.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/session.h"
#include "proto/base/clock.h"

#define HOLD_LOOK_MS 2 /* how often to look whether the exec has stopped it */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_poll(uv_poll_t *p, bool *open)
{
    if (*open)
        uv_close((uv_handle_t *)p, NULL);
    *open = false;
}

static void close_timer(uv_timer_t *t, bool *open)
{
    if (*open)
        uv_close((uv_handle_t *)t, NULL);
    *open = false;
}

/* The exec has happened (end of file) or has failed (a record), and one to be held is.
 * false: not yet. over: it has ended. */
static bool see_start(struct hvi_rank *r, bool over)
{
    struct hvi_spawn_failure f = {0, 0};
    ssize_t n;

    if (r->debug == HVI_RANK_HELD && !over &&
        hvi_spawn_hold(r->pid, r->fail_fd) == HVI_SPAWN_HOLD_UNSET)
        return false;
    n = read(r->fail_fd, &f, sizeof f);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n != (ssize_t)sizeof f)
        f.stage = f.error = 0;
    close_poll(&r->start_poll, &r->start_poll_open);
    close_timer(&r->hold_timer, &r->hold_timer_open);
    close_fd(&r->fail_fd);
    r->ops->on_started(r, &f);
    return true;
}

static void hold_cb(uv_timer_t *t)
{
    struct hvi_rank *r = t->data;

    if (r->hold_timer_open)
        (void)see_start(r, false);
}

static void start_cb(uv_poll_t *p, int status, int events)
{
    struct hvi_rank *r = p->data;

    (void)status;
    (void)events;
    if (r->start_poll_open)
        (void)see_start(r, false);
}

static void stream_end(void *data)
{
    struct hvi_rank *r = data;

    if (--r->open_streams == 0)
        r->ops->on_output_end(r);
}

/*
 * The leader is a zombie here, so its number still names its group: kill the group, let
 * the keeper forget it, and only then reap.
 */
static void ended(struct hvi_rank *r)
{
    int status = 0;

    if (r->exited || r->pid == 0)
        return;
    if (r->start_poll_open || r->hold_timer_open)
        (void)see_start(r, true);
    kill(-r->pid, SIGKILL);
    if (r->debug == HVI_RANK_TERMINAL) /* it ran its program in another group */
        hvi_session_kill(r->pid);
    hvi_keeper_remove(r->keeper, r->pid);
    while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
        ;
    r->exited = true;
    r->wait_status = status;
    close_poll(&r->exit_poll, &r->exit_poll_open);
    close_fd(&r->pidfd);
    hvi_win_close(&r->in);
    r->ops->on_exited(r);
    for (int i = 0; i < 2; i++)
        hvi_wout_exited(&r->out[i]);
}

void hvi_rank_check(struct hvi_rank *r)
{
    siginfo_t info = {.si_pid = 0};

    if (r->pid != 0 && !r->exited &&
        waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == r->pid)
        ended(r);
}

static void exit_cb(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    hvi_rank_check(p->data);
}

static void close_fds(struct hvi_rank *r)
{
    for (int i = 0; i < 2; i++) {
        close_fd(&r->fds.in[i]);
        close_fd(&r->fds.out[i]);
        close_fd(&r->fds.err[i]);
    }
}

static void close_childs(struct hvi_rank *r)
{
    close_fd(&r->fds.in[0]);
    close_fd(&r->fds.out[1]);
    close_fd(&r->fds.err[1]);
}

static enum hvd_status make_pipes(struct hvi_rank *r, bool with_stdin,
                                  struct hvi_err *err)
{
    if ((with_stdin && pipe2(r->fds.in, O_CLOEXEC) != 0) ||
        pipe2(r->fds.out, O_CLOEXEC) != 0 || pipe2(r->fds.err, O_CLOEXEC) != 0)
        return hvi_fail(err, HVD_EIO, "pipe: %s%s", strerror(errno),
                        errno == EMFILE ? "; raise the limit (ulimit -n)" : "");
    return HVD_OK;
}

/* A terminal stands for all three: out[1] is its inner side, out[0] and in[1] ours. */
static enum hvd_status make_terminal(struct hvi_rank *r, struct hvi_err *err)
{
    struct winsize size = {.ws_row = r->rows, .ws_col = r->columns};
    int *in = r->fds.in, *out = r->fds.out;
    char name[64];

    out[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (out[0] >= 0)
        in[1] = fcntl(out[0], F_DUPFD_CLOEXEC, 3);
    if (in[1] >= 0 && grantpt(out[0]) == 0 && unlockpt(out[0]) == 0 &&
        ptsname_r(out[0], name, sizeof name) == 0)
        out[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (out[1] < 0)
        return hvi_fail(err, HVD_EIO, "a terminal for the debugger: %s",
                        strerror(errno));
    if (r->rows > 0)
        (void)ioctl(out[0], TIOCSWINSZ, &size);
    return HVD_OK;
}

/* Hands our pipe ends to the loop. */
static enum hvd_status watch(struct hvi_rank *r, const struct hvi_rank_common *c,
                             struct hvi_err *err)
{
    int *ends[2] = {&r->fds.out[0], &r->fds.err[0]};
    enum hvd_status rc = HVD_OK;

    for (int i = 0; i < 2 && rc == HVD_OK && *ends[i] >= 0; i++) {
        rc = hvi_wout_open(&r->out[i], c->loop, *ends[i], c->chan, r->rank,
                           (uint32_t)i + 1, c->window_bytes, stream_end, r, err);
        *ends[i] = -1;
        r->open_streams += rc == HVD_OK;
    }
    if (rc == HVD_OK && r->fds.in[1] >= 0) {
        rc = hvi_win_open(&r->in, c->loop, r->fds.in[1], c->chan, r->rank, err);
        r->fds.in[1] = -1;
    }
    if (rc != HVD_OK)
        return rc;
    if (see_start(r, false)) {
        ;
    } else if (r->debug == HVI_RANK_HELD) { /* nothing becomes readable when it stops */
        uv_timer_init(c->loop, &r->hold_timer);
        r->hold_timer.data = r;
        r->hold_timer_open = true;
        uv_timer_start(&r->hold_timer, hold_cb, HOLD_LOOK_MS, HOLD_LOOK_MS);
    } else {
        uv_poll_init(c->loop, &r->start_poll, r->fail_fd);
        r->start_poll.data = r;
        r->start_poll_open = true;
        uv_poll_start(&r->start_poll, UV_READABLE | UV_DISCONNECT, start_cb);
    }
    r->pidfd =
        hvi_pidfd_open(r->pid); /* without it the agent's SIGCHLD does the work */
    if (r->pidfd >= 0 && uv_poll_init(c->loop, &r->exit_poll, r->pidfd) == 0) {
        r->exit_poll.data = r;
        r->exit_poll_open = true;
        uv_poll_start(&r->exit_poll, UV_READABLE, exit_cb);
    }
    return HVD_OK;
}

enum hvd_status hvi_rank_watch(struct hvi_rank *r, const struct hvi_rank_common *c,
                               struct hvi_err *err)
{
    enum hvd_status rc = watch(r, c, err);

    close_fds(r);
    if (rc == HVD_OK)
        return rc;
    kill(-r->pid, SIGKILL);
    hvi_keeper_remove(c->keeper, r->pid);
    waitpid(r->pid, NULL, 0);
    hvi_rank_close(r);
    r->pid = 0;
    return rc;
}

enum hvd_status hvi_rank_fork(struct hvi_rank *r, const struct hvi_rank_common *c,
                              bool with_stdin, struct hvi_spawn_failure *failure,
                              struct hvi_err *err)
{
    bool terminal = r->debug == HVI_RANK_TERMINAL;
    struct hvi_spawn_plan plan = {.argv = terminal ? c->debug_argv : c->argv,
                                  .envp = hvi_jobenv_merge(c->env, &r->env),
                                  .cwd = c->cwd,
                                  .cpus = r->cpus,
                                  .note = r->note,
                                  .terminal = terminal,
                                  .hold = r->debug == HVI_RANK_HELD};
    struct hvi_spawned child = {0, -1};
    enum hvd_status rc = plan.envp != NULL ? HVD_OK : HVD_ENOMEM;

    r->ops = c->ops;
    r->owner = c->owner;
    r->keeper = c->keeper;
    r->pidfd = r->fail_fd = -1;
    memset(&r->fds, -1, sizeof r->fds);
    failure->stage = HVI_SPAWN_FORK;
    failure->error = 0;
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "out of memory");
    rc = terminal ? make_terminal(r, err) : make_pipes(r, with_stdin, err);
    plan.in_fd = terminal ? r->fds.out[1] : with_stdin ? r->fds.in[0] : c->null_fd;
    plan.out_fd = r->fds.out[1];
    plan.err_fd = terminal ? r->fds.out[1] : r->fds.err[1];
    plan.cgroup_fd = c->cgroup_fd;
    plan.keeper = c->keeper;
    if (rc == HVD_OK)
        rc = hvi_spawn(&plan, &child, &failure->error, err);
    if (rc == HVD_OK) {
        close_childs(r);
        r->pid = child.pid;
        r->fail_fd = child.fail_fd;
        r->started_ms = hvi_now_ms();
    } else {
        close_fds(r);
    }
    free(plan.envp);
    return rc;
}

/* What a debugger gets in its place; 0: nothing. */
static int for_debugger(int signo)
{
    switch (signo) {
    case SIGKILL:
    case SIGCONT:
        return signo;
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
        return SIGTERM;
    default:
        return 0;
    }
}

void hvi_rank_signal(const struct hvi_rank *r, int signo)
{
    if (r->debug == HVI_RANK_TERMINAL)
        signo = for_debugger(signo);
    if (r->pid == 0 || r->exited || signo == 0)
        return;
    if (kill(-r->pid, signo) != 0 && errno == ESRCH) /* its session has not begun */
        kill(r->pid, signo);
}

void hvi_rank_resize(struct hvi_rank *r, uint16_t rows, uint16_t columns)
{
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    int fd;

    r->rows = rows;
    r->columns = columns;
    if (r->debug == HVI_RANK_TERMINAL && r->out[0].open &&
        uv_fileno((uv_handle_t *)&r->out[0].pipe, &fd) == 0)
        (void)ioctl(fd, TIOCSWINSZ, &size);
}

void hvi_rank_close(struct hvi_rank *r)
{
    close_poll(&r->exit_poll, &r->exit_poll_open);
    close_poll(&r->start_poll, &r->start_poll_open);
    close_timer(&r->hold_timer, &r->hold_timer_open);
    close_fd(&r->pidfd);
    close_fd(&r->fail_fd);
    hvi_win_close(&r->in);
    for (int i = 0; i < 2; i++) {
        if (r->out[i].open) {
            r->out[i].open = false;
            uv_close((uv_handle_t *)&r->out[i].pipe, NULL);
        }
    }
}

void hvi_rank_fini(struct hvi_rank *r)
{
    hvi_jobenv_fini(&r->env);
    free(r->note);
    r->note = NULL;
}
