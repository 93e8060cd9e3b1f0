#!/bin/bash
# deadline: 240
# What t4002 checks with fakes, on this machine's own GPUs: one rank by NCCL, two ranks that share a
# GPU through the host, one rank per GPU where there are several.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
if ! ldconfig -p | grep -q libcuda.so.1 || [ ! -e /dev/nvidiactl ]; then
    echo "no NVIDIA GPU on this machine"
    exit 77
fi
hvdrun --check-build | sed -n 's/^        //p' | tee report
gpus=$(sed -n 's/.*, \([0-9]*\) GPUs\{0,1\}.*/\1/p' report)
[ "${gpus:-0}" -gt 0 ] || { echo "the driver shows no GPU: $(cat report)"; exit 77; }
grep -q 'NCCL 2' report || { echo "no NCCL: $(cat report)"; exit 77; }
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile "$HVD_SRC/tests/e2e/gpu_all.c" all
run hvdrun -np 1 ./all
expect_status 0
echo "1 rank, NCCL: fine"
SHARE=1 run hvdrun -np 2 ./all
expect_status 0
echo "2 ranks on one GPU, through the host: fine"
if [ "$gpus" -gt 1 ]; then
    run hvdrun -np "$gpus" ./all
    expect_status 0
    echo "$gpus ranks, NCCL: fine"
fi
