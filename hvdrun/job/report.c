#include "hvdrun/job/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/job/exitcode.h"
#include "proto/base/err.h"

#define LINE_MAX_BYTES 1000

struct hvi_tail {
    char *bytes; /* ring of HVI_REPORT_TAIL_BYTES, or NULL */
    size_t at, size_bytes;
};

enum hvd_status hvi_report_init(struct hvi_report *r, int np)
{
    r->tail = calloc((size_t)np, sizeof *r->tail);
    r->np = r->tail != NULL ? np : 0;
    return r->tail != NULL ? HVD_OK : HVD_ENOMEM;
}

void hvi_report_fini(struct hvi_report *r)
{
    for (int i = 0; i < r->np; i++)
        free(r->tail[i].bytes);
    free(r->tail);
    memset(r, 0, sizeof *r);
}

void hvi_report_stderr(struct hvi_report *r, int rank, const void *data,
                       size_t size_bytes)
{
    struct hvi_tail *t = &r->tail[rank];
    const char *p = data;

    if (t->bytes == NULL && size_bytes > 0)
        t->bytes = malloc(HVI_REPORT_TAIL_BYTES);
    if (t->bytes == NULL)
        return;
    if (size_bytes > HVI_REPORT_TAIL_BYTES) {
        p += size_bytes - HVI_REPORT_TAIL_BYTES;
        size_bytes = HVI_REPORT_TAIL_BYTES;
    }
    for (size_t done = 0; done < size_bytes;) {
        size_t room = HVI_REPORT_TAIL_BYTES - t->at;
        size_t n = size_bytes - done < room ? size_bytes - done : room;

        memcpy(t->bytes + t->at, p + done, n);
        t->at = (t->at + n) % HVI_REPORT_TAIL_BYTES;
        done += n;
    }
    t->size_bytes += size_bytes;
}

static enum hvd_status put(struct hvi_buf *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static enum hvd_status put(struct hvi_buf *out, const char *fmt, ...)
{
    char text[4 * LINE_MAX_BYTES + 64];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return HVD_EINTERNAL;
    return hvi_buf_append(out, text,
                          (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

/* The tail in one piece, without a first line that was cut. Returns its length. */
static size_t unroll(const struct hvi_tail *t, char out[HVI_REPORT_TAIL_BYTES])
{
    size_t n = t->size_bytes;
    size_t cut = 0;

    if (t->bytes == NULL)
        return 0;
    if (n <= HVI_REPORT_TAIL_BYTES) {
        memcpy(out, t->bytes, n);
        return n;
    }
    n = HVI_REPORT_TAIL_BYTES;
    memcpy(out, t->bytes + t->at, n - t->at);
    memcpy(out + n - t->at, t->bytes, t->at);
    while (cut < n && out[cut] != '\n')
        cut++;
    if (cut == n) /* one very long line: its end is better than nothing */
        return n;
    cut++;
    memmove(out, out + cut, n - cut);
    return n - cut;
}

static enum hvd_status put_tail(const struct hvi_tail *t, struct hvi_buf *out)
{
    char text[HVI_REPORT_TAIL_BYTES], shown[4 * LINE_MAX_BYTES];
    size_t n = unroll(t, text);
    size_t start;
    int lines = 0;
    enum hvd_status rc = HVD_OK;

    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    for (start = n; start > 0; start--)
        if (text[start - 1] == '\n' && ++lines == HVI_REPORT_LINES)
            break;
    if (n == 0)
        return HVD_OK;
    rc = put(out, "hvdrun: the last lines of its stderr:\n");
    while (rc == HVD_OK && start < n) {
        const char *nl = memchr(text + start, '\n', n - start);
        size_t end = nl != NULL ? (size_t)(nl - text) : n;
        size_t len = end - start;

        if (len > 0 && text[end - 1] == '\r')
            len--;
        hvi_escape(shown, sizeof shown, text + start,
                   len < LINE_MAX_BYTES ? len : LINE_MAX_BYTES);
        rc = put(out, "  | %s\n", shown);
        start = end + 1;
    }
    return rc;
}

static enum hvd_status put_others(const struct hvi_failure *f, struct hvi_buf *out)
{
    enum hvd_status rc = HVD_OK;

    if (f->also_failed > 0)
        rc = put(out, "hvdrun: %d other %s failed after it\n", f->also_failed,
                 f->also_failed == 1 ? "rank" : "ranks");
    if (rc == HVD_OK && f->stopped > 0)
        rc = put(out, "hvdrun: %d other %s being stopped\n", f->stopped,
                 f->stopped == 1 ? "rank is" : "ranks are");
    return rc;
}

enum hvd_status hvi_report_failure(const struct hvi_report *r,
                                   const struct hvi_failure *f, struct hvi_buf *out)
{
    char words[128];
    enum hvd_status rc;

    if (!f->exited)
        snprintf(words, sizeof words, "was lost");
    else if (f->no_bye && f->wait_status == 0)
        snprintf(words, sizeof words,
                 "ended (status 0) without hvd_shutdown() while others needed it");
    else
        hvi_exit_words(f->wait_status, words, sizeof words);
    rc = put(out, "hvdrun: rank %d on %s (pid %d) %s after %.1f s\n", f->rank, f->host,
             f->pid, words, (double)f->age_ms / 1000);
    if (rc == HVD_OK && f->out_of_memory)
        rc = put(out,
                 "hvdrun: the kernel of %s killed a process for want of memory "
                 "meanwhile: start fewer ranks there, or give the job more\n",
                 f->host);
    if (rc == HVD_OK)
        rc = put_tail(&r->tail[f->rank], out);
    return rc == HVD_OK ? put_others(f, out) : rc;
}
