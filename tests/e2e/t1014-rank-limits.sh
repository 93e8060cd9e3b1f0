#!/bin/bash
# Ranks that have few descriptors: hvd_init says so, or works; nobody waits.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"

for plane in shm tcp; do
    ended=
    for ((n = 4; n <= 24; n++)); do
        HVD_CPU_PLANE=$plane run timeout -s KILL 15 hvdrun -np 3 sh -c "ulimit -n $n && exec '$HVD_BUILD/examples/allreduce'"
        [ "$status" -lt 128 ] || die "plane $plane, $n open files: status $status"
        if [ "$status" = 0 ]; then
            ended=$n
            continue
        fi
        [ -z "$ended" ] || die "plane $plane: works with $ended open files, not with $n"
        grep -qi 'too many open files' err || die "plane $plane, $n open files: no word of the limit"
        expect_within 5000
    done
    [ -n "$ended" ] || die "plane $plane: 24 open files are not enough"
    echo "ok plane $plane, ranks with 4 to 24 open files: a line or a job"
done
