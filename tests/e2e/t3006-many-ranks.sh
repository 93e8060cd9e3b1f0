#!/bin/bash
# deadline: 180
# More ranks than cores: 2, 5, 9 and 64 on both planes; numbers beyond the limits are refused.
set -eu
cat >many.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

int main(void)
{
    enum { COUNT = 1237 };
    static int64_t v[COUNT];

    IS(hvd_init(NULL) == HVD_OK);
    int64_t n = hvd_size(), me = hvd_rank();
    int64_t *all = calloc((size_t)(n * (n + 1) / 2), sizeof *all);
    int64_t *mine = calloc((size_t)(me + 1), sizeof *mine);

    IS(all != NULL && mine != NULL);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < COUNT; i++)
            v[i] = me * i + round;
        IS(hvd_allreduce(v, v, COUNT, HVD_INT64, HVD_SUM, "v") == HVD_OK);
        for (int i = 0; i < COUNT; i++)
            IS(v[i] == n * (n - 1) / 2 * i + n * round);
        for (int64_t i = 0; i <= me; i++)
            mine[i] = me + round;
        IS(hvd_allgather(mine, me + 1, all, n * (n + 1) / 2, HVD_INT64, "uneven") == HVD_OK);
        for (int64_t r = 0, at = 0; r < n; r++)
            for (int64_t i = 0; i <= r; i++, at++)
                IS(all[at] == r + round);
        IS(hvd_broadcast(v, COUNT, HVD_INT64, (int32_t)(n - 1), "last") == HVD_OK);
    }
    IS(hvd_shutdown() == HVD_OK);
    free(all);
    free(mine);
    printf("is content\n");
    return 0;
}
C
cc -std=gnu11 -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" many.c -o many \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
for plane in shm tcp; do
    for np in 2 5 9 64; do
        echo "-- $np ranks, $plane"
        began=$SECONDS
        HVD_CPU_PLANE=$plane hvdrun -np $np ./many >out 2>err || { tail out err; exit 1; }
        [ "$(grep -c 'is content' out)" = $np ] || { tail out err; exit 1; }
        echo "$((SECONDS - began)) s"
    done
done

# $1 = status, rest = command: fails with that status and a text that names the limit
refused() {
    local want=$1 status=0
    shift
    "$@" >out 2>err || status=$?
    echo "$* -> $status: $(cat err)"
    [ $status = "$want" ] && grep -q 1024 err
}
echo "-- the documented limit"
refused 2 hvdrun -np 1025 ./many
