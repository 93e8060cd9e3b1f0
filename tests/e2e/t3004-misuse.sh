#!/bin/bash
# deadline: 90
# Wrong calls get a status and a text that says what is wrong; the job goes on.
set -eu
cat >misuse.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static int me, n;
static void says(const char *a, const char *b)
{
    if (me == 0)
        printf("    %s\n", hvd_last_error());
    IS(strstr(hvd_last_error(), a) != NULL);
    IS(strstr(hvd_last_error(), b) != NULL);
}

static void bad_arguments(void)
{
    float v[4] = {0};
    static char long_name[HVD_NAME_MAX + 2];
    const int64_t huge[2] = {INT64_MAX / 2, 16};
    const int64_t negative[1] = {-1};
    struct hvd_op op;
    hvd_handle h = 77;

    memset(long_name, 'x', sizeof long_name - 1);
    IS(hvd_allreduce(NULL, v, 4, HVD_FLOAT32, HVD_SUM, "a") == HVD_EINVAL);
    IS(hvd_allreduce(v, NULL, 4, HVD_FLOAT32, HVD_SUM, "a") == HVD_EINVAL);
    IS(hvd_allreduce(v, v, -1, HVD_FLOAT32, HVD_SUM, "a") == HVD_EINVAL);
    IS(hvd_allreduce(v, v, INT64_MAX, HVD_FLOAT32, HVD_SUM, "a") == HVD_EINVAL);
    IS(hvd_allreduce(v, v, 4, (enum hvd_dtype)99, HVD_SUM, "a") == HVD_EINVAL);
    IS(hvd_allreduce(v, v, 4, HVD_FLOAT32, (enum hvd_reduce_op)99, "a") == HVD_EINVAL);
    IS(hvd_allreduce(v, v, 4, HVD_FLOAT32, HVD_SUM, long_name) == HVD_EINVAL);
    IS(hvd_allreduce(v, v, 1, HVD_BOOL, HVD_AVERAGE, "a") == HVD_EUNSUPPORTED);
    IS(hvd_broadcast(v, 4, HVD_FLOAT32, n, "a") == HVD_EINVAL);
    IS(hvd_broadcast(v, 4, HVD_FLOAT32, -1, "a") == HVD_EINVAL);
    IS(hvd_barrier(1234) == HVD_EINVAL);
    IS(hvd_enqueue(NULL, &h) == HVD_EINVAL);
    memset(&op, 0, sizeof op);
    IS(hvd_enqueue(&op, &h) == HVD_EINVAL); /* size not set */
    op.size = sizeof op;
    op.kind = HVD_ALLREDUCE;
    op.reduce_op = HVD_SUM;
    op.in.dtype = HVD_FLOAT32;
    op.in.data = v;
    op.in.ndim = 2;
    op.in.dims = huge;
    op.out = op.in;
    IS(hvd_enqueue(&op, &h) == HVD_EINVAL);
    op.in.ndim = op.out.ndim = 1;
    op.in.dims = op.out.dims = negative;
    IS(hvd_enqueue(&op, &h) == HVD_EINVAL);
    op.in.ndim = op.out.ndim = HVD_NDIM_MAX + 1;
    IS(hvd_enqueue(&op, &h) == HVD_EINVAL);
    IS(h == 77);
    IS(hvd_enqueue(&op, NULL) == HVD_EINVAL);
    IS(hvd_poll(0) == HVD_EHANDLE && hvd_wait(12345, HVD_WAIT_DONE, 0) == HVD_EHANDLE);
    IS(hvd_pset_size(99) < 0 && hvd_pset_remove(0) == HVD_EINVAL);
}

/* What differs between ranks: one text, the same on all, naming ranks and difference. */
static void mismatches(void)
{
    float v[8] = {0};
    double d[8] = {0};

    IS(hvd_allreduce(v, v, me == 0 ? 4 : 5, HVD_FLOAT32, HVD_SUM, "shape") == HVD_EMISMATCH);
    says("shape", "4");
    IS((me == 0 ? hvd_allreduce(v, v, 4, HVD_FLOAT32, HVD_SUM, "type")
                : hvd_allreduce(d, d, 4, HVD_FLOAT64, HVD_SUM, "type")) == HVD_EMISMATCH);
    says("type", "float64");
    IS(hvd_allreduce(v, v, 4, HVD_FLOAT32, me == 0 ? HVD_SUM : HVD_MAX, "op") ==
       HVD_EMISMATCH);
    says("op", "rank");
    IS(hvd_broadcast(v, 4, HVD_FLOAT32, me == 0 ? 0 : 1, "root") == HVD_EMISMATCH);
    says("root", "rank");
    IS((me == 0 ? hvd_allreduce(v, v, 4, HVD_FLOAT32, HVD_SUM, "kind")
                : hvd_broadcast(v, 4, HVD_FLOAT32, 0, "kind")) == HVD_EMISMATCH);
    says("kind", "rank");
}

int main(void)
{
    float one = 1;

    IS(hvd_init(NULL) == HVD_OK);
    me = hvd_rank();
    n = hvd_size();
    for (int round = 0; round < 2; round++) {
        bad_arguments();
        mismatches();
        one = 1;
        IS(hvd_allreduce(&one, &one, 1, HVD_FLOAT32, HVD_SUM, "after all that") == HVD_OK);
        IS(one == (float)n);
    }
    /* a name that worked, then with another shape on one rank, then well again */
    float v[8] = {0};
    IS(hvd_allreduce(v, v, 4, HVD_FLOAT32, HVD_SUM, "cached") == HVD_OK);
    IS(hvd_allreduce(v, v, me == 1 ? 3 : 4, HVD_FLOAT32, HVD_SUM, "cached") == HVD_EMISMATCH);
    IS(hvd_allreduce(v, v, 8, HVD_FLOAT32, HVD_SUM, "cached") == HVD_OK);
    IS(hvd_shutdown() == HVD_OK);
    printf("rank %d is content\n", me);
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -g -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" misuse.c -o misuse \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
for plane in shm tcp; do
    echo "-- $plane"
    HVD_CPU_PLANE=$plane hvdrun -np 3 ./misuse >out 2>err || { cat out err; exit 1; }
    cat out
    [ "$(grep -c 'is content' out)" = 3 ]
done
