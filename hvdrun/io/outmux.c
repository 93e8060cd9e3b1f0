#include "hvdrun/io/outmux.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/hosts.h"

struct hvi_outmux_stream {
    int rank, which; /* which: 0 stdout, 1 stderr */
    struct hvi_buf held;
    int64_t held_since_ms;
    bool shown;    /* the start of the line, with its prefix, is in the sink already */
    bool after_cr; /* the last line ended with a carriage return */
};

enum hvd_status hvi_outmux_init(struct hvi_outmux *m, int np, enum hvi_prefix prefix,
                                bool one_sink)
{
    memset(m, 0, sizeof *m);
    m->stream = calloc(2 * (size_t)np, sizeof *m->stream);
    if (m->stream == NULL)
        return HVD_ENOMEM;
    m->np = np;
    m->prefix = prefix;
    m->one_sink = one_sink;
    for (int i = 0; i < 2 * np; i++) {
        m->stream[i].rank = i / 2;
        m->stream[i].which = i % 2;
    }
    return HVD_OK;
}

void hvi_outmux_fini(struct hvi_outmux *m)
{
    for (int i = 0; m->stream != NULL && i < 2 * m->np; i++)
        hvi_buf_fini(&m->stream[i].held);
    free(m->stream);
    hvi_buf_fini(&m->sink[0].text);
    hvi_buf_fini(&m->sink[1].text);
    memset(m, 0, sizeof *m);
}

static struct hvi_outmux_sink *sink_of(struct hvi_outmux *m, int which)
{
    return &m->sink[m->one_sink || m->merge ? 0 : which];
}

/* Somebody else's unfinished line gives way. */
static enum hvd_status make_room(struct hvi_outmux_sink *sink,
                                 const struct hvi_outmux_stream *next)
{
    enum hvd_status rc;

    if (sink->open == NULL || sink->open == next)
        return HVD_OK;
    rc = hvi_buf_append(&sink->text, "\\\n", 2);
    if (rc == HVD_OK) {
        sink->open->shown = false;
        sink->open = NULL;
    }
    return rc;
}

static enum hvd_status put_prefix(struct hvi_outmux *m, struct hvi_outmux_sink *sink,
                                  const struct hvi_outmux_stream *s)
{
    static const char normal[] = "\033[0m";
    char text[HVI_HOST_NAME_MAX + 64];
    size_t n = 0;
    enum hvd_status rc = HVD_OK;

    if (m->stamp != NULL)
        rc = hvi_buf_append(&sink->text, m->stamp, strlen(m->stamp));
    if (m->color && m->prefix != HVI_PREFIX_NONE) /* red is for errors */
        n = (size_t)snprintf(text, sizeof text, "\033[%dm",
                             s->which == 1 ? 31 : 32 + s->rank % 5);
    if (m->prefix == HVI_PREFIX_HOROVOD)
        n += (size_t)snprintf(text + n, sizeof text - n, "[%d]<%s>:", s->rank,
                              s->which == 0 || m->merge ? "stdout" : "stderr");
    else if (m->prefix == HVI_PREFIX_RANK)
        n += (size_t)snprintf(text + n, sizeof text - n, "%d: ", s->rank);
    else if (m->prefix == HVI_PREFIX_HOST)
        n += (size_t)snprintf(text + n, sizeof text - n, "%d@%.*s: ", s->rank,
                              HVI_HOST_NAME_MAX, m->host(m->host_arg, s->rank));
    if (rc == HVD_OK && n > 0)
        rc = hvi_buf_append(&sink->text, text, n);
    if (rc == HVD_OK && n > 0 && m->color)
        rc = hvi_buf_append(&sink->text, normal, sizeof normal - 1);
    return rc;
}

/* What is held and size_bytes of data, of which the last ends the line if `whole`. */
static enum hvd_status put_line(struct hvi_outmux *m, struct hvi_outmux_stream *s,
                                const char *data, size_t size_bytes, bool whole)
{
    struct hvi_outmux_sink *sink = sink_of(m, s->which);
    enum hvd_status rc = make_room(sink, s);

    if (rc == HVD_OK && !s->shown)
        rc = put_prefix(m, sink, s);
    if (rc == HVD_OK && hvi_buf_size(&s->held) > 0) {
        rc =
            hvi_buf_append(&sink->text, hvi_buf_peek(&s->held), hvi_buf_size(&s->held));
        hvi_buf_clear(&s->held);
        m->held--;
    }
    if (rc == HVD_OK && size_bytes > 0)
        rc = hvi_buf_append(&sink->text, data, size_bytes);
    s->shown = !whole;
    sink->open = whole ? NULL : s;
    return rc;
}

/* Bytes up to and with the end of the line; 0: there is none. "\r\n" is one end. */
static size_t line_bytes(const char *data, size_t size_bytes)
{
    const char *nl = memchr(data, '\n', size_bytes);
    size_t n = nl != NULL ? (size_t)(nl - data) + 1 : size_bytes;
    const char *cr = memchr(data, '\r', n);

    if (cr == NULL)
        return nl != NULL ? n : 0;
    if (nl == cr + 1)
        return n;
    return (size_t)(cr - data) + 1;
}

static enum hvd_status hold(struct hvi_outmux *m, struct hvi_outmux_stream *s,
                            const char *data, size_t size_bytes, int64_t now_ms)
{
    enum hvd_status rc;

    if (hvi_buf_size(&s->held) == 0) {
        s->held_since_ms = now_ms;
        m->held++;
    }
    rc = hvi_buf_append(&s->held, data, size_bytes);
    if (rc == HVD_OK && (s->shown || hvi_buf_size(&s->held) >= HVI_OUTMUX_LINE_BYTES))
        rc = put_line(m, s, NULL, 0, false);
    return rc;
}

enum hvd_status hvi_outmux_feed(struct hvi_outmux *m, int rank, int stream,
                                const void *bytes, size_t size_bytes, int64_t now_ms)
{
    struct hvi_outmux_stream *s = &m->stream[2 * rank + stream - 1];
    const char *data = bytes;
    enum hvd_status rc = HVD_OK;

    if (m->hidden != NULL && m->hidden[rank])
        return HVD_OK;
    if (size_bytes > 0 && s->after_cr) {
        s->after_cr = false;
        if (*data == '\n') { /* "\r" and "\n" came apart; the line is out already */
            rc = hvi_buf_append(&sink_of(m, s->which)->text, "\n", 1);
            data++;
            size_bytes--;
        }
    }
    while (rc == HVD_OK && size_bytes > 0) {
        size_t n = line_bytes(data, size_bytes);

        if (n == 0)
            return hold(m, s, data, size_bytes, now_ms);
        rc = put_line(m, s, data, n, true);
        s->after_cr = n == size_bytes && data[n - 1] == '\r';
        data += n;
        size_bytes -= n;
    }
    return rc;
}

enum hvd_status hvi_outmux_end(struct hvi_outmux *m, int rank, int stream)
{
    struct hvi_outmux_stream *s = &m->stream[2 * rank + stream - 1];

    if (hvi_buf_size(&s->held) == 0 && !s->shown)
        return HVD_OK;
    return put_line(m, s, "\n", 1, true);
}

int64_t hvi_outmux_tick(struct hvi_outmux *m, int64_t now_ms, bool may_show)
{
    int64_t next = -1;

    for (int i = 0; m->held > 0 && i < 2 * m->np; i++) {
        struct hvi_outmux_stream *s = &m->stream[i];
        int64_t left;

        if (hvi_buf_size(&s->held) == 0)
            continue;
        if (!may_show)
            s->held_since_ms = now_ms;
        left = s->held_since_ms + HVI_OUTMUX_HOLD_MS - now_ms;
        if (left <= 0)
            (void)put_line(m, s, NULL, 0, false);
        else if (next < 0 || left < next)
            next = left;
    }
    return next;
}

enum hvd_status hvi_outmux_say(struct hvi_outmux *m, const char *line)
{
    struct hvi_outmux_sink *sink = &m->sink[m->one_sink ? 0 : 1];
    enum hvd_status rc = make_room(sink, NULL);

    if (rc == HVD_OK)
        rc = hvi_buf_append(&sink->text, line, strlen(line));
    if (rc == HVD_OK)
        rc = hvi_buf_append(&sink->text, "\n", 1);
    return rc;
}
