#!/bin/bash
# deadline: 120
# GPU collectives that fail, with fakes: a rank that is killed while others are in a collective,
# an asynchronous NCCL error, a hang, an abort that hangs, an old NCCL, no memory. Nothing hangs; every text names
# rank, host and device; ENQUEUED handles fail too; later calls fail.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
cat >fail.c <<'C'
#include "gpu.h"
#include <poll.h>
#include <signal.h>

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
    enum { COUNT = 5000 };
    int64_t dims[1] = {COUNT};
    int killed = argc > 1 ? atoi(argv[1]) : -1;
    enum hvd_status rc = HVD_OK;
    hvd_handle h[200];
    int steps = 0;

    gpu_start(argc, argv);
    void *stream = gpu_stream();
    float *d = gpu_alloc(COUNT * 4);
    for (; steps < 200 && rc == HVD_OK; steps++) {
        char name[16];

        snprintf(name, sizeof name, "s%d", steps);
        struct hvd_op o = gpu_op(HVD_ALLREDUCE, name, d, d, dims, 1, HVD_FLOAT32, stream);
        rc = hvd_enqueue(&o, &h[steps]);
        if (rc != HVD_OK)
            break;
        rc = hvd_wait(h[steps], HVD_WAIT_ENQUEUED, 30000);
        if (me == killed && steps == 5)
            raise(SIGKILL);
        if (killed >= 0 && steps >= 20)
            rc = hvd_wait(h[steps], HVD_WAIT_DONE, 30000); /* do not run ahead for ever */
    }
    /* what was only queued ends as well */
    long began = now_ms();
    for (int i = 0; i < steps; i++) {
        enum hvd_status one = hvd_wait(h[i], HVD_WAIT_DONE, 30000);
        char text[1024];

        if (one == HVD_OK)
            continue;
        IS(one != HVD_ETIMEDOUT); /* it would not have ended */
        hvd_handle_error(h[i], text, sizeof text);
        printf("rank %d step %d: %d %s\n", me, i, one, text);
        rc = one;
        break;
    }
    IS(now_ms() - began < 20000);
    if (rc == HVD_OK) {
        printf("rank %d: nothing failed\n", me);
        return hvd_shutdown();
    }
    if (rc != HVD_EVERSION) {
        struct hvd_op o = gpu_op(HVD_ALLREDUCE, "later", d, d, dims, 1, HVD_FLOAT32, stream);

        IS(hvd_get_state() == HVD_FAILED && hvd_enqueue(&o, &h[0]) < 0);
        printf("rank %d later: %s\n", me, hvd_last_error());
    }
    fflush(stdout);
    if (getenv("STAY") != NULL) {
        poll(NULL, 0, 30000); /* the deadline by which the library has ended this process */
        printf("rank %d is still here\n", me);
    }
    hvd_shutdown();
    return rc == HVD_EPEER ? 3 : 4;
}
C
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile fail.c fail
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake
echo "-- a rank is killed"
for plane in shm tcp; do
    HVD_CPU_PLANE=$plane run hvdrun -np 3 ./fail 1
    expect_status 137
    expect_line out 'rank 0 step [0-9]*: -7 .*rank 1 .*was lost: killed by SIGKILL'
    expect_line out 'rank 2 later: rank 1 .*was lost'
    expect_within 20000
done
echo "-- an asynchronous error: all ranks get NCCL's words and hear on which rank"
FAKE_NCCL_FAULT=async:1:4 run hvdrun -np 3 ./fail
[ "$status" != 0 ] || die "it went well"
expect_line out 'rank 1 step [0-9]*: -7 .*on rank 1 \(localhost, cuda:1 Fake GPU 1\): NCCL 2.28.9: unhandled system error.*completion with error 12; often the network .*docker: --shm-size'
expect_line out 'rank 0 step [0-9]*: -7 .*on rank 1 .*completion with error 12; often the network .*docker: --shm-size'
expect_within 20000
echo "-- an NCCL for a newer CUDA than the driver's"
FAKE_NCCL_FAULT=call:0:0 FAKE_NCCL_TEXT="Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'" \
    run hvdrun -np 2 ./fail
[ "$status" != 0 ] || die "it went well"
expect_line out 'unhandled cuda error .*is insufficient .*; this NCCL is built for a newer CUDA than the driver has .*nvidia-nccl-cu12'
echo "-- a collective that hangs"
FAKE_NCCL_FAULT=hang:0:3 HVD_NCCL_TIMEOUT_SECONDS=1 run hvdrun -np 2 ./fail
[ "$status" != 0 ] || die "it went well"
expect_line out 'step [0-9]*: -7 .*has not ended for 1 s \(HVD_NCCL_TIMEOUT_SECONDS\)'
expect_within 20000
echo "-- an abort that hangs: the program hears of it, and its process ends whatever it does"
STAY=1 FAKE_NCCL_FAULT=hang:0:3 FAKE_NCCL_ABORT_HANG=1 HVD_NCCL_TIMEOUT_SECONDS=1 HVD_NCCL_ABORT_SECONDS=1 \
    run hvdrun --prefix none -np 1 ./fail
expect_status 1
expect_line out 'rank 0 step 3: -7 .*has not ended for 1 s'
expect_line err 'hvd: rank 0 \(.*, cuda:0 Fake GPU 0\): NCCL has not aborted in 1 s and holds the GPU, so this process ends \(HVD_NCCL_ABORT_SECONDS\)\. Before: a collective on rank 0 .*has not ended for 1 s'
! grep -q 'still here' out || die "the process went on"
expect_within 15000
STAY=1 FAKE_NCCL_FAULT=hang:1:3 FAKE_NCCL_ABORT_HANG=1 HVD_NCCL_TIMEOUT_SECONDS=1 HVD_NCCL_ABORT_SECONDS=1 \
    run hvdrun -np 2 ./fail
expect_status 1
expect_line err 'NCCL has not aborted in 1 s and holds the GPU'
! grep -q 'still here' out || die "a process went on"
expect_within 15000
echo "-- a communicator that does not end in hvd_shutdown: it is aborted, and that may hang as well"
FAKE_NCCL_FINALIZE_HANG=1 run hvdrun -np 2 ./fail
expect_status 0
expect_line out 'rank 1: nothing failed'
FAKE_NCCL_FINALIZE_HANG=1 FAKE_NCCL_ABORT_HANG=1 HVD_NCCL_ABORT_SECONDS=1 run hvdrun -np 2 ./fail
expect_status 1
expect_line err 'NCCL has not aborted in 1 s and holds the GPU, so this process ends .*Before: a communicator did not end'
expect_within 15000
echo "-- NCCL that is too old: an error of the operation, with version and path"
FAKE_NCCL_VERSION=21405 run hvdrun -np 2 ./fail
expect_line out 'rank 1 step 0: -15 .*rank 0 \(localhost\): NCCL 2.14.5 at .*/tests/fake/libnccl.so.2 is too old: GPU collectives need 2.18'
echo "-- no NCCL"
mkdir only && cp "$HVD_BUILD/tests/fake/libcuda.so.1" only
if ! ldconfig -p | grep -q libnccl.so.2; then
    LD_LIBRARY_PATH=$PWD/only run hvdrun -np 2 ./fail
    expect_line out 'rank 0 step 0: -11 .*GPU collectives need NCCL, which is not here'
fi
LD_LIBRARY_PATH=$PWD/only HVD_NCCL_LIBRARY=/nonexistent run hvdrun -np 2 ./fail
expect_line out 'rank 0 step 0: -11 .*GPU collectives need NCCL, which is not here: /nonexistent: cannot open'
echo "-- no memory for a result: an error of the call"
cat >memory.c <<'C'
#include "gpu.h"
int main(int argc, char **argv)
{
    int64_t dims[1] = {10000000};
    hvd_handle h;

    gpu_start(argc, argv);
    void *d = gpu_alloc(40000000);
    struct hvd_op o = gpu_op(HVD_ALLREDUCE, "big", d, NULL, dims, 1, HVD_FLOAT32, NULL);
    IS(hvd_enqueue(&o, &h) == HVD_ENOMEM);
    puts(hvd_last_error());
    return hvd_shutdown();
}
C
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile memory.c memory
FAKE_CUDA_MEMORY=75000000 run hvdrun -np 2 ./memory
expect_status 0
expect_line out '40000000 bytes of GPU memory: CUDA_ERROR_OUT_OF_MEMORY 2: out of memory \(cuda:0, Fake GPU 0\)'
