/* Tables of the kernel: taken from a pool, given back when the device has read them. */
#include <stdlib.h>

#include "worker/plane/nccl/gpu.h"

#define FEWEST 64

/* Tables that a device may still read after its plane broke: kept to the process's end. */
static struct hvi_table *kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static void free_table(struct hvi_gpu *p, struct hvi_table *t)
{
    const struct hvi_cuda *cu = p->dev->cu;

    if (t->host != NULL)
        cu->host_free(t->host);
    if (t->device != 0)
        cu->mem_free(t->device);
    free(t);
}

static enum hvd_status new_table(struct hvi_gpu *p, int32_t n, struct hvi_table **out,
                                 struct hvi_err *err)
{
    const struct hvi_cuda *cu = p->dev->cu;
    struct hvi_table *t = calloc(1, sizeof *t);
    enum hvd_status rc;
    size_t bytes;
    void *host = NULL;

    if (t == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    for (t->cap = FEWEST; t->cap < n;)
        t->cap *= 2;
    bytes = (size_t)t->cap * sizeof *t->host;
    rc = hvi_device_check(p->dev, cu->host_alloc(&host, bytes, 0), "cuMemHostAlloc",
                          err);
    t->host = host;
    if (rc == HVD_OK)
        rc = hvi_device_check(p->dev, cu->mem_alloc(&t->device, bytes), "cuMemAlloc",
                              err);
    if (rc != HVD_OK) {
        free_table(p, t);
        return rc;
    }
    *out = t;
    return HVD_OK;
}

enum hvd_status hvi_gpu_table(struct hvi_gpu *p, int32_t n, struct hvi_table **out,
                              struct hvi_err *err)
{
    struct hvi_table *t = NULL;
    struct hvi_table **at;
    enum hvd_status rc = HVD_OK;

    pthread_mutex_lock(&p->lock);
    for (at = &p->free_tables; *at != NULL && (*at)->cap < n; at = &(*at)->next)
        ;
    t = *at;
    if (t != NULL)
        *at = t->next;
    pthread_mutex_unlock(&p->lock);
    if (t == NULL)
        rc = new_table(p, n, &t, err);
    if (rc != HVD_OK)
        return rc;
    t->n = 0;
    t->ntiles = 0;
    t->next = p->tables;
    p->tables = t;
    *out = t;
    return HVD_OK;
}

void hvi_table_add(struct hvi_table *t, struct hvi_pack_item item)
{
    if (item.count == 0)
        return;
    item.first_tile = t->ntiles;
    t->ntiles += hvi_pack_tiles(item.count);
    t->host[t->n++] = item;
}

enum hvd_status hvi_gpu_run_table(struct hvi_gpu *p, struct hvi_table *t,
                                  struct hvi_err *err)
{
    const struct hvi_cuda *cu = p->dev->cu;
    unsigned blocks =
        t->ntiles < HVI_PACK_BLOCKS ? (unsigned)t->ntiles : HVI_PACK_BLOCKS;
    void *params[] = {&t->device, &t->n, &t->ntiles};
    enum hvd_status rc;

    if (t->n == 0)
        return HVD_OK;
    rc = hvi_device_check(
        p->dev,
        cu->copy_htod(t->device, t->host, (size_t)t->n * sizeof *t->host, p->stream),
        "cuMemcpyHtoDAsync", err);
    if (rc == HVD_OK)
        rc = hvi_device_check(p->dev,
                              cu->launch(p->dev->pack, blocks, 1, 1, HVI_PACK_THREADS,
                                         1, 1, 0, p->stream, params, NULL),
                              "launching the pack kernel", err);
    return rc;
}

void hvi_gpu_free_tables(struct hvi_gpu *p)
{
    while (p->free_tables != NULL) {
        struct hvi_table *t = p->free_tables;

        p->free_tables = t->next;
        free_table(p, t);
    }
}

void hvi_gpu_keep_tables(struct hvi_table *tables)
{
    pthread_mutex_lock(&kept_lock);
    while (tables != NULL) {
        struct hvi_table *t = tables;

        tables = t->next;
        t->next = kept;
        kept = t;
    }
    pthread_mutex_unlock(&kept_lock);
}
