#!/bin/bash
# GPU tensors with a fake driver and a fake NCCL, found by dlopen as the real ones would be:
# allreduce in both wait modes, readiness by stream, event and context, delays on the device;
# hvd_init loads neither library; without a driver there is one clear error.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
[ -e "$HVD_BUILD/tests/fake/libcuda.so.1" ] || die "make fakes has not been run"
cat >sum.c <<'C'
#include "gpu.h"

static int loaded(const char *what)
{
    char line[512];
    int found = 0;
    FILE *f = fopen("/proc/self/maps", "r");

    while (fgets(line, sizeof line, f) != NULL)
        found |= strstr(line, what) != NULL;
    fclose(f);
    return found;
}

int main(void)
{
    enum { COUNT = 100000 };
    int64_t dims[1] = {COUNT};
    float *host = malloc(COUNT * sizeof *host);
    hvd_handle h;

    OK(hvd_init(NULL));
    IS(!loaded("libcuda") && !loaded("libnccl"));
    me = hvd_rank();
    n = hvd_size();
    gpu_open(hvd_local_rank());
    IS(hvd_feature("version:nccl") == 21800);
    IS(!loaded("libnccl"));
    void *stream = gpu_stream(), *event;
    CU(cuEventCreate, (void **, unsigned), (&event, 2));
    float *d = gpu_alloc(COUNT * sizeof *d);
    for (int step = 0; step < 6; step++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = (float)(me + i % 7 + step);
        gpu_put(d, host, COUNT * sizeof *d, step % 3 == 2 ? NULL : stream);
        struct hvd_op op = gpu_op(HVD_ALLREDUCE, "a", d, d, dims, 1, HVD_FLOAT32, stream);
        if (step % 3 == 1) {
            CU(cuEventRecord, (void *, void *), (event, stream));
            op.ready.kind = HVD_READY_CUEVENT;
            op.ready.object = event;
        } else if (step % 3 == 2) {
            op.ready.kind = HVD_READY_CUCTX;
            op.ready.object = NULL;
        }
        op.reduce_op = step < 3 ? HVD_SUM : HVD_AVERAGE;
        OK(hvd_enqueue(&op, &h));
        OK(hvd_wait(h, step % 2 == 0 ? HVD_WAIT_ENQUEUED : HVD_WAIT_DONE, 20000));
        if (step % 2 == 0)
            OK(step == 2 ? hvd_ctx_wait(h, NULL) : hvd_stream_wait(h, stream));
        OK(hvd_release(h));
        gpu_get(host, d, COUNT * sizeof *d, step == 2 ? NULL : stream);
        for (int i = 0; i < COUNT; i++) {
            float want = (float)(n * (i % 7 + step)) + (float)(n * (n - 1)) / 2;
            if (op.reduce_op == HVD_AVERAGE)
                want /= (float)n;
            if (host[i] != want) {
                printf("rank %d step %d: element %d is %g, not %g\n", me, step, i,
                       (double)host[i], (double)want);
                return 1;
            }
        }
    }
    IS(hvd_feature("version:nccl") == 22809);
    IS(hvd_feature("nccl") == 1 && hvd_feature("enabled:nccl") == 1);
    OK(hvd_shutdown());
    free(host);
    printf("rank %d of %d fine\n", me, n);
    return 0;
}
C
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile sum.c sum
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake
export FAKE_CUDA_DELAY_US=300
run ./sum
expect_status 0
for plane in shm tcp; do
    HVD_CPU_PLANE=$plane run hvdrun -np 4 ./sum
    expect_status 0
    expect_line out 'rank 3 of 4 fine'
done
echo "-- an older driver, without the newer entries: the context is waited for on the host"
cp "$HVD_BUILD/tests/fake/libnccl.so.2" .
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake/old HVD_NCCL_LIBRARY=$PWD/libnccl.so.2
run hvdrun -np 2 ./sum
expect_status 0
echo "-- no driver at all"
export LD_LIBRARY_PATH=
cat >none.c <<'C'
#include "gpu.h"
int main(void)
{
    int64_t dims[1] = {1};
    hvd_handle h;

    OK(hvd_init(NULL));
    struct hvd_op op = gpu_op(HVD_ALLREDUCE, "a", &me, &me, dims, 1, HVD_FLOAT32, NULL);
    IS(hvd_enqueue(&op, &h) == HVD_EUNSUPPORTED);
    puts(hvd_last_error());
    return 0;
}
C
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile none.c none
if ! ldconfig -p | grep -q libcuda.so.1; then
    run hvdrun -np 2 ./none
    expect_status 0
    expect_line out "need NVIDIA's driver, which is not here: libcuda.so.1: cannot open"
fi
