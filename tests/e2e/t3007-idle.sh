#!/bin/bash
# deadline: 90
# Ranks that wait burn no processor: 10 s idle cost each rank less than 50 ms, also while
# another rank's operation is missing; and the programs around them cost as little.
set -eu
cat >idle.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double cpu_ms(int who)
{
    struct rusage u;

    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

int main(int argc, char **argv)
{
    int waits = argc > 1 && strcmp(argv[1], "wait") == 0;
    float v[1000] = {1};

    if (hvd_init(NULL) != HVD_OK || hvd_allreduce(v, v, 1000, HVD_FLOAT32, HVD_SUM, "v") != HVD_OK)
        return 1;
    double before_ms = cpu_ms(RUSAGE_SELF);
    struct timespec left = {.tv_sec = 10};
    if (!waits || hvd_rank() == 0) /* the others wait for rank 0's operation */
        nanosleep(&left, NULL);
    if (waits && hvd_allreduce(v, v, 1000, HVD_FLOAT32, HVD_SUM, "late") != HVD_OK)
        return 1;
    double spent_ms = cpu_ms(RUSAGE_SELF) - before_ms;
    printf("rank %d %s spent %.1f ms\n", hvd_rank(), waits ? "waiting" : "idle", spent_ms);
    return hvd_shutdown() != HVD_OK || spent_ms >= 50;
}
C
cc -std=gnu11 -O2 -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" idle.c -o idle \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"

# Processor time, in 10 ms, of the programs of this test with that name. $1 = name
ticks() {
    local pid sum=0
    for pid in $(grep -lzx "HVD_E2E_MARK=${HVD_E2E_MARK:-none}" /proc/[0-9]*/environ 2>/dev/null |
        sed 's|/proc/\([0-9]*\)/.*|\1|'); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] || continue
        sum=$((sum + $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{ n = $12 + $13 } END { print n + 0 }')))
    done
    echo $sum
}
for plane in shm tcp; do
    for how in idle wait; do
        echo "-- $how, $plane"
        HVD_STALL_CHECK_DISABLE=1 HVD_CPU_PLANE=$plane hvdrun -np 4 ./idle $how >out 2>err &
        job=$!
        declare -A spent=()
        while kill -0 $job 2>/dev/null; do
            for program in hvdrun hvd-agent hvd-coordinator; do
                spent[$program]=$(ticks $program)
                [ "${spent[$program]}" -le 30 ] || { echo "$program is busy"; exit 1; }
            done
            sleep 0.5
        done
        wait $job || { cat out err; exit 1; }
        cat out
        [ "$(grep -c ' spent ' out)" = 4 ]
    done
done
