#!/bin/bash
# The real libraries of a CUDA toolkit, without a GPU: NCCL is taken as on a machine with one, and the
# toolkit's stub is not taken for a driver. (That both export our tables' entries: unit/plane/nccl/load.)
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
home=${CUDA_HOME:-/usr/local/cuda}

first() { for f in "$@"; do [ -e "$f" ] && { readlink -f "$f"; return; }; done; }
nccl=$(first "$home"/lib64/libnccl.so.2 "$home"/lib/libnccl.so.2 /usr/lib/*-linux-gnu/libnccl.so.2)
driver=$(first "$home"/lib64/stubs/libcuda.so "$home"/lib/stubs/libcuda.so)
header=$(first "$home/include/nccl.h" /usr/include/nccl.h)
if [ -z "$nccl" ] || [ -z "$driver" ] || [ -z "$header" ]; then
    echo "no CUDA toolkit with NCCL in $home (CUDA_HOME)"
    exit 77
fi
mkdir driver && cp "$HVD_BUILD/tests/fake/libcuda.so.1" driver
version=$(sed -n 's/^#define NCCL_VERSION_CODE *//p' "$header")
echo "-- NCCL $version, beside a driver that is a fake"
LD_LIBRARY_PATH=$PWD/driver HVD_NCCL_LIBRARY=$nccl run hvdrun --check-build
expect_status 0
expect_line out "NCCL $((version / 10000)).$((version / 100 % 100)).$((version % 100)) \\($nccl\\)"
if ! ldconfig -p | grep -q libcuda.so.1; then
    echo "-- the toolkit's stub instead of a driver"
    HVD_CUDA_LIBRARY=$driver run hvdrun --check-build
    expect_status 0
    expect_line out "stub, not a driver: take its folder out of LD_LIBRARY_PATH"
fi
