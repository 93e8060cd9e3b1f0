/*
 * libnccl.so.2 without a GPU: collectives across real processes over a file that all of a
 * communicator map, run in stream order by the fake driver. It refuses what NCCL would
 * suffer from: ranks that launch different operations and calls on a communicator that was
 * aborted end the process with a word about it. Environment:
 *   FAKE_NCCL_VERSION=N           ncclGetVersion (22809)
 *   FAKE_NCCL_FAULT=WHAT:RANK:K   on that rank of a communicator, at its K-th launch (0...):
 *                                 hang (never takes part), async (asynchronous system
 *                                 error), call (the call fails); K ignored: init (creation
 *                                 fails asynchronously)
 *   FAKE_NCCL_TEXT=TEXT           what ncclGetLastError says of that call
 *   FAKE_NCCL_ABORT_HANG=1        ncclCommAbort never returns
 *   FAKE_NCCL_FINALIZE_HANG=1     ncclCommFinalize never comes to its end
 *   FAKE_NCCL_SLOW_MS=N           calls return ncclInProgress, the work is queued N ms later
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/names.h"
#include "worker/plane/nccl/api.h"
#include "worker/plane/reduce/reduce.h"

#define EXPORT __attribute__((visibility("default")))
#define RANKS 64
#define SLOT (64 * 1024)

extern int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *arg);
extern int cuCtxPushCurrent_v2(void *context);
extern int cuCtxPopCurrent_v2(void **context);

struct seg {
    _Atomic int attached;
    _Atomic uint64_t arrived[RANKS];
    uint64_t what[RANKS][6]; /* of the running operation */
    char split[RANKS][64];   /* names of new communicators */
    struct mail {
        _Atomic int full;
        size_t size;
        char data[SLOT];
    } mail[];
    /* [n * n] mails, then [n] slots */
};

struct ncclComm {
    struct ncclComm *next; /* of all ever made */
    struct seg *seg;
    char *slots;
    char path[64];
    int n, me;
    uint64_t round;
    _Atomic uint64_t launched, finished;
    _Atomic int state; /* ncclResult_t */
    _Atomic bool aborted, dead;
    char last[160];
};

enum kind { ALLREDUCE = 1, REDUCE, SCATTER, GATHER, BROADCAST, SEND, RECV };
struct op {
    struct op *next;
    enum kind kind;
    const char *in;
    char *out;
    size_t count, done;
    int type, op, root;
};
struct bundle {
    struct ncclComm *comm;
    void *stream;
    struct op *ops;
    bool hang;
};

#define THREAD_OWN _Thread_local __attribute__((tls_model("initial-exec")))
static THREAD_OWN int depth;
static THREAD_OWN struct bundle *pending[16];
static THREAD_OWN int npending;
static const char *global_error = "";

static long number_of(const char *name, long fallback)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? strtol(text, NULL, 0) : fallback;
}

static void nap_us(long us)
{
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};

    nanosleep(&ts, NULL);
}

static void die(const char *why)
{
    fprintf(stderr, "fake NCCL: %s\n", why);
    fflush(stderr);
    abort();
}

/* Is this fault to happen now? */
static bool fault(const struct ncclComm *c, const char *what, uint64_t k)
{
    const char *text = getenv("FAKE_NCCL_FAULT");
    char kind[16] = "";
    int rank = -1;
    unsigned long long at = 0;

    if (text == NULL || sscanf(text, "%15[^:]:%d:%llu", kind, &rank, &at) < 2)
        return false;
    return strcmp(kind, what) == 0 && rank == c->me && (k == UINT64_MAX || k == at);
}

static uint32_t dtype_of(int type)
{
    static const uint32_t dtypes[] = {
        [HVI_NCCL_INT8] = HVD_INT8,       [HVI_NCCL_UINT8] = HVD_UINT8,
        [HVI_NCCL_INT32] = HVD_INT32,     [HVI_NCCL_UINT32] = HVD_INT32,
        [HVI_NCCL_INT64] = HVD_INT64,     [5] = HVD_INT64,
        [HVI_NCCL_FLOAT16] = HVD_FLOAT16, [HVI_NCCL_FLOAT32] = HVD_FLOAT32,
        [HVI_NCCL_FLOAT64] = HVD_FLOAT64, [HVI_NCCL_BFLOAT16] = HVD_BFLOAT16};

    return dtypes[type];
}

static uint32_t reduction_of(int op)
{
    static const uint32_t ops[] = {[HVI_NCCL_SUM] = HVD_SUM,
                                   [HVI_NCCL_PROD] = HVD_PRODUCT,
                                   [HVI_NCCL_MAX] = HVD_MAX,
                                   [HVI_NCCL_MIN] = HVD_MIN,
                                   [HVI_NCCL_AVG] = HVD_SUM};

    return ops[op];
}

/* ---- the file of a communicator */

static size_t seg_size(int n)
{
    return sizeof(struct seg) + (size_t)n * (size_t)n * sizeof(struct mail) +
           (size_t)n * SLOT;
}

static const char *folder(void)
{
    const char *tmp = getenv("TMPDIR");

    return tmp != NULL && strlen(tmp) < 24 ? tmp : "/tmp";
}

static void new_name(char out[64])
{
    static _Atomic unsigned count;

    snprintf(out, 64, "%s/hvd-fake-nccl-%d-%u", folder(), (int)getpid(),
             atomic_fetch_add(&count, 1));
}

static void attach(struct ncclComm *c, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0 || ftruncate(fd, (off_t)seg_size(c->n)) != 0)
        die("no file for a communicator");
    snprintf(c->path, sizeof c->path, "%.63s", path);
    c->seg = mmap(NULL, seg_size(c->n), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->seg == MAP_FAILED)
        die("no memory for a communicator");
    c->slots = (char *)&c->seg->mail[c->n * c->n];
    atomic_fetch_add(&c->seg->attached, 1);
}

/* The others come in their own time; the last to see all takes the name away. */
static void *meet(void *arg)
{
    struct ncclComm *c = arg;
    int ok = 0;

    while (atomic_load(&c->seg->attached) < c->n && !atomic_load(&c->aborted))
        nap_us(200);
    nap_us(number_of("FAKE_NCCL_SLOW_MS", 0) * 1000);
    unlink(c->path);
    if (fault(c, "init", UINT64_MAX)) {
        snprintf(c->last, sizeof c->last, "fake: no route to the other ranks");
        ok = HVI_NCCL_SYSTEM;
    }
    atomic_store(&c->state, ok);
    return NULL;
}

/* NCCL 2.26 and newer read what an older ncclConfig_t had as padding. */
static void check_config(const struct hvi_nccl_config *config)
{
    if (config == NULL || config->magic != 0xcafebeef || config->blocking != 0)
        die("communicators are to be made non-blocking");
    if (config->size > offsetof(struct hvi_nccl_config, traffic_class) &&
        config->traffic_class != INT_MIN)
        die("the configuration has a traffic class");
}

static int start_meeting(struct ncclComm *c, const struct hvi_nccl_config *config)
{
    pthread_t thread;

    atomic_store(&c->state, HVI_NCCL_IN_PROGRESS);
    check_config(config);
    if (pthread_create(&thread, NULL, meet, c) != 0)
        die("no thread");
    pthread_detach(thread);
    return HVI_NCCL_IN_PROGRESS;
}

/* ---- running */

static bool barrier(struct ncclComm *c)
{
    c->round++;
    atomic_store(&c->seg->arrived[c->me], c->round);
    for (int i = 0; i < c->n; i++)
        for (int spins = 0; atomic_load(&c->seg->arrived[i]) < c->round; spins++) {
            if (atomic_load(&c->aborted))
                return false;
            if (spins < 200)
                sched_yield();
            else
                nap_us(50);
        }
    return !atomic_load(&c->aborted);
}

static char *slot(struct ncclComm *c, int rank)
{
    return c->slots + (size_t)rank * SLOT;
}

/* All ranks must be in the same operation. */
static bool agree(struct ncclComm *c, const struct op *op)
{
    uint64_t mine[6] = {op->kind,         op->count,          (uint64_t)op->type,
                        (uint64_t)op->op, (uint64_t)op->root, 1};

    memcpy(c->seg->what[c->me], mine, sizeof mine);
    if (!barrier(c))
        return false;
    for (int r = 0; r < c->n; r++)
        if (memcmp(c->seg->what[r], mine, sizeof mine) != 0)
            die("ranks have launched different operations");
    return barrier(c);
}

static bool fold(struct ncclComm *c, const char *in, char *out, size_t count,
                 const struct op *op)
{
    uint32_t dtype = dtype_of(op->type);
    size_t size = hvi_dtype_size(dtype);
    size_t step = SLOT / size;
    const void *src[RANKS];

    for (int r = 0; r < c->n; r++)
        src[r] = slot(c, r);
    for (size_t at = 0; at < count; at += step) {
        size_t n = count - at < step ? count - at : step;

        memcpy(slot(c, c->me), in + at * size, n * size);
        if (!barrier(c))
            return false;
        if (out != NULL)
            hvi_reduce_fold(out + at * size, src, c->n, (int64_t)n, dtype,
                            reduction_of(op->op), 1, false, -1,
                            op->op == HVI_NCCL_AVG ? 1.0 / c->n : 1.0, false);
        if (!barrier(c))
            return false;
    }
    return true;
}

static bool gather(struct ncclComm *c, const struct op *op, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += SLOT) {
        size_t n = bytes - at < SLOT ? bytes - at : SLOT;

        if (op->kind == GATHER || c->me == op->root)
            memcpy(slot(c, c->me), op->in + at, n);
        if (!barrier(c))
            return false;
        for (int r = 0; op->kind == GATHER && r < c->n; r++)
            memcpy(op->out + (size_t)r * bytes + at, slot(c, r), n);
        if (op->kind == BROADCAST)
            memcpy(op->out + at, slot(c, op->root), n);
        if (!barrier(c))
            return false;
    }
    return true;
}

static bool run_one(struct ncclComm *c, const struct op *op)
{
    size_t size = hvi_dtype_size(dtype_of(op->type));

    if (!agree(c, op))
        return false;
    switch (op->kind) {
    case ALLREDUCE:
        return fold(c, op->in, op->out, op->count, op);
    case REDUCE:
        return fold(c, op->in, op->root == c->me ? op->out : NULL, op->count, op);
    case SCATTER:
        for (int r = 0; r < c->n; r++)
            if (!fold(c, op->in + (size_t)r * op->count * size,
                      r == c->me ? op->out : NULL, op->count, op))
                return false;
        return true;
    default:
        return gather(c, op, op->count * size);
    }
}

/* All sends and receives of a group go on side by side. */
static bool move_mail(struct ncclComm *c, struct op *op)
{
    bool sends = op->kind == SEND;
    int src = sends ? c->me : op->root;
    int dst = sends ? op->root : c->me;
    struct mail *m = &c->seg->mail[src * c->n + dst];
    size_t bytes = op->count * hvi_dtype_size(dtype_of(op->type));
    size_t n = bytes - op->done < SLOT ? bytes - op->done : SLOT;

    if (atomic_load(&m->full) != !sends)
        return false;
    if (sends) {
        memcpy(m->data, op->in + op->done, n);
        m->size = n;
    } else {
        if (m->size != n)
            die("a send and its receive have different sizes");
        memcpy(op->out + op->done, m->data, n);
    }
    op->done += n;
    atomic_store(&m->full, sends);
    return true;
}

static bool run_mail(struct bundle *b)
{
    struct ncclComm *c = b->comm;
    bool left = true;

    while (left) {
        bool moved = false;
        bool busy[2][RANKS] = {{false}}; /* those to one peer go one after another */

        left = false;
        for (struct op *op = b->ops; op != NULL; op = op->next) {
            if (op->kind != SEND && op->kind != RECV)
                continue;
            if (op->done < op->count * hvi_dtype_size(dtype_of(op->type)) &&
                !busy[op->kind == SEND][op->root]) {
                left = true;
                busy[op->kind == SEND][op->root] = true;
                moved |= move_mail(c, op);
            }
        }
        if (atomic_load(&c->aborted))
            return false;
        if (left && !moved)
            nap_us(50);
    }
    return true;
}

static void run_bundle(void *arg)
{
    struct bundle *b = arg;
    struct ncclComm *c = b->comm;
    bool ok = true;

    while (b->hang && !atomic_load(&c->aborted))
        nap_us(500);
    for (struct op *op = b->ops; op != NULL && ok; op = op->next)
        if (op->kind != SEND && op->kind != RECV)
            ok = run_one(c, op);
    if (ok)
        run_mail(b);
    while (b->ops != NULL) {
        struct op *op = b->ops;

        b->ops = op->next;
        free(op);
    }
    atomic_fetch_add(&c->finished, 1);
    free(b);
}

/* ---- launching */

static void *launch_later(void *arg)
{
    struct bundle *b = arg;
    struct ncclComm *c = b->comm;
    static char any;
    void *old;

    nap_us(number_of("FAKE_NCCL_SLOW_MS", 0) * 1000);
    cuCtxPushCurrent_v2(&any);
    if (cuLaunchHostFunc(b->stream, run_bundle, b) != 0)
        die("cannot launch");
    cuCtxPopCurrent_v2(&old);
    atomic_store(&c->state, HVI_NCCL_SUCCESS);
    return NULL;
}

/* As on a GPU: noticed while the kernel runs, not by the call. */
static void *fail_later(void *arg)
{
    struct ncclComm *c = arg;

    nap_us(100000);
    snprintf(c->last, sizeof c->last, "fake: NET/IB: got completion with error 12");
    atomic_store(&c->state, HVI_NCCL_SYSTEM);
    return NULL;
}

static int launch(struct bundle *b)
{
    struct ncclComm *c = b->comm;
    uint64_t k = atomic_fetch_add(&c->launched, 1);
    pthread_t thread;

    b->hang = fault(c, "hang", k);
    if (fault(c, "async", k)) {
        b->hang = true;
        if (pthread_create(&thread, NULL, fail_later, c) != 0)
            die("no thread");
        pthread_detach(thread);
    }
    if (number_of("FAKE_NCCL_SLOW_MS", 0) == 0)
        return cuLaunchHostFunc(b->stream, run_bundle, b) == 0
                   ? HVI_NCCL_SUCCESS
                   : HVI_NCCL_UNHANDLED_CUDA;
    atomic_store(&c->state, HVI_NCCL_IN_PROGRESS);
    if (pthread_create(&thread, NULL, launch_later, b) != 0)
        die("no thread");
    pthread_detach(thread);
    return HVI_NCCL_IN_PROGRESS;
}

static void check_comm(struct ncclComm *c)
{
    if (c == NULL || atomic_load(&c->dead))
        die("a call on a communicator that was destroyed or aborted");
}

static struct bundle *bundle_of(struct ncclComm *c, void *stream)
{
    struct bundle *b;

    for (int i = 0; i < npending; i++)
        if (pending[i]->comm == c && pending[i]->stream == stream)
            return pending[i];
    b = calloc(1, sizeof *b);
    b->comm = c;
    b->stream = stream;
    pending[npending++] = b;
    return b;
}

static int flush(void)
{
    int rc = HVI_NCCL_SUCCESS;

    for (int i = 0; i < npending; i++) {
        int one = launch(pending[i]);

        if (one != HVI_NCCL_SUCCESS)
            rc = one;
    }
    npending = 0;
    return rc;
}

static int add(struct ncclComm *c, void *stream, struct op make)
{
    struct op *op = malloc(sizeof *op);
    struct op **last;

    check_comm(c);
    if (atomic_load(&c->state) == HVI_NCCL_IN_PROGRESS)
        die("a call before the communicator was ready");
    if (fault(c, "call", atomic_load(&c->launched))) {
        const char *text = getenv("FAKE_NCCL_TEXT");

        snprintf(c->last, sizeof c->last, "%s",
                 text != NULL ? text : "fake: this call fails");
        free(op);
        return HVI_NCCL_UNHANDLED_CUDA;
    }
    *op = make;
    op->next = NULL;
    last = &bundle_of(c, stream)->ops;
    while (*last != NULL)
        last = &(*last)->next;
    *last = op;
    return depth > 0 ? HVI_NCCL_SUCCESS : flush();
}

/* ---- the API */

EXPORT int ncclGetVersion(int *out)
{
#ifdef FAKE_OLD
    *out = (int)number_of("FAKE_NCCL_VERSION", 21602);
#else
    *out = (int)number_of("FAKE_NCCL_VERSION", 22809);
#endif
    return HVI_NCCL_SUCCESS;
}
EXPORT const char *ncclGetErrorString(int rc)
{
    switch (rc) {
    case HVI_NCCL_SUCCESS:
        return "no error";
    case HVI_NCCL_UNHANDLED_CUDA:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case HVI_NCCL_SYSTEM:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    default:
        return "fake error";
    }
}
EXPORT const char *ncclGetLastError(struct ncclComm *c)
{
    return c != NULL ? c->last : global_error;
}
EXPORT int ncclGetUniqueId(struct hvi_nccl_id *out)
{
    memset(out, 0, sizeof *out);
    new_name(out->bytes);
    return HVI_NCCL_SUCCESS;
}

/* Never freed, so that a late call is noticed; kept where a leak checker finds it. */
static struct ncclComm *remember(struct ncclComm *c)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct ncclComm *all;

    pthread_mutex_lock(&lock);
    c->next = all;
    all = c;
    pthread_mutex_unlock(&lock);
    return c;
}

static struct ncclComm *new_comm(int n, int me, const char *path)
{
    struct ncclComm *c = remember(calloc(1, sizeof *c));

    if (n < 1 || n > RANKS || me < 0 || me >= n)
        die("bad communicator size");
    c->n = n;
    c->me = me;
    attach(c, path);
    return c;
}

EXPORT int ncclCommInitRankConfig(struct ncclComm **out, int n, struct hvi_nccl_id id,
                                  int me, struct hvi_nccl_config *config)
{
    *out = new_comm(n, me, id.bytes);
    return start_meeting(*out, config);
}

#ifndef FAKE_OLD
struct splitting {
    struct ncclComm *parent, **out;
    struct ncclComm *made;
    int color;
};

/* Who has one colour maps one file; the first of them names it. Runs like an operation. */
static void *split_main(void *arg)
{
    struct splitting *s = arg;
    struct ncclComm *p = s->parent;
    int n = 0;
    int me = 0;
    int first = -1;

    p->seg->what[p->me][0] = (uint64_t)(int64_t)s->color;
    if (barrier(p)) {
        for (int r = 0; r < p->n; r++) {
            if ((int)(int64_t)p->seg->what[r][0] != s->color)
                continue;
            first = first < 0 ? r : first;
            me = r == p->me ? n : me;
            n++;
        }
        if (first == p->me)
            new_name(p->seg->split[first]);
        barrier(p);
        if (s->made != NULL) {
            s->made->n = n;
            s->made->me = me;
            attach(s->made, p->seg->split[first]);
            meet(s->made);
        }
        barrier(p);
        if (s->out != NULL)
            *s->out =
                s->made; /* as NCCL does: the pointer is there when the split is over */
    }
    atomic_store(&p->state, HVI_NCCL_SUCCESS);
    free(s);
    return NULL;
}

EXPORT int ncclCommSplit(struct ncclComm *parent, int color, int key,
                         struct ncclComm **out, struct hvi_nccl_config *config)
{
    struct splitting *s = calloc(1, sizeof *s);
    pthread_t thread;

    (void)key;
    check_comm(parent);
    check_config(config);
    s->parent = parent;
    s->color = color;
    *out = NULL;
    if (color >= 0) {
        s->made = remember(calloc(1, sizeof **out));
        s->out = out;
        atomic_store(&s->made->state, HVI_NCCL_IN_PROGRESS);
    }
    atomic_store(&parent->state, HVI_NCCL_IN_PROGRESS);
    if (pthread_create(&thread, NULL, split_main, s) != 0)
        die("no thread");
    pthread_detach(thread);
    return HVI_NCCL_IN_PROGRESS;
}
EXPORT int ncclCommRegister(struct ncclComm *c, void *p, size_t n, void **handle)
{
    check_comm(c);
    (void)n;
    *handle = p;
    return HVI_NCCL_SUCCESS;
}
EXPORT int ncclCommDeregister(struct ncclComm *c, void *handle)
{
    check_comm(c);
    (void)handle;
    return HVI_NCCL_SUCCESS;
}
#endif

EXPORT int ncclCommFinalize(struct ncclComm *c)
{
    check_comm(c);
    if (atomic_load(&c->finished) != atomic_load(&c->launched))
        die("ncclCommFinalize while operations are queued");
    if (number_of("FAKE_NCCL_FINALIZE_HANG", 0) != 0) {
        atomic_store(&c->state, HVI_NCCL_IN_PROGRESS);
        return HVI_NCCL_IN_PROGRESS;
    }
    return HVI_NCCL_SUCCESS;
}
EXPORT int ncclCommDestroy(struct ncclComm *c)
{
    check_comm(c);
    atomic_store(&c->dead, true);
    munmap(c->seg, seg_size(c->n));
    return HVI_NCCL_SUCCESS;
}
EXPORT int ncclCommAbort(struct ncclComm *c)
{
    check_comm(c);
    while (number_of("FAKE_NCCL_ABORT_HANG", 0) != 0)
        nap_us(100000);
    atomic_store(&c->dead, true);
    atomic_store(&c->aborted, true);
    unlink(c->path);
    return HVI_NCCL_SUCCESS;
}
EXPORT int ncclCommGetAsyncError(struct ncclComm *c, int *out)
{
    check_comm(c);
    *out = atomic_load(&c->state);
    return HVI_NCCL_SUCCESS;
}
EXPORT int ncclGroupStart(void)
{
    depth++;
    return HVI_NCCL_SUCCESS;
}
EXPORT int ncclGroupEnd(void)
{
    return --depth == 0 ? flush() : HVI_NCCL_SUCCESS;
}
EXPORT int ncclAllReduce(const void *in, void *out, size_t n, int type, int op,
                         struct ncclComm *c, void *stream)
{
    return add(c, stream, (struct op){0, ALLREDUCE, in, out, n, 0, type, op, 0});
}
EXPORT int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root,
                      struct ncclComm *c, void *stream)
{
    return add(c, stream, (struct op){0, REDUCE, in, out, n, 0, type, op, root});
}
EXPORT int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op,
                             struct ncclComm *c, void *stream)
{
    return add(c, stream, (struct op){0, SCATTER, in, out, n, 0, type, op, 0});
}
EXPORT int ncclAllGather(const void *in, void *out, size_t n, int type,
                         struct ncclComm *c, void *stream)
{
    return add(c, stream, (struct op){0, GATHER, in, out, n, 0, type, 0, 0});
}
EXPORT int ncclBroadcast(const void *in, void *out, size_t n, int type, int root,
                         struct ncclComm *c, void *stream)
{
    return add(c, stream, (struct op){0, BROADCAST, in, out, n, 0, type, 0, root});
}
EXPORT int ncclSend(const void *in, size_t n, int type, int peer, struct ncclComm *c,
                    void *stream)
{
    return add(c, stream, (struct op){0, SEND, in, NULL, n, 0, type, 0, peer});
}
EXPORT int ncclRecv(void *out, size_t n, int type, int peer, struct ncclComm *c,
                    void *stream)
{
    return add(c, stream, (struct op){0, RECV, NULL, out, n, 0, type, 0, peer});
}
