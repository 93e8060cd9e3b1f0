#include "worker/core/op.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "worker/core/alloc.h"
#include "worker/plane/nccl/device.h"

#define MAX_HANDLES (1u << 22)

static struct {
    pthread_mutex_t lock;
    struct slot {
        struct hvi_op *op;   /* NULL: free */
        uint32_t generation; /* of the handle now or next in the slot; never 0 */
        uint32_t next_free;
    } * slots;
    uint32_t nslots, free_head; /* free_head == nslots: none */
    /* done queue */
    _Atomic int fd; /* -1: off */
    hvd_handle *queue;
    size_t first, count, cap;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static _Thread_local int callback_depth;

struct hvi_op *hvi_op_new(size_t extra_bytes)
{
    struct hvi_op *op = malloc(sizeof *op + extra_bytes);

    if (op == NULL)
        return NULL;
    memset(op, 0, offsetof(struct hvi_op, dims));
    /* nobody else sees it yet: no order is needed, and none is paid for */
    atomic_store_explicit(&op->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&op->status, (uint32_t)HVD_INPROGRESS, memory_order_relaxed);
    op->last_joined = -1;
    return op;
}

void hvi_op_ref(struct hvi_op *op)
{
    atomic_fetch_add_explicit(&op->refs, 1, memory_order_relaxed);
}

static void release_regions(struct hvi_op *op)
{
    hvi_region_release(op->in_region);
    hvi_region_release(op->out_region);
    op->in_region = op->out_region = NULL;
}

void hvi_op_unref(struct hvi_op *op)
{
    if (op == NULL ||
        atomic_fetch_sub_explicit(&op->refs, 1, memory_order_acq_rel) != 1)
        return;
    release_regions(op);
    hvi_event_unref(op->ready);
    hvi_event_unref(op->queued);
    hvi_result_free(op->owned);
    free(op->ghost);
    hvi_result_free(op->ghost_out);
    free(op->splits);
    free(op->rows);
    free(op->error);
    free(op);
}

void *hvi_result_alloc(size_t size_bytes)
{
    void *p = NULL;

    if (size_bytes > SIZE_MAX - 64)
        return NULL;
    if (posix_memalign(&p, 64, size_bytes > 0 ? size_bytes : 64) != 0)
        return NULL;
    return p;
}

void hvi_result_free(void *data)
{
    if (!hvi_device_free(data))
        free(data);
}

/* Under g.lock. */
static struct slot *find_slot(hvd_handle handle)
{
    uint32_t i = (uint32_t)handle;

    if (i >= g.nslots || g.slots[i].op == NULL ||
        g.slots[i].generation != (uint32_t)((uint64_t)handle >> 32))
        return NULL;
    return &g.slots[i];
}

/* Under g.lock. A full queue that cannot grow drops the handle: poll still tells. */
static void queue_done(hvd_handle handle)
{
    uint64_t one = 1;

    if (g.count == g.cap) {
        size_t cap = g.cap > 0 ? g.cap * 2 : 64;
        hvd_handle *bigger = malloc(cap * sizeof *bigger);

        if (bigger == NULL)
            return;
        for (size_t i = 0; i < g.count; i++)
            bigger[i] = g.queue[(g.first + i) % g.cap];
        free(g.queue);
        g.queue = bigger;
        g.first = 0;
        g.cap = cap;
    }
    g.queue[(g.first + g.count++) % g.cap] = handle;
    if (g.count == 1 && write(g.fd, &one, sizeof one) < 0)
        return; /* the counter cannot overflow: it is 0 or 1 */
}

static void wake_waiters(struct hvi_op *op)
{
    if (atomic_load(&op->waiters) > 0)
        syscall(SYS_futex, &op->status, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void hvi_op_set_queued(struct hvi_op *op)
{
    HVI_ASSERT(hvi_op_status(op) == HVD_INPROGRESS);
    atomic_store(&op->status, HVI_OP_QUEUED);
    wake_waiters(op);
}

void hvi_op_complete(struct hvi_op *op, enum hvd_status status, const char *text)
{
    HVI_ASSERT(hvi_op_status(op) == HVD_INPROGRESS && status != HVD_INPROGRESS);
    release_regions(op);
    if (status != HVD_OK && text != NULL && text != op->error) {
        free(op->error);
        op->error = strdup(text);
    }
    atomic_store(&op->status, (uint32_t)status);
    wake_waiters(op);
    if (atomic_load(&g.fd) >= 0) {
        pthread_mutex_lock(&g.lock);
        if (find_slot(op->handle) != NULL) /* else its waiter has released it already */
            queue_done(op->handle);
        pthread_mutex_unlock(&g.lock);
    }
    if (op->done != NULL) {
        callback_depth++;
        op->done(op->arg, op->handle, status);
        callback_depth--;
    }
}

bool hvi_op_in_callback(void)
{
    return callback_depth > 0;
}

static enum hvd_status grow_slots(void)
{
    uint32_t n = g.nslots > 0 ? g.nslots * 2 : 256;
    struct slot *slots;

    if (n > MAX_HANDLES)
        return HVD_ELIMIT;
    slots = realloc(g.slots, n * sizeof *slots);
    if (slots == NULL)
        return HVD_ENOMEM;
    for (uint32_t i = g.nslots; i < n; i++)
        slots[i] = (struct slot){.generation = 1, .next_free = i + 1};
    g.free_head = g.nslots;
    g.slots = slots;
    g.nslots = n;
    return HVD_OK;
}

enum hvd_status hvi_handle_add(struct hvi_op *op)
{
    enum hvd_status rc = HVD_OK;
    struct slot *s;

    pthread_mutex_lock(&g.lock);
    if (g.free_head == g.nslots)
        rc = grow_slots();
    if (rc == HVD_OK) {
        s = &g.slots[g.free_head];
        op->handle = (hvd_handle)((uint64_t)s->generation << 32 | g.free_head);
        g.free_head = s->next_free;
        s->op = op;
        hvi_op_ref(op);
    }
    pthread_mutex_unlock(&g.lock);
    return rc;
}

struct hvi_op *hvi_handle_get(hvd_handle handle)
{
    struct hvi_op *op = NULL;
    struct slot *s;

    pthread_mutex_lock(&g.lock);
    s = find_slot(handle);
    if (s != NULL) {
        op = s->op;
        hvi_op_ref(op);
    }
    pthread_mutex_unlock(&g.lock);
    return op;
}

int32_t hvi_handles_done(const hvd_handle *handles, int32_t count)
{
    int32_t n = 0;

    pthread_mutex_lock(&g.lock);
    for (; n < count; n++) {
        const struct slot *s = find_slot(handles[n]);

        if (s == NULL || hvi_op_status(s->op) != HVD_OK)
            break;
    }
    pthread_mutex_unlock(&g.lock);
    return n;
}

enum hvd_status hvi_handle_drop(hvd_handle handle)
{
    struct hvi_op *op = NULL;
    struct slot *s;

    pthread_mutex_lock(&g.lock);
    s = find_slot(handle);
    if (s != NULL) {
        op = s->op;
        s->op = NULL;
        s->generation = (s->generation + 1) & 0x7fffffffu;
        if (s->generation == 0)
            s->generation = 1;
        s->next_free = g.free_head;
        g.free_head = (uint32_t)(s - g.slots);
    }
    pthread_mutex_unlock(&g.lock);
    if (op == NULL)
        return HVD_EHANDLE;
    hvi_op_unref(op);
    return HVD_OK;
}

int hvi_done_fd(void)
{
    int fd;

    pthread_mutex_lock(&g.lock);
    if (g.fd < 0)
        g.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fd = g.fd;
    pthread_mutex_unlock(&g.lock);
    return fd;
}

int hvi_done_take(hvd_handle *out, int cap)
{
    uint64_t counter;
    bool had;
    int n = 0;

    pthread_mutex_lock(&g.lock);
    had = g.count > 0;
    while (n < cap && g.count > 0) {
        if (find_slot(g.queue[g.first]) != NULL)
            out[n++] = g.queue[g.first];
        g.first = (g.first + 1) % g.cap;
        g.count--;
    }
    if (had && g.count == 0 && read(g.fd, &counter, sizeof counter) < 0)
        n += 0; /* was not readable: nothing to clear */
    pthread_mutex_unlock(&g.lock);
    return n;
}

void hvi_op_forked(void)
{
    pthread_mutex_init(&g.lock, NULL);
    if (g.fd >= 0)
        close(g.fd);
    g.fd = -1;
    g.count = 0;
}
