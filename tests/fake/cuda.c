/*
 * libcuda.so.1 without a GPU: streams are threads with ordered queues, device memory is
 * memory. It is stricter than a GPU where that finds mistakes: freed memory cannot be
 * touched (a free before completion crashes), calls that need a current context refuse to
 * work without one, and every queued step can be delayed. A capture (global mode) is spoilt
 * by what spoils one on a GPU: an unsafe call of any thread that has not asked for the
 * relaxed mode, and a stream that was ordered after a captured event. Environment:
 *   FAKE_CUDA_DEVICES=N      visible GPUs (8); CUDA_VISIBLE_DEVICES=2,3 is honoured
 *   FAKE_CUDA_DELAY_US=N     every step of a stream takes up to N us before it runs
 *   FAKE_CUDA_MEMORY=BYTES   device memory of this process
 *   FAKE_CUDA_NO_KERNELS=1   modules do not load
 *   FAKE_CUDA_HOST=NAME      part of the GPUs' identity; default: the host name
 *   FAKE_CUDA_STATUS=N       cuInit fails with N
 *   FAKE_CUDA_NO_PUSH=1      no context can be made current
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "worker/plane/nccl/api.h"
#include "worker/plane/nccl/pack.h"
#include "worker/plane/reduce/half.h"

#define PACK_FN static inline
PACK_FN float pack_widen_f16(uint16_t h)
{
    return half_widen_f16(h);
}
PACK_FN uint16_t pack_narrow_f16(float f)
{
    return half_narrow_f16(f);
}
#include "worker/plane/nccl/kernels/pack_body.inc"

#define EXPORT __attribute__((visibility("default")))
/* What api.h has no use for, and so no name. */
enum {
    OK = HVI_CU_SUCCESS,
    BAD_PTX = 218,
    CAPTURE_SPOILT = 901,
    CAPTURE_UNJOINED = 904
};
enum { MODE_GLOBAL = 0 };

struct step {
    struct step *next;
    void (*run)(struct step *);
    void *a, *b;
    size_t n;
    uint64_t number;
    void (*host)(void *);
};

struct stream {
    struct stream *next; /* of all that have a thread */
    const struct context *context;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct step *first, **last;
    uint64_t queued, done;
    bool capturing;
    bool leave;
};

struct event {
    struct event *next; /* of all ever made */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t recorded, done;
    bool captured; /* recorded last in a capture */
};

struct context {
    int device;
    struct fence { /* what streams made later wait for, too */
        struct event *event;
        uint64_t number;
    } * fences;
    int nfences;
};

static struct context contexts[64];
static struct stream *default_stream;                            /* in every context */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER; /* fences, too */
static struct stream *streams;
static struct event *events;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory {
    struct memory *next;
    void *at;
    size_t size;
    int ordinal; /* among the visible GPUs */
    bool freed;
} * memories;
static size_t in_use;
/* initial-exec: the loader frees other kinds behind a detached thread's back */
#define THREAD_OWN _Thread_local __attribute__((tls_model("initial-exec")))
static THREAD_OWN struct context *stack[16];
static THREAD_OWN int depth;
static THREAD_OWN int capture_mode;
static uint64_t host_syncs;
static _Atomic int captures; /* going on, and what became of them */
static _Atomic bool spoilt, unjoined;
static _Atomic bool left; /* fake_cuda_leave() */

/* Of calls that a capture forbids, and of all calls once the driver has left. */
static int refuse_unsafe(const char *call)
{
    if (left)
        return HVI_CU_DEINITIALIZED;
    if (captures == 0 || capture_mode == HVI_CU_CAPTURE_RELAXED)
        return OK;
    fprintf(stderr, "fake CUDA: %s spoils a capture\n", call);
    spoilt = true;
    return HVI_CU_CAPTURE_UNSUPPORTED;
}
#define UNSAFE()                                                                       \
    do {                                                                               \
        int rc_ = refuse_unsafe(__func__);                                             \
        if (rc_ != OK)                                                                 \
            return rc_;                                                                \
    } while (0)

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

/* ---- streams */

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    unsigned random = (unsigned)(uintptr_t)s ^ (unsigned)getpid();
    long delay = number_of("FAKE_CUDA_DELAY_US", 0);

    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct step *step;

        while (s->first == NULL && !s->leave)
            pthread_cond_wait(&s->cond, &s->lock);
        if (s->first == NULL)
            break;
        step = s->first;
        s->first = step->next;
        if (s->first == NULL)
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        if (delay > 0)
            nap_us((long)(rand_r(&random) % (unsigned)delay));
        step->run(step);
        free(step);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->cond);
    }
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&streams_lock);
    for (struct stream **at = &streams; *at != NULL; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    pthread_mutex_unlock(&streams_lock);
    free(s);
    return NULL;
}

static void queue_on(struct stream *s, struct step make)
{
    struct step *step = malloc(sizeof *step);

    *step = make;
    step->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->last = step;
    s->last = &step->next;
    s->queued++;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

static void run_wait(struct step *step);

static struct stream *new_stream(struct context *context)
{
    struct stream *s = calloc(1, sizeof *s);
    pthread_t thread;

    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->cond, NULL);
    s->last = &s->first;
    if (pthread_create(&thread, NULL, stream_main, s) != 0)
        abort();
    pthread_detach(thread);
    pthread_mutex_lock(&streams_lock);
    s->context = context;
    s->next = streams;
    streams = s;
    for (int i = 0; context != NULL && i < context->nfences; i++)
        queue_on(s, (struct step){.run = run_wait,
                                  .a = context->fences[i].event,
                                  .number = context->fences[i].number});
    pthread_mutex_unlock(&streams_lock);
    return s;
}

/* NULL and the two special handles: one default stream. */
static struct stream *real(void *stream)
{
    struct stream *made;

    if ((uintptr_t)stream > 2)
        return stream;
    if (__atomic_load_n(&default_stream, __ATOMIC_ACQUIRE) == NULL) {
        struct stream *none = NULL;

        made = new_stream(NULL);
        __atomic_compare_exchange_n(&default_stream, &none, made, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
    }
    return __atomic_load_n(&default_stream, __ATOMIC_ACQUIRE);
}

static int put(void *stream, struct step make)
{
    if (left)
        return HVI_CU_DEINITIALIZED;
    if (depth == 0) {
        fprintf(stderr, "fake CUDA: a call without a current context\n");
        return HVI_CU_INVALID_CONTEXT;
    }
    queue_on(real(stream), make);
    return OK;
}

EXPORT int cuStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    if (depth == 0)
        return HVI_CU_INVALID_CONTEXT;
    *out = new_stream(stack[depth - 1]);
    return OK;
}

EXPORT int cuStreamCreate(void **out, unsigned flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

EXPORT int cuStreamDestroy_v2(void *stream)
{
    struct stream *s = stream;

    pthread_mutex_lock(&s->lock);
    s->leave = true;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

EXPORT int cuStreamSynchronize(void *stream)
{
    struct stream *s = real(stream);
    uint64_t until;

    UNSAFE();
    pthread_mutex_lock(&s->lock);
    until = s->queued;
    while (s->done < until)
        pthread_cond_wait(&s->cond, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

EXPORT int cuStreamIsCapturing(void *stream, int *out)
{
    if ((uintptr_t)stream < 2 && captures > 0)
        return HVI_CU_CAPTURE_IMPLICIT;
    *out = real(stream)->capturing;
    return OK;
}
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
    if ((uintptr_t)stream < 2 || mode != MODE_GLOBAL)
        return HVI_CU_CAPTURE_UNSUPPORTED;
    real(stream)->capturing = true;
    spoilt = unjoined = false;
    captures++;
    return OK;
}
EXPORT int cuStreamEndCapture(void *stream, void **graph)
{
    real(stream)->capturing = false;
    captures--;
    *graph = NULL;
    return spoilt ? CAPTURE_SPOILT : unjoined ? CAPTURE_UNJOINED : OK;
}
#ifndef FAKE_OLD
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int old = capture_mode;

    capture_mode = *mode;
    *mode = old;
    return OK;
}
#endif

/* ---- events */

EXPORT int cuEventCreate(void **out, unsigned flags)
{
    struct event *e;

    (void)flags;
    if (depth == 0)
        return HVI_CU_INVALID_CONTEXT;
    e = calloc(1, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->cond, NULL);
    pthread_mutex_lock(&memory_lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&memory_lock);
    *out = e;
    return OK;
}

EXPORT int cuEventDestroy_v2(void *event)
{
    (void)event; /* kept: a queued step may still name it */
    return OK;
}

static void run_record(struct step *step)
{
    struct event *e = step->a;

    pthread_mutex_lock(&e->lock);
    if (e->done < step->number)
        e->done = step->number;
    pthread_cond_broadcast(&e->cond);
    pthread_mutex_unlock(&e->lock);
}

static void await(struct event *e, uint64_t number)
{
    struct timespec until;

    pthread_mutex_lock(&e->lock);
    while (e->done < number && !left) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++; /* fake_cuda_leave() wakes nobody */
        pthread_cond_timedwait(&e->cond, &e->lock, &until);
    }
    pthread_mutex_unlock(&e->lock);
}

static void run_wait(struct step *step)
{
    await(step->a, step->number);
}

EXPORT int cuEventRecord(void *event, void *stream)
{
    struct event *e = event;
    uint64_t number;

    pthread_mutex_lock(&e->lock);
    e->captured = real(stream)->capturing;
    number = e->captured ? e->recorded : ++e->recorded;
    pthread_mutex_unlock(&e->lock);
    if (real(stream)->capturing)
        return OK; /* only noted in the graph: it never comes true */
    return put(stream, (struct step){.run = run_record, .a = e, .number = number});
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    struct event *e = event;
    uint64_t number;

    (void)flags;
    pthread_mutex_lock(&e->lock);
    number = e->recorded;
    if (e->captured && !real(stream)->capturing)
        unjoined = true;
    pthread_mutex_unlock(&e->lock);
    return put(stream, (struct step){.run = run_wait, .a = e, .number = number});
}

EXPORT int cuEventQuery(void *event)
{
    struct event *e = event;
    int rc;

    UNSAFE();
    pthread_mutex_lock(&e->lock);
    rc = e->captured              ? HVI_CU_CAPTURED_EVENT
         : e->done >= e->recorded ? OK
                                  : HVI_CU_NOT_READY;
    pthread_mutex_unlock(&e->lock);
    return rc;
}

EXPORT int cuEventSynchronize(void *event)
{
    struct event *e = event;
    uint64_t number;

    UNSAFE();
    __atomic_fetch_add(&host_syncs, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&e->lock);
    number = e->recorded;
    pthread_mutex_unlock(&e->lock);
    await(e, number);
    return left ? HVI_CU_DEINITIALIZED : OK;
}

/* One of the streams of a context has come to where the event was recorded. */
struct joint {
    _Atomic int left;
    struct event *event;
    uint64_t number;
};

static void pass_joint(struct joint *j)
{
    if (atomic_fetch_sub(&j->left, 1) != 1)
        return;
    run_record(&(struct step){.a = j->event, .number = j->number});
    free(j);
}

static void run_joint(struct step *step)
{
    pass_joint(step->a);
}

/* Under streams_lock. A destroyed stream may end any moment, unless it has work. */
static bool belongs(struct stream *s, const struct context *context)
{
    bool works;

    pthread_mutex_lock(&s->lock);
    works = !s->leave || s->done < s->queued;
    pthread_mutex_unlock(&s->lock);
    return works && (s->context == NULL || s->context == context);
}

/* After all that the streams of the context have in their queues; which time it is. */
static uint64_t record_all(const struct context *c, struct event *e)
{
    struct joint *j = malloc(sizeof *j);
    uint64_t number;

    atomic_init(&j->left, 1);
    j->event = e;
    pthread_mutex_lock(&e->lock);
    e->captured = false;
    number = j->number = ++e->recorded;
    pthread_mutex_unlock(&e->lock);
    pthread_mutex_lock(&streams_lock);
    for (struct stream *s = streams; s != NULL; s = s->next)
        if (belongs(s, c)) {
            atomic_fetch_add(&j->left, 1);
            queue_on(s, (struct step){.run = run_joint, .a = j});
        }
    pthread_mutex_unlock(&streams_lock);
    pass_joint(j);
    return number;
}

EXPORT int cuCtxSynchronize(void)
{
    struct event *e = NULL;
    int rc;

    UNSAFE();
    __atomic_fetch_add(&host_syncs, 1, __ATOMIC_RELAXED);
    rc = cuEventCreate((void **)&e, 0);
    if (rc == OK)
        await(e, record_all(stack[depth - 1], e));
    return rc;
}

#ifndef FAKE_OLD
/* NULL: the current one. */
static struct context *context_of(void *context)
{
    return context != NULL ? context : depth > 0 ? stack[depth - 1] : NULL;
}

/* May an event be ordered with all of a context's streams? Else why not. */
static bool orders(const struct context *c, int *rc)
{
    spoilt |= !left && c != NULL && captures > 0;
    *rc = left           ? HVI_CU_DEINITIALIZED
          : c == NULL    ? HVI_CU_INVALID_CONTEXT
          : captures > 0 ? HVI_CU_CAPTURE_UNSUPPORTED
                         : OK;
    return *rc == OK;
}

EXPORT int cuCtxRecordEvent(void *context, void *event)
{
    struct context *c = context_of(context);
    int rc;

    if (!orders(c, &rc))
        return rc;
    record_all(c, event);
    return OK;
}

/* Under streams_lock. Those that have come true are not needed again. */
static void add_fence(struct context *c, struct event *e, uint64_t number)
{
    int kept = 0;

    for (int i = 0; i < c->nfences; i++) {
        struct fence f = c->fences[i];

        pthread_mutex_lock(&f.event->lock);
        if (f.event->done < f.number)
            c->fences[kept++] = f;
        pthread_mutex_unlock(&f.event->lock);
    }
    c->fences = realloc(c->fences, (size_t)(kept + 1) * sizeof *c->fences);
    c->fences[kept] = (struct fence){e, number};
    c->nfences = kept + 1;
}

/* All that any stream of the context, also one made later, is given after this. */
EXPORT int cuCtxWaitEvent(void *context, void *event)
{
    struct context *c = context_of(context);
    struct event *e = event;
    uint64_t number;
    int rc;

    if (!orders(c, &rc))
        return rc;
    pthread_mutex_lock(&e->lock);
    number = e->recorded;
    pthread_mutex_unlock(&e->lock);
    real(NULL); /* it is there from now on */
    pthread_mutex_lock(&streams_lock);
    add_fence(c, e, number);
    for (struct stream *s = streams; s != NULL; s = s->next)
        if (belongs(s, c))
            queue_on(s, (struct step){.run = run_wait, .a = e, .number = number});
    pthread_mutex_unlock(&streams_lock);
    return OK;
}
#endif

/* ---- driver, devices, contexts */

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    return (int)number_of("FAKE_CUDA_STATUS", OK);
}
EXPORT int cuDriverGetVersion(int *out)
{
    *out = 12040;
    return OK;
}
EXPORT int cuGetErrorName(int rc, const char **out)
{
    *out = rc == HVI_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return OK;
}
EXPORT int cuGetErrorString(int rc, const char **out)
{
    *out = rc == HVI_CU_OUT_OF_MEMORY ? "out of memory" : "injected or misuse";
    return OK;
}

static int visible(int *which, int cap)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;

    if (list == NULL) {
        n = (int)number_of("FAKE_CUDA_DEVICES", 8);
        for (int i = 0; i < n && i < cap; i++)
            which[i] = i;
        return n;
    }
    while (*list != '\0' && n < cap) {
        char *end;

        which[n] = (int)strtol(list, &end, 10);
        if (end == list)
            break;
        n++;
        list = *end == ',' ? end + 1 : end;
    }
    return n;
}

EXPORT int cuDeviceGetCount(int *out)
{
    int which[64];

    if (left)
        return HVI_CU_DEINITIALIZED;
    *out = visible(which, 64);
    return *out > 0 ? OK : HVI_CU_NO_DEVICE;
}
EXPORT int cuDeviceGet(int *out, int ordinal)
{
    int which[64];

    if (ordinal < 0 || ordinal >= visible(which, 64))
        return HVI_CU_INVALID_VALUE;
    *out = which[ordinal];
    return OK;
}
EXPORT int cuDeviceGetName(char *out, int cap, int device)
{
    snprintf(out, (size_t)cap, "Fake GPU %d", device);
    return OK;
}
EXPORT int cuDeviceGetUuid(unsigned char *out, int device)
{
    char host[17] = "";
    const char *name = getenv("FAKE_CUDA_HOST");

    if (name != NULL)
        snprintf(host, sizeof host, "%s", name);
    else
        gethostname(host, sizeof host - 1);
    memset(out, 0, 16);
    memcpy(out, host, strlen(host) < 14 ? strlen(host) : 14);
    out[15] = (unsigned char)device;
    return OK;
}
#ifndef FAKE_OLD
EXPORT int cuDeviceGetUuid_v2(unsigned char *out, int device)
{
    return cuDeviceGetUuid(out, device);
}
EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return OK;
}
#endif
EXPORT int cuDeviceGetPCIBusId(char *out, int cap, int device)
{
    snprintf(out, (size_t)cap, "0000:%02x:00.0", device + 1);
    return OK;
}
EXPORT int cuDevicePrimaryCtxRetain(void **out, int device)
{
    contexts[device].device = device;
    *out = &contexts[device];
    return OK;
}
EXPORT int cuCtxPushCurrent_v2(void *context)
{
    if (number_of("FAKE_CUDA_NO_PUSH", 0) != 0)
        return HVI_CU_INVALID_CONTEXT;
    if (depth == 16)
        abort();
    stack[depth++] = context;
    return OK;
}
EXPORT int cuCtxPopCurrent_v2(void **out)
{
    if (depth == 0)
        return HVI_CU_INVALID_CONTEXT;
    *out = stack[--depth];
    return OK;
}
EXPORT int cuCtxSetCurrent(void *context)
{
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    return OK;
}

/* ---- memory */

static int ordinal_of(const struct context *context)
{
    int which[64];
    int n = visible(which, 64);

    for (int i = 0; i < n; i++)
        if (which[i] == context->device)
            return i;
    return -1;
}

EXPORT int cuMemAlloc_v2(uint64_t *out, size_t size)
{
    size_t limit = (size_t)number_of("FAKE_CUDA_MEMORY", 1L << 40);
    struct memory *m;
    int rc = OK;

    UNSAFE();
    if (depth == 0)
        return HVI_CU_INVALID_CONTEXT;
    size = (size + 4095) & ~(size_t)4095;
    m = calloc(1, sizeof *m);
    pthread_mutex_lock(&memory_lock);
    if (size > limit || in_use + size > limit) {
        free(m);
        rc = HVI_CU_OUT_OF_MEMORY;
    } else {
        m->at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        m->size = size;
        m->ordinal = ordinal_of(stack[depth - 1]);
        in_use += size;
        m->next = memories;
        memories = m;
        *out = (uint64_t)(uintptr_t)m->at;
    }
    pthread_mutex_unlock(&memory_lock);
    return rc;
}

EXPORT int cuMemGetInfo_v2(size_t *left_bytes, size_t *all_bytes)
{
    *all_bytes = (size_t)number_of("FAKE_CUDA_MEMORY", 1L << 40);
    pthread_mutex_lock(&memory_lock);
    *left_bytes = *all_bytes - in_use;
    pthread_mutex_unlock(&memory_lock);
    return OK;
}

/* Never given back to the system, never usable again. */
EXPORT int cuMemFree_v2(uint64_t address)
{
    struct memory *m;

    UNSAFE();
    pthread_mutex_lock(&memory_lock);
    for (m = memories; m != NULL && (uint64_t)(uintptr_t)m->at != address; m = m->next)
        ;
    if (m == NULL || m->freed) {
        fprintf(stderr, "fake CUDA: cuMemFree of %#llx, %s\n",
                (unsigned long long)address, m == NULL ? "not allocated" : "twice");
        abort();
    }
    m->freed = true;
    in_use -= m->size;
    mprotect(m->at, m->size, PROT_NONE);
    madvise(m->at, m->size, MADV_DONTNEED);
    pthread_mutex_unlock(&memory_lock);
    return OK;
}

EXPORT int cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    (void)flags;
    UNSAFE();
    if (depth == 0)
        return HVI_CU_INVALID_CONTEXT;
    *out = malloc(size > 0 ? size : 1);
    return OK;
}
EXPORT int cuMemFreeHost(void *p)
{
    UNSAFE();
    free(p);
    return OK;
}

static void run_copy(struct step *step)
{
    memmove(step->a, step->b, step->n);
}
static int queue_copy(void *dst, const void *src, size_t n, void *stream)
{
    return put(
        stream,
        (struct step){.run = run_copy, .a = dst, .b = (void *)(uintptr_t)src, .n = n});
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t n, void *stream)
{
    return queue_copy((void *)(uintptr_t)dst, src, n, stream);
}
EXPORT int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t n, void *stream)
{
    return queue_copy(dst, (void *)(uintptr_t)src, n, stream);
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t n, void *stream)
{
    return queue_copy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, n, stream);
}
EXPORT int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t n)
{
    int rc = queue_copy((void *)(uintptr_t)dst, src, n, NULL);

    return rc != OK ? rc : cuStreamSynchronize(NULL);
}
EXPORT int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t n)
{
    int rc = queue_copy(dst, (void *)(uintptr_t)src, n, NULL);

    return rc != OK ? rc : cuStreamSynchronize(NULL);
}

#ifndef FAKE_OLD
EXPORT int cuPointerGetAttribute(void *out, int attribute, uint64_t address)
{
    const struct memory *m;
    int rc = HVI_CU_INVALID_VALUE;

    pthread_mutex_lock(&memory_lock);
    for (m = memories; m != NULL && rc != OK; m = m->next)
        if (!m->freed && address - (uint64_t)(uintptr_t)m->at < m->size) {
            *(int *)out = attribute == HVI_CU_POINTER_DEVICE        ? m->ordinal
                          : attribute == HVI_CU_POINTER_MEMORY_TYPE ? 2
                                                                    : 0;
            rc = OK;
        }
    pthread_mutex_unlock(&memory_lock);
    return rc;
}
#endif

/* ---- kernels and host functions */

EXPORT int cuModuleLoadData(void **out, const void *image)
{
    const char *text = image;

    if (number_of("FAKE_CUDA_NO_KERNELS", 0) != 0)
        return BAD_PTX;
    if (strstr(text, ".target sm_70") == NULL ||
        strstr(text, ".entry hvd_pack") == NULL)
        return BAD_PTX;
    *out = (void *)1;
    return OK;
}
EXPORT int cuModuleGetFunction(void **out, void *module, const char *name)
{
    (void)module;
    if (strcmp(name, HVI_PACK_KERNEL) != 0)
        return 500;
    *out = (void *)2;
    return OK;
}

static void run_pack(struct step *step)
{
    const struct hvi_pack_item *items = step->a;
    int64_t ntiles = (int64_t)step->number;

    for (int64_t tile = 0; tile < ntiles; tile++) {
        const struct hvi_pack_item *it = &items[pack_find(items, (int)step->n, tile)];

        for (int thread = 0; thread < 4; thread++)
            pack_tile(it, tile - it->first_tile, thread, 4);
    }
}

EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *stream,
                          void **params, void **extra)
{
    (void)shared;
    (void)extra;
    if (f != (void *)2 || gx == 0 || gy != 1 || gz != 1 || bx != HVI_PACK_THREADS ||
        by != 1 || bz != 1)
        return HVI_CU_INVALID_VALUE;
    return put(stream, (struct step){.run = run_pack,
                                     .a = *(void **)params[0],
                                     .n = (size_t) * (int32_t *)params[1],
                                     .number = (uint64_t) * (int64_t *)params[2]});
}

static void run_host(struct step *step)
{
    step->host(step->a);
}
EXPORT int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *arg)
{
    return put(stream, (struct step){.run = run_host, .host = fn, .a = arg});
}

/** The driver has deinitialised, as inside exit(): every call says so. */
EXPORT void fake_cuda_leave(void)
{
    left = true;
}
/** Blocking waits for the device so far. */
EXPORT uint64_t fake_cuda_host_syncs(void)
{
    return __atomic_load_n(&host_syncs, __ATOMIC_RELAXED);
}
/** Bytes of device memory in use. */
EXPORT size_t fake_cuda_in_use(void)
{
    size_t n;

    pthread_mutex_lock(&memory_lock);
    n = in_use;
    pthread_mutex_unlock(&memory_lock);
    return n;
}
