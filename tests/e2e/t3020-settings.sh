#!/bin/bash
# A variable that chooses something and has a value that nobody knows is said, with what may
# be written: for those that a rank works by the job does not begin, for what only concerns
# the log it goes on. deadline: 60
. "$HVD_SRC/tests/e2e/lib.sh"

refused() {
    run env "$1" hvdrun -np 2 "$HVD_BUILD/examples/allreduce"
    expect_status 1
    expect_line err "^\[0\]<stderr>:hvd_init: $2"
    echo "ok $1"
}
refused HVD_SIMD=sse9 'HVD_SIMD=sse9: write one of (avx512, )?(avx2, )?.*scalar$'
refused HVD_SPIN_US=soon "HVD_SPIN_US: 'soon' is not a whole number"
refused HVD_SHM_SLOT_KIB=100 'HVD_SHM_SLOT_KIB=100: write a power of two, 4 to 4096'
refused HVD_CPU_PLANE=fast 'HVD_CPU_PLANE=fast: write shm, tcp or auto'

said() {
    run env "$1" hvdrun -np 2 "$HVD_BUILD/examples/allreduce"
    expect_status 0
    expect_line err "^hvdrun: $2"
    [ "$(grep -c . err)" = 1 ] || die "$1: more than one line"
    echo "ok $1"
}
said HVD_LOG=loud "HVD_LOG: 'loud' names no level: write off, error, warn, info, debug or trace, of a part of it PART:LEVEL$"
said HVD_LOG=warn,gpu:loud "HVD_LOG: 'gpu:loud' names no level"
said HOROVOD_LOG_LEVEL=9 "HOROVOD_LOG_LEVEL: '9' names no level"
said HVD_LOG_HIDE_TIME=maybe "HVD_LOG_HIDE_TIME: 'maybe' is not 0 or 1$"
for word in fatal WARNING trace; do
    HOROVOD_LOG_LEVEL=$word run hvdrun -np 2 "$HVD_BUILD/examples/allreduce"
    expect_status 0
    ! grep 'names no level' err || die "HOROVOD_LOG_LEVEL=$word is one of Horovod's"
done
echo "ok Horovod's own words for levels"
