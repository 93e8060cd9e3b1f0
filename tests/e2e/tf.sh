# shellcheck shell=bash
# TensorFlow on the fake GPU, for t4012 and t4013: . "$HVD_SRC/tests/e2e/tf.sh"
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake FAKE_CUDA_DELAY_US=200 TF_CPP_MIN_LOG_LEVEL=2
export PYTHONPATH=$HVD_SRC/worker/python HVD_LIBRARY=$HVD_BUILD/lib/libhvd.so

# Find environment $1 of scripts/python-env.sh: its interpreter is in $python, the device for it in
# $FAKE_TF_DEVICE. Status 1: there is none.
tensorflow() {
    local package
    python=$("$HVD_SRC/scripts/python-env.sh" --check "$1" 2>err) || return 1
    package=$(echo "${python%/bin/*}"/lib/python3.*/site-packages/tensorflow)
    export FAKE_TF_DEVICE=$T/$1.so
    gcc -std=gnu11 -O1 -g -Wall -Wextra -Werror -shared -fPIC -isystem "$package/include" \
        "$HVD_SRC/tests/fake/tf_device.c" -o "$FAKE_TF_DEVICE" \
        "$package/libtensorflow_framework.so.2" "$HVD_BUILD/tests/fake/libcuda.so.1" 2>err ||
        die "tests/fake/tf_device.c does not compile for $1"
}

# $1 = ranks, $2 = MODE
tensors() {
    export MODE=$2
    run hvdrun --timeout 100s -np "$1" "$python" "$HVD_SRC/tests/e2e/gpu_tensors.py"
}
