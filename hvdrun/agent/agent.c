#include "hvdrun/agent/agent.h"

/*
 * Happy path: AGENT_UP; JOB_SPEC; the link to the coordinator comes up; ranks are
 * forked; STARTED, OUTPUT, EXITED for each; hvdrun closes our stdin; we end. Failure
 * paths: stdin ends while ranks run (hvdrun is gone): kill all at once. The keeper
 * dies: kill all, tell. The link does not come up, or its lease runs out: kill all,
 * tell. The link ends otherwise: tell hvdrun, which knows whether that matters. Each
 * rank of the specification gets exactly one EXITED, also one that never started (pid
 * 0).
 */

#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/cgroup.h"
#include "hvdrun/agent/crew.h"
#include "hvdrun/agent/link.h"
#include "hvdrun/agent/rank.h"
#include "hvdrun/io/procstat.h"
#include "hvdrun/job/proc.h"
#include "hvdrun/job/rundir.h"
#include "hvdrun/job/strays.h"
#include "hvdrun/topo/layout.h"
#include "proto/base/clock.h"
#include "proto/base/env.h"
#include "proto/base/limits.h"
#include "proto/base/log.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned through an array inside a struct */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#define STRAYS_MS 200 /* for descendants that left their process group to be gone */
#define ENDPOINTS_MAX 12
#define LEAVE_MS 3000 /* after the lease: to tell hvdrun, if it is there after all */
#define LINGER_MS                                                                      \
    250 /* how long a descendant may hold an ended worker's output, twice */
#define ALL_WINDOWS_BYTES (64u * 1024 * 1024) /* unacknowledged output of all ranks */
#define MIN_WINDOW_BYTES (128u * 1024)
/* Of each rank: two pipes, a pidfd and, until it has begun, the pipe that tells how. A
 * starter has the child's ends of these open. */
#define FDS_PER_RANK 4
#define FDS_OF_A_START 12
#define FDS_OF_A_STARTER 5
#define STARTERS_MAX 16       /* threads that start ranks */
#define STARTERS_FROM_RANKS 4 /* for fewer a thread costs more than it saves */

struct agent {
    uv_loop_t loop;
    struct hvi_chan chan;
    struct hvi_agent_link link[ENDPOINTS_MAX]; /* one a try */
    char *endpoint[ENDPOINTS_MAX]; /* of the coordinator, in the order of the tries */
    int nendpoints, at;            /* at: the one that is used */
    struct hvi_keeper *keeper;
    uv_poll_t keeper_poll;
    uv_signal_t sigchld;
    uv_timer_t stop_timer, linger_timer, leave_timer;
    bool handles_open;
    const char *rundir;
    char cgroup[256];
    int cgroup_fd, null_fd;
    /* the job */
    char **argv, **debug_argv; /* debug_argv: of ranks under a debugger, or NULL */
    size_t ndebugger;          /* its words that are the debugger's, owned */
    char *cwd, *host, *coordinator;
    uint8_t key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    struct hvi_jobenv env;
    struct hvi_rank *ranks;
    struct hvi_layout layout;
    bool bind_asked, report_bindings;
    int nranks, nexited, nended; /* ended: exited and all output sent */
    int32_t stdin_rank;
    bool have_spec, launched, stopping, finished;
    uint64_t oom_kills; /* on this host, when the agent started */
};

static void send_msg(struct agent *a, uint32_t type, const void *body)
{
    (void)hvi_chan_send(&a->chan, type, body);
}

static void send_error(struct agent *a, enum hvd_status status, const char *text)
{
    Hvi__AgentError msg = HVI__AGENT_ERROR__INIT;

    msg.status = status;
    msg.text = (char *)text;
    send_msg(a, HVI_MSG_AGENT_ERROR, &msg);
}

/* ---- the end */

static void close_all(struct agent *a)
{
    if (!a->handles_open)
        return;
    a->handles_open = false;
    hvi_link_close(&a->link[a->at]);
    hvi_chan_close(&a->chan);
    uv_close((uv_handle_t *)&a->keeper_poll, NULL);
    uv_close((uv_handle_t *)&a->sigchld, NULL);
    uv_close((uv_handle_t *)&a->stop_timer, NULL);
    uv_close((uv_handle_t *)&a->linger_timer, NULL);
    uv_close((uv_handle_t *)&a->leave_timer, NULL);
    for (int i = 0; i < a->nranks; i++)
        hvi_rank_close(&a->ranks[i]);
}

static void signal_all(struct agent *a, int signo)
{
    for (int i = 0; i < a->nranks; i++)
        hvi_rank_signal(&a->ranks[i], signo);
}

/* Reaps what has already ended, so that it is not put down to us. */
static void mark_ours(struct agent *a)
{
    for (int i = 0; i < a->nranks; i++) {
        hvi_rank_check(&a->ranks[i]);
        a->ranks[i].by_us = !a->ranks[i].exited;
    }
    a->stopping = true;
}

static void kill_all(struct agent *a)
{
    mark_ours(a);
    signal_all(a, SIGKILL);
    if (a->cgroup[0] != '\0')
        hvi_cgroup_kill(a->cgroup);
}

static void kill_cb(uv_timer_t *t)
{
    kill_all(t->data);
}

static void send_exited(struct agent *a, const struct hvi_rank *r)
{
    Hvi__Exited msg = HVI__EXITED__INIT;

    msg.rank = r->rank;
    msg.pid = r->pid;
    msg.wait_status = r->wait_status;
    msg.by_us = r->by_us;
    msg.age_ms = r->pid != 0 ? (uint64_t)(hvi_now_ms() - r->started_ms) : 0;
    msg.out_of_memory = WIFSIGNALED(r->wait_status) &&
                        WTERMSIG(r->wait_status) == SIGKILL && !r->by_us &&
                        hvi_limits_oom_kills() > a->oom_kills;
    send_msg(a, HVI_MSG_EXITED, &msg);
}

/* One that never ran. */
static void send_not_run(struct agent *a, struct hvi_rank *r)
{
    r->exited = true;
    r->by_us = true;
    a->nexited++;
    a->nended++;
    send_exited(a, r);
}

static void stop_ranks(struct agent *a, uint32_t grace_ms)
{
    mark_ours(a);
    if (a->have_spec && !a->launched) {
        a->launched = true;
        for (int i = 0; i < a->nranks; i++)
            send_not_run(a, &a->ranks[i]);
    }
    if (grace_ms == 0) {
        kill_all(a);
        return;
    }
    signal_all(a, SIGTERM);
    signal_all(a, SIGCONT); /* a stopped process takes its SIGTERM only then */
    uv_timer_start(&a->stop_timer, kill_cb, grace_ms, 0);
}

/* ---- ranks */

/* The command may be relative to the ranks' directory, which is not ours. */
static bool command_exists(const struct agent *a, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s%s%s", a->argv[0][0] == '/' ? "" : a->cwd,
                     a->argv[0][0] == '/' ? "" : "/", a->argv[0]);

    return n > 0 && n < PATH_MAX && access(path, F_OK) == 0;
}

/* The line that names the interpreter was written on Windows. */
static bool has_return(const char *path)
{
    char line[256];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;

    if (fd >= 0)
        close(fd);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return line[0] != '\0' && line[strlen(line) - 1] == '\r';
}

static void word_debugger(const struct agent *a, int error, char *out, size_t cap)
{
    char shown[256];

    hvi_escape(shown, sizeof shown, a->debug_argv[0], strlen(a->debug_argv[0]));
    if (error == ENOENT)
        snprintf(out, cap,
                 "the debugger '%s' is not there; install it, or name another one "
                 "(--debugger)",
                 shown);
    else
        snprintf(out, cap, "cannot run the debugger '%s': %s", shown, strerror(error));
}

static void word_exec(const struct agent *a, int error, char *out, size_t cap)
{
    char shown[256], path[PATH_MAX];

    hvi_escape(shown, sizeof shown, a->argv[0], strlen(a->argv[0]));
    if (error == ENOENT && strchr(a->argv[0], '/') == NULL)
        snprintf(out, cap, "command '%s' is not on PATH", shown);
    else if (error == ENOENT && command_exists(a, path))
        snprintf(out, cap,
                 "cannot run '%s': the interpreter its first line names is missing%s",
                 shown,
                 has_return(path) ? "; that line ends with a carriage return, as on "
                                    "Windows: remove those (sed -i 's/\\r$//')"
                                  : "");
    else
        snprintf(out, cap, "cannot run '%s': %s%s", shown, strerror(error),
                 error == EACCES    ? "; is it a file that may be executed (chmod +x)?"
                 : error == ENOEXEC ? "; is it made for this kind of machine, and does "
                                      "a script begin with '#!'?"
                                    : "");
}

static void on_started(struct hvi_rank *r, const struct hvi_spawn_failure *f)
{
    struct agent *a = r->owner;
    Hvi__Started msg = HVI__STARTED__INIT;
    char shown[256], text[512] = "";

    if (f->stage == HVI_SPAWN_CHDIR) {
        hvi_escape(shown, sizeof shown, a->cwd, strlen(a->cwd));
        snprintf(text, sizeof text, "working directory %s: %s", shown,
                 strerror(f->error));
    } else if (f->stage == HVI_SPAWN_TRACE) {
        snprintf(text, sizeof text,
                 "no debugger can hold a rank here: ptrace: %s; is it forbidden "
                 "(kernel.yama.ptrace_scope, a container)?",
                 strerror(f->error));
    } else if (f->stage == HVI_SPAWN_KEEPER) {
        snprintf(text, sizeof text, "cannot start a rank: the keeper process %s",
                 f->error == ETIMEDOUT ? "does not answer" : "is gone");
    } else if (f->stage == HVI_SPAWN_EXEC && r->debug == HVI_RANK_TERMINAL) {
        word_debugger(a, f->error, text, sizeof text);
    } else if (f->stage == HVI_SPAWN_EXEC) {
        word_exec(a, f->error, text, sizeof text);
    } else if (f->stage != 0) {
        snprintf(text, sizeof text, "cannot start a rank: %s", strerror(f->error));
    }
    msg.rank = r->rank;
    msg.pid = r->pid;
    msg.status = -f->error;
    msg.stage = (uint32_t)f->stage;
    msg.text = text;
    send_msg(a, HVI_MSG_STARTED, &msg);
}

static void ended_one(struct agent *a)
{
    a->nended++;
    if (a->nended == a->nranks)
        uv_timer_stop(&a->linger_timer);
}

/* The job ends, and of this host's ranks it has ended: what had left their groups does not
 * wait for hvdrun, which may wait for another host. */
static void kill_strays(struct agent *a)
{
    if (a->stopping && a->launched && a->nexited == a->nranks)
        hvi_strays_kill(a->keeper->pid, 0);
}

static void on_exited(struct hvi_rank *r)
{
    struct agent *a = r->owner;
    Hvi__RankExited msg = HVI__RANK_EXITED__INIT;

    a->nexited++;
    send_exited(a, r);
    msg.rank = r->rank;
    msg.pid = r->pid;
    msg.wait_status = r->wait_status;
    hvi_link_send(&a->link[a->at], HVI_MSG_RANK_EXITED, &msg);
    if (r->open_streams == 0)
        ended_one(a);
    else if (!uv_is_active((uv_handle_t *)&a->linger_timer))
        uv_timer_again(&a->linger_timer);
    if (a->nexited == a->nranks)
        uv_timer_stop(&a->stop_timer);
    kill_strays(a);
}

static void on_output_end(struct hvi_rank *r)
{
    if (r->exited)
        ended_one(r->owner);
}

static const struct hvi_rank_ops rank_ops = {on_started, on_exited, on_output_end};

static void linger_cb(uv_timer_t *t)
{
    struct agent *a = t->data;

    for (int i = 0; i < a->nranks; i++)
        for (int s = 0; s < 2; s++)
            hvi_wout_linger(&a->ranks[i].out[s]);
}

static void sigchld_cb(uv_signal_t *s, int signo)
{
    struct agent *a = s->data;

    (void)signo;
    for (int i = 0; i < a->nranks; i++)
        if (a->ranks[i].pidfd < 0)
            hvi_rank_check(&a->ranks[i]);
    kill_strays(a);
}

static void report_started(struct agent *a, const struct hvi_rank *r)
{
    Hvi__RankStarted msg = HVI__RANK_STARTED__INIT;

    msg.rank = r->rank;
    msg.pid = r->pid;
    hvi_link_send(&a->link[a->at], HVI_MSG_RANK_STARTED, &msg);
}

/* A rank that could not be forked: the others go, the job is over. */
static void start_failed(struct agent *a, struct hvi_rank *r,
                         const struct hvi_spawn_failure *f, const char *why)
{
    char text[HVD_ERROR_TEXT_MAX + 64];
    Hvi__Started msg = HVI__STARTED__INIT;

    snprintf(text, sizeof text, "cannot start rank %d: %s", r->rank, why);
    msg.rank = r->rank;
    msg.status = f->error != 0 ? -f->error : -EIO;
    msg.stage = (uint32_t)f->stage;
    msg.text = text;
    send_msg(a, HVI_MSG_STARTED, &msg);
}

/* ---- binding */

/* What the first rank of the host tells of all: what was asked for and is not so. */
static const char *complaint(const struct agent *a)
{
    const struct hvi_shares *s = &a->layout.shares;

    if (!a->bind_asked)
        return NULL;
    return s->kind == HVI_BIND_NONE ? "" : s->crowded ? "; ranks share cores" : NULL;
}

static void report_binding(struct agent *a, struct hvi_rank *r, int i, const char *more)
{
    char words[1024];

    hvi_layout_words(&a->layout, i, words, sizeof words);
    if (asprintf(&r->note, "hvdrun: rank %d on %s: %s%s\n", r->rank, a->host, words,
                 more) < 0)
        r->note = NULL;
}

static void bind_ranks(struct agent *a)
{
    const char *more = complaint(a);

    for (int i = 0; i < a->nranks; i++) {
        a->ranks[i].cpus =
            a->layout.shares.kind != HVI_BIND_NONE ? &a->layout.rank[i].cpus : NULL;
        if (a->report_bindings || (more != NULL && i == 0))
            report_binding(a, &a->ranks[i], i, i == 0 && more != NULL ? more : "");
    }
}

/* What is needed to start all ranks, and what came of each. */
struct start {
    struct agent *a;
    struct hvi_rank_common common;
    struct start_of_one {
        enum hvd_status rc;
        struct hvi_spawn_failure failure;
        struct hvi_err err;
    } * one; /* [nranks] */
    atomic_bool failed;
};

/* In a thread of the crew. */
static void start_one(void *arg, int i)
{
    struct start *s = arg;
    struct hvi_rank *r = &s->a->ranks[i];
    struct start_of_one *one = &s->one[i];
    int32_t reader = s->a->stdin_rank;

    if (atomic_load(&s->failed))
        return;
    one->rc = hvi_rank_fork(r, &s->common, reader == -2 || reader == r->rank,
                            &one->failure, &one->err);
    if (one->rc != HVD_OK)
        atomic_store(&s->failed, true);
}

/* A vfork keeps its thread waiting for an exec that may have to wait for a processor. With
 * one thread for each of these there is always one that goes on. */
static int starters(const struct agent *a)
{
    cpu_set_t cpus;
    int n = 1;

    CPU_ZERO(&cpus);
    if (a->nranks >= STARTERS_FROM_RANKS &&
        sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        n = CPU_COUNT(&cpus);
    for (int i = 0; i < a->nranks; i++) /* a tracer is a thread, not a process */
        if (a->ranks[i].debug != HVI_RANK_PLAIN)
            n = 1;
    if (n > (a->nranks + FDS_OF_A_START) / FDS_OF_A_STARTER) /* check_limits() */
        n = (a->nranks + FDS_OF_A_START) / FDS_OF_A_STARTER;
    return n < STARTERS_MAX ? n : STARTERS_MAX;
}

/* Hands what runs to the loop, in the order of the ranks. false: one does not run. */
static bool watch_all(struct start *s)
{
    struct agent *a = s->a;
    bool told = false;

    for (int i = 0; i < a->nranks; i++) /* first: some may have connected already */
        if (a->ranks[i].pid != 0)
            report_started(a, &a->ranks[i]);
    for (int i = 0; i < a->nranks; i++) {
        struct hvi_rank *r = &a->ranks[i];
        struct start_of_one *one = &s->one[i];

        if (r->pid != 0)
            one->rc = hvi_rank_watch(r, &s->common, &one->err);
        if (r->pid == 0 && one->rc != HVD_OK && !told) {
            start_failed(a, r, &one->failure, one->err.text);
            told = true;
        }
    }
    return !told;
}

static void launch(struct agent *a)
{
    uint64_t window = ALL_WINDOWS_BYTES / (unsigned)(2 * a->nranks);
    struct start s = {.a = a,
                      .common = {.loop = &a->loop,
                                 .chan = &a->chan,
                                 .keeper = a->keeper,
                                 .ops = &rank_ops,
                                 .owner = a,
                                 .argv = a->argv,
                                 .debug_argv = a->debug_argv,
                                 .cwd = a->cwd,
                                 .env = &a->env,
                                 .null_fd = a->null_fd,
                                 .cgroup_fd = a->cgroup_fd},
                      .one = calloc((size_t)a->nranks, sizeof *s.one)};
    bool all;

    if (s.one == NULL) {
        send_error(a, HVD_ENOMEM, "out of memory");
        stop_ranks(a, 0);
        return;
    }
    if (window > HVI_OUTPUT_WINDOW_BYTES)
        window = HVI_OUTPUT_WINDOW_BYTES;
    s.common.window_bytes = window < MIN_WINDOW_BYTES ? MIN_WINDOW_BYTES : window;
    a->launched = true;
    bind_ranks(a);
    hvi_proc_note_signals();
    hvi_crew_run(starters(a), a->nranks, start_one, &s);
    all = watch_all(&s);
    free(s.one);
    if (all)
        return;
    for (int i = 0; i < a->nranks; i++)
        if (a->ranks[i].pid == 0)
            send_not_run(a, &a->ranks[i]);
    kill_all(a);
}

/* ---- the coordinator */

static void link_up(void *data)
{
    struct agent *a = data;
    Hvi__AgentHello hello = HVI__AGENT_HELLO__INIT;

    hello.version = (char *)HVI_VERSION;
    hello.host = a->host;
    hello.pid = getpid();
    hvi_link_send(&a->link[a->at], HVI_MSG_AGENT_HELLO, &hello);
    if (!a->launched &&
        hvi_jobenv_set(&a->env, "HVD_COORDINATOR", a->endpoint[a->at]) == HVD_OK)
        launch(a);
}

/* pid: who said HELLO for the rank, often a child of what we started (`sh run.sh`); its
 * number means something here if it is in the rank's process group. */
/* It belongs to what we started for this rank. */
static bool is_of(const struct hvi_rank *r, pid_t pid)
{
    if (r->debug == HVI_RANK_TERMINAL) /* a debugger gives its program a group */
        return hvi_procstat_session(pid) == r->pid;
    return hvi_procstat_group(pid) == r->pid;
}

static const char *rank_state(struct agent *a, int32_t rank, int32_t pid,
                              char out[HVI_PROCSTAT_WORDS_MAX])
{
    for (int i = 0; i < a->nranks; i++) {
        const struct hvi_rank *r = &a->ranks[i];

        if (r->rank == rank)
            return r->exited                  ? "exited"
                   : r->pid == 0              ? "not started"
                   : pid > 0 && is_of(r, pid) ? hvi_procstat_words(pid, out)
                                              : hvi_procstat_words(r->pid, out);
    }
    return "unknown";
}

static void answer_probe(struct agent *a, const Hvi__ProcProbe *q)
{
    Hvi__ProcState msg = HVI__PROC_STATE__INIT;
    char **states = calloc(q->n_ranks + 1, sizeof *states);
    char(*text)[HVI_PROCSTAT_WORDS_MAX] = calloc(q->n_ranks + 1, sizeof *text);

    if (states == NULL || text == NULL) {
        free(states);
        free(text);
        return;
    }
    for (size_t i = 0; i < q->n_ranks; i++)
        states[i] =
            (char *)rank_state(a, q->ranks[i], i < q->n_pids ? q->pids[i] : 0, text[i]);
    msg.probe = q->probe;
    msg.n_ranks = msg.n_states = q->n_ranks;
    msg.ranks = q->ranks;
    msg.states = states;
    hvi_link_send(&a->link[a->at], HVI_MSG_PROC_STATE, &msg);
    free(states);
    free(text);
}

static void link_frame(void *data, const struct hvi_msg *msg)
{
    struct agent *a = data;

    if (msg->type == HVI_MSG_PROC_PROBE)
        answer_probe(a, msg->body);
    else if (msg->type == HVI_MSG_REFUSED)
        send_error(a, HVD_EIO, ((const Hvi__Refused *)msg->body)->text);
    else
        hvi_log_debug("agent", "ignored %s from the coordinator",
                      hvi_msg_name(msg->type));
}

/* The host of hvdrun is gone, and with it whoever would close our stdin: an ssh server
 * may notice only after hours. */
static void leave_cb(uv_timer_t *t)
{
    struct agent *a = t->data;

    a->finished = true;
    close_all(a);
}

static enum hvd_status open_link(struct agent *a, struct hvi_err *err);

static void link_down(void *data, bool lease, const char *why)
{
    struct agent *a = data;
    char text[HVD_ERROR_TEXT_MAX + 64];
    struct hvi_err err = {""};

    if (a->nexited == a->nranks && a->launched)
        return;
    if (!a->launched && !a->stopping && a->at + 1 < a->nendpoints) {
        hvi_log_info("agent", "%s: %s", a->endpoint[a->at], why);
        a->at++;
        if (open_link(a, &err) == HVD_OK)
            return;
        why = err.text;
    }
    if (a->launched || strncmp(a->coordinator, "tcp:", 4) != 0)
        snprintf(text, sizeof text, "%s the coordinator: %s",
                 a->launched ? "lost" : "cannot reach", why);
    else
        snprintf(text, sizeof text,
                 "cannot reach the coordinator at %s, the address of hvdrun's host: "
                 "%s; does a firewall stop it, or is another interface meant "
                 "(--network-interfaces)?",
                 a->coordinator + 4, why);
    send_error(a, a->launched ? HVD_EPEER : HVD_EIO, text);
    if (lease) {
        kill_all(a);
        uv_timer_start(&a->leave_timer, leave_cb, LEAVE_MS, 0);
    } else if (!a->launched)
        stop_ranks(a, 0);
}

static const struct hvi_link_ops link_ops = {link_up, link_frame, link_down};

/* ---- hvdrun */

static char *dup_bytes(const ProtobufCBinaryData *b)
{
    return b->len > 0 ? strndup((const char *)b->data, b->len) : strdup("");
}

static enum hvd_status put_vars(struct hvi_jobenv *env, Hvi__EnvVar *const *vars,
                                size_t n)
{
    for (size_t i = 0; i < n; i++) {
        enum hvd_status rc = hvi_jobenv_put(env, vars[i]->name.data, vars[i]->name.len,
                                            vars[i]->value.data, vars[i]->value.len);
        if (rc != HVD_OK)
            return rc;
    }
    return HVD_OK;
}

/* GPU masks and the login are a matter of the host, not of where hvdrun runs; what
 * hvdrun sends all the same wins. */
static enum hvd_status put_host_vars(struct hvi_jobenv *env)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES",
                                        "CUDA_DEVICE_ORDER",
                                        "OMP_NUM_THREADS",
                                        "HIP_VISIBLE_DEVICES",
                                        "ROCR_VISIBLE_DEVICES",
                                        "HOME",
                                        "USER",
                                        "LOGNAME",
                                        "SHELL",
                                        "XDG_RUNTIME_DIR",
                                        "PATH"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *v = getenv(names[i]);

        if (v != NULL && hvi_jobenv_set(env, names[i], v) != HVD_OK)
            return HVD_ENOMEM;
    }
    return HVD_OK;
}

static const char *get_var(const void *env, const char *name)
{
    return hvi_jobenv_get(env, name);
}

#define MASK "CUDA_VISIBLE_DEVICES"

/* As local rank i will have it so far. */
static const char *var_of(const struct agent *a, int i, const char *name)
{
    const char *own = hvi_jobenv_get(&a->ranks[i].env, name);

    return own != NULL ? own : hvi_jobenv_get(&a->env, name);
}

/* Variables that follow from a rank's cores and GPUs. */
static enum hvd_status put_layout(struct agent *a, int i)
{
    struct hvi_jobenv *env = &a->ranks[i].env;
    char text[HVI_LAYOUT_MASK_MAX];
    enum hvd_status rc = HVD_OK;

    if (var_of(a, i, "OMP_NUM_THREADS") == NULL) {
        snprintf(text, sizeof text, "%d", a->layout.rank[i].threads);
        rc = hvi_jobenv_set(env, "OMP_NUM_THREADS", text);
    }
    if (rc != HVD_OK || !a->layout.masked)
        return rc;
    /* our indices are in the order of the bus */
    if (var_of(a, i, MASK) == NULL && var_of(a, i, "CUDA_DEVICE_ORDER") == NULL)
        rc = hvi_jobenv_set(env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    hvi_layout_mask(&a->layout, i, text, sizeof text);
    return rc == HVD_OK ? hvi_jobenv_set(env, MASK, text) : rc;
}

static enum hvd_status lay_out(struct agent *a, const Hvi__JobSpec *s,
                               struct hvi_err *err)
{
    struct hvi_layout_wish w = {
        .nranks = a->nranks,
        .bind_to = (enum hvi_bind)s->bind_to,
        .map_by = (enum hvi_map)s->map_by,
        .cores = (int)s->cores_per_rank,
        .gpus = (int)s->gpus_per_rank,
        .crowd_gpus = s->oversubscribe_gpu,
        .visible = hvi_jobenv_get(&a->env, MASK),
        .self_bound = hvi_layout_self_bound(a->argv[0], get_var, &a->env)};
    enum hvd_status rc = hvi_layout_make(&w, &a->layout, err);

    a->bind_asked =
        (w.bind_to != HVI_BIND_AUTO && w.bind_to != HVI_BIND_NONE) ||
        (w.bind_to == HVI_BIND_AUTO && (w.cores > 0 || w.map_by != HVI_MAP_AUTO));
    for (int i = 0; i < a->nranks && rc == HVD_OK; i++)
        rc = put_layout(a, i);
    return rc;
}

static enum hvd_status put_place(struct agent *a, const Hvi__JobSpec *s,
                                 struct hvi_err *err)
{
    char key_path[128];
    enum hvd_status rc =
        hvi_rundir_put_key(a->rundir, s->key.data, key_path, sizeof key_path, err);

    if (rc != HVD_OK)
        return rc;
    rc = hvi_jobenv_set(&a->env, "HVD_KEY_FILE", key_path);
    if (rc == HVD_OK)
        rc = hvi_jobenv_set(&a->env, "HVD_RUNTIME_DIR", a->rundir);
    return rc == HVD_OK ? lay_out(a, s, err) : rc;
}

static enum hvd_status take_ranks(struct agent *a, const Hvi__JobSpec *s)
{
    a->ranks = calloc(s->n_ranks, sizeof *a->ranks);
    if (a->ranks == NULL)
        return HVD_ENOMEM;
    a->nranks = (int)s->n_ranks;
    for (int i = 0; i < a->nranks; i++) {
        struct hvi_rank *r = &a->ranks[i];

        r->rank = s->ranks[i]->rank;
        r->local_rank = s->ranks[i]->local_rank;
        r->pidfd = r->fail_fd = -1;
        r->debug = (enum hvi_rank_debug)s->ranks[i]->debug;
        if (s->ranks[i]->debug > HVI_RANK_HELD ||
            (r->debug == HVI_RANK_TERMINAL && a->debug_argv == NULL))
            return HVD_EINVAL;
        if (put_vars(&r->env, s->ranks[i]->env, s->ranks[i]->n_env) != HVD_OK)
            return HVD_EINVAL;
    }
    return HVD_OK;
}

/* The address that our ssh came from leads back, where it is no way through a third
 * host. Loopback: hvdrun's ssh did not leave its machine, or came by a tunnel. */
static char *ssh_endpoint(const char *coordinator)
{
    const char *ssh = getenv("SSH_CONNECTION");
    const char *port = strrchr(coordinator, ':');
    char address[64];
    char *text = NULL;
    bool v6;

    if (ssh == NULL || port == NULL)
        return NULL;
    snprintf(address, sizeof address, "%.*s", (int)strcspn(ssh, " "), ssh);
    v6 = strchr(address, ':') != NULL;
    if (strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
        strchr(address, '%') != NULL)
        return NULL;
    if (asprintf(&text, "tcp:%s%s%s%s", v6 ? "[" : "", address, v6 ? "]" : "", port) <
        0)
        return NULL;
    return text;
}

/* Takes text. */
static void add_endpoint(struct agent *a, char *text)
{
    bool known = text == NULL || a->nendpoints == ENDPOINTS_MAX;

    for (int i = 0; i < a->nendpoints && !known; i++)
        known = strcmp(a->endpoint[i], text) == 0;
    if (known)
        free(text);
    else
        a->endpoint[a->nendpoints++] = text;
}

static void take_endpoints(struct agent *a, const Hvi__JobSpec *s)
{
    if (s->try_ssh)
        add_endpoint(a, ssh_endpoint(s->coordinator));
    add_endpoint(a, strdup(s->coordinator));
    for (size_t i = 0; i < s->n_other_endpoints; i++)
        add_endpoint(a, strdup(s->other_endpoints[i]));
}

static enum hvd_status take_words(struct agent *a, const Hvi__JobSpec *s)
{
    a->argv = calloc(s->n_argv + 1, sizeof *a->argv);
    if (a->argv == NULL)
        return HVD_ENOMEM;
    for (size_t i = 0; i < s->n_argv; i++) {
        a->argv[i] = dup_bytes(&s->argv[i]);
        if (a->argv[i] == NULL)
            return HVD_ENOMEM;
    }
    if (s->n_debugger == 0)
        return HVD_OK;
    a->debug_argv = calloc(s->n_debugger + s->n_argv + 1, sizeof *a->debug_argv);
    if (a->debug_argv == NULL)
        return HVD_ENOMEM;
    for (size_t i = 0; i < s->n_debugger; i++) {
        a->debug_argv[i] = dup_bytes(&s->debugger[i]);
        if (a->debug_argv[i] == NULL)
            return HVD_ENOMEM;
        a->ndebugger++;
    }
    memcpy(a->debug_argv + s->n_debugger, a->argv, s->n_argv * sizeof *a->argv);
    return HVD_OK;
}

static enum hvd_status take_spec(struct agent *a, const Hvi__JobSpec *s,
                                 struct hvi_err *err)
{
    enum hvd_status rc;

    if (s->key.len != HVI_KEY_BYTES || s->job_id.len != HVI_JOB_ID_BYTES ||
        s->n_argv == 0 || s->n_ranks == 0 || s->n_ranks > HVD_RANKS_MAX ||
        s->bind_to >= HVI_BIND_KINDS || s->map_by >= HVI_MAP_KINDS ||
        s->cores_per_rank > INT_MAX || s->gpus_per_rank > HVI_GPUS_MAX)
        return hvi_fail(err, HVD_EPROTO, "the job specification is not complete");
    a->stdin_rank = s->stdin_rank;
    a->report_bindings = s->report_bindings;
    a->cwd = dup_bytes(&s->cwd);
    a->host = strdup(s->host);
    memcpy(a->key, s->key.data, sizeof a->key);
    memcpy(a->job_id, s->job_id.data, sizeof a->job_id);
    take_endpoints(a, s);
    a->coordinator = strdup(s->coordinator);
    if (a->cwd == NULL || a->host == NULL || a->coordinator == NULL ||
        take_words(a, s) != HVD_OK)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = take_ranks(a, s);
    if (rc == HVD_OK)
        rc = put_host_vars(&a->env);
    if (rc == HVD_OK)
        rc = put_vars(&a->env, s->env, s->n_env);
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "bad environment: %s", hvi_status_text(rc));
    return put_place(a, s, err);
}

/* It comes along with the environment of the ranks; hvdrun has checked it. */
static void set_lease(struct agent *a)
{
    const char *text = hvi_jobenv_get(&a->env, HVI_LEASE_ENV);
    int64_t seconds;

    if (text != NULL && text[0] != '\0' &&
        hvi_parse_int(HVI_LEASE_ENV, text, HVI_LEASE_MIN_S, HVI_LEASE_MAX_S, &seconds,
                      NULL) == HVD_OK)
        hvi_link_set_lease(&a->link[a->at], seconds * 1000);
}

static enum hvd_status check_limits(const struct agent *a, struct hvi_err *err)
{
    size_t need = FDS_OF_A_START + (size_t)a->nranks * FDS_PER_RANK;
    char whom[48];

    for (int i = 0; i < a->nranks; i++)
        need += a->stdin_rank == -2 || a->stdin_rank == a->ranks[i].rank;
    snprintf(whom, sizeof whom, "%d rank%s here", a->nranks, a->nranks == 1 ? "" : "s");
    return hvi_limits_fds(need, whom, err);
}

static enum hvd_status open_link(struct agent *a, struct hvi_err *err)
{
    enum hvd_status rc;

    do /* one that the system refuses at once is no way either */
        rc = hvi_link_open(&a->link[a->at], &a->loop, a->endpoint[a->at], a->key,
                           a->job_id, &link_ops, a, err);
    while (rc != HVD_OK && a->at + 1 < a->nendpoints && ++a->at > 0);
    if (rc == HVD_OK)
        set_lease(a);
    return rc;
}

static void on_spec(struct agent *a, const Hvi__JobSpec *s)
{
    struct hvi_err err = {""};
    enum hvd_status rc = take_spec(a, s, &err);

    a->have_spec = a->nranks > 0;
    if (rc == HVD_OK)
        rc = check_limits(a, &err);
    if (rc == HVD_OK && a->stopping)
        stop_ranks(a, 0);
    else if (rc == HVD_OK)
        rc = open_link(a, &err);
    if (rc == HVD_OK)
        return;
    send_error(a, rc, err.text);
    stop_ranks(a, 0);
}

static struct hvi_rank *find_rank(struct agent *a, int32_t rank)
{
    for (int i = 0; i < a->nranks; i++)
        if (a->ranks[i].rank == rank)
            return &a->ranks[i];
    return NULL;
}

static void on_ack(struct agent *a, const Hvi__OutputAck *m)
{
    struct hvi_rank *r = find_rank(a, m->rank);

    if (r != NULL && m->stream >= 1 && m->stream <= 2)
        hvi_wout_ack(&r->out[m->stream - 1], m->bytes);
}

static void on_stdin(struct agent *a, const Hvi__StdinData *m)
{
    for (int i = 0; i < a->nranks; i++)
        if ((m->rank == a->ranks[i].rank ||
             (m->rank == -2 && a->ranks[i].debug != HVI_RANK_TERMINAL)) &&
            a->ranks[i].in.chan != NULL)
            hvi_win_write(&a->ranks[i].in, m->data.data, m->data.len);
}

static void on_signal(struct agent *a, const Hvi__Signal *m)
{
    if (m->signo < 1 || m->signo >= NSIG)
        return;
    for (int i = 0; i < a->nranks; i++)
        if (m->rank < 0 || m->rank == a->ranks[i].rank)
            hvi_rank_signal(&a->ranks[i], m->signo);
}

static void on_term_size(struct agent *a, const Hvi__TermSize *m)
{
    struct hvi_rank *r = find_rank(a, m->rank);

    if (r != NULL && m->rows >= 1 && m->rows <= UINT16_MAX && m->columns >= 1 &&
        m->columns <= UINT16_MAX)
        hvi_rank_resize(r, (uint16_t)m->rows, (uint16_t)m->columns);
}

static void hvdrun_frame(struct hvi_chan *c, const struct hvi_msg *msg)
{
    struct agent *a = c->data;

    switch (msg->type) {
    case HVI_MSG_JOB_SPEC:
        if (!a->have_spec)
            on_spec(a, msg->body);
        break;
    case HVI_MSG_OUTPUT_ACK:
        on_ack(a, msg->body);
        break;
    case HVI_MSG_STDIN_DATA:
        on_stdin(a, msg->body);
        break;
    case HVI_MSG_TERM_SIZE:
        on_term_size(a, msg->body);
        break;
    case HVI_MSG_SIGNAL:
        on_signal(a, msg->body);
        break;
    case HVI_MSG_STOP:
        stop_ranks(a, ((const Hvi__Stop *)msg->body)->grace_ms);
        break;
    default:
        hvi_log_warn("agent", "ignored %s from hvdrun", hvi_msg_name(msg->type));
    }
}

/* The first lifeline. */
static void hvdrun_end(struct hvi_chan *c, const char *err)
{
    struct agent *a = c->data;

    if (err != NULL)
        hvi_log_error("agent", "hvdrun's pipe: %s", err);
    if (a->nexited < a->nranks)
        kill_all(a);
    a->finished = true;
    close_all(a);
}

static void hvdrun_drain(struct hvi_chan *c)
{
    struct agent *a = c->data;

    for (int i = 0; i < a->nranks; i++)
        for (int s = 0; s < 2; s++)
            hvi_wout_resume(&a->ranks[i].out[s]);
}

static const struct hvi_chan_ops chan_ops = {hvdrun_frame, hvdrun_end, hvdrun_drain};

/* ---- begin and end */

static void keeper_cb(uv_poll_t *p, int status, int events)
{
    struct agent *a = p->data;

    (void)status;
    (void)events;
    uv_poll_stop(p);
    kill_all(a);
    send_error(a, HVD_EIO,
               "the keeper process died; all ranks of this host were killed");
    if (a->have_spec && !a->launched)
        stop_ranks(a, 0);
}

static void say_up(struct agent *a)
{
    Hvi__AgentUp up = HVI__AGENT_UP__INIT;

    up.version = (char *)HVI_VERSION;
    up.pid = getpid();
    up.runtime_dir = (char *)a->rundir;
    send_msg(a, HVI_MSG_AGENT_UP, &up);
}

static void free_agent(struct agent *a)
{
    for (int i = 0; i < a->nranks; i++)
        hvi_rank_fini(&a->ranks[i]);
    free(a->ranks);
    hvi_layout_fini(&a->layout);
    for (size_t i = 0; a->argv != NULL && a->argv[i] != NULL; i++)
        free(a->argv[i]);
    free(a->argv);
    for (size_t i = 0; i < a->ndebugger; i++)
        free(a->debug_argv[i]);
    free(a->debug_argv);
    free(a->cwd);
    free(a->host);
    free(a->coordinator);
    hvi_jobenv_fini(&a->env);
    for (int i = 0; i < ENDPOINTS_MAX; i++) {
        hvi_link_fini(&a->link[i]);
        free(a->endpoint[i]);
    }
    hvi_chan_fini(&a->chan);
    if (a->cgroup_fd >= 0)
        close(a->cgroup_fd);
    close(a->null_fd);
}

static void use_cgroup(struct agent *a)
{
    struct hvi_err err;

    a->cgroup_fd = -1;
    if (hvi_cgroup_make(a->cgroup, sizeof a->cgroup, &a->cgroup_fd) != 0) {
        a->cgroup[0] = '\0';
        return;
    }
    if (hvi_keeper_cgroup(a->keeper, a->cgroup, &err) != HVD_OK)
        hvi_log_warn("agent", "%s", err.text);
}

int hvi_agent_run(int in_fd, int out_fd, const char *rundir, struct hvi_keeper *keeper)
{
    static struct agent agent;
    struct agent *a = &agent;
    struct hvi_err err = {""};
    int rc;

    a->keeper = keeper;
    a->rundir = rundir;
    a->oom_kills = hvi_limits_oom_kills();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    a->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    use_cgroup(a);
    rc = a->null_fd < 0 ? -errno : uv_loop_init(&a->loop);
    if (rc == 0)
        rc = uv_poll_init(&a->loop, &a->keeper_poll, keeper->fd);
    if (rc == 0)
        rc = uv_signal_init(&a->loop, &a->sigchld);
    if (rc != 0)
        (void)hvi_fail(&err, HVD_EIO, "%s", uv_strerror(rc));
    if (rc != 0 || hvi_chan_open(&a->chan, &a->loop, in_fd, out_fd, &chan_ops, a,
                                 &err) != HVD_OK) {
        hvi_log_error("agent", "cannot begin: %s", err.text);
        hvi_keeper_stop(keeper);
        return 1;
    }
    uv_timer_init(&a->loop, &a->stop_timer);
    uv_timer_init(&a->loop, &a->linger_timer);
    uv_timer_init(&a->loop, &a->leave_timer);
    a->keeper_poll.data = a->sigchld.data = a->stop_timer.data = a->linger_timer.data =
        a->leave_timer.data = a;
    a->handles_open = true;
    uv_poll_start(&a->keeper_poll, UV_DISCONNECT, keeper_cb);
    uv_signal_start(&a->sigchld, sigchld_cb, SIGCHLD);
    uv_timer_start(&a->linger_timer, linger_cb, LINGER_MS, LINGER_MS);
    uv_timer_stop(&a->linger_timer); /* uv_timer_again starts it */
    say_up(a);
    uv_run(&a->loop, UV_RUN_DEFAULT);
    uv_loop_close(&a->loop);
    hvi_strays_kill(keeper->pid, STRAYS_MS);
    hvi_keeper_leave(keeper);
    free_agent(a);
    return 0;
}
