/*
 * The file is `[`, events separated by `,\n`, and `\n]\n`; an append overwrites the end
 * mark in one write. At the limit the newer half is copied to a new file that takes the
 * place of the old one by rename.
 */
#include "proto/base/hash.h"
#include "worker/core/tracefile.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/buf.h"
#include "proto/base/clock.h"
#include "proto/base/names.h"

#define END_MARK "\n]\n"
#define END_BYTES 3
#define MAX_TENSORS                                                                    \
    65536 /* with a process of their own in the trace; the rest share one */

struct tensor {
    UT_hash_handle hh;
    char *key; /* "set/name" */
    int pid;
};

struct hvi_trace {
    char *path;
    int fd;
    int64_t end; /* file offset of the end mark */
    int64_t max_bytes;
    struct hvi_buf out;   /* queued events, each with a leading ",\n" */
    struct hvi_buf names; /* metadata events, all of them: they survive a cut */
    struct tensor *tensors;
    int ntensors;
    enum hvd_status failed;
    char why[256];
};

static enum hvd_status put(struct hvi_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static enum hvd_status put(struct hvi_buf *b, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text)
        return HVD_ELIMIT;
    return hvi_buf_append(b, text, (size_t)n);
}

/* JSON string contents of any bytes: what is not printable ASCII or valid UTF-8 becomes
 * \xNN text first. */
static void json_escape(char *out, size_t cap, const char *name, size_t size_bytes)
{
    char text[4 * HVD_NAME_MAX + 1];
    size_t n = 0;

    hvi_escape(text, sizeof text, name, size_bytes);
    for (const char *p = text; *p != '\0' && n + 3 < cap; p++) {
        if (*p == '"' || *p == '\\')
            out[n++] = '\\';
        out[n++] = *p;
    }
    out[n] = '\0';
}

static enum hvd_status write_all(int fd, const void *data, size_t size_bytes,
                                 int64_t at)
{
    const uint8_t *p = data;

    while (size_bytes > 0) {
        ssize_t n = pwrite(fd, p, size_bytes, at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return HVD_EIO;
        p += n;
        at += n;
        size_bytes -= (size_t)n;
    }
    return HVD_OK;
}

static enum hvd_status fail(struct hvi_trace *t, struct hvi_err *err)
{
    if (t->failed == HVD_OK) {
        t->failed = HVD_EIO;
        snprintf(t->why, sizeof t->why, "timeline %.150s: %s", t->path,
                 strerror(errno));
    }
    return hvi_fail(err, t->failed, "%s", t->why);
}

/* The first event: what the clock means. */
static enum hvd_status put_head(struct hvi_trace *t, struct hvi_buf *b)
{
    struct timespec now;

    (void)t;
    clock_gettime(CLOCK_REALTIME, &now);
    return put(
        b,
        "[\n{\"name\":\"clock\",\"ph\":\"M\",\"pid\":0,\"args\":{\"unix_us\":%" PRId64
        ",\"monotonic_us\":%" PRId64 "}}",
        (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000, hvi_now_us());
}

/* Only a file is emptied and kept: a FIFO would wait for its reader, and a cut puts a
 * new file in the place of this one. */
static int open_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    struct stat st = {0};
    int error = errno;

    if (fd < 0 && error != ENXIO)
        return -1;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ftruncate(fd, 0) == 0)
        return fd;
    error = fd < 0 || !S_ISREG(st.st_mode) ? ENOTSUP : errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

enum hvd_status hvi_trace_open(const char *path, int64_t max_bytes,
                               struct hvi_trace **out, struct hvi_err *err)
{
    struct hvi_trace *t = calloc(1, sizeof *t);
    struct hvi_buf head = {0};
    enum hvd_status rc = HVD_OK;

    if (t == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    t->fd = -1;
    t->max_bytes = max_bytes;
    t->path = strdup(path);
    if (t->path == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
        goto done;
    }
    t->fd = open_file(path);
    if (t->fd < 0) {
        rc = errno == ENOTSUP
                 ? hvi_fail(err, HVD_EINVAL, "timeline %s: not a regular file", path)
                 : fail(t, err);
        goto done;
    }
    rc = put_head(t, &head);
    t->end = (int64_t)hvi_buf_size(&head);
    if (rc == HVD_OK)
        rc = hvi_buf_append(&head, END_MARK, END_BYTES);
    if (rc == HVD_OK &&
        write_all(t->fd, hvi_buf_peek(&head), hvi_buf_size(&head), 0) != HVD_OK)
        rc = fail(t, err);
done:
    hvi_buf_fini(&head);
    if (rc == HVD_OK)
        *out = t;
    else
        hvi_trace_free(t);
    return rc;
}

/* The tensor's process number; its name goes to the file the first time. */
static int tensor_pid(struct hvi_trace *t, const struct hvi_trace_op *op)
{
    char key[HVD_NAME_MAX + 32];
    char shown[8 * HVD_NAME_MAX];
    struct tensor *it = NULL;
    size_t before = hvi_buf_size(&t->names);

    snprintf(key, sizeof key, "%u/%.*s", op->pset, (int)op->name_bytes, op->name);
    HASH_FIND_STR(t->tensors, key, it);
    if (it != NULL)
        return it->pid;
    if (t->ntensors == MAX_TENSORS)
        return 0;
    it = calloc(1, sizeof *it);
    if (it == NULL)
        return 0;
    it->key = strdup(key);
    if (it->key == NULL) {
        free(it);
        return 0;
    }
    HASH_ADD_KEYPTR(hh, t->tensors, it->key, strlen(it->key), it);
    if (!hvi_hash_added(it)) {
        free(it->key);
        free(it);
        return 0;
    }
    it->pid = ++t->ntensors;
    json_escape(shown, sizeof shown, op->name, op->name_bytes);
    put(&t->names,
        ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"",
        it->pid);
    if (op->pset > 0)
        put(&t->names, "set %u: ", op->pset);
    hvi_buf_append(&t->names, shown, strlen(shown));
    put(&t->names, "\"}}");
    hvi_buf_append(&t->out, hvi_buf_peek(&t->names) + before,
                   hvi_buf_size(&t->names) - before);
    return it->pid;
}

static void put_phase(struct hvi_buf *b, const char *prefix, const char *kind, int pid,
                      int tid, int64_t from_us, int64_t to_us)
{
    put(b,
        ",\n{\"name\":\"%s%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64
        ",\"dur\":%" PRId64 "}",
        prefix, kind, pid, tid, from_us, to_us > from_us ? to_us - from_us : 0);
}

/* Within begin_us .. end_us; the parts add up to no more than it. */
static void put_copies(struct hvi_buf *b, const struct hvi_trace_op *op, int pid)
{
    int64_t left = op->end_us > op->begin_us ? op->end_us - op->begin_us : 0;
    int64_t in = op->copy_in_us < left ? op->copy_in_us : left;
    int64_t out = op->copy_out_us < left - in ? op->copy_out_us : left - in;

    if (in > 0)
        put_phase(b, "MEMCPY_IN_", "FUSION_BUFFER", pid, op->rank, op->begin_us,
                  op->begin_us + in);
    if (out > 0)
        put_phase(b, "MEMCPY_OUT_", "FUSION_BUFFER", pid, op->rank, op->end_us - out,
                  op->end_us);
}

enum hvd_status hvi_trace_op(struct hvi_trace *t, const struct hvi_trace_op *op)
{
    char kind[32];
    int pid = tensor_pid(t, op);
    size_t i = 0;

    for (const char *p = hvi_kind_name(op->kind); *p != '\0' && i < sizeof kind - 1;
         p++)
        kind[i++] = (char)toupper((unsigned char)*p);
    kind[i] = '\0';
    put(&t->out,
        ",\n{\"name\":\"rank %d ready\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":%d,"
        "\"ts\":%" PRId64 "}",
        op->rank, pid, op->rank, op->submit_us);
    put_phase(&t->out, "NEGOTIATE_", kind, pid, op->rank, op->submit_us, op->sealed_us);
    put_phase(&t->out, "", "QUEUE", pid, op->rank, op->sealed_us, op->begin_us);
    put_copies(&t->out, op, pid);
    return put(&t->out,
               ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64
               ",\"dur\":%" PRId64 ",\"args\":{\"rank\":%d,\"seq\":%" PRIu64
               ",\"dtype\":\"%s\",\"bytes\":%" PRId64 ",\"status\":\"%s\"}}",
               kind, pid, op->rank, op->begin_us,
               op->end_us > op->begin_us ? op->end_us - op->begin_us : 0, op->rank,
               op->seq, hvi_dtype_name(op->dtype), op->bytes,
               hvi_status_name((enum hvd_status)op->status));
}

enum hvd_status hvi_trace_cycle(struct hvi_trace *t, int32_t rank, int64_t at_us)
{
    return put(
        &t->out,
        ",\n{\"name\":\"CYCLE_START\",\"ph\":\"i\",\"s\":\"g\",\"pid\":0,\"tid\":%d,"
        "\"ts\":%" PRId64 "}",
        rank, at_us);
}

/* The newer half of the file moves to a new one. */
static enum hvd_status cut(struct hvi_trace *t, struct hvi_err *err)
{
    size_t half = (size_t)t->max_bytes / 2;
    char *tail = malloc(half + 1);
    char *tmp = malloc(strlen(t->path) + 8);
    struct hvi_buf head = {0};
    enum hvd_status rc = HVD_OK;
    char *start = NULL;
    ssize_t got = -1;
    int in = open(t->path, O_RDONLY | O_CLOEXEC);
    int fd = -1;

    if (tail == NULL || tmp == NULL) {
        errno = ENOMEM;
        rc = fail(t, err);
        goto done;
    }
    if (in >= 0)
        got = pread(in, tail, half, t->end - (int64_t)half);
    if (got > 0) {
        tail[got] = '\0';
        start = strstr(tail, ",\n{");
    }
    sprintf(tmp, "%s.tmp", t->path);
    fd = open_file(tmp);
    if (start == NULL || fd < 0 || put_head(t, &head) != HVD_OK ||
        hvi_buf_append(&head, hvi_buf_peek(&t->names), hvi_buf_size(&t->names)) !=
            HVD_OK ||
        hvi_buf_append(&head, start, strlen(start)) != HVD_OK) {
        rc = fail(t, err);
        goto done;
    }
    t->end = (int64_t)hvi_buf_size(&head);
    if (hvi_buf_append(&head, END_MARK, END_BYTES) != HVD_OK ||
        write_all(fd, hvi_buf_peek(&head), hvi_buf_size(&head), 0) != HVD_OK ||
        rename(tmp, t->path) != 0) {
        rc = fail(t, err);
        goto done;
    }
    close(t->fd);
    t->fd = fd;
    fd = -1;
done:
    if (in >= 0)
        close(in);
    if (fd >= 0) {
        close(fd);
        unlink(tmp);
    }
    hvi_buf_fini(&head);
    free(tail);
    free(tmp);
    return rc;
}

enum hvd_status hvi_trace_flush(struct hvi_trace *t, struct hvi_err *err)
{
    size_t n = hvi_buf_size(&t->out);
    enum hvd_status rc = HVD_OK;

    if (t->failed != HVD_OK)
        return hvi_fail(err, t->failed, "%s", t->why);
    if (n == 0)
        return HVD_OK;
    if (t->end + (int64_t)n > t->max_bytes && t->end > t->max_bytes / 2)
        rc = cut(t, err);
    if (rc == HVD_OK)
        rc = hvi_buf_append(&t->out, END_MARK, END_BYTES);
    if (rc == HVD_OK &&
        write_all(t->fd, hvi_buf_peek(&t->out), n + END_BYTES, t->end) != HVD_OK)
        rc = fail(t, err);
    if (rc == HVD_OK)
        t->end += (int64_t)n;
    hvi_buf_clear(&t->out);
    return rc;
}

const char *hvi_trace_path(const struct hvi_trace *t)
{
    return t->path;
}

void hvi_trace_free(struct hvi_trace *t)
{
    struct tensor *it;
    struct tensor *next;

    if (t == NULL)
        return;
    if (t->fd >= 0) {
        hvi_trace_flush(t, NULL);
        close(t->fd);
    }
    HASH_ITER(hh, t->tensors, it, next)
    {
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not follow the table */
        HASH_DEL(t->tensors, it);
        free(it->key);
        free(it);
    }
    hvi_buf_fini(&t->out);
    hvi_buf_fini(&t->names);
    free(t->path);
    free(t);
}
