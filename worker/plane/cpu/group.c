#include "worker/plane/cpu/group.h"

#include "proto/base/names.h"
#include "worker/plane/reduce/reduce.h"
#include "worker/plane/sched/chunk.h"

static bool reduces(uint32_t kind)
{
    return kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER;
}

static enum hvd_status check_adasum(const struct hvi_group *g, int nranks,
                                    struct hvi_err *err)
{
    if (g->kind != HVD_ALLREDUCE)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "adasum works with allreduce only, not %s",
                        hvi_kind_name(g->kind));
    if (g->nmembers != nranks)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "adasum works over all %d ranks only, the process set has %d",
                        nranks, (int)g->nmembers);
    if ((g->nmembers & (g->nmembers - 1)) != 0)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "adasum needs a power of two of ranks, not %d",
                        (int)g->nmembers);
    return HVD_OK;
}

static enum hvd_status check_reduce(const struct hvi_group *g, int nranks,
                                    struct hvi_err *err)
{
    enum hvd_status rc =
        hvi_reduce_check(g->dtype, g->reduce_op, g->prescale, g->postscale, err);

    if (rc == HVD_OK && g->reduce_op == HVD_ADASUM)
        rc = check_adasum(g, nranks, err);
    return rc;
}

static enum hvd_status check_members(const struct hvi_group *g, struct hvi_err *err)
{
    if (g->nmembers <= 0 || g->me < 0 || g->me >= g->nmembers)
        return hvi_fail(err, HVD_EINTERNAL, "group %llu: this is member %d of %d",
                        (unsigned long long)g->seq, (int)g->me, (int)g->nmembers);
    for (int32_t i = 1; i < g->nmembers; i++)
        if (g->members[i] <= g->members[i - 1])
            return hvi_fail(err, HVD_EINTERNAL, "group %llu: members do not ascend",
                            (unsigned long long)g->seq);
    if (g->kind == HVD_BROADCAST && (g->root < 0 || g->root >= g->nmembers))
        return hvi_fail(err, HVD_EINVAL, "broadcast: root %d of %d members",
                        (int)g->root, (int)g->nmembers);
    return HVD_OK;
}

static enum hvd_status check_pieces(const struct hvi_group *g, struct hvi_facts *f,
                                    struct hvi_err *err)
{
    int64_t elems = 0;
    int64_t present = 0;
    int64_t absent = 0;

    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];

        if (p->count < 0 || p->row < 0)
            return hvi_fail(err, HVD_EINVAL, "tensor %d of the group: %lld elements",
                            (int)i, (long long)p->count);
        if (__builtin_add_overflow(elems, p->count, &elems) ||
            __builtin_mul_overflow(elems, (int64_t)f->elem_size, &f->total_bytes))
            return hvi_fail(err, HVD_ELIMIT, "the group's tensors have too many bytes");
        present += p->count > 0 && p->in != NULL;
        absent += p->count > 0 && p->in == NULL;
    }
    f->joined = absent > 0 && g->kind != HVD_BROADCAST;
    if (f->joined && present > 0)
        return hvi_fail(err, HVD_EINTERNAL,
                        "group %llu: %lld of its tensors have no input",
                        (unsigned long long)g->seq, (long long)absent);
    return HVD_OK;
}

enum hvd_status hvi_group_check(const struct hvi_group *g, int nranks,
                                struct hvi_facts *out, struct hvi_err *err)
{
    struct hvi_facts f = {.post = g->postscale};
    enum hvd_status rc;

    if (g->kind == HVD_BARRIER) {
        f.elem_size = 1;
    } else if (g->kind == HVD_KIND_UNSET || g->kind > HVD_BARRIER) {
        return hvi_fail(err, HVD_EINTERNAL, "a group of kind %u", g->kind);
    } else {
        f.elem_size = hvi_dtype_size(g->dtype);
        if (f.elem_size == 0)
            return hvi_fail(err, HVD_EINVAL, "dtype %u is unknown", g->dtype);
    }
    rc = check_members(g, err);
    if (rc == HVD_OK && reduces(g->kind))
        rc = check_reduce(g, nranks, err);
    if (rc == HVD_OK && g->kind != HVD_BARRIER)
        rc = check_pieces(g, &f, err);
    if (rc != HVD_OK)
        return rc;
    if (g->reduce_op == HVD_AVERAGE)
        f.post *= 1.0 / g->nmembers;
    *out = f;
    return HVD_OK;
}

void hvi_group_alloc(const struct hvi_group *g, struct hvi_facts *f, int32_t i,
                     const int64_t *rows, int64_t total_rows, size_t size_bytes)
{
    struct hvi_piece *p = &g->pieces[i];

    if (p->out != NULL)
        return;
    if (g->alloc != NULL)
        p->out = g->alloc(p->cookie, rows, g->nmembers, total_rows, size_bytes);
    if (p->out == NULL && size_bytes > 0)
        f->no_memory = true;
}

void hvi_group_alloc_all(const struct hvi_group *g, struct hvi_facts *f)
{
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        int64_t first;
        int64_t count = p->count;

        if (p->in == NULL)
            continue;
        if (g->kind == HVD_REDUCESCATTER)
            hvi_group_kept(g, i, g->me, &first, &count);
        hvi_group_alloc(g, f, i, NULL, p->row > 0 ? count / p->row : 0,
                        (size_t)count * f->elem_size);
    }
}

enum hvd_status hvi_group_end(const struct hvi_facts *f, struct hvi_err *err)
{
    if (f->no_memory)
        return hvi_fail(err, HVD_ENOMEM, "no memory for the result");
    return HVD_OK;
}

void hvi_group_kept(const struct hvi_group *g, int32_t i, int32_t member,
                    int64_t *first_elem, int64_t *elem_count)
{
    const struct hvi_piece *p = &g->pieces[i];
    struct hvi_span rows = {0, 0};

    if (p->keep != NULL) {
        for (int32_t m = 0; m < member; m++)
            rows.first += p->keep[m];
        rows.count = p->keep[member];
    } else if (p->row > 0)
        rows = hvi_rows_split(p->count / p->row, g->nmembers, member);
    *first_elem = rows.first * p->row;
    *elem_count = rows.count * p->row;
}
