/** The plane of several hosts, where its own steps meet what goes wrong. */
#include "fault.h"
#include "proto/base/names.h"
#include "test.h"
#include "world.h"

#define DEADLINE_S 20

enum { TENSORS = 2 };

static const int even[] = {2, 2, 0};
static const int crowded[] = {5, 6, 0}; /* more members than lanes */
static const int uneven[] = {1, 3, 2, 0};

static void run_on(const int *layout, world_body *body, void *arg)
{
    struct world w;

    world_make_hosts(&w, layout, 0);
    world_run(&w, WORLD_THREADS, body, arg, DEADLINE_S);
    world_free(&w);
}

/* ---- a rank that has memory for nothing ------------------------------------------ */

static void *no_memory_at_all(void *cookie, const int64_t *rows, int32_t nmembers,
                              int64_t total_rows, size_t size_bytes)
{
    (void)cookie;
    (void)rows;
    (void)nmembers;
    (void)total_rows;
    (void)size_bytes;
    hvi_fault_malloc_after(0);
    return NULL;
}

static void gather_without_memory(struct rank *r, uint32_t kind, int64_t count,
                                  int poor)
{
    struct hvi_piece pieces[TENSORS];
    int64_t rows[TENSORS][WORLD_MAX];
    float *in = rank_alloc(r, (size_t)count * sizeof *in);
    float *out[TENSORS];
    struct hvi_group g = rank_group(r, kind, HVD_FLOAT32, pieces, TENSORS);
    enum hvd_status want = r->me == poor ? HVD_ENOMEM : HVD_OK;
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    snprintf(r->where, sizeof(r->where), "%s of %lld, no memory on rank %d",
             hvi_kind_name(kind), (long long)count, poor);
    for (int64_t i = 0; i < count; i++)
        in[i] = (float)r->me;
    for (int k = 0; k < TENSORS; k++) {
        out[k] = r->me == poor
                     ? NULL
                     : rank_alloc(r, (size_t)count * (size_t)r->n * sizeof(float));
        pieces[k] = (struct hvi_piece){
            .in = in, .out = out[k], .count = count, .row = 1, .rows = rows[k]};
    }
    g.alloc = no_memory_at_all; /* where out is NULL */
    rc = hvi_plane_run(r->p, &g, &err);
    hvi_fault_malloc_off();
    if (rc != want)
        rank_fail(r, "%s (%s), not %s", hvi_status_name(rc), err.text,
                  hvi_status_name(want));
    for (int k = 0; k < TENSORS; k++) {
        int64_t of_one = kind == HVD_ALLTOALL ? count / r->n : count;

        for (int64_t m = 0; out[k] != NULL && m < r->n; m++)
            if (out[k][m * of_one] != (float)m ||
                out[k][(m + 1) * of_one - 1] != (float)m)
                rank_fail(r, "tensor %d has wrong numbers from rank %lld", k,
                          (long long)m);
        free(out[k]);
    }
    free(in);
}

static void poor_body(struct rank *r, void *arg)
{
    (void)arg;
    for (int i = 0; i < 4; i++) /* what the planes keep has its size after it */
        gather_without_memory(r, i % 2 == 0 ? HVD_ALLGATHER : HVD_ALLTOALL,
                              (i < 2 ? 3 : 2000) * r->n, -1);
    for (int i = 0; i < 8; i++)
        gather_without_memory(r, i % 2 == 0 ? HVD_ALLGATHER : HVD_ALLTOALL,
                              (i < 4 ? 3 : 2000) * r->n, i / 2 % 2 == 0 ? 1 : r->n - 1);
}

Test(hosts, a_rank_that_has_memory_for_nothing_fails_alone, .timeout = 60)
{
    run_on(even, poor_body, NULL);
    run_on(crowded, poor_body, NULL);
    run_on(uneven, poor_body, NULL);
}

/* ---- sizes without sense --------------------------------------------------------- */

struct odd {
    uint32_t kind;
    const char *text; /* of every rank but the first */
};

static void stop_all(struct rank *r)
{
    for (int i = 0; i < r->n; i++) {
        struct hvi_plane *p = atomic_load(&r->w->planes[i]);

        if (p != NULL)
            p->ops->abort(p, HVD_EINTERNAL);
    }
}

/* Rank 0 has rows of no element (alltoall) or of one, where all others have two. The last
 * rank to see it ends the group for those that cannot. */
static void odd_body(struct rank *r, void *arg)
{
    const struct odd *odd = arg;
    bool first = r->me == 0;
    bool gather = odd->kind == HVD_ALLGATHER;
    int64_t rows[WORLD_MAX];
    int64_t splits[WORLD_MAX] = {0};
    float in[2 * WORLD_MAX] = {0};
    float out[4 * WORLD_MAX * WORLD_MAX];
    struct hvi_piece piece = {.in = in, .out = out, .row = 2, .rows = rows};
    struct hvi_group g = rank_group(r, odd->kind, HVD_FLOAT32, &piece, 1);
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    snprintf(r->where, sizeof(r->where), "%s of odd rows", hvi_kind_name(odd->kind));
    piece.count = gather ? 4 : 0;
    if (first) {
        piece.count = gather ? 3 : 0;
        piece.row = gather ? 1 : 0;
        splits[1] = INT64_MAX / 2;
    }
    piece.splits = gather ? NULL : splits;
    rc = hvi_plane_run(r->p, &g, &err);
    if (r->me != 1)
        return;
    stop_all(r);
    if (rc != HVD_EPROTO || strcmp(err.text, odd->text) != 0)
        rank_fail(r, "%s: %s", hvi_status_name(rc), err.text);
}

Test(hosts, sizes_without_sense_are_told_with_their_rank, .timeout = 60)
{
    struct odd gather = {HVD_ALLGATHER, "rank 0 sent 12 bytes of tensor 0"};
    struct odd all = {HVD_ALLTOALL, "rank 0 sent too many rows of tensor 0"};

    run_on(even, odd_body, &gather);
    run_on(crowded, odd_body, &gather);
    run_on(even, odd_body, &all);
}
