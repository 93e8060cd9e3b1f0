#!/bin/bash
# A program that mpirun or srun starts without hvdrun does not train alone unnoticed.
set -eu
cat >alone.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>

int main(void)
{
    if (hvd_init(NULL) != HVD_OK) {
        fprintf(stderr, "%s\n", hvd_last_error());
        return 3;
    }
    printf("rank %d of %d\n", hvd_rank(), hvd_size());
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" alone.c -o alone \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"

# $1 = what the line has; the rest: the environment
refused() {
    local wanted=$1 status=0
    shift
    env "$@" ./alone 2>err || status=$?
    cat err
    [ $status = 3 ]
    [ "$(wc -l <err)" = 1 ]
    grep -qF "$wanted" err
    grep -qF "use hvdrun -np N" err
    [ "$(env "$@" HVD_SOLO=1 ./alone)" = "rank 0 of 1" ]
}

refused "srun started this process as one of several (SLURM_STEP_NUM_TASKS=4)" \
    SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4
refused "PMI_SIZE=2" PMI_RANK=1 PMI_SIZE=2
# the shell of salloc, and what hvdrun starts there
[ "$(env SLURM_PROCID=0 SLURM_NTASKS=4 ./alone)" = "rank 0 of 1" ]
env SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 hvdrun -np 2 -H localhost:2 ./alone >out
[ "$(grep -c 'of 2' out)" = 2 ]

if command -v mpirun.openmpi >/dev/null; then
    status=0
    timeout -k 1 40 mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 ./alone >out 2>err </dev/null || status=$?
    cat out err
    [ $status != 0 ] && [ $status != 124 ]
    grep -qF "Open MPI's mpirun started this process as one of several (OMPI_COMM_WORLD_SIZE=2)" err
    [ ! -s out ] || ! grep -q 'rank 0 of 1' out
    timeout -k 1 40 mpirun.openmpi --allow-run-as-root --oversubscribe -np 1 ./alone </dev/null >out
    grep -q 'rank 0 of 1' out
fi
