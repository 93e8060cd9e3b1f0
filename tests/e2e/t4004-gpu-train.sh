#!/bin/bash
# deadline: 120
# train_mnist --device cuda with a fake driver and NCCL: the same as on the CPU; --check-build tells
# driver, GPUs and NCCL, or what is missing.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
train=$HVD_BUILD/examples/train_mnist
compare=$HVD_BUILD/examples/compare_params
run hvdrun -np 2 "$train" --epochs 1 --dump-grads cpu.g --checkpoint cpu.p
expect_status 0
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake
for np in 1 2; do
    run hvdrun -np $np "$train" --epochs 1 --device cuda --dump-grads gpu.g --checkpoint gpu.p
    expect_status 0
    expect_line out "bit-identical on $np rank"
    "$compare" cpu.g gpu.g 1e-5 || die "other gradients"
    "$compare" cpu.p gpu.p 1e-3 || die "other parameters"
done
echo "-- both ranks on one GPU"
CUDA_VISIBLE_DEVICES=3 run hvdrun -np 2 "$train" --epochs 1 --device cuda --checkpoint one.p
expect_status 0
"$compare" cpu.p one.p 1e-3 || die "other parameters"
echo "-- what the machine has"
FAKE_CUDA_DEVICES=2 run hvdrun --check-build
expect_status 0
expect_line out '\[X\] NCCL \(GPU tensors\)'
expect_line out 'driver for CUDA 12.4, 2 GPUs: Fake GPU 0, Fake GPU 1; NCCL 2.28.9 \(.*libnccl.so.2\)'
LD_LIBRARY_PATH='' run hvdrun --check-build
expect_status 0
ldconfig -p | grep -q libcuda.so.1 || expect_line out "GPU tensors need NVIDIA's driver, which is not here"
echo "-- refusals"
LD_LIBRARY_PATH='' run "$train" --device gpu
expect_status 2
expect_line err "--device 'gpu': must be cpu or cuda"
