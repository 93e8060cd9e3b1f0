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
echo "-- each rank sees one GPU, its own, and one joins before it has used it"
cat >joined.c <<'C'
#include "gpu.h"

int main(int argc, char **argv)
{
    int64_t dims[1] = {3};
    float v[3] = {1, 2, 3};
    hvd_handle h;

    setenv("CUDA_VISIBLE_DEVICES", getenv("HVD_LOCAL_RANK"), 1);
    (void)argc;
    (void)argv;
    OK(hvd_init(NULL));
    me = hvd_rank();
    n = hvd_size();
    if (me == 0) {
        gpu_open(0);
        void *stream = gpu_stream();
        void *d = gpu_alloc(sizeof v);
        gpu_put(d, v, sizeof v, stream);
        struct hvd_op o = gpu_op(HVD_ALLREDUCE, "a", d, d, dims, 1, HVD_FLOAT32, stream);
        OK(hvd_enqueue(&o, &h));
        OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
        gpu_get(v, d, sizeof v, stream);
        IS(v[0] == 1 && v[2] == 3);
    }
    OK(hvd_enqueue_join(-1, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_shutdown());
    printf("rank %d of %d fine\n", me, n);
    return 0;
}
C
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile joined.c joined
HVD_LOG=gpu:warn run hvdrun -np 3 ./joined
expect_status 0
expect_line out 'rank 2 of 3 fine'
! grep -q 'through the host' err || die "not by NCCL: $(cat err)"
