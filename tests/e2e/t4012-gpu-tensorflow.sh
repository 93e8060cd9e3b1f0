#!/bin/bash
# deadline: 300
# TensorFlow's GPU kernels without a GPU: its device "GPU" is the fake driver's memory and streams
# (tests/fake/tf_device.c). Every collective, eagerly and in functions, by NCCL and through the host,
# with results on the device; with a driver that cannot record a context; and with what is no GPU's.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/tf.sh"
ran=
for environment in tf-current tf-keras2; do
    tensorflow $environment || continue
    ran=1
    for np in 1 2 3; do
        HVD_LOG=gpu:warn tensors $np nccl
        expect_status 0
        expect_line out "rank $((np - 1)) of $np fine"
        refuse_line err "go through the host"
    done
    FAKE_CUDA_DEVICES=1 HVD_LOG=gpu:warn tensors 2 staged
    expect_status 0
    expect_line out "rank 1 of 2 fine"
    expect_line err "go through the host"
    [ $environment = tf-keras2 ] || { tensors 1 keras && expect_status 0; }
done
[ -n "$ran" ] || { echo "no TensorFlow: $(tail -n 1 err)"; exit 77; }
LD_LIBRARY_PATH=$HVD_BUILD/tests/fake/old HVD_NCCL_LIBRARY=$HVD_BUILD/tests/fake/libnccl.so.2 tensors 2 blocking
expect_status 0
expect_line out "rank 1 of 2 fine"
FAKE_TF_HOST=1 tensors 1 host
expect_status 0
expect_line out "rank 0 of 1 fine"
# TensorFlow copies: the GPU plane is not asked
HVD_TF_GPU=host HVD_NCCL_LIBRARY=/none tensors 2 copied
expect_status 0
expect_line out "rank 1 of 2 fine"
