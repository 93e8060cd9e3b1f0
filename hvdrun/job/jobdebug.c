/*
 * Ranks under a debugger, and ranks that wait for one.
 *
 * Happy path: a socket in the runtime directory; a debugged rank has started; in tmux a
 * pane is opened with `hvdrun attach`, else the first one's runs on this terminal; it
 * connects, says ATTACH, hears ATTACHED and what the rank has written lately; OUTPUT,
 * STDIN_DATA, TERM_SIZE; EXITED when the rank is over. Failure paths: an attacher that
 * is not this user's, speaks nonsense or sends more than its window is closed; one that
 * goes leaves the debugger as it is. Whatever becomes of the attacher on our terminal,
 * the terminal's settings are put back.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "hvdrun/debug/attach.h"
#include "hvdrun/debug/debugwords.h"
#include "hvdrun/job/exitcode.h"
#include "hvdrun/job/job_impl.h"
#include "hvdrun/job/proc.h"
#include "proto/base/clock.h"
#include "proto/base/env.h"

#define HISTORY_BYTES ((size_t)64 * 1024)      /* shown to who attaches */
#define CLIENT_HIGH_BYTES ((size_t)256 * 1024) /* unread by it: the rank waits */
#define SPARE_CLIENTS 16                       /* besides one for each debugged rank */
#define ATTACHER_MS 1000                       /* to put the terminal in order */
#define REAP_MS 1           /* not 0: closed handles need one more turn of the loop */
#define ACCEPT_AGAIN_MS 100 /* after no descriptor was left for one */

/* One `hvdrun attach`. */
struct client {
    struct hvi_job *job;
    struct client *next;
    struct hvi_chan chan;
    int rank; /* -1: has not said yet */
    pid_t pid;
    bool attached, dead;
    bool over; /* its rank is: nothing more is taken, what was sent it may read */
};

/* A debugged rank's terminal. */
struct term {
    struct client *client; /* NULL: nobody is attached */
    struct hvi_buf history;
    uint64_t sent, acked; /* of input */
    uint32_t rows, columns;
};

enum way { WAY_NONE = 0, WAY_TTY, WAY_TMUX };

struct hvi_job_debug {
    struct hvi_opts opts; /* the job's, with another stdin; borrowed content */
    bool *under, *wait;   /* [np] */
    int nunder;
    enum way way;
    struct term *term; /* [np] */
    int listen_fd;
    uv_poll_t listener;
    uv_timer_t reaper, pause; /* pause: of the listener */
    bool listening;
    struct client *clients;
    int nclients;
    char self[PATH_MAX];
    /* tmux: one command at a time */
    const char *pane;
    pid_t tmux_pid;
    int pane_rank, npanes; /* pane_rank: whose is being opened; -1: none */
    bool second_try, *wants_pane;
    /* the attacher on this terminal */
    int tty_fd;
    struct termios saved;
    pid_t tty_pid;
    int tty_rank;
};

bool hvi_job_debug_has(const struct hvi_job *j, int rank)
{
    return j->debug != NULL && j->debug->under[rank];
}

static const char *host_of(const struct hvi_job *j, int rank)
{
    return j->plan->host[j->plan->place[rank].host].name;
}

/* ---- before the job */

static bool have_tmux(void)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];

    while (path != NULL && *path != '\0') {
        size_t n = strcspn(path, ":");
        int len = snprintf(file, sizeof file, "%.*s/tmux", (int)n, path);

        if (n > 0 && len > 0 && len < (int)sizeof file && access(file, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0';
}

static enum hvd_status choose_way(struct hvi_job_debug *d, struct hvi_err *err)
{
    if (is_set("TMUX") && is_set("TMUX_PANE") && have_tmux()) {
        d->way = WAY_TMUX;
        d->pane = getenv("TMUX_PANE");
        return HVD_OK;
    }
    d->tty_fd = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    if (d->tty_fd >= 0 && tcgetpgrp(d->tty_fd) == getpgrp() &&
        tcgetattr(d->tty_fd, &d->saved) == 0) {
        d->way = WAY_TTY;
        return HVD_OK;
    }
    return hvi_fail(err, HVD_EINVAL,
                    "--debug needs a terminal with hvdrun in its foreground, or tmux; "
                    "without one: --wait-for-debugger");
}

/* A debugged rank has input of its own; and this terminal's is the debugger's. */
static void choose_stdin(struct hvi_job *j)
{
    struct hvi_job_debug *d = j->debug;

    d->opts = *j->opts;
    if ((d->opts.stdin_rank >= 0 && d->opts.stdin_rank < j->plan->np &&
         d->under[d->opts.stdin_rank]) ||
        (d->way == WAY_TTY && isatty(STDIN_FILENO) == 1))
        d->opts.stdin_rank = -1;
    j->opts = &d->opts;
}

enum hvd_status hvi_job_debug_open(struct hvi_job *j, struct hvi_err *err)
{
    size_t np = (size_t)j->plan->np;
    struct hvi_job_debug *d;
    ssize_t n;
    enum hvd_status rc;

    if (j->opts->debug == NULL && j->opts->wait_debug == NULL)
        return HVD_OK;
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    j->debug = d;
    d->listen_fd = d->tty_fd = d->pane_rank = d->tty_rank = -1;
    d->under = calloc(3 * np, sizeof *d->under);
    d->term = calloc(np, sizeof *d->term);
    if (d->under == NULL || d->term == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    d->wait = d->under + np;
    d->wants_pane = d->wait + np;
    n = readlink("/proc/self/exe", d->self, sizeof d->self - 1);
    d->self[n > 0 ? n : 0] = '\0';
    rc = hvi_debugwords_ranks("--debug", j->opts->debug, j->plan->np, d->under, err);
    if (rc == HVD_OK)
        rc = hvi_debugwords_ranks("--wait-for-debugger", j->opts->wait_debug,
                                  j->plan->np, d->wait, err);
    for (size_t r = 0; r < np && rc == HVD_OK; r++)
        d->nunder += d->under[r];
    if (rc == HVD_OK && d->nunder > 0)
        rc = choose_way(d, err);
    if (rc == HVD_OK)
        choose_stdin(j);
    return rc;
}

size_t hvi_job_debug_fds(const struct hvi_job *j)
{
    return j->debug != NULL ? 4 + 2 * (size_t)j->debug->nunder : 0;
}

/* ---- attachers */

static void reap_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;
    struct client **at = &j->debug->clients;

    while (*at != NULL) {
        struct client *c = *at;

        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        hvi_chan_fini(&c->chan);
        free(c);
    }
}

static void drop(struct client *c)
{
    struct hvi_job *j = c->job;
    struct hvi_job_debug *d = j->debug;

    if (c->dead)
        return;
    c->dead = true;
    d->nclients--;
    hvi_chan_close(&c->chan);
    if (c->attached && d->term[c->rank].client == c) {
        d->term[c->rank].client = NULL;
        hvi_job_output_ack(j, c->rank, 1);
    }
    if (d->listening)
        uv_timer_start(&d->reaper, reap_cb, REAP_MS, 0);
}

static void reply(struct client *c, enum hvd_status status, const char *text)
{
    Hvi__Attached msg = HVI__ATTACHED__INIT;

    msg.status = status;
    msg.text = (char *)(uintptr_t)text;
    if (status == HVD_OK)
        msg.unacked =
            c->job->debug->term[c->rank].sent - c->job->debug->term[c->rank].acked;
    (void)hvi_chan_send(&c->chan, HVI_MSG_ATTACHED, &msg);
    c->over = status != HVD_OK;
    if (c->over)
        hvi_chan_end_output(&c->chan); /* it reads that, and closes */
}

static void send_bytes(struct client *c, const void *data, size_t size_bytes)
{
    Hvi__Output msg = HVI__OUTPUT__INIT;

    msg.rank = c->rank;
    msg.stream = 1;
    msg.data.data = (uint8_t *)(uintptr_t)data;
    msg.data.len = size_bytes;
    if (size_bytes > 0)
        (void)hvi_chan_send(&c->chan, HVI_MSG_OUTPUT, &msg);
}

static void tell_exit(struct client *c)
{
    struct hvi_job *j = c->job;
    Hvi__Exited msg = HVI__EXITED__INIT;

    msg.rank = c->rank;
    msg.pid = j->rank[c->rank].pid;
    msg.wait_status = j->verdict.rank[c->rank].wait_status;
    msg.age_ms = (uint64_t)j->rank[c->rank].age_ms;
    (void)hvi_chan_send(&c->chan, HVI_MSG_EXITED, &msg);
    hvi_chan_end_output(&c->chan);
}

static void send_size(struct hvi_job *j, int rank)
{
    const struct term *t = &j->debug->term[rank];
    Hvi__TermSize msg = HVI__TERM_SIZE__INIT;

    msg.rank = rank;
    msg.rows = t->rows;
    msg.columns = t->columns;
    if (t->rows > 0 && j->rank[rank].started)
        (void)hvi_chan_send(&j->agent[j->rank[rank].host].chan, HVI_MSG_TERM_SIZE,
                            &msg);
}

/* Its rank has started: now it may write. */
static void let_in(struct client *c)
{
    struct hvi_job *j = c->job;
    struct term *t = &j->debug->term[c->rank];
    char text[HVI_HOST_NAME_MAX + 96];

    snprintf(text, sizeof text, "rank %d on %s (pid %d)", c->rank, host_of(j, c->rank),
             j->rank[c->rank].pid);
    c->attached = true;
    reply(c, HVD_OK, text);
    send_bytes(c, hvi_buf_peek(&t->history), hvi_buf_size(&t->history));
    send_size(j, c->rank);
}

static void refuse(struct client *c, int rank)
{
    struct hvi_job *j = c->job;
    char text[256];

    if (rank < 0 || rank >= j->plan->np)
        snprintf(text, sizeof text, "the job has ranks 0 to %d", j->plan->np - 1);
    else if (!j->debug->under[rank])
        snprintf(text, sizeof text,
                 "rank %d is not under a debugger; those named by --debug are", rank);
    else if (j->rank[rank].over || j->verdict.rank[rank].exited)
        snprintf(text, sizeof text, "rank %d has ended", rank);
    else
        snprintf(text, sizeof text,
                 "rank %d is attached by process %d; detach it there first (Ctrl-] d)",
                 rank, (int)j->debug->term[rank].client->pid);
    reply(c, HVD_EINVAL, text);
}

static void on_attach(struct client *c, const Hvi__Attach *m)
{
    struct hvi_job *j = c->job;

    if (strcmp(m->version, HVI_VERSION) != 0) {
        reply(c, HVD_EPROTO, "this hvdrun is of another version than the job's");
    } else if (m->rank < 0 || m->rank >= j->plan->np || !j->debug->under[m->rank] ||
               j->verdict.rank[m->rank].exited || j->rank[m->rank].over ||
               j->debug->term[m->rank].client != NULL) {
        refuse(c, m->rank);
    } else {
        c->rank = m->rank;
        j->debug->term[m->rank].client = c;
        if (j->rank[m->rank].started)
            let_in(c);
    }
}

static void on_keys(struct client *c, const Hvi__StdinData *m)
{
    struct hvi_job *j = c->job;
    struct term *t = &j->debug->term[c->rank];
    Hvi__StdinData msg = HVI__STDIN_DATA__INIT;

    if (m->data.len == 0 || j->verdict.rank[c->rank].exited)
        return;
    if (t->sent - t->acked + m->data.len > HVI_JOB_STDIN_WINDOW_BYTES) {
        drop(c);
        return;
    }
    t->sent += m->data.len;
    msg.rank = c->rank;
    msg.data = m->data;
    (void)hvi_chan_send(&j->agent[j->rank[c->rank].host].chan, HVI_MSG_STDIN_DATA,
                        &msg);
}

static void on_size(struct client *c, const Hvi__TermSize *m)
{
    struct term *t = &c->job->debug->term[c->rank];

    if (m->rows < 1 || m->rows > UINT16_MAX || m->columns < 1 ||
        m->columns > UINT16_MAX)
        return;
    t->rows = m->rows;
    t->columns = m->columns;
    send_size(c->job, c->rank);
}

static void client_frame(struct hvi_chan *chan, const struct hvi_msg *msg)
{
    struct client *c = chan->data;

    if (c->over)
        return;
    if (msg->type == HVI_MSG_ATTACH && c->rank < 0)
        on_attach(c, msg->body);
    else if (msg->type == HVI_MSG_TERM_SIZE && c->rank >= 0)
        on_size(c, msg->body);
    else if (msg->type == HVI_MSG_STDIN_DATA && c->attached)
        on_keys(c, msg->body);
    else
        drop(c);
    if (c->dead) /* it may have been the last that was awaited */
        hvi_job_check_over(c->job);
}

static void client_end(struct hvi_chan *chan, const char *why)
{
    struct client *c = chan->data;
    struct hvi_job *j = c->job;
    bool was = c->attached && !j->verdict.rank[c->rank].exited;
    int rank = c->rank;

    (void)why;
    if (rank >= 0 && j->debug->term[rank].client == c)
        j->debug->term[rank].client = NULL;
    drop(c);
    if (was && j->phase == HVI_JOB_RUNNING && !j->stopping)
        hvi_job_say(j, "nobody is attached to rank %d any more; 'hvdrun attach %d %d'",
                    rank, (int)getpid(), rank);
    if (was)
        hvi_job_output_ack(j, rank, 1);
    hvi_job_check_over(j);
}

static void client_drain(struct hvi_chan *chan)
{
    struct client *c = chan->data;

    if (c->attached && !c->dead)
        hvi_job_output_ack(c->job, c->rank, HVI_JOB_ACK_BYTES);
    hvi_job_check_over(c->job); /* it may have been the last that was awaited */
}

static const struct hvi_chan_ops client_ops = {client_frame, client_end, client_drain};

static bool is_ours(int fd, pid_t *pid)
{
    struct ucred peer;
    socklen_t n = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 ||
        (peer.uid != geteuid() && peer.uid != 0))
        return false;
    *pid = peer.pid;
    return true;
}

static void take(struct hvi_job *j, int fd, pid_t pid)
{
    struct client *c = calloc(1, sizeof *c);
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    struct hvi_err err;

    if (c == NULL || copy < 0) {
        free(c);
        close(fd);
        if (copy >= 0)
            close(copy);
        return;
    }
    c->job = j;
    c->rank = -1;
    c->pid = pid;
    c->next = j->debug->clients;
    j->debug->clients = c;
    j->debug->nclients++;
    if (hvi_chan_open(&c->chan, &j->loop, fd, copy, &client_ops, c, &err) != HVD_OK)
        drop(c);
}

static void accept_cb(uv_poll_t *p, int status, int events);

static void again_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;

    uv_poll_start(&j->debug->listener, UV_READABLE, accept_cb);
}

static void accept_cb(uv_poll_t *p, int status, int events)
{
    struct hvi_job *j = p->data;
    pid_t pid;
    int fd = accept4(j->debug->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    (void)status;
    (void)events;
    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return;
    if (fd < 0) { /* it stays readable */
        uv_poll_stop(p);
        uv_timer_start(&j->debug->pause, again_cb, ACCEPT_AGAIN_MS, 0);
        return;
    }
    if (is_ours(fd, &pid) && j->debug->nclients < j->debug->nunder + SPARE_CLIENTS)
        take(j, fd, pid);
    else
        close(fd);
}

enum hvd_status hvi_job_debug_listen(struct hvi_job *j, struct hvi_err *err)
{
    struct hvi_job_debug *d = j->debug;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    if (d == NULL || d->nunder == 0)
        return HVD_OK;
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/" HVI_ATTACH_SOCKET, j->rundir);
    d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (d->listen_fd < 0 ||
        bind(d->listen_fd, (struct sockaddr *)&sa, sizeof sa) != 0 ||
        listen(d->listen_fd, SPARE_CLIENTS) != 0)
        return hvi_fail(err, HVD_EIO, "%s: %s", sa.sun_path, strerror(errno));
    uv_timer_init(&j->loop, &d->reaper);
    uv_timer_init(&j->loop, &d->pause);
    d->reaper.data = d->pause.data = j;
    d->listening = true;
    if (uv_poll_init(&j->loop, &d->listener, d->listen_fd) != 0)
        return hvi_fail(err, HVD_EIO, "%s: it cannot be watched", sa.sun_path);
    d->listener.data = j;
    uv_poll_start(&d->listener, UV_READABLE, accept_cb);
    return HVD_OK;
}

/* ---- terminals */

/* In the child: only async-signal-safe calls. */
static _Noreturn void be(char *const argv[], int fd)
{
    hvi_proc_reset_signals();
    for (int i = 0; i < 3; i++)
        dup2(fd, i);
    execvp(argv[0], argv);
    _exit(127);
}

static pid_t start(char *const argv[], int fd)
{
    pid_t pid;

    hvi_proc_note_signals();
    pid = fork();
    if (pid == 0)
        be(argv, fd);
    return pid;
}

static void say_how(struct hvi_job *j, int rank)
{
    hvi_job_say(j,
                "rank %d on %s is under the debugger (pid %d): 'hvdrun attach %d %d'",
                rank, host_of(j, rank), j->rank[rank].pid, (int)getpid(), rank);
}

static void start_attacher(struct hvi_job *j, int rank)
{
    struct hvi_job_debug *d = j->debug;
    static char attach[] = "attach", shared[] = "--shared";
    char number[16];
    char *argv[] = {d->self, attach, shared, j->rundir, number, NULL};

    snprintf(number, sizeof number, "%d", rank);
    d->tty_rank = rank;
    d->tty_pid = start(argv, d->tty_fd);
    if (d->tty_pid < 0) {
        d->tty_pid = 0;
        say_how(j, rank);
    }
}

/* A pane beside ours; where there is no room, a window. */
static void open_pane(struct hvi_job *j, int rank)
{
    struct hvi_job_debug *d = j->debug;
    char number[16];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const char *split[] = {"tmux",
                           "split-window",
                           "-t",
                           d->pane,
                           d->npanes > 0 ? "-d" : "-v",
                           d->self,
                           "attach",
                           j->rundir,
                           number,
                           ";",
                           "select-layout",
                           "-t",
                           d->pane,
                           "tiled",
                           NULL};
    const char *window[] = {"tmux",  "new-window", "-d",      "-n",   number,
                            d->self, "attach",     j->rundir, number, NULL};

    snprintf(number, sizeof number, "%d", rank);
    d->pane_rank = rank;
    d->tmux_pid =
        null < 0
            ? -1
            : start((char *const *)(uintptr_t)(d->second_try ? window : split), null);
    if (null >= 0)
        close(null);
    if (d->tmux_pid < 0) {
        d->tmux_pid = 0;
        say_how(j, rank);
    }
}

static void next_pane(struct hvi_job *j)
{
    struct hvi_job_debug *d = j->debug;

    for (int r = 0; r < j->plan->np && d->tmux_pid == 0; r++)
        if (d->wants_pane[r]) {
            d->wants_pane[r] = false;
            d->second_try = false;
            open_pane(j, r);
        }
}

static void tmux_ended(struct hvi_job *j, int status)
{
    struct hvi_job_debug *d = j->debug;
    int rank = d->pane_rank;

    d->tmux_pid = 0;
    d->npanes++;
    if (status != 0 && !d->second_try) {
        d->second_try = true;
        open_pane(j, rank);
        return;
    }
    if (status != 0 || d->second_try) /* or it is in a window of its own */
        say_how(j, rank);
    next_pane(j);
}

/* Only if nobody else has the terminal by now. */
static void restore_terminal(const struct hvi_job_debug *d)
{
    if (d->tty_fd >= 0 && d->tty_rank >= 0 && tcgetpgrp(d->tty_fd) == getpgrp())
        (void)tcsetattr(d->tty_fd, TCSADRAIN, &d->saved);
}

static void attacher_ended(struct hvi_job *j)
{
    struct hvi_job_debug *d = j->debug;

    d->tty_pid = 0;
    restore_terminal(d);
}

void hvi_job_debug_reaped(struct hvi_job *j, pid_t pid, int status)
{
    if (j->debug == NULL || WIFSTOPPED(status) || WIFCONTINUED(status))
        return;
    if (pid == j->debug->tty_pid)
        attacher_ended(j);
    else if (pid == j->debug->tmux_pid)
        tmux_ended(j, status);
}

static int first_under(const struct hvi_job_debug *d)
{
    int r = 0;

    while (!d->under[r])
        r++;
    return r;
}

/* gdb would show the stop once more, and hand it on. */
#define GDB_STOP " -ex 'handle SIGSTOP nostop noprint nopass'"

/* The whole command that attaches, as for a shell. */
static void say_waits(struct hvi_job *j, int rank)
{
    const struct hvi_host *host = &j->plan->host[j->plan->place[rank].host];
    const char *command =
        j->opts->debugger != NULL ? j->opts->debugger : HVI_DEBUGGER_DEFAULT;
    char way[2 * HVI_HOST_NAME_MAX + 64] = "", port[32] = "";
    char dest[2 * HVI_HOST_NAME_MAX + 2];
    bool ssh = host->remote && j->rshell.kind == HVI_RSHELL_SSH;
    int n = (int)strcspn(command, " \t");
    bool gdb = n >= 3 && strncmp(command + n - 3, "gdb", 3) == 0;

    if (j->opts->ssh_port > 0)
        snprintf(port, sizeof port, "-p %d ", j->opts->ssh_port);
    if (ssh)
        snprintf(way, sizeof way, "ssh -t %s%s \"", port,
                 hvi_sshargv_destination(host, dest, sizeof dest));
    else if (host->remote)
        snprintf(way, sizeof way, "there, ");
    hvi_job_say(j, "rank %d on %s (pid %d) waits for a debugger: %s%.*s -p %d%s%s",
                rank, host->name, j->rank[rank].pid, way, n, command, j->rank[rank].pid,
                gdb ? GDB_STOP : "", ssh ? "\"" : "");
}

void hvi_job_debug_started(struct hvi_job *j, int rank)
{
    struct hvi_job_debug *d = j->debug;

    if (d == NULL || j->stopping)
        return;
    if (d->wait[rank])
        say_waits(j, rank);
    if (!d->under[rank])
        return;
    if (d->term[rank].client != NULL)
        let_in(d->term[rank].client);
    if (d->way == WAY_TTY && rank == first_under(d)) {
        start_attacher(j, rank);
    } else if (d->way == WAY_TMUX) {
        d->wants_pane[rank] = true;
        next_pane(j);
    } else {
        say_how(j, rank);
    }
}

/* ---- bytes */

static void remember(struct term *t, const void *data, size_t size_bytes)
{
    size_t have;

    if (hvi_buf_append(&t->history, data, size_bytes) != HVD_OK)
        return;
    have = hvi_buf_size(&t->history);
    if (have > HISTORY_BYTES)
        hvi_buf_consume(&t->history, have - HISTORY_BYTES);
}

bool hvi_job_debug_output(struct hvi_job *j, int rank, const void *data,
                          size_t size_bytes)
{
    struct term *t = &j->debug->term[rank];

    remember(t, data, size_bytes);
    if (t->client == NULL || !t->client->attached)
        return true;
    send_bytes(t->client, data, size_bytes);
    return hvi_chan_backlog(&t->client->chan) < CLIENT_HIGH_BYTES;
}

void hvi_job_debug_acked(struct hvi_job *j, int rank, uint64_t bytes)
{
    struct term *t = &j->debug->term[rank];
    Hvi__OutputAck msg = HVI__OUTPUT_ACK__INIT;

    t->acked += bytes;
    if (bytes == 0 || t->client == NULL || !t->client->attached)
        return;
    msg.rank = rank;
    msg.bytes = bytes;
    (void)hvi_chan_send(&t->client->chan, HVI_MSG_OUTPUT_ACK, &msg);
}

void hvi_job_debug_over(struct hvi_job *j, int rank)
{
    struct client *c = hvi_job_debug_has(j, rank) ? j->debug->term[rank].client : NULL;

    if (c == NULL)
        return;
    j->debug->term[rank].client = NULL;
    if (c->attached)
        tell_exit(c);
    else
        reply(c, HVD_EINVAL, "the rank was not started");
    c->attached = false;
    c->over = true;
}

/* ---- the end */

bool hvi_job_debug_idle(const struct hvi_job *j)
{
    if (j->debug == NULL || j->impatient)
        return true;
    for (const struct client *c = j->debug->clients; c != NULL; c = c->next)
        if (!c->dead && hvi_chan_backlog(&c->chan) > 0)
            return false;
    return true;
}

void hvi_job_debug_close(struct hvi_job *j)
{
    struct hvi_job_debug *d = j->debug;

    if (d == NULL || !d->listening)
        return;
    d->listening = false;
    if (d->listener.data != NULL)
        uv_close((uv_handle_t *)&d->listener, NULL);
    uv_close((uv_handle_t *)&d->reaper, NULL);
    uv_close((uv_handle_t *)&d->pause, NULL);
    for (struct client *c = d->clients; c != NULL; c = c->next)
        if (!c->dead)
            hvi_chan_close(&c->chan);
}

static bool await_attacher(struct hvi_job_debug *d, int limit_ms)
{
    int64_t deadline = hvi_now_ms() + limit_ms;

    while (waitpid(d->tty_pid, NULL, WNOHANG) == 0) {
        if (hvi_now_ms() >= deadline)
            return false;
        poll(NULL, 0, 2);
    }
    d->tty_pid = 0;
    return true;
}

void hvi_job_debug_end(struct hvi_job *j)
{
    static const int how[] = {0, SIGTERM, SIGKILL};
    struct hvi_job_debug *d = j->debug;

    if (d == NULL)
        return;
    for (size_t i = j->left; i < 3 && d->tty_pid > 0; i++) {
        if (how[i] != 0)
            kill(d->tty_pid, how[i]);
        (void)await_attacher(d, ATTACHER_MS);
    }
    restore_terminal(d);
}

void hvi_job_debug_fini(struct hvi_job *j)
{
    struct hvi_job_debug *d = j->debug;

    if (d == NULL)
        return;
    while (d->clients != NULL) {
        struct client *c = d->clients;

        d->clients = c->next;
        hvi_chan_fini(&c->chan);
        free(c);
    }
    for (int r = 0; d->term != NULL && r < j->plan->np; r++)
        hvi_buf_fini(&d->term[r].history);
    if (d->listen_fd >= 0)
        close(d->listen_fd);
    if (d->tty_fd >= 0)
        close(d->tty_fd);
    free(d->term);
    free(d->under);
    free(d);
    j->debug = NULL;
}
