#!/bin/bash
# deadline: 120
# Every collective of hvd.h from a program outside the tree: alone, and 1, 3 and 4 ranks on
# both CPU planes.
set -eu
cat >all.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static int me, n;
#define OK(call)                                                                         \
    do {                                                                                 \
        enum hvd_status s_ = (call);                                                     \
        if (s_ != HVD_OK) {                                                              \
            printf("rank %d: %s: %d %s\n", me, #call, s_, hvd_last_error());             \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)
static struct hvd_op make(enum hvd_kind kind, const char *name, const void *in,
                          const int64_t *dims, int ndim, enum hvd_dtype dtype)
{
    struct hvd_op op;

    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = kind;
    op.name = name;
    op.reduce_op = HVD_SUM;
    op.in.data = (void *)in;
    op.in.dims = dims;
    op.in.ndim = ndim;
    op.in.dtype = dtype;
    return op;
}

static void allreduces(void)
{
    int32_t v[4] = {me + 1, -(me + 1), 7, 2};
    int32_t r[4];
    int32_t product = 1;
    float f = (float)(me + 1);

    OK(hvd_allreduce(v, r, 4, HVD_INT32, HVD_SUM, "sum"));
    IS(r[0] == n * (n + 1) / 2 && r[1] == -r[0] && r[2] == 7 * n);
    OK(hvd_allreduce(v, r, 4, HVD_INT32, HVD_MIN, "min"));
    IS(r[0] == 1 && r[1] == -n);
    OK(hvd_allreduce(v, r, 4, HVD_INT32, HVD_MAX, "max"));
    IS(r[0] == n && r[1] == -1);
    OK(hvd_allreduce(v, r, 4, HVD_INT32, HVD_PRODUCT, "product"));
    for (int i = 1; i <= n; i++)
        product *= i;
    IS(r[0] == product && r[3] == 1 << n);
    OK(hvd_allreduce(&f, &f, 1, HVD_FLOAT32, HVD_AVERAGE, "average"));
    IS(f == (float)(n + 1) / 2);
    OK(hvd_allreduce(NULL, NULL, 0, HVD_FLOAT32, HVD_SUM, "empty"));
}

static void scaled(void)
{
    const int64_t dims[1] = {2};
    float v[2] = {1, 2}, out[2];
    hvd_handle h;
    struct hvd_op op = make(HVD_ALLREDUCE, "scaled", v, dims, 1, HVD_FLOAT32);

    op.prescale = 2;
    op.postscale = 0.5;
    op.out = op.in;
    op.out.data = out;
    OK(hvd_enqueue(&op, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_release(h));
    IS(out[0] == (float)n && out[1] == (float)(2 * n) && v[0] == 1);
    IS(hvd_poll(h) == HVD_EHANDLE);
}

static void grouped(void)
{
    const int64_t dims[3] = {1, 3, 5};
    double v[3][5];
    struct hvd_op ops[3];
    hvd_handle h[3];
    static const char *const names[3] = {"g0", "g1", "g2"};

    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++)
            v[i][k] = me + i;
        ops[i] = make(HVD_ALLREDUCE, names[i], v[i], &dims[i], 1, HVD_FLOAT64);
        ops[i].out = ops[i].in;
    }
    OK(hvd_enqueue_group(ops, 3, "group", h));
    OK(hvd_wait_all(h, 3, HVD_WAIT_DONE, 20000));
    for (int i = 0; i < 3; i++)
        IS(v[i][0] == n * (n - 1) / 2 + n * i);
    OK(hvd_release(h[1]));
    IS(hvd_release_all(h, 3) == HVD_EHANDLE); /* for h[1]; the others are released */
    IS(hvd_poll(h[0]) == HVD_EHANDLE && hvd_poll(h[2]) == HVD_EHANDLE);
    IS(hvd_release_all(h, -1) == HVD_EINVAL && hvd_release_all(NULL, 1) == HVD_EINVAL);
    OK(hvd_release_all(NULL, 0));
}

static void gathers(void)
{
    int16_t mine[16], all[256];
    int at = 0;

    for (int i = 0; i <= me; i++)
        mine[i] = (int16_t)(100 * me + i);
    OK(hvd_allgather(mine, me + 1, all, n * (n + 1) / 2, HVD_INT16, "gather"));
    for (int r = 0; r < n; r++)
        for (int i = 0; i <= r; i++, at++)
            IS(all[at] == 100 * r + i);
    double b[3] = {me, me + 1, me + 2};
    OK(hvd_broadcast(b, 3, HVD_FLOAT64, n - 1, "broadcast"));
    IS(b[0] == n - 1 && b[2] == n + 1);
}

/* Each rank sends k + 1 rows to rank k; the library owns the result. */
static void alltoall(void)
{
    int64_t rows = n * (n + 1) / 2, splits[16], got[16];
    int64_t dims[2];
    int32_t *in = calloc((size_t)rows * 2, sizeof *in);
    int at = 0;
    hvd_handle h;
    struct hvd_tensor out;

    dims[0] = rows;
    dims[1] = 2;
    for (int k = 0; k < n; k++) {
        splits[k] = k + 1;
        for (int i = 0; i < 2 * (k + 1); i++)
            in[at++] = 1000 * me + k;
    }
    struct hvd_op op = make(HVD_ALLTOALL, "alltoall", in, dims, 2, HVD_INT32);
    op.splits = splits;
    op.nsplits = n;
    OK(hvd_enqueue(&op, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_result(h, &out));
    IS(out.ndim == 2 && out.dims[0] == (int64_t)n * (me + 1) && out.dims[1] == 2);
    IS(hvd_result_splits(h, got, 16) == n && got[n - 1] == me + 1);
    for (int r = 0; r < n; r++)
        IS(((int32_t *)out.data)[2 * r * (me + 1)] == 1000 * r + me);
    OK(hvd_release(h));
    free(in);
}

static void reducescatter(void)
{
    int64_t dims[1] = {2 * n + 1}; /* uneven: the first rank has one more */
    float *in = calloc((size_t)dims[0], sizeof *in);
    hvd_handle h;
    struct hvd_tensor out;
    void *taken;

    for (int i = 0; i < 2 * n + 1; i++)
        in[i] = (float)(i + me);
    struct hvd_op op = make(HVD_REDUCESCATTER, "reducescatter", in, dims, 1, HVD_FLOAT32);
    OK(hvd_enqueue(&op, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_result(h, &out));
    IS(out.dims[0] == (me == 0 ? 3 : 2));
    int first = me == 0 ? 0 : 2 * me + 1;
    IS(((float *)out.data)[0] == (float)(n * first + n * (n - 1) / 2));
    OK(hvd_result_take(h, &taken));
    OK(hvd_release(h));
    IS(((float *)taken)[1] == (float)(n * (first + 1) + n * (n - 1) / 2));
    hvd_buffer_free(taken);
    free(in);
}

static void sets(void)
{
    int32_t ranks[1] = {n - 1}, id, out[4];
    float one = 1;
    const int64_t dims[1] = {1};

    if (n == 1)
        return;
    OK(hvd_pset_add(ranks, 1, &id));
    IS(id > 0 && hvd_pset_size(id) == 1 && hvd_pset_included(id) == (me == n - 1));
    IS(hvd_pset_ranks(id, out, 4) == 1 && out[0] == n - 1 && hvd_pset_count() == 2);
    if (me == n - 1) {
        hvd_handle h;
        struct hvd_op op = make(HVD_ALLREDUCE, "in set", &one, dims, 1, HVD_FLOAT32);

        op.pset = id;
        op.out = op.in;
        OK(hvd_enqueue(&op, &h));
        OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
        OK(hvd_release(h));
        IS(one == 1);
    }
    OK(hvd_pset_remove(id));
    IS(hvd_pset_count() == 1);
}

/* Ranks run out of data at different times; allreduce goes on with zeros. */
static void joins(void)
{
    int32_t last = -1;

    for (int step = 0; step <= me; step++) {
        int32_t v = 1;

        OK(hvd_allreduce(&v, &v, 1, HVD_INT32, HVD_SUM, "step"));
        IS(v == n - step);
    }
    OK(hvd_join(&last));
    IS(last == n - 1);
}

int main(void)
{
    OK(hvd_init(NULL));
    OK(hvd_init(NULL)); /* already up */
    me = hvd_rank();
    n = hvd_size();
    IS(hvd_local_size() == n && hvd_local_rank() == me && hvd_cross_size() == 1);
    IS(hvd_get_state() == HVD_UP && hvd_epoch() == 1 && hvd_is_homogeneous() == 1);
    for (int round = 0; round < 3; round++) {
        allreduces();
        scaled();
        grouped();
        gathers();
        alltoall();
        reducescatter();
        OK(hvd_barrier(0));
    }
    sets();
    joins();
    OK(hvd_shutdown());
    IS(hvd_rank() < 0 && hvd_get_state() == HVD_DOWN);
    printf("rank %d of %d is content\n", me, n);
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=c11 -Wall -Wextra -Werror -g -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" all.c -o all \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
echo "-- alone"
./all | grep -x 'rank 0 of 1 is content'
for plane in shm tcp; do
    for np in 1 3 4; do
        echo "-- $np ranks, $plane"
        HVD_CPU_PLANE=$plane hvdrun -np $np ./all >out 2>err || { cat out err; exit 1; }
        [ "$(grep -c "rank [0-9] of $np is content" out)" = $np ] || { cat out err; exit 1; }
    done
done
