#!/bin/bash
# deadline: 90
# Ranks run out of data at different times: those that have joined take part with zeros, also
# in operations that nobody has named before they joined; then all go on together.
set -eu
cat >join.c <<'C'
#include <hvd/hvd.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

int main(void)
{
    IS(hvd_init(NULL) == HVD_OK);
    int me = hvd_rank(), n = hvd_size();

    for (int round = 0; round < 30; round++) {
        int mine = me + round % 3; /* batches of this rank */
        int last = -1;

        for (int i = 0; i < mine; i++) {
            char name[32];
            float v[8], want = 0;

            for (int r = 0; r < n; r++)
                want += r + round % 3 > i ? (float)(r + 1) / (float)n : 0;
            for (int k = 0; k < 8; k++)
                v[k] = (float)(me + 1);
            snprintf(name, sizeof name, "batch.%d.%d", round / 10, i);
            /* unnamed: matched by count, which starts anew with each join */
            IS(hvd_allreduce(v, v, 8, HVD_FLOAT32, HVD_AVERAGE,
                             round % 2 ? name : NULL) == HVD_OK);
            IS(fabsf(v[0] - want) < 1e-5f && v[7] == v[0]);
        }
        IS(hvd_join(&last) == HVD_OK);
        IS(last >= 0 && last < n);

        /* one rank has an operation in flight that the others take part in by joining only */
        struct hvd_op op = {.size = sizeof op, .kind = HVD_ALLREDUCE, .reduce_op = HVD_SUM};
        int64_t one = 1;
        float x = 5;
        hvd_handle h = 0;

        op.in = (struct hvd_tensor){.data = &x, .dims = &one, .ndim = 1, .dtype = HVD_FLOAT32};
        op.out = op.in;
        op.name = round % 2 ? "alone" : "alone.again";
        if (me == round % n)
            IS(hvd_enqueue(&op, &h) == HVD_OK);
        IS(hvd_join(NULL) == HVD_OK);
        if (me == round % n) {
            IS(hvd_wait(h, HVD_WAIT_DONE, 10000) == HVD_OK && x == 5);
            IS(hvd_release(h) == HVD_OK);
        }
    }
    IS(hvd_shutdown() == HVD_OK);
    printf("is content\n");
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -g -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" join.c -o join \
    -L"$HVD_BUILD/lib" -lhvd -lm -Wl,-rpath,"$HVD_BUILD/lib"
for plane in shm tcp; do
    for np in 1 2 4 7; do
        HVD_CPU_PLANE=$plane hvdrun -np $np ./join >out 2>err || { cat out err; exit 1; }
        [ "$(grep -c 'is content' out)" = $np ] || { cat out err; exit 1; }
        echo "$np ranks, $plane: done"
    done
done
# several "hosts": rank 0 alone, then two ranks on each
for np in 3 4 7; do
    # shellcheck disable=SC2016
    hvdrun -np $np sh -c 'HVD_HOSTNAME=h$(((HVD_RANK + 1) / 2)) exec ./join' >out 2>err || { cat out err; exit 1; }
    [ "$(grep -c 'is content' out)" = $np ] || { cat out err; exit 1; }
    echo "$np ranks on hosts: done"
done
