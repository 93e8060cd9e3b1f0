#!/bin/bash
# deadline: 120
# scripts/gpu-check.sh with fakes: every line of its table is there, it says that these are fakes,
# judges no speed, finds NCCL in a pip package, tells a failure from a skip, and skips with the
# reason without driver or NCCL.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
check=$HVD_SRC/scripts/gpu-check.sh
export B=$HVD_BUILD
case $HVD_BUILD in *-thread | *-undefined) echo "it builds without a sanitizer"; exit 77 ;; esac
fake=$HVD_BUILD/tests/fake
# a Python with nothing, so that the test depends on no PyTorch
cat >python <<'SH'
#!/bin/sh
case $1 in
-c) [ -z "$PIP_NCCL" ] || echo "$PIP_NCCL" ;;
*tf_step*) echo "no TensorFlow"; exit 77 ;;
*) echo "no PyTorch"; exit 77 ;;
esac
SH
chmod +x python
export PYTHON=$PWD/python PIP_NCCL=''

echo "-- two GPUs"
LD_LIBRARY_PATH=$fake FAKE_CUDA_DEVICES=2 run "$check"
expect_status 0
expect_line out 'driver for CUDA 12.4, 2 GPUs: Fake GPU 0, Fake GPU 1; NCCL 2.28.9'
expect_line out 'nothing here has run on a GPU'
expect_line out 'every collective, NCCL, np 1 +pass +.*rank 0 of 1 fine, [0-9]+ s'
expect_line out 'f32 travels as f16, NCCL, np 1 +pass +.*rank 0 of 1 fine'
expect_line out 'every collective, one GPU, np 2 +pass'
expect_line out 'every collective, NCCL, np 2 +pass'
expect_line out 'pack kernel, 161 gradients +ran +[0-9]+ % of the copy \([0-9]+ of [0-9]+ GB/s; limit 80 %\); to f16 [0-9]+ GB/s'
expect_line out 'a step never waits for the device +pass +3 steps queued in [0-9]+ ms'
expect_line out 'abort, then a new membership +pass +aborted after [0-9]+ ms, works again'
expect_line out 'memory of 12 memberships +pass +[+-][0-9.]+ MB of the GPU, [+-][0-9.]+ MB of the host'
expect_line out 'PyTorch, expandable segments +skip +no PyTorch'
expect_line out 'PyTorch step, np 1 +skip +no PyTorch'
expect_line out 'TensorFlow step, np 1 +skip +no TensorFlow'
! grep -q FAIL out || die "something failed"

echo "-- NCCL of a pip package, one GPU"
mkdir driver
cp "$fake/libcuda.so.1" driver
echo nothing >driver/libnccl.so.2 # found before one that this machine may have
PIP_NCCL=$fake/libnccl.so.2 LD_LIBRARY_PATH=$PWD/driver FAKE_CUDA_DEVICES=1 run "$check"
expect_status 0
expect_line out "NCCL 2.28.9 \\($fake/libnccl.so.2\\)"
expect_line out 'every collective, NCCL, np > 1 +skip +one GPU here'
LD_LIBRARY_PATH=$PWD/driver run "$check"
expect_status 77
expect_line out 'GPU collectives need NCCL, which is not here'

echo "-- a call of NCCL's that fails, kernels that do not load"
LD_LIBRARY_PATH=$fake FAKE_CUDA_DEVICES=1 FAKE_CUDA_NO_KERNELS=1 run "$check" 8
expect_status 1
expect_line out 'every collective, NCCL, np 1 +FAIL +not by NCCL: rank 0 has no kernels'
expect_line out 'pack kernel, 161 gradients +FAIL +.*cuModuleLoadData: 218'
LD_LIBRARY_PATH=$fake FAKE_CUDA_DEVICES=1 FAKE_NCCL_FAULT=call:0:2 run "$check" 100
expect_status 1
expect_line out "every collective, NCCL, np 1 +FAIL +status .*fake: this call fails"
expect_line out "abort, then a new membership +FAIL +status .*on rank 0 \($(hostname), cuda:0 Fake GPU 0\)"

echo "-- no driver, and no time"
if ! ldconfig -p | grep -q libcuda.so.1; then
    LD_LIBRARY_PATH='' run "$check"
    expect_status 77
    expect_line out "GPU tensors need NVIDIA's driver, which is not here"
fi
LD_LIBRARY_PATH=$fake run "$check" 0
expect_status 1
expect_line out 'every collective, NCCL, np 1 +FAIL +not done .*no time left'
run "$check" soon
expect_status 2
