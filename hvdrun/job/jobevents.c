/*
 * --json-events: the life of the job as lines of JSON, for services that start jobs and
 * do not read what is meant for people. A thread writes them (sink.h), so that nobody
 * who does not read holds up the job; beyond EVENTS_MAX_BYTES they are dropped, and the
 * end of the job does not wait for them longer than HVI_JOB_END_MS.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "hvdrun/job/exitcode.h"
#include "hvdrun/job/job_impl.h"
#include "proto/base/clock.h"
#include "proto/base/env.h"

#define EVENTS_MAX_BYTES ((size_t)16 << 20)
#define TEXT_MAX_BYTES 4096

static enum hvd_status open_fd(struct hvi_job *j, const char *number,
                               struct hvi_err *err)
{
    int64_t n;
    enum hvd_status rc =
        hvi_parse_int("--json-events: descriptor", number, 1, 1 << 20, &n, err);
    int flags = rc == HVD_OK ? fcntl((int)n, F_GETFL) : 0;

    if (rc != HVD_OK)
        return rc;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return hvi_fail(err, HVD_EINVAL,
                        "--json-events: descriptor %s is not open for writing", number);
    j->events.fd = fcntl((int)n, F_DUPFD_CLOEXEC, 3);
    if (j->events.fd < 0)
        return hvi_fail(err, HVD_EIO, "--json-events: %s", strerror(errno));
    if (n > 2) /* not for the ranks */
        (void)fcntl((int)n, F_SETFD, FD_CLOEXEC);
    return HVD_OK;
}

enum hvd_status hvi_job_events_open(struct hvi_job *j, struct hvi_err *err)
{
    const char *where = j->opts->json_events;

    j->events.fd = -1;
    if (where == NULL)
        return HVD_OK;
    if (strncmp(where, "fd:", 3) == 0)
        return open_fd(j, where + 3, err);
    j->events.fd =
        open(where, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (j->events.fd < 0)
        return hvi_fail(err, HVD_EINVAL, "--json-events: %s: %s", where,
                        errno == ENXIO ? "nobody reads this FIFO" : strerror(errno));
    return HVD_OK;
}

static void written_cb(void *data)
{
    hvi_job_check_over(data);
}

enum hvd_status hvi_job_events_begin(struct hvi_job *j, struct hvi_err *err)
{
    if (j->events.fd < 0)
        return HVD_OK;
    j->events.begun = true;
    j->events.begin_ms = hvi_now_ms();
    return hvi_sink_init(&j->events.sink, &j->loop, j->events.fd, &j->events.text,
                         written_cb, j, err);
}

/* ---- one line */

/* Bytes that are no UTF-8 are shown escaped: JSON has no others. */
static json_t *text_json(const char *text)
{
    char shown[TEXT_MAX_BYTES];
    json_t *s = json_string(text);

    return s != NULL ? s
                     : json_string(hvi_escape(shown, sizeof shown, text, strlen(text)));
}

static json_t *begin_line(const char *event)
{
    struct timeval now;
    json_t *line = json_object();

    gettimeofday(&now, NULL);
    json_object_set_new(line, "event", json_string(event));
    json_object_set_new(line, "time",
                        json_real((double)now.tv_sec + (double)now.tv_usec / 1e6));
    return line;
}

/* Takes line. */
static void put_line(struct hvi_job *j, json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(16));

    json_decref(line);
    if (text != NULL && hvi_sink_backlog(&j->events.sink) < EVENTS_MAX_BYTES &&
        hvi_buf_append(&j->events.text, text, strlen(text)) == HVD_OK)
        (void)hvi_buf_append(&j->events.text, "\n", 1);
    free(text);
    if (j->handles_open)
        hvi_sink_flush(&j->events.sink);
}

static void put_place(const struct hvi_job *j, json_t *line, int rank, int pid)
{
    json_object_set_new(line, "rank", json_integer(rank));
    json_object_set_new(line, "host",
                        text_json(j->plan->host[j->plan->place[rank].host].name));
    if (pid > 0)
        json_object_set_new(line, "pid", json_integer(pid));
}

void hvi_job_event_start(struct hvi_job *j)
{
    json_t *line, *hosts, *command;

    if (!j->events.begun)
        return;
    line = begin_line("job_start");
    hosts = json_array();
    command = json_array();
    json_object_set_new(line, "version", json_string(HVI_VERSION));
    json_object_set_new(line, "pid", json_integer(getpid()));
    json_object_set_new(line, "np", json_integer(j->plan->np));
    for (size_t i = 0; i < j->plan->nhosts; i++) {
        json_t *host = json_object();

        json_object_set_new(host, "host", text_json(j->plan->host[i].name));
        json_object_set_new(host, "first_rank", json_integer(j->plan->first_rank[i]));
        json_object_set_new(host, "ranks", json_integer(j->plan->host[i].slots));
        json_array_append_new(hosts, host);
    }
    for (int i = 0; i < j->opts->ncommand; i++)
        json_array_append_new(command, text_json(j->opts->command[i]));
    json_object_set_new(line, "hosts", hosts);
    json_object_set_new(line, "command", command);
    put_line(j, line);
}

void hvi_job_event_host(struct hvi_job *j, int host, int pid)
{
    json_t *line;

    if (!j->events.begun)
        return;
    line = begin_line("host_up");
    json_object_set_new(line, "host", text_json(j->plan->host[host].name));
    json_object_set_new(line, "agent_pid", json_integer(pid));
    put_line(j, line);
}

void hvi_job_event_rank(struct hvi_job *j, int rank, int pid)
{
    json_t *line;

    if (!j->events.begun)
        return;
    line = begin_line("rank_start");
    put_place(j, line, rank, pid);
    put_line(j, line);
}

void hvi_job_event_exit(struct hvi_job *j, const Hvi__Exited *m)
{
    json_t *line;

    if (!j->events.begun)
        return;
    line = begin_line("rank_exit");
    put_place(j, line, m->rank, m->pid);
    json_object_set_new(line, "status", json_integer(hvi_exit_code(m->wait_status)));
    if (WIFSIGNALED(m->wait_status))
        json_object_set_new(line, "signal",
                            json_string(hvi_signal_name(WTERMSIG(m->wait_status))));
    json_object_set_new(line, "stopped_by_hvdrun", json_boolean(m->by_us));
    json_object_set_new(line, "seconds", json_real((double)m->age_ms / 1000));
    put_line(j, line);
}

void hvi_job_event_message(struct hvi_job *j, const char *text)
{
    json_t *line;

    if (!j->events.begun || j->events.over)
        return;
    line = begin_line("message");
    json_object_set_new(line, "text", text_json(text));
    put_line(j, line);
}

static void put_end(struct hvi_job *j)
{
    json_t *line;
    bool settled;
    int cause =
        hvi_verdict_bad(&j->verdict) ? hvi_verdict_cause(&j->verdict, &settled) : -1;

    if (!j->events.begun || j->events.over)
        return;
    j->events.over = true;
    line = begin_line("job_end");
    json_object_set_new(line, "status",
                        json_integer(j->status >= 0 ? j->status : HVI_EXIT_OK));
    if (cause >= 0)
        json_object_set_new(line, "first_failed_rank", json_integer(cause));
    json_object_set_new(line, "seconds",
                        json_real((double)(hvi_now_ms() - j->events.begin_ms) / 1000));
    put_line(j, line);
}

bool hvi_job_events_done(struct hvi_job *j)
{
    const struct hvi_sink *s = &j->events.sink;

    put_end(j);
    return !j->events.begun || j->impatient ||
           (!s->busy && (s->broken || hvi_sink_backlog(s) == 0));
}

/* hvdrun leaves without its loop: what can be written at once is. */
void hvi_job_events_leave(struct hvi_job *j)
{
    struct pollfd p = {.fd = j->events.fd, .events = POLLOUT};

    put_end(j);
    if (j->events.begun && !j->events.sink.busy && !j->events.sink.broken &&
        hvi_buf_size(&j->events.text) > 0 && poll(&p, 1, 0) == 1)
        (void)!write(j->events.fd, hvi_buf_peek(&j->events.text),
                     hvi_buf_size(&j->events.text));
}

void hvi_job_events_close(struct hvi_job *j)
{
    if (j->events.begun)
        hvi_sink_close(&j->events.sink);
}

void hvi_job_events_fini(struct hvi_job *j)
{
    if (j->events.begun)
        hvi_sink_fini(&j->events.sink);
    hvi_buf_fini(&j->events.text);
    if (j->events.fd > 2)
        close(j->events.fd);
}
