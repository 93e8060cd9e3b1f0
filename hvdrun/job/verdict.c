#include "hvdrun/job/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "hvdrun/job/exitcode.h"

enum hvd_status hvi_verdict_init(struct hvi_verdict *v, int np)
{
    memset(v, 0, sizeof *v);
    v->rank = calloc((size_t)np, sizeof *v->rank);
    if (v->rank == NULL)
        return HVD_ENOMEM;
    v->np = np;
    v->first = v->lost = v->bye = -1;
    return HVD_OK;
}

void hvi_verdict_fini(struct hvi_verdict *v)
{
    free(v->rank);
    memset(v, 0, sizeof *v);
}

void hvi_verdict_exited(struct hvi_verdict *v, int rank, int wait_status, bool by_us)
{
    struct hvi_verdict_rank *r = &v->rank[rank];

    if (r->exited)
        return;
    r->exited = true;
    r->by_us = by_us;
    r->wait_status = wait_status;
    v->exited++;
    v->stopped += by_us;
    if (wait_status == 0 || by_us)
        return;
    v->failed++;
    if (v->first < 0)
        v->first = rank;
}

void hvi_verdict_lost(struct hvi_verdict *v, int rank)
{
    if (v->lost < 0 && rank >= 0 && rank < v->np)
        v->lost = rank;
}

void hvi_verdict_bye(struct hvi_verdict *v, int rank)
{
    if (rank >= 0 && rank < v->np)
        v->bye = rank;
}

void hvi_verdict_no_bye(struct hvi_verdict *v, int rank)
{
    if (rank < 0 || rank >= v->np)
        return;
    v->rank[rank].no_bye = true;
}

/* Ended well by its status, but while others needed it. */
static bool left(const struct hvi_verdict_rank *r)
{
    return r->exited && r->no_bye && r->wait_status == 0 && !r->by_us;
}

static int first_left(const struct hvi_verdict *v)
{
    for (int i = 0; i < v->np; i++)
        if (left(&v->rank[i]))
            return i;
    return -1;
}

bool hvi_verdict_bad(const struct hvi_verdict *v)
{
    return v->first >= 0 || first_left(v) >= 0;
}

int hvi_verdict_cause(const struct hvi_verdict *v, bool *settled)
{
    *settled = true;
    if (v->lost >= 0) {
        const struct hvi_verdict_rank *r = &v->rank[v->lost];

        if (!r->exited) {
            *settled = false;
            return v->lost;
        }
        if (!r->by_us && (r->wait_status != 0 || r->no_bye))
            return v->lost;
    }
    /* who left first and failed may be why the others failed, however soon they did */
    if (v->bye >= 0 && v->first >= 0 && v->first != v->bye) {
        const struct hvi_verdict_rank *r = &v->rank[v->bye];

        *settled = r->exited;
        if (r->exited && !r->by_us && r->wait_status != 0)
            return v->bye;
    }
    return v->first >= 0 ? v->first : first_left(v);
}

int hvi_verdict_status(const struct hvi_verdict *v)
{
    bool settled;
    int cause = hvi_verdict_cause(v, &settled);

    if (cause >= 0 && settled && v->rank[cause].wait_status != 0)
        return hvi_exit_code(v->rank[cause].wait_status);
    if (v->first >= 0)
        return hvi_exit_code(v->rank[v->first].wait_status);
    return first_left(v) >= 0 ? HVI_EXIT_NO_BYE : HVI_EXIT_OK;
}
