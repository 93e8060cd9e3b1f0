/*
 * Happy path: runtime directory and key; the coordinator starts and says COORD_UP; each
 * agent starts and says AGENT_UP; JOB_SPEC to each; STARTED, OUTPUT, EXITED of every
 * rank; the pipes of all are closed, they end; the last output is written. Failure
 * paths: jobend.c. Whatever happens, every process of ours ends when its stdin does.
 */
#include "hvdrun/job/job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/job/exitcode.h"
#include "hvdrun/job/job_impl.h"
#include "hvdrun/job/spec.h"
#include "hvdrun/job/strays.h"
#include "proto/base/clock.h"
#include "proto/base/env.h"
#include "proto/base/limits.h"
#include "proto/base/log.h"

extern char **environ;

#define FANOUT_DEFAULT 32 /* hosts connected to at the same time */
#define TRIES_MAX 4       /* of ssh, while its server is busy */
#define MANY_TRIES_MAX 8 /* of MANY_HOSTS and more: these may be in one another's way */
#define MANY_HOSTS 4
#define KEEPER_MS 500 /* it kills at once; the killed need some time to be gone */

static const char *peer_name(const struct hvi_job_peer *p, char *out, size_t cap)
{
    if (p->host < 0)
        snprintf(out, cap, "the coordinator");
    else
        snprintf(out, cap, "the agent on %s", p->job->plan->host[p->host].name);
    return out;
}

static int64_t lease_s(void)
{
    int64_t seconds = HVI_LEASE_DEFAULT_S;

    (void)hvi_env_int("LEASE_SECONDS", HVI_LEASE_DEFAULT_S, HVI_LEASE_MIN_S,
                      HVI_LEASE_MAX_S, &seconds, NULL);
    return seconds;
}

static char *text_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *text_of(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    return text;
}

/* The first text stays. */
static void set_text(char **where, char *text)
{
    if (*where == NULL)
        *where = text;
    else
        free(text);
}

void hvi_job_send_all(struct hvi_job *j, uint32_t type, const void *body)
{
    for (size_t i = 0; i < j->plan->nhosts; i++)
        if (j->agent[i].spec_sent)
            (void)hvi_chan_send(&j->agent[i].chan, type, body);
}

/* ---- the end */

static void close_peer(struct hvi_job_peer *p)
{
    if (p->started)
        hvi_chan_close(&p->chan);
    hvi_job_ssh_close(p);
}

static void close_all(struct hvi_job *j)
{
    uv_timer_t *const timers[] = {&j->start_timer,   &j->limit_timer, &j->settle_timer,
                                  &j->stop_timer,    &j->line_timer,  &j->end_timer,
                                  &j->suspend_timer, &j->late_timer,  &j->try_timer};

    j->phase = HVI_JOB_OVER;
    if (!j->handles_open)
        return;
    j->handles_open = false;
    for (size_t i = 0; i < sizeof timers / sizeof timers[0]; i++)
        uv_close((uv_handle_t *)timers[i], NULL);
    for (int i = 0; i < j->nsignals; i++)
        uv_close((uv_handle_t *)&j->signal[i], NULL);
    close_peer(&j->coord);
    for (size_t i = 0; i < j->plan->nhosts; i++)
        close_peer(&j->agent[i]);
    hvi_job_debug_close(j);
    hvi_job_io_close(j);
    hvi_job_events_close(j);
}

/* Its end of file is worth waiting for, because words may come before it; but not for
 * ever: something that inherited the pipe may hold it open. */
static bool gone(const struct hvi_job_peer *p)
{
    return !p->started || (p->reaped && (p->chan_ended || p->job->impatient));
}

static bool all_gone(const struct hvi_job *j)
{
    for (size_t i = 0; i < j->plan->nhosts; i++)
        if (!gone(&j->agent[i]))
            return false;
    return gone(&j->coord);
}

static void kill_peer(const struct hvi_job_peer *p)
{
    if (p->started && !p->reaped)
        kill(p->proc.pid, SIGKILL);
}

static void end_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;

    kill_peer(&j->coord);
    for (size_t i = 0; i < j->plan->nhosts; i++)
        kill_peer(&j->agent[i]);
    j->impatient = true;
    hvi_job_check_over(j);
    /* asked to end, and only a reader that does not read is in the way */
    if (j->phase == HVI_JOB_ENDING && all_gone(j) && j->asked)
        hvi_job_leave(j);
}

void hvi_job_leave(struct hvi_job *j)
{
    hvi_job_conclude(j);
    hvi_job_events_leave(j);
    j->left = true;
    uv_stop(&j->loop);
}

/* All ranks are gone, or none will ever run. */
static void begin_end(struct hvi_job *j)
{
    uint64_t limit_ms;

    j->phase = HVI_JOB_ENDING;
    uv_timer_stop(&j->stop_timer);
    uv_timer_stop(&j->limit_timer);
    uv_timer_stop(&j->start_timer);
    limit_ms = j->asked ? HVI_JOB_DRAIN_MS : HVI_JOB_END_MS;
    uv_timer_start(&j->end_timer, end_cb, limit_ms, limit_ms);
    hvi_job_wake_peers(j);
    hvi_input_close(&j->input);
    for (size_t i = 0; i < j->plan->nhosts; i++)
        if (j->agent[i].started) {
            hvi_chan_end_output(&j->agent[i].chan);
            if (j->agent[i].remote && !j->agent[i].up)
                kill_peer(&j->agent[i]); /* still on its way there: not worth waiting */
        }
    if (j->coord.started)
        hvi_chan_end_output(&j->coord.chan);
}

static bool ranks_over(const struct hvi_job *j)
{
    for (size_t i = 0; i < j->plan->nhosts; i++) {
        const struct hvi_job_peer *a = &j->agent[i];

        if (gone(a) || !a->spec_sent)
            continue;
        for (int r = 0; r < j->plan->host[i].slots; r++)
            if (!j->rank[j->plan->first_rank[i] + r].over)
                return false;
    }
    /* before every agent has its orders the job has not even begun */
    for (size_t i = 0; i < j->plan->nhosts && !j->stopping; i++)
        if (!j->agent[i].spec_sent && !gone(&j->agent[i]))
            return false;
    return j->stopping || j->nover == j->plan->np;
}

void hvi_job_check_over(struct hvi_job *j)
{
    if (j->phase == HVI_JOB_RUNNING && ranks_over(j))
        begin_end(j);
    if (j->phase != HVI_JOB_ENDING || !all_gone(j))
        return;
    hvi_job_conclude(j);
    if (hvi_job_io_idle(j))
        hvi_job_tell_lost(j);
    if (!hvi_job_io_idle(j) || !hvi_job_debug_idle(j) || !hvi_job_events_done(j))
        return;
    hvi_job_tell_lost_events(j);
    if (j->phase == HVI_JOB_ENDING && hvi_job_io_idle(j)) /* also of those lines */
        close_all(j);
}

static bool try_again(struct hvi_job_peer *p);

/* A kill of our own is not the reason. */
static void word_end(const struct hvi_job_peer *p, char *out, size_t cap)
{
    if (p->why[0] != '\0')
        snprintf(out, cap, "sent what cannot be read (%.90s)", p->why);
    else if (p->lingered)
        snprintf(out, cap, "closed its output and did not end");
    else if (WIFSIGNALED(p->wait_status) && WTERMSIG(p->wait_status) == SIGKILL &&
             hvi_limits_oom_kills() > p->job->oom_kills)
        snprintf(out, cap,
                 "was killed (SIGKILL), and the kernel here killed a process for want "
                 "of memory meanwhile");
    else
        hvi_exit_words(p->wait_status, out, cap);
}

/* A process of ours has ended and all it had to say is read. */
static void check_peer(struct hvi_job_peer *p)
{
    struct hvi_job *j = p->job;
    char name[HVI_HOST_NAME_MAX + 32], words[128];

    if (!gone(p) || try_again(p))
        return;
    if (j->phase == HVI_JOB_RUNNING) {
        peer_name(p, name, sizeof name);
        word_end(p, words, sizeof words);
        set_text(p->host < 0 ? &j->coord_text : &j->agent_text,
                 p->remote && p->why[0] == '\0'
                     ? hvi_job_ssh_text(p)
                     : text_of("%s %s; the job ends", name, words));
        hvi_job_trouble(j, false);
    }
    hvi_job_check_over(j);
}

/* Nothing is wrong yet: somebody may be at it with a debugger. */
static void note_stopped(struct hvi_job_peer *p, bool stopped)
{
    struct hvi_job *j = p->job;
    char name[HVI_HOST_NAME_MAX + 32];
    bool before = p->stopped;

    p->stopped = stopped;
    if (before == stopped || p->remote || j->phase != HVI_JOB_RUNNING || j->stopping ||
        j->trouble_ms != 0)
        return; /* an ssh that is stopped holds up output, no more */
    peer_name(p, name, sizeof name);
    if (stopped)
        hvi_job_say(j,
                    "%s (pid %d) is stopped (SIGSTOP); the job ends unless it goes on "
                    "within %" PRId64 " s (kill -CONT %d)",
                    name, (int)p->proc.pid, lease_s(), (int)p->proc.pid);
    else
        hvi_job_say(j, "%s (pid %d) goes on", name, (int)p->proc.pid);
}

static struct hvi_job_peer *next_peer(struct hvi_job *j, size_t i)
{
    return i == 0 ? &j->coord : i <= j->plan->nhosts ? &j->agent[i - 1] : NULL;
}

/* Others report that they heard nothing for too long; whose fault that is we see. */
static void blame_stopped(struct hvi_job *j)
{
    const struct hvi_job_peer *p;
    char name[HVI_HOST_NAME_MAX + 32];

    for (size_t i = 0; (p = next_peer(j, i)) != NULL; i++)
        if (p->started && !p->reaped && p->stopped && !p->remote)
            set_text(
                &j->fatal_text,
                text_of("%s (pid %d) is stopped (SIGSTOP) and was not heard of for "
                        "too long; the job ends",
                        peer_name(p, name, sizeof name), (int)p->proc.pid));
}

void hvi_job_wake_peers(struct hvi_job *j)
{
    struct hvi_job_peer *p;

    for (size_t i = 0; (p = next_peer(j, i)) != NULL; i++)
        if (p->started && !p->reaped && p->stopped)
            kill(p->proc.pid, SIGCONT);
}

static void reap(struct hvi_job_peer *p, pid_t pid, int status)
{
    if (!p->started || p->proc.pid != pid)
        return;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        note_stopped(p, WIFSTOPPED(status));
        return;
    }
    p->reaped = true;
    p->wait_status = status;
    check_peer(p);
}

/* Also of the keeper and the ranks, which come to us when their agent dies. */
static void reap_all(struct hvi_job *j)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
        reap(&j->coord, pid, status);
        hvi_job_debug_reaped(j, pid, status);
        for (size_t i = 0; i < j->plan->nhosts; i++)
            reap(&j->agent[i], pid, status);
    }
}

/* Its frames have ended, mostly because it dies: then its status says how. */
static void late_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;
    struct hvi_job_peer *p;

    uv_timer_stop(t);
    for (size_t i = 0; (p = next_peer(j, i)) != NULL; i++)
        if (p->started && p->chan_ended && !p->reaped) {
            p->lingered = true;
            kill(p->proc.pid, SIGKILL);
        }
}

static void peer_ending(struct hvi_job_peer *p)
{
    hvi_chan_end_output(&p->chan);
    if (!p->reaped)
        uv_timer_start(&p->job->late_timer, late_cb, HVI_JOB_LATE_MS, HVI_JOB_LATE_MS);
}

static void chan_end(struct hvi_chan *c, const char *err)
{
    struct hvi_job_peer *p = c->data;

    p->chan_ended = true;
    if (err != NULL)
        snprintf(p->why, sizeof p->why, "%s", err);
    if (p->job->phase == HVI_JOB_RUNNING && err == NULL)
        peer_ending(p);
    else if (p->job->phase == HVI_JOB_RUNNING)
        kill_peer(p);
    reap_all(p->job);
    check_peer(p);
}

/* ---- agents */

static void fail_start(struct hvi_job *j, int status, char *text)
{
    if (j->start_text == NULL)
        j->start_status = status;
    set_text(&j->start_text, text);
    hvi_job_trouble(j, true);
}

static void spec_init(const struct hvi_job *j, struct hvi_spec *s)
{
    *s = (struct hvi_spec){.opts = j->opts,
                           .plan = j->plan,
                           .key = j->key,
                           .job_id = j->job_id,
                           .tty = isatty(STDOUT_FILENO) == 1,
                           .endpoint = j->endpoint,
                           .listen = j->tcp ? j->listen : NULL,
                           .others = j->other,
                           .nothers = j->nothers,
                           .try_ssh = j->anywhere && j->opts->advertise == NULL,
                           .cwd = j->cwd,
                           .environ = environ,
                           .master_addr =
                               j->master_addr[0] != '\0' ? j->master_addr : NULL,
                           .master_port = j->master_port};
}

static void send_wiped(struct hvi_chan *c, struct hvi_buf *frames)
{
    (void)hvi_chan_send_frames(c, frames);
    hvi_wipe(frames->data, frames->len);
    hvi_buf_fini(frames);
}

static void send_specs(struct hvi_job *j)
{
    struct hvi_spec spec;
    struct hvi_err err = {""};

    spec_init(j, &spec);
    for (size_t i = 0; i < j->plan->nhosts; i++) {
        struct hvi_job_peer *a = &j->agent[i];
        struct hvi_buf frame = {0};

        if (!j->coord.up || !a->up || a->spec_sent || j->stopping)
            continue;
        if (hvi_spec_agent(&spec, i, &frame, &err) != HVD_OK) {
            hvi_buf_fini(&frame);
            fail_start(j, HVI_EXIT_LAUNCHER, text_of("%s", err.text));
            return;
        }
        send_wiped(&a->chan, &frame);
        a->spec_sent = true;
    }
}

static void on_started(struct hvi_job_peer *p, const Hvi__Started *m)
{
    struct hvi_job *j = p->job;
    int status = HVI_EXIT_LAUNCHER;

    if (m->rank < 0 || m->rank >= j->plan->np)
        return;
    if (m->status >= 0) {
        j->rank[m->rank].pid = m->pid;
        hvi_log_debug("job", "rank=%d pid=%d started", m->rank, m->pid);
        if (!j->rank[m->rank].started)
            hvi_job_event_rank(j, m->rank, m->pid);
        if (j->rank[m->rank].started)
            return;
        j->rank[m->rank].started = true;
        hvi_job_debug_started(j, m->rank);
        if (++j->nstarted == j->plan->np) {
            uv_timer_stop(&j->start_timer);
            if (j->phase == HVI_JOB_RUNNING && !j->stopping)
                hvi_job_input_start(j); /* no reader is missing now */
        }
        return;
    }
    if (m->stage == 3)
        status = m->status == -ENOENT ? HVI_EXIT_NOT_FOUND : HVI_EXIT_NOT_EXECUTABLE;
    fail_start(j, status,
               j->plan->nhosts == 1 && !p->remote
                   ? text_of("%s", m->text)
                   : text_of("%s: %s", j->plan->host[p->host].name, m->text));
}

static void check_rank(struct hvi_job *j, int rank)
{
    struct hvi_job_rank *r = &j->rank[rank];

    if (r->over || !j->verdict.rank[rank].exited || r->open_streams > 0)
        return;
    r->over = true;
    hvi_job_debug_over(j, rank);
    j->nover++;
    hvi_job_check_over(j);
}

static void on_exited(struct hvi_job *j, const Hvi__Exited *m)
{
    struct hvi_job_rank *r;

    if (m->rank < 0 || m->rank >= j->plan->np)
        return;
    r = &j->rank[m->rank];
    if (m->pid == 0)
        r->open_streams = 0; /* it never ran */
    else
        r->pid = m->pid;
    r->age_ms = (int64_t)m->age_ms;
    r->out_of_memory = m->out_of_memory;
    hvi_job_event_exit(j, m);
    hvi_verdict_exited(&j->verdict, m->rank, m->wait_status, m->by_us);
    hvi_log_debug("job", "rank=%d pid=%d wait_status=0x%x by_us=%d", m->rank, m->pid,
                  (unsigned)m->wait_status, m->by_us);
    if (hvi_verdict_bad(&j->verdict))
        hvi_job_trouble(j, false);
    if (j->asked && j->verdict.exited == j->plan->np)
        uv_timer_start(&j->stop_timer, hvi_job_stuck_cb, HVI_JOB_DRAIN_MS, 0);
    hvi_job_input_acked(j, m->rank, 0);
    check_rank(j, m->rank);
}

/* false: another version; the job ends. */
static bool same_version(struct hvi_job_peer *p, const char *version)
{
    char name[HVI_HOST_NAME_MAX + 32], shown[64];

    if (strcmp(version, HVI_VERSION) == 0)
        return true;
    fail_start(p->job, HVI_EXIT_LAUNCHER,
               text_of("%s is of version %s, this hvdrun of %s; install the same",
                       peer_name(p, name, sizeof name),
                       version[0] != '\0'
                           ? hvi_escape(shown, sizeof shown, version, strlen(version))
                           : "(unknown)",
                       HVI_VERSION));
    return false;
}

static void start_agents(struct hvi_job *j);

static void on_agent_up(struct hvi_job_peer *p, const Hvi__AgentUp *m)
{
    if (!same_version(p, m->version))
        return;
    if (p->remote)
        hvi_job_ssh_up(p);
    p->up = true;
    hvi_job_event_host(p->job, p->host, m->pid);
    send_specs(p->job);
    start_agents(p->job); /* its place among those that connect is free */
}

static void agent_frame(struct hvi_chan *c, const struct hvi_msg *msg)
{
    struct hvi_job_peer *p = c->data;
    struct hvi_job *j = p->job;

    switch (msg->type) {
    case HVI_MSG_AGENT_UP:
        on_agent_up(p, msg->body);
        break;
    case HVI_MSG_STARTED:
        on_started(p, msg->body);
        break;
    case HVI_MSG_OUTPUT:
        hvi_job_output(j, msg->body);
        if (((const Hvi__Output *)msg->body)->data.len == 0 &&
            ((const Hvi__Output *)msg->body)->rank >= 0 &&
            ((const Hvi__Output *)msg->body)->rank < j->plan->np)
            check_rank(j, ((const Hvi__Output *)msg->body)->rank);
        break;
    case HVI_MSG_EXITED:
        on_exited(j, msg->body);
        break;
    case HVI_MSG_OUTPUT_ACK:
        hvi_job_input_acked(j, ((const Hvi__OutputAck *)msg->body)->rank,
                            ((const Hvi__OutputAck *)msg->body)->bytes);
        break;
    case HVI_MSG_AGENT_ERROR:
        blame_stopped(j);
        set_text(&j->agent_text, text_of("%s: %s", j->plan->host[p->host].name,
                                         ((const Hvi__AgentError *)msg->body)->text));
        hvi_job_trouble(j, false);
        break;
    default:
        hvi_log_warn("job", "ignored %s from an agent", hvi_msg_name(msg->type));
    }
}

static const struct hvi_chan_ops agent_ops = {agent_frame, chan_end, NULL};

/* ---- the coordinator */

static void on_note(struct hvi_job *j, const Hvi__CoordNote *m)
{
    switch (m->kind) {
    case 1:
        if (j->opts->verbose)
            hvi_job_say(j, "%s", m->text);
        break;
    case 2:
        hvi_job_say(j, "%s", m->text);
        break;
    case 3:
        blame_stopped(j);
        set_text(&j->fatal_text, text_of("%s", m->text));
        hvi_job_trouble(j, false);
        break;
    case 4:
        hvi_verdict_no_bye(&j->verdict, m->rank);
        if (hvi_verdict_bad(&j->verdict))
            hvi_job_trouble(j, false);
        break;
    case 5:
        hvi_verdict_lost(&j->verdict, m->rank);
        break;
    case 6:
        hvi_verdict_bye(&j->verdict, m->rank);
        break;
    default:
        hvi_log_warn("job", "ignored a note of kind %u", m->kind);
    }
}

static void coord_frame(struct hvi_chan *c, const struct hvi_msg *msg)
{
    struct hvi_job_peer *p = c->data;

    if (msg->type == HVI_MSG_COORD_UP) {
        const Hvi__CoordUp *up = msg->body;

        p->up = same_version(p, up->version);
        if (p->job->tcp && strchr(up->endpoint, ':') != NULL) /* now with its port */
            hvi_job_ssh_endpoints(p->job, atoi(strrchr(up->endpoint, ':') + 1));
        send_specs(p->job);
    } else if (msg->type == HVI_MSG_COORD_NOTE) {
        on_note(p->job, msg->body);
    } else {
        hvi_log_warn("job", "ignored %s from the coordinator", hvi_msg_name(msg->type));
    }
}

static const struct hvi_chan_ops coord_ops = {coord_frame, chan_end, NULL};

/* ---- begin */

static enum hvd_status start_peer(struct hvi_job_peer *p, char *const argv[],
                                  const struct hvi_chan_ops *ops, struct hvi_err *err)
{
    enum hvd_status rc =
        p->remote ? hvi_job_ssh_start(p, err) : hvi_proc_start(argv, &p->proc, err);

    if (rc != HVD_OK)
        return rc;
    rc = hvi_chan_open(&p->chan, &p->job->loop, p->proc.from_fd, p->proc.to_fd, ops, p,
                       err);
    if (p->remote)
        hvi_chan_skip_banner(&p->chan, HVI_MSG_AGENT_UP);
    p->started = true;
    p->chan_ended = rc != HVD_OK;
    return rc;
}

static enum hvd_status start_coord(struct hvi_job *j, struct hvi_err *err)
{
    static char option[] = "--stdio";
    char *argv[] = {j->coord_path, option, NULL};
    struct hvi_spec spec;
    struct hvi_buf frame = {0};
    enum hvd_status rc;

    spec_init(j, &spec);
    rc = hvi_spec_coord(&spec, &frame, err);
    if (rc == HVD_OK)
        rc = start_peer(&j->coord, argv, &coord_ops, err);
    if (rc == HVD_OK)
        send_wiped(&j->coord.chan, &frame);
    hvi_buf_fini(&frame);
    return rc;
}

static enum hvd_status start_agent(struct hvi_job *j, size_t host, struct hvi_err *err)
{
    static char stdin_option[] = "--stdin", dir_option[] = "--runtime-dir";
    char *argv[] = {j->agent_path, stdin_option, dir_option, j->rundir, NULL};

    if (host > 0) /* this machine under a second name: a directory of its own */
        argv[2] = NULL;
    return start_peer(&j->agent[host], argv, &agent_ops, err);
}

static bool may_start(const struct hvi_job *j)
{
    return j->phase == HVI_JOB_RUNNING && !j->stopping && j->trouble_ms == 0;
}

/* What is left of a try. */
static void forget(struct hvi_job_peer *p)
{
    hvi_chan_fini(&p->chan);
    *p = (struct hvi_job_peer){.job = p->job,
                               .host = p->host,
                               .remote = p->remote,
                               .tries = p->tries,
                               .nup_seen = p->nup_seen};
}

static void try_cb(uv_timer_t *t)
{
    start_agents(t->data);
}

/* Those not started yet, no more at a time than --fanout says. */
static void start_agents(struct hvi_job *j)
{
    int64_t now = hvi_now_ms();
    int64_t next_ms = INT64_MAX;
    int room = j->opts->fanout > 0 ? j->opts->fanout : FANOUT_DEFAULT;
    struct hvi_err err = {""};

    for (size_t i = 0; i < j->plan->nhosts; i++)
        room -= j->agent[i].remote && j->agent[i].started && !j->agent[i].up;
    for (size_t i = 0; i < j->plan->nhosts && may_start(j); i++) {
        struct hvi_job_peer *p = &j->agent[i];

        if (p->started || (p->remote && room <= 0))
            continue;
        if (p->start_ms > now) {
            next_ms = p->start_ms < next_ms ? p->start_ms : next_ms;
            continue;
        }
        room -= p->remote;
        if (p->tries > 0)
            forget(p);
        p->tries++;
        if (start_agent(j, i, &err) != HVD_OK) {
            fail_start(j, HVI_EXIT_LAUNCHER, text_of("%s", err.text));
            hvi_job_check_over(j);
        }
    }
    if (next_ms != INT64_MAX && may_start(j))
        uv_timer_start(&j->try_timer, try_cb, (uint64_t)(next_ms - now), 0);
}

/* An ssh server that drops connections beyond MaxStartups takes them a moment later:
 * after 0.2 to 0.4 s, then 0.2 to 0.8 s, later 0.2 to 1.6 s. As long as others get
 * through, somebody's turn comes: only tries without such progress are counted. */
static bool try_again(struct hvi_job_peer *p)
{
    struct hvi_job *j = p->job;
    uint32_t dice = 0;
    int nup = 0, nremote = 0;

    for (size_t i = 0; i < j->plan->nhosts; i++) {
        nup += j->agent[i].up;
        nremote += j->agent[i].remote;
    }
    if (nup > p->nup_seen)
        p->tries = 1;
    p->nup_seen = nup;
    if (!p->remote || p->up || !may_start(j) ||
        p->tries >= (nremote < MANY_HOSTS ? TRIES_MAX : MANY_TRIES_MAX) ||
        !hvi_job_ssh_busy(p))
        return false;
    close_peer(p); /* its handles are gone when the timer fires */
    p->started = false;
    (void)hvi_random((uint8_t *)&dice, sizeof dice);
    p->start_ms = hvi_now_ms() + 200 +
                  dice % (200u * ((1u << (p->tries < 3 ? p->tries : 3)) - 1));
    hvi_log_info("job", "host=%s busy, try=%d", j->plan->host[p->host].name, p->tries);
    start_agents(j);
    return true;
}

/* A port nobody has now, for programs that build their own group (MASTER_PORT). */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

/* Those of the interfaces that were named; else the one by which all hosts are reached. When
 * each host has its own way to us, or the address to be told is of somebody who passes it
 * on, all (who connects must know the key before a word is read). */
static size_t choose_addresses(struct hvi_job *j, const char *addr[HVI_JOB_OTHERS_MAX])
{
    for (size_t i = 0; i < j->nnamed; i++)
        addr[i] = j->named[i];
    if (j->nnamed > 0)
        return j->nnamed;
    j->anywhere = j->opts->advertise != NULL ||
                  (!j->one_way && !hvi_netaddr_loopback(j->own_addr));
    addr[0] = j->anywhere ? hvi_reach_any() : j->own_addr;
    return 1;
}

static enum hvd_status choose_listener(struct hvi_job *j, struct hvi_err *err)
{
    const char *addr[HVI_JOB_OTHERS_MAX];
    size_t n = choose_addresses(j, addr);
    int first = j->opts->port, last = j->opts->port_last;
    int port = 0;

    if (first > 0) {
        port = hvi_reach_port(addr, n, first, last);
        if (port == 0 && first == last)
            return hvi_fail(err, HVD_EIO, "--port: port %d of this host is taken",
                            first);
        if (port == 0)
            return hvi_fail(err, HVD_EIO,
                            "--port: all ports from %d to %d of this host are taken",
                            first, last);
    }
    hvi_reach_listen(addr, n, port, j->listen, sizeof j->listen);
    return HVD_OK;
}

static enum hvd_status make_place(struct hvi_job *j, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (getcwd(j->cwd, sizeof j->cwd) == NULL)
        return hvi_fail(err, HVD_EIO, "the working directory: %s", strerror(errno));
    /* its agent's; others make their own. For a debugger, ours */
    if (!j->plan->host[0].remote || j->opts->debug != NULL)
        rc = hvi_rundir_make(j->rundir, err);
    return rc == HVD_OK ? hvi_job_debug_listen(j, err) : rc;
}

/* Where the coordinator listens, and the job's key. */
static enum hvd_status make_way(struct hvi_job *j, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (j->tcp)
        rc = hvi_job_ssh_reach(j, err);
    if (rc != HVD_OK)
        return rc;
    if (j->tcp)
        rc = choose_listener(j, err);
    else
        snprintf(j->endpoint, sizeof j->endpoint, "unix:%s/coord", j->rundir);
    if (rc != HVD_OK)
        return rc;
    j->master_port = free_port();
    rc = hvi_random(j->key, sizeof j->key);
    if (rc == HVD_OK)
        hvi_key_job_id(j->key, j->job_id); /* as the ranks do, who get the key alone */
    return rc == HVD_OK ? rc : hvi_fail(err, rc, "the system has no random numbers");
}

static void signal_cb(uv_signal_t *s, int signo)
{
    if (signo == SIGCHLD)
        reap_all(s->data);
    else
        hvi_job_signal(s->data, signo);
}

static enum hvd_status watch_signals(struct hvi_job *j, struct hvi_err *err)
{
    static const int list[] = {SIGCHLD, SIGINT,  SIGTERM, SIGHUP,   SIGQUIT, SIGUSR1,
                               SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH, SIGALRM};

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct sigaction old;
        uv_signal_t *s = &j->signal[j->nsignals];

        /* nohup, and shells that leave their terminal, mean it */
        if ((list[i] == SIGHUP || list[i] == SIGTSTP) &&
            sigaction(list[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN)
            continue;
        if (uv_signal_init(&j->loop, s) != 0)
            return hvi_fail(err, HVD_EIO, "cannot watch signals");
        s->data = j;
        uv_signal_start(s, signal_cb, list[i]);
        j->nsignals++;
    }
    return HVD_OK;
}

static void limit_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;

    hvi_job_say(j, "the time limit of %.6g s is over; the job ends",
                (double)j->opts->timeout_ms / 1000);
    hvi_job_end_with(j, HVI_EXIT_TIMEOUT);
    j->asked = true;
    hvi_job_stop(j, j->opts->grace_ms);
}

#define LATE_SHOWN 3 /* hosts named */

static bool host_started(const struct hvi_job *j, size_t host)
{
    for (int r = 0; r < j->plan->host[host].slots; r++)
        if (!j->rank[j->plan->first_rank[host] + r].started)
            return false;
    return true;
}

static const char *step_of(const struct hvi_job_peer *p)
{
    return !p->started           ? "its turn to connect has not come (--fanout)"
           : !p->up && p->remote ? "logging in and starting hvd-agent"
           : !p->up              ? "starting hvd-agent"
           : !p->job->coord.up   ? "waiting for the coordinator"
                                 : "reaching the coordinator and starting its ranks";
}

/* "host7 (logging in and starting hvd-agent), host9 (...), and 3 more" */
static void list_late(const struct hvi_job *j, char *out, size_t cap)
{
    size_t used = 0, late = 0;

    out[0] = '\0';
    for (size_t i = 0; i < j->plan->nhosts; i++)
        if (!host_started(j, i) && late++ < LATE_SHOWN && used < cap)
            used += (size_t)snprintf(out + used, cap - used, "%s%s (%s)",
                                     used > 0 ? ", " : "", j->plan->host[i].name,
                                     step_of(&j->agent[i]));
    if (late > LATE_SHOWN && used < cap)
        snprintf(out + used, cap - used, ", and %zu more", late - LATE_SHOWN);
}

/* How to see what a login waits for: a line for the first host that has not answered. */
static void late_hint(const struct hvi_job *j, char *out, size_t cap)
{
    char dest[2 * HVI_HOST_NAME_MAX + 2], port[32] = "";

    out[0] = '\0';
    if (j->rshell.kind != HVI_RSHELL_SSH)
        return;
    if (j->opts->ssh_port > 0)
        snprintf(port, sizeof port, " -p %d", j->opts->ssh_port);
    for (size_t i = 0; i < j->plan->nhosts && out[0] == '\0'; i++)
        if (j->agent[i].remote && j->agent[i].started && !j->agent[i].up)
            snprintf(out, cap,
                     ";\n  'ssh%s %s true' must end by itself: does .bashrc there ask, "
                     "or start another shell?",
                     port,
                     hvi_sshargv_destination(&j->plan->host[i], dest, sizeof dest));
}

static int64_t start_limit_ms(const struct hvi_job *j)
{
    return j->opts->start_timeout_ms > 0 ? j->opts->start_timeout_ms
                                         : HVI_START_TIMEOUT_DEFAULT_MS;
}

static void start_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;
    char late[LATE_SHOWN * (HVI_HOST_NAME_MAX + 64)], hint[3 * HVI_HOST_NAME_MAX];

    list_late(j, late, sizeof late);
    late_hint(j, hint, sizeof hint);
    fail_start(
        j, HVI_EXIT_LAUNCHER,
        j->coord.up
            ? text_of("not all ranks started within %.6g s (--start-timeout): %s%s",
                      (double)start_limit_ms(j) / 1000, late, hint)
            : text_of("the coordinator did not come up within %.6g s "
                      "(--start-timeout)",
                      (double)start_limit_ms(j) / 1000));
}

static void init_timers(struct hvi_job *j)
{
    uv_timer_t *const timers[] = {&j->start_timer,   &j->limit_timer, &j->settle_timer,
                                  &j->stop_timer,    &j->line_timer,  &j->end_timer,
                                  &j->suspend_timer, &j->late_timer,  &j->try_timer};

    for (size_t i = 0; i < sizeof timers / sizeof timers[0]; i++) {
        uv_timer_init(&j->loop, timers[i]);
        timers[i]->data = j;
    }
    j->handles_open = true;
    uv_timer_start(&j->start_timer, start_cb, (uint64_t)start_limit_ms(j), 0);
    if (j->opts->timeout_ms > 0)
        uv_timer_start(&j->limit_timer, limit_cb, (uint64_t)j->opts->timeout_ms, 0);
}

static enum hvd_status init_ranks(struct hvi_job *j, struct hvi_err *err)
{
    j->agent = calloc(j->plan->nhosts, sizeof *j->agent);
    j->rank = calloc((size_t)j->plan->np, sizeof *j->rank);
    if (j->agent == NULL || j->rank == NULL ||
        hvi_verdict_init(&j->verdict, j->plan->np) != HVD_OK)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    j->coord.job = j;
    j->coord.host = -1;
    for (size_t i = 0; i < j->plan->nhosts; i++) {
        j->agent[i].job = j;
        j->agent[i].host = (int)i;
        j->agent[i].remote = j->plan->host[i].remote;
        j->tcp = j->tcp || j->plan->host[i].remote;
    }
    for (int r = 0; r < j->plan->np; r++) {
        j->rank[r].host = j->plan->place[r].host;
        j->rank[r].open_streams = hvi_job_debug_has(j, r) ? 1 : 2;
    }
    return HVD_OK;
}

static enum hvd_status begin(struct hvi_job *j, struct hvi_err *err)
{
    enum hvd_status rc = init_ranks(j, err);

    j->rshell = hvi_rshell_choose(j->opts);
    if (rc == HVD_OK && uv_loop_init(&j->loop) != 0)
        rc = hvi_fail(err, HVD_EIO, "cannot make an event loop: %s", strerror(errno));
    if (rc != HVD_OK)
        return rc;
    init_timers(j);
    rc = watch_signals(j, err);
    j->phase = HVI_JOB_RUNNING;
    if (rc == HVD_OK)
        rc = hvi_job_io_init(j, err);
    if (rc == HVD_OK)
        rc = hvi_job_events_begin(j, err);
    hvi_job_event_start(j);
    if (rc == HVD_OK)
        rc = hvi_proc_find("hvd-coordinator", j->coord_path, err);
    if (rc == HVD_OK)
        rc = hvi_proc_find("hvd-agent", j->agent_path, err);
    if (rc == HVD_OK)
        rc = make_place(j, err);
    if (rc == HVD_OK && j->tcp)
        hvi_job_ssh_ask(j);
    if (rc == HVD_OK)
        start_agents(j); /* logins take their time: what follows happens meanwhile */
    if (rc == HVD_OK && may_start(j))
        rc = make_way(j, err);
    if (rc == HVD_OK && may_start(j))
        rc = start_coord(j, err);
    return rc;
}

/* We are the subreaper: what a dead agent leaves comes to us. Its keeper first does its
 * work, then the rest goes: descendants that had left their process group. */
static void await_orphans(void)
{
    int64_t deadline = hvi_now_ms() + KEEPER_MS;
    sigset_t chld;
    int left_ms;

    sigemptyset(&chld); /* the loop, which took it, is closed */
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, NULL);
    while ((left_ms = hvi_ms_left(deadline)) > 0) {
        struct timespec wait = {left_ms / 1000, (long)(left_ms % 1000) * 1000000};
        pid_t pid = waitpid(-1, NULL, WNOHANG);

        if (pid < 0)
            return;
        if (pid == 0)
            (void)sigtimedwait(&chld, NULL, &wait);
    }
    hvi_strays_kill(0, HVI_JOB_END_MS);
}

/* The event loop, its signals and threads; what a fork has open for a moment; a peer. */
#define FDS_OF_OUR_OWN 24
#define FDS_PER_HOST 3
/* ... and what those need who start with this limit. They look for themselves; here, so
 * that the number in the message is enough. */
#define FDS_OF_COORDINATOR 44
#define FDS_OF_AGENT 28
#define FDS_OF_A_RANK 4
#define MEMORY_OF_OUR_OWN ((size_t)8 << 20)

/* What libuv would abort for, and what would fail half way. */
static enum hvd_status check_limits(const struct hvi_job *j, struct hvi_err *err)
{
    size_t np = (size_t)j->plan->np;
    size_t need = FDS_OF_OUR_OWN + j->plan->nhosts * FDS_PER_HOST +
                  (j->opts->output_dir != NULL ? 2 * np : 0) + hvi_job_debug_fds(j);
    size_t local = j->plan->host[0].remote ? 0 : (size_t)j->plan->host[0].slots;
    char whom[48];
    enum hvd_status rc;

    if (need < np + FDS_OF_COORDINATOR)
        need = np + FDS_OF_COORDINATOR;
    if (need < FDS_OF_AGENT + local * FDS_OF_A_RANK)
        need = FDS_OF_AGENT + local * FDS_OF_A_RANK;
    if (local > 0 && j->opts->stdin_rank == -2)
        need += local;
    hvi_limits_raise_fds();
    snprintf(whom, sizeof whom, "%zu rank%s%s", np, np == 1 ? "" : "s",
             j->opts->output_dir != NULL ? " with files" : "");
    rc = hvi_limits_fds(need, whom, err);
    return rc == HVD_OK ? hvi_limits_memory(MEMORY_OF_OUR_OWN, err) : rc;
}

static void fini(struct hvi_job *j)
{
    hvi_job_io_fini(j);
    hvi_job_events_fini(j);
    hvi_job_debug_fini(j);
    hvi_chan_fini(&j->coord.chan);
    for (size_t i = 0; j->agent != NULL && i < j->plan->nhosts; i++)
        hvi_chan_fini(&j->agent[i].chan);
    hvi_verdict_fini(&j->verdict);
    hvi_wipe(j->key, sizeof j->key);
    free(j->agent);
    free(j->rank);
    free(j->coord_text);
    free(j->fatal_text);
    free(j->agent_text);
    free(j->start_text);
}

int hvi_job_run(const struct hvi_opts *opts, const struct hvi_plan *plan)
{
    static struct hvi_job job; /* outlives the loop's last callbacks */
    struct hvi_job *j = &job;
    struct hvi_err err = {""};

    j->opts = opts;
    j->plan = plan;
    j->status = -1;
    j->oom_kills = hvi_limits_oom_kills();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  /* a file over the limit is an error of write() */
    prctl(PR_SET_DUMPABLE, 0); /* the job key is in memory: no core, no ptrace */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (hvi_job_debug_open(j, &err) != HVD_OK ||
        hvi_job_events_open(j, &err) != HVD_OK) {
        fprintf(stderr, "hvdrun: %s\n", err.text);
        hvi_job_debug_fini(j);
        return HVI_EXIT_USAGE;
    }
    if (check_limits(j, &err) != HVD_OK || begin(j, &err) != HVD_OK) {
        if (!j->handles_open || j->nsinks == 0) {
            fprintf(stderr, "hvdrun: %s\n", err.text);
            fini(j);
            return HVI_EXIT_LAUNCHER;
        }
        fail_start(j, HVI_EXIT_LAUNCHER, text_of("%s", err.text));
        hvi_job_check_over(j);
    }
    uv_run(&j->loop, UV_RUN_DEFAULT);
    hvi_job_debug_end(j);
    if (j->left) {
        /* The lifelines end what still runs. Not exit(): it waits for libuv's threads,
         * and one may be writing to somebody who does not read. */
        hvi_rundir_remove(j->rundir);
        _exit(j->status >= 0 ? j->status : HVI_EXIT_OK);
    }
    uv_loop_close(&j->loop);
    await_orphans();
    hvi_rundir_remove(j->rundir);
    fini(j);
    return j->status >= 0 ? j->status : HVI_EXIT_OK;
}
