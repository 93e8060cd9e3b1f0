/*
 * A group that goes through the host: device to host, the CPU plane, host to device. For
 * ranks that share a GPU, for Adasum, and where the kernel or its buffer is missing. It
 * blocks whoever runs groups until the copies out are there; everything else is as with
 * NCCL.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/base/names.h"
#include "worker/plane/nccl/gpu.h"

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static bool in_place(uint32_t kind)
{
    return kind == HVD_ALLREDUCE || kind == HVD_BROADCAST;
}

/* Rows without elements: one element stands for each, on the host only. */
static bool counts_only(const struct hvi_gpu *p, const struct hvi_piece *piece)
{
    return piece->row == 0 && piece->in != NULL &&
           (p->g->kind == HVD_ALLGATHER || p->g->kind == HVD_ALLTOALL);
}

static size_t in_bytes(const struct hvi_gpu *p, int32_t i)
{
    const struct hvi_piece *piece = &p->g->pieces[i];

    if (counts_only(p, piece))
        return (size_t)piece->nrows * p->facts.elem_size;
    return piece->in != NULL ? (size_t)piece->count * p->facts.elem_size : 0;
}

static size_t kept_bytes(const struct hvi_gpu *p, int32_t i)
{
    int64_t first = 0;
    int64_t count = 0;

    if (p->g->kind != HVD_REDUCESCATTER || p->g->pieces[i].in == NULL)
        return 0;
    hvi_group_kept(p->g, i, p->g->me, &first, &count);
    return (size_t)count * p->facts.elem_size;
}

/* The CPU plane's group.alloc. */
static void *host_result(void *cookie, const int64_t *rows, int32_t nmembers,
                         int64_t total_rows, size_t size_bytes)
{
    struct hvi_stage_piece *s = cookie;

    (void)rows;
    (void)nmembers;
    s->total_rows = total_rows;
    s->result_bytes = size_bytes;
    s->result = malloc(size_bytes > 0 ? size_bytes : 1);
    return s->result;
}

static enum hvd_status reserve(struct hvi_gpu *p, struct hvi_err *err)
{
    size_t n = (size_t)p->g->npieces + 1;
    size_t bytes = 64;

    for (int32_t i = 0; i < p->g->npieces; i++)
        bytes += padded(in_bytes(p, i)) + padded(kept_bytes(p, i));
    p->nstage = p->g->npieces;
    p->stage = calloc(n, sizeof *p->stage);
    p->shadow = calloc(n, sizeof *p->shadow);
    p->stage_memory = malloc(bytes);
    if (p->stage == NULL || p->shadow == NULL || p->stage_memory == NULL)
        return hvi_fail(err, HVD_ENOMEM,
                        "no %zu bytes to bring GPU tensors to the host", bytes);
    return HVD_OK;
}

/* Piece i's place at *at of the host memory, and the copy into it. */
static enum hvd_status copy_in(struct hvi_gpu *p, int32_t i, char **at,
                               struct hvi_err *err)
{
    const struct hvi_piece *piece = &p->g->pieces[i];
    struct hvi_piece *s = &p->shadow[i];
    size_t bytes = in_bytes(p, i);

    *s = *piece;
    p->stage[i] = (struct hvi_stage_piece){.g = p->g, .piece = &p->g->pieces[i]};
    s->cookie = &p->stage[i];
    if (piece->in == NULL)
        return HVD_OK;
    s->in = *at;
    *at += padded(bytes);
    s->out = in_place(p->g->kind) ? (void *)(uintptr_t)s->in : NULL;
    if (p->g->kind == HVD_REDUCESCATTER) {
        s->out = *at;
        *at += padded(kept_bytes(p, i));
    }
    if (counts_only(p, piece)) {
        memset((void *)(uintptr_t)s->in, 0, bytes);
        s->row = 1;
        s->count = piece->nrows;
        return HVD_OK;
    }
    if (bytes == 0 || (p->g->kind == HVD_BROADCAST && p->g->me != p->g->root))
        return HVD_OK;
    return hvi_device_check(p->dev,
                            p->dev->cu->copy_dtoh((void *)(uintptr_t)s->in,
                                                  (uint64_t)(uintptr_t)piece->in, bytes,
                                                  p->stream),
                            "cuMemcpyDtoHAsync", err);
}

enum hvd_status hvi_gpu_stage(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = reserve(p, err);
    char *at = p->stage_memory;

    if (p->g->kind == HVD_REDUCESCATTER || in_place(p->g->kind))
        hvi_group_alloc_all(p->g, &p->facts);
    for (int32_t i = 0; rc == HVD_OK && i < p->g->npieces; i++) {
        rc = hvi_gpu_await_piece(p, i, err);
        if (rc == HVD_OK)
            rc = copy_in(p, i, &at, err);
    }
    if (rc != HVD_OK)
        return rc;
    p->shadow_group = *p->g;
    p->shadow_group.pieces = p->shadow;
    p->shadow_group.alloc = host_result;
    p->shadow_group.done = NULL;
    p->shadow_group.queued = NULL;
    p->phase = HVI_GPU_COPY_OUT;
    return hvi_gpu_sync(p, err);
}

enum hvd_status hvi_gpu_stage_host(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (!p->sub_started) {
        p->shadow_group.seq = p->g->seq + ++p->round_no;
        rc = p->setup.cpu->ops->start(p->setup.cpu, &p->shadow_group, err);
        if (rc == HVD_EUNSUPPORTED || rc == HVD_EINVAL) {
            p->group_err = *err;
            return hvi_gpu_refuse(p, rc, err);
        }
        p->sub_started = rc == HVD_OK;
    }
    if (rc == HVD_OK)
        rc = p->setup.cpu->ops->progress(p->setup.cpu, err);
    if (rc != HVD_INPROGRESS)
        p->sub_started = false;
    p->cpu_failed = rc < 0;
    return rc;
}

static enum hvd_status copy_back(struct hvi_gpu *p, int32_t i, struct hvi_err *err)
{
    struct hvi_piece *piece = &p->g->pieces[i];
    const struct hvi_piece *s = &p->shadow[i];
    const void *from = s->out;
    size_t bytes = in_bytes(p, i);

    if (p->g->kind == HVD_REDUCESCATTER) {
        bytes = kept_bytes(p, i);
    } else if (!in_place(p->g->kind)) {
        from = p->stage[i].result;
        bytes = p->stage[i].result_bytes;
        if (from == NULL)
            return HVD_OK;
        if (counts_only(p, piece))
            bytes = 0;
        hvi_group_alloc(p->g, &p->facts, i, piece->rows, p->stage[i].total_rows, bytes);
    }
    if (bytes == 0 || piece->out == NULL)
        return HVD_OK;
    return hvi_device_check(
        p->dev,
        p->dev->cu->copy_htod((uint64_t)(uintptr_t)piece->out, from, bytes, p->stream),
        "cuMemcpyHtoDAsync", err);
}

/* One block holds everything that the copies back read: results move behind it. */
enum hvd_status hvi_gpu_stage_out(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    bool gathered = !in_place(p->g->kind) && p->g->kind != HVD_REDUCESCATTER;

    for (int32_t i = 0; rc == HVD_OK && i < p->g->npieces; i++)
        rc = copy_back(p, i, err);
    if (rc != HVD_OK)
        return rc;
    p->phase = HVI_GPU_END;
    if (gathered && p->g->npieces > 0) { /* several blocks: wait for the copies here */
        rc = hvi_gpu_sync(p, err);
        return rc;
    }
    return HVD_OK;
}

void hvi_gpu_stage_drop(struct hvi_gpu *p)
{
    for (int32_t i = 0; p->stage != NULL && i < p->nstage; i++)
        free(p->stage[i].result);
    free(p->stage);
    free(p->shadow);
    free(p->stage_memory);
    p->stage = NULL;
    p->shadow = NULL;
    p->stage_memory = NULL;
}
