#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hvdrun/job/exitcode.h"
#include "hvdrun/job/job_impl.h"
#include "proto/base/clock.h"

/* ---- --output-filename DIR: DIR/rank.N/stdout and stderr, N padded to equal width */

static enum hvd_status make_dir(const char *path, struct hvi_err *err)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return HVD_OK;
    return hvi_fail(err, HVD_EIO, "--output-filename: %s: %s", path, strerror(errno));
}

/* Does not wait for the reader of a FIFO: ENXIO then. */
static int open_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);

    if (fd >= 0)
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

static enum hvd_status open_files(struct hvi_job *j, struct hvi_err *err)
{
    static const char *const names[2] = {"stdout", "stderr"};
    char path[PATH_MAX];
    char last[16];
    int width = snprintf(last, sizeof last, "%d", j->plan->np - 1);
    enum hvd_status rc = make_dir(j->opts->output_dir, err);

    j->file = malloc((size_t)j->plan->np * sizeof *j->file);
    if (j->file == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    memset(j->file, 0xff, (size_t)j->plan->np * sizeof *j->file);
    for (int r = 0; r < j->plan->np && rc == HVD_OK; r++) {
        int n =
            snprintf(path, sizeof path, "%s/rank.%0*d", j->opts->output_dir, width, r);

        if (n < 0 || n + 8 >= (int)sizeof path)
            return hvi_fail(err, HVD_EINVAL, "--output-filename: the path is too long");
        rc = make_dir(path, err);
        for (int s = 0; s < 2 && rc == HVD_OK; s++) {
            snprintf(path + n, sizeof path - (size_t)n, "/%s", names[s]);
            j->file[r][s] = open_file(path);
            if (j->file[r][s] < 0)
                rc = hvi_fail(err, HVD_EIO, "--output-filename: %s: %s", path,
                              errno == ENXIO ? "a FIFO that nobody reads"
                                             : strerror(errno));
        }
    }
    return rc;
}

static void note_file_loss(struct hvi_job *j, const char *name, int error)
{
    if (j->file_error != 0)
        return;
    j->file_error = error;
    snprintf(j->file_name, sizeof j->file_name, "%s", name);
}

static void write_file(struct hvi_job *j, int rank, int stream, const uint8_t *data,
                       size_t size_bytes)
{
    int *fd = &j->file[rank][stream - 1];
    char name[64];

    while (*fd >= 0 && size_bytes > 0) {
        ssize_t n = write(*fd, data, size_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            snprintf(name, sizeof name, "rank %d's %s", rank,
                     stream == 1 ? "stdout" : "stderr");
            note_file_loss(j, name, errno);
            close(*fd);
            *fd = -1;
            break;
        }
        data += n;
        size_bytes -= (size_t)n;
    }
    if (*fd < 0)
        j->file_lost_bytes += size_bytes;
}

/* ---- output */

static void send_ack(struct hvi_job *j, int rank, int stream)
{
    Hvi__OutputAck msg = HVI__OUTPUT_ACK__INIT;
    uint64_t *bytes = &j->rank[rank].unacked[stream - 1];

    msg.rank = rank;
    msg.stream = (uint32_t)stream;
    msg.bytes = *bytes;
    *bytes = 0;
    (void)hvi_chan_send(&j->agent[j->rank[rank].host].chan, HVI_MSG_OUTPUT_ACK, &msg);
}

void hvi_job_output_ack(struct hvi_job *j, int rank, uint64_t at_least)
{
    if (j->handles_open && j->rank[rank].unacked[0] >= at_least)
        send_ack(j, rank, 1);
}

static size_t backlog(const struct hvi_job *j)
{
    size_t n = 0;

    for (int i = 0; i < j->nsinks; i++)
        n += hvi_sink_backlog(&j->sink[i]);
    return n;
}

static void written_cb(void *data)
{
    struct hvi_job *j = data;

    if (backlog(j) < HVI_JOB_SINK_HIGH_BYTES) {
        for (int r = 0; r < j->plan->np; r++)
            for (int s = 1; s <= 2; s++)
                if (j->rank[r].unacked[s - 1] >= HVI_JOB_ACK_BYTES &&
                    !hvi_job_debug_has(j, r))
                    send_ack(j, r, s);
    }
    hvi_job_check_over(j);
}

static void line_cb(uv_timer_t *t);

void hvi_job_flush(struct hvi_job *j)
{
    if (j->mux.held > 0 && j->handles_open &&
        !uv_is_active((uv_handle_t *)&j->line_timer))
        uv_timer_start(&j->line_timer, line_cb, HVI_OUTMUX_HOLD_MS, 0);
    for (int i = 0; i < j->nsinks; i++)
        hvi_sink_flush(&j->sink[i]);
}

static void line_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;
    int64_t next = hvi_outmux_tick(&j->mux, hvi_now_ms(), backlog(j) == 0);

    if (next >= 0)
        uv_timer_start(&j->line_timer, line_cb, (uint64_t)next + 1, 0);
    hvi_job_flush(j);
}

static void set_stamp(struct hvi_job *j)
{
    time_t now = time(NULL);
    struct tm tm;

    if (!j->opts->timestamp)
        return;
    localtime_r(&now, &tm);
    strftime(j->stamp, sizeof j->stamp, "%a %b %e %H:%M:%S %Y", &tm);
    j->mux.stamp = j->stamp;
}

/* Shown to who is attached; a file gets it too. */
static void output_of_debugger(struct hvi_job *j, const Hvi__Output *m)
{
    uint64_t *unacked = &j->rank[m->rank].unacked[0];

    if (j->file != NULL)
        write_file(j, m->rank, 1, m->data.data, m->data.len);
    *unacked += m->data.len;
    if (hvi_job_debug_output(j, m->rank, m->data.data, m->data.len) &&
        *unacked >= HVI_JOB_ACK_BYTES)
        send_ack(j, m->rank, 1);
}

void hvi_job_output(struct hvi_job *j, const Hvi__Output *m)
{
    struct hvi_job_rank *r;

    if (m->rank < 0 || m->rank >= j->plan->np || m->stream < 1 || m->stream > 2)
        return;
    r = &j->rank[m->rank];
    set_stamp(j);
    if (m->data.len == 0) {
        (void)hvi_outmux_end(&j->mux, m->rank, (int)m->stream);
        if (r->open_streams > 0)
            r->open_streams--;
        hvi_job_flush(j);
        return;
    }
    if (hvi_job_debug_has(j, m->rank)) {
        output_of_debugger(j, m);
        return;
    }
    if (m->stream == 2)
        hvi_report_stderr(&j->report, m->rank, m->data.data, m->data.len);
    if (j->file != NULL)
        write_file(j, m->rank, (int)m->stream, m->data.data, m->data.len);
    (void)hvi_outmux_feed(&j->mux, m->rank, (int)m->stream, m->data.data, m->data.len,
                          hvi_now_ms());
    r->unacked[m->stream - 1] += m->data.len;
    hvi_job_flush(j);
    if (r->unacked[m->stream - 1] >= HVI_JOB_ACK_BYTES &&
        backlog(j) < HVI_JOB_SINK_HIGH_BYTES)
        send_ack(j, m->rank, (int)m->stream);
}

void hvi_job_say(struct hvi_job *j, const char *fmt, ...)
{
    char text[2 * HVD_ERROR_TEXT_MAX] = "hvdrun: ";
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + 8, sizeof text - 8, fmt, ap);
    va_end(ap);
    hvi_job_event_message(j, text + 8);
    (void)hvi_outmux_say(&j->mux, text);
    hvi_job_flush(j);
}

/* ---- output that could not be written */

/* A reader that went away wants no more: that is no loss. */
static bool lost_some(const struct hvi_sink *s)
{
    return s->broken && s->error != EPIPE && s->lost_bytes > 0;
}

void hvi_job_tell_lost(struct hvi_job *j)
{
    bool lost = j->file_error != 0;

    if (j->told_lost)
        return;
    j->told_lost = true;
    for (int i = 0; i < j->nsinks; i++) {
        if (!lost_some(&j->sink[i]))
            continue;
        lost = true;
        hvi_job_say(j, "%s: %s: %llu bytes of output were lost",
                    i == 0 ? "stdout" : "stderr", strerror(j->sink[i].error),
                    (unsigned long long)j->sink[i].lost_bytes);
    }
    if (j->file_error != 0)
        hvi_job_say(j, "--output-filename: %s: %s: %llu bytes of output were lost",
                    j->file_name, strerror(j->file_error),
                    (unsigned long long)j->file_lost_bytes);
    if (lost && j->status <= 0)
        j->status = HVI_EXIT_LAUNCHER;
}

void hvi_job_tell_lost_events(struct hvi_job *j)
{
    if (j->told_lost_events)
        return;
    j->told_lost_events = true;
    if (j->events.begun && lost_some(&j->events.sink))
        hvi_job_say(j, "--json-events: %s: %llu bytes were lost",
                    strerror(j->events.sink.error),
                    (unsigned long long)j->events.sink.lost_bytes);
}

/* ---- input */

/* What the slowest reader has not taken yet; 0 when nobody reads any more. */
static uint64_t unread(const struct hvi_job *j)
{
    uint64_t most = 0;

    for (int r = 0; r < j->plan->np; r++) {
        bool reads = (j->opts->stdin_rank == -2 || j->opts->stdin_rank == r) &&
                     !hvi_job_debug_has(j, r);

        if (reads && !j->verdict.rank[r].exited &&
            j->stdin_sent - j->rank[r].stdin_acked > most)
            most = j->stdin_sent - j->rank[r].stdin_acked;
    }
    return most;
}

static void input_cb(void *data, const char *bytes, size_t n)
{
    struct hvi_job *j = data;
    Hvi__StdinData msg = HVI__STDIN_DATA__INIT;

    msg.rank = j->opts->stdin_rank;
    msg.data.data = (uint8_t *)(uintptr_t)bytes;
    msg.data.len = n;
    j->stdin_sent += n;
    hvi_job_send_all(j, HVI_MSG_STDIN_DATA, &msg);
    if (unread(j) >= HVI_JOB_STDIN_WINDOW_BYTES)
        hvi_input_pause(&j->input);
}

void hvi_job_input_start(struct hvi_job *j)
{
    hvi_input_start(&j->input);
}

void hvi_job_input_acked(struct hvi_job *j, int rank, uint64_t bytes)
{
    if (rank < 0 || rank >= j->plan->np)
        return;
    if (hvi_job_debug_has(j, rank)) {
        hvi_job_debug_acked(j, rank, bytes);
        return;
    }
    j->rank[rank].stdin_acked += bytes;
    if (j->input.paused && unread(j) < HVI_JOB_STDIN_WINDOW_BYTES)
        hvi_input_resume(&j->input);
}

/* ---- begin and end */

static bool same_file(void)
{
    struct stat a, b;

    return fstat(1, &a) == 0 && fstat(2, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static const char *host_of_rank(const void *arg, int rank)
{
    const struct hvi_plan *plan = arg;

    return plan->host[plan->place[rank].host].name;
}

static bool wants_color(const struct hvi_opts *o)
{
    const char *no = getenv("NO_COLOR"); /* no-color.org */
    const char *term = getenv("TERM");

    if (o->color != HVI_COLOR_AUTO)
        return o->color == HVI_COLOR_ALWAYS;
    return isatty(1) && (no == NULL || no[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

/* What of the ranks' output is shown, and how. */
static enum hvd_status set_view(struct hvi_job *j, struct hvi_err *err)
{
    const struct hvi_opts *o = j->opts;
    size_t np = (size_t)j->plan->np;
    bool nothing = o->output_dir != NULL && o->files_only && !o->tee;
    enum hvd_status rc = HVD_OK;

    j->mux.host = host_of_rank;
    j->mux.host_arg = j->plan;
    j->mux.color = wants_color(o);
    j->mux.merge = o->merge_stderr;
    if (o->only_rank == NULL && !nothing)
        return HVD_OK;
    j->hidden = calloc(np, sizeof *j->hidden);
    if (j->hidden == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    if (o->only_rank != NULL)
        rc = hvi_opts_ranks("--only-rank", o->only_rank, (int)np, j->hidden, err);
    for (size_t r = 0; r < np; r++)
        j->hidden[r] = nothing || !j->hidden[r];
    j->mux.hidden = j->hidden;
    return rc;
}

enum hvd_status hvi_job_io_init(struct hvi_job *j, struct hvi_err *err)
{
    bool one = same_file();
    enum hvd_status rc = HVD_OK;

    if (hvi_outmux_init(&j->mux, j->plan->np, j->opts->prefix, one) != HVD_OK ||
        hvi_report_init(&j->report, j->plan->np) != HVD_OK)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = set_view(j, err);
    j->nsinks = one ? 1 : 2;
    for (int i = 0; i < j->nsinks; i++) {
        struct hvi_err why = {""};
        enum hvd_status one_rc = hvi_sink_init(
            &j->sink[i], &j->loop, 1 + i, &j->mux.sink[i].text, written_cb, j, &why);

        if (rc == HVD_OK && one_rc != HVD_OK)
            rc = hvi_fail(err, one_rc, "%s", why.text);
    }
    if (rc == HVD_OK && j->opts->stdin_rank != -1)
        rc = hvi_input_open(&j->input, &j->loop, input_cb, j, err);
    return rc == HVD_OK && j->opts->output_dir != NULL ? open_files(j, err) : rc;
}

bool hvi_job_io_idle(const struct hvi_job *j)
{
    for (int i = 0; i < j->nsinks; i++)
        if (j->sink[i].busy ||
            (!j->sink[i].broken && hvi_sink_backlog(&j->sink[i]) > 0))
            return false;
    return true;
}

void hvi_job_io_close(struct hvi_job *j)
{
    hvi_input_close(&j->input);
    for (int i = 0; i < j->nsinks; i++)
        hvi_sink_close(&j->sink[i]);
}

void hvi_job_io_fini(struct hvi_job *j)
{
    hvi_input_fini(&j->input);
    for (int i = 0; i < j->nsinks; i++)
        hvi_sink_fini(&j->sink[i]);
    for (int r = 0; j->file != NULL && r < j->plan->np; r++)
        for (int s = 0; s < 2; s++)
            if (j->file[r][s] >= 0)
                close(j->file[r][s]);
    free(j->file);
    free(j->hidden);
    hvi_outmux_fini(&j->mux);
    hvi_report_fini(&j->report);
}
