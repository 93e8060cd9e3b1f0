#include "hvdrun/agent/keeper.h"

/*
 * Happy path: ADD of each worker, which it sends itself before its exec; REMOVE when it
 * has ended; end of file when the agent exits, which has said DONE; nothing is left to
 * kill; the keeper exits.
 * Failure: the agent dies. The socket may still hold messages: they are read first, then
 * end of file, then every group is killed, and what had left its group (marked.h). A worker
 * that has not sent its ADD yet dies with the agent (PDEATHSIG).
 */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/cgroup.h"
#include "hvdrun/agent/marked.h"
#include "hvdrun/agent/spawn.h"
#include "hvdrun/io/procstat.h"
#include "hvdrun/job/rundir.h"
#include "proto/base/clock.h"
#include "proto/base/limits.h"

#define ACK_TIMEOUT_MS                                                                 \
    5000 /* the keeper answers in microseconds unless it is stopped */
#define END_TIMEOUT_MS 1000

enum op { OP_UNSET = 0, OP_ADD = 1, OP_REMOVE = 2, OP_CGROUP = 3, OP_DONE = 4 };

struct message {
    int op;
    pid_t pgid;
    uint64_t began; /* with ADD, by whoever knows that the leader lives */
    char path[256];
};

struct group {
    pid_t pgid;
    uint64_t began; /* its leader, as hvi_procstat_began() */
};

struct groups {
    struct group list[HVD_RANKS_MAX];
    int n;
    char cgroup[256];
    int done; /* the agent itself has looked after all */
};

static void apply(struct groups *g, const struct message *m)
{
    if (m->op == OP_ADD && g->n < HVD_RANKS_MAX && m->pgid > 1)
        g->list[g->n++] = (struct group){.pgid = m->pgid, .began = m->began};
    for (int i = 0; m->op == OP_REMOVE && i < g->n; i++) {
        if (g->list[i].pgid == m->pgid) {
            g->list[i] = g->list[--g->n];
            break;
        }
    }
    g->done |= m->op == OP_DONE;
    if (m->op == OP_CGROUP)
        memcpy(g->cgroup, m->path, sizeof g->cgroup);
}

/* A number is not given to a new process while it names a group: where one has it that
 * is not the leader we knew, the group is gone. */
static bool is_anothers(const struct group *g)
{
    uint64_t began = hvi_procstat_began(g->pgid);

    return began != 0 && g->began != 0 && began != g->began;
}

static void kill_all(const struct groups *g)
{
    for (int i = 0; i < g->n; i++)
        if (!is_anothers(&g->list[i]))
            kill(-g->list[i].pgid, SIGKILL);
    if (g->cgroup[0] != '\0')
        hvi_cgroup_kill(g->cgroup);
}

static int hung_up(int fd)
{
    struct pollfd p = {.fd = fd, .events = 0};

    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

static void serve(int fd, struct groups *g)
{
    for (;;) {
        struct message m;
        ssize_t n = recv(fd, &m, sizeof m, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof m)
            return; /* the agent is gone */
        apply(g, &m);
        if (m.op == OP_CGROUP)
            (void)!send(fd, &m.pgid, sizeof m.pgid, MSG_NOSIGNAL);
    }
}

static void close_range_of(int first, int last)
{
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return;
    for (int fd = first; fd <= last && fd < 1024; fd++) /* an old kernel */
        close(fd);
}

/* All above 2 but these. */
static void close_others(int low, int high)
{
    close_range_of(3, low - 1);
    close_range_of(low < 3 ? 3 : low + 1, high - 1);
    close_range_of(high < 3 ? 3 : high + 1, INT_MAX);
}

/* Keeps only what it needs open, so that nobody waits for an end of file because of it.
 */
static void shed(int keep_a, int keep_b)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd < 3 && null >= 0; fd++)
        if (fd != keep_a && fd != keep_b)
            dup2(null, fd);
    close_others(keep_a < keep_b ? keep_a : keep_b, keep_a < keep_b ? keep_b : keep_a);
}

static _Noreturn void keeper_main(int fd, int lifeline_fd, const char *rundir, int own,
                                  const sigset_t *mask)
{
    static struct groups g;
    static const int ignored[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE,
                                  SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2};
    char mark[HVI_RUNDIR_MAX + 32];

    setpgid(0, 0);
    prctl(PR_SET_NAME, "hvd-keeper");
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    shed(fd, lifeline_fd);
    serve(fd, &g);
    kill_all(&g);
    snprintf(mark, sizeof mark, "HVD_RUNTIME_DIR=%s", rundir);
    if (!g.done)
        hvi_marked_kill(mark, END_TIMEOUT_MS);
    if (g.cgroup[0] != '\0')
        hvi_cgroup_remove(g.cgroup);
    if (own || hung_up(lifeline_fd))
        hvi_rundir_remove(rundir);
    _exit(0);
}

enum hvd_status hvi_keeper_start(int lifeline_fd, const char *rundir, int own,
                                 struct hvi_keeper *out, struct hvi_err *err)
{
    sigset_t all, old;
    int sv[2], e;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv) != 0)
        return hvi_fail(err, HVD_EIO, "keeper: socketpair: %s", strerror(errno));
    sigfillset(&all); /* until it ignores them */
    sigprocmask(SIG_SETMASK, &all, &old);
    pid = fork();
    if (pid == 0)
        keeper_main(sv[1], lifeline_fd, rundir, own, &old);
    e = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    if (pid < 0) {
        close(sv[0]);
        close(sv[1]);
        return hvi_fail(err, HVD_EIO, "keeper: fork: %s%s", strerror(e),
                        hvi_limits_of_processes(e));
    }
    close(sv[1]);
    out->pid = pid;
    out->fd = sv[0];
    out->own = own;
    return HVD_OK;
}

static enum hvd_status tell(struct hvi_keeper *k, const struct message *m,
                            struct hvi_err *err)
{
    struct pollfd p = {.fd = k->fd, .events = POLLIN};
    pid_t answer;
    int n;

    if (send(k->fd, m, sizeof *m, MSG_NOSIGNAL) != (ssize_t)sizeof *m)
        return hvi_fail(err, HVD_EIO, "the keeper is gone: %s", strerror(errno));
    do
        n = poll(&p, 1, ACK_TIMEOUT_MS);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return hvi_fail(err, HVD_EIO, "the keeper does not answer");
    if (recv(k->fd, &answer, sizeof answer, 0) != (ssize_t)sizeof answer)
        return hvi_fail(err, HVD_EIO, "the keeper is gone");
    return HVD_OK;
}

int hvi_keeper_add(const struct hvi_keeper *k, pid_t pgid)
{
    struct message m = {.op = OP_ADD, .pgid = pgid, .began = hvi_procstat_began(pgid)};
    struct pollfd p = {.fd = k->fd, .events = POLLOUT};
    int n = 1;

    while (n > 0 && send(k->fd, &m, sizeof m, MSG_NOSIGNAL) != (ssize_t)sizeof m) {
        if (errno != EAGAIN && errno != EINTR)
            return errno;
        do /* its queue is full */
            n = poll(&p, 1, ACK_TIMEOUT_MS);
        while (n < 0 && errno == EINTR);
    }
    return n > 0 ? 0 : ETIMEDOUT;
}

void hvi_keeper_remove(struct hvi_keeper *k, pid_t pgid)
{
    struct message m = {.op = OP_REMOVE, .pgid = pgid};

    if (k->fd >= 0)
        (void)!send(k->fd, &m, sizeof m, MSG_NOSIGNAL);
}

enum hvd_status hvi_keeper_cgroup(struct hvi_keeper *k, const char *dir,
                                  struct hvi_err *err)
{
    struct message m = {.op = OP_CGROUP};

    if (strlen(dir) >= sizeof m.path)
        return hvi_fail(err, HVD_ELIMIT, "cgroup path is too long");
    memcpy(m.path, dir, strlen(dir) + 1);
    return tell(k, &m, err);
}

static void let_end(struct hvi_keeper *k)
{
    struct message m = {.op = OP_DONE};

    if (k->fd >= 0) {
        (void)!send(k->fd, &m, sizeof m, MSG_NOSIGNAL);
        close(k->fd);
    }
    k->fd = -1;
}

void hvi_keeper_stop(struct hvi_keeper *k)
{
    int64_t deadline = hvi_now_ms() + END_TIMEOUT_MS;
    struct pollfd p = {.fd = hvi_pidfd_open(k->pid), .events = POLLIN};

    let_end(k);
    while (waitpid(k->pid, NULL, WNOHANG) == 0 && hvi_now_ms() < deadline)
        poll(&p, 1, p.fd >= 0 ? hvi_ms_left(deadline) : 1); /* an old kernel */
    if (p.fd >= 0)
        close(p.fd);
}

void hvi_keeper_leave(struct hvi_keeper *k)
{
    if (k->own)
        hvi_keeper_stop(k);
    else
        let_end(k);
}
