#!/bin/bash
# deadline: 120
# Every collective on GPU tensors, by NCCL and through the host, with fakes: 1, 2 and 4 ranks on
# both CPU planes; ranks that share one GPU; process sets; join; groups of several types; results
# that libhvd owns; names that are free again once the work is queued; CPU and GPU tensors mixed.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile "$HVD_SRC/tests/e2e/gpu_all.c" all
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake FAKE_CUDA_DELAY_US=50
for np in 1 2 4; do
    for plane in shm tcp; do
        echo "-- $np ranks, $plane, NCCL"
        HVD_CPU_PLANE=$plane run hvdrun -np $np ./all
        expect_status 0
        expect_line out "rank $((np - 1)) of $np fine"
    done
    echo "-- $np ranks, through the host"
    HVD_GPU_PLANE=host run hvdrun -np $np ./all
    expect_status 0
done
echo "-- three ranks on one GPU"
SHARE=1 CUDA_VISIBLE_DEVICES=0 HVD_LOG=gpu:warn run hvdrun -np 3 ./all
expect_status 0
expect_line err 'GPU tensors of 3 ranks go through the host: ranks 0 and 1 share a GPU'
echo "-- more ranks than GPUs"
CUDA_VISIBLE_DEVICES=0,1 run hvdrun -np 3 ./all
[ "$status" != 0 ] || die "a third GPU was found"
