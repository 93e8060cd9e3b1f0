#!/bin/bash
# The real libraries of a CUDA toolkit, without a GPU: driver (its stub) and NCCL export every entry
# of our tables, and NCCL is taken by the same search as on a machine with a GPU. Which entries are
# of a newer version than the toolkit's is said.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
home=${CUDA_HOME:-/usr/local/cuda}

first() { for f in "$@"; do [ -e "$f" ] && { readlink -f "$f"; return; }; done; }
nccl=$(first "$home"/lib64/libnccl.so.2 "$home"/lib/libnccl.so.2 /usr/lib/*-linux-gnu/libnccl.so.2)
driver=$(first "$home"/lib64/stubs/libcuda.so "$home"/lib/stubs/libcuda.so)
if [ -z "$nccl" ] || [ -z "$driver" ]; then
    echo "no CUDA toolkit with NCCL in $home (CUDA_HOME)"
    exit 77
fi

# $1 = list of api.h; $2 = library, or its names
entries() { sed -n "/#define $1(X)/,/[^\\\\]\$/p" "$HVD_SRC/worker/plane/nccl/api.h" | grep -oE 'X\([a-z_0-9]+, [A-Za-z0-9_]+' | sed 's/.*, //'; }
exports() { nm -D --defined-only "$1" | sed 's/.* //;s/@.*//' | sort -u; }
exports "$nccl" >nccl.names
exports "$driver" >driver.names

# $1 = list, $2 = names, $3 = needed or optional
has_all() {
    local list n=0
    list=$(entries "$1")
    for entry in $list; do
        n=$((n + 1))
        grep -qx "$entry" "$2" && continue
        [ "$3" = optional ] || die "no $entry in ${2%.names}"
        echo "newer than this toolkit: $entry"
    done
    [ $n -gt 1 ] || die "no entries in $1"
    echo "$1: $n entries"
}
has_all HVI_CUDA_NEEDED driver.names needed
has_all HVI_CUDA_OPTIONAL driver.names optional
has_all HVI_NCCL_NEEDED nccl.names needed
has_all HVI_NCCL_OPTIONAL nccl.names optional

echo "-- NCCL itself, beside a driver that is a fake"
version=$(sed -n 's/^#define NCCL_VERSION_CODE *//p' "$(first "$home/include/nccl.h" /usr/include/nccl.h)")
mkdir driver && cp "$HVD_BUILD/tests/fake/libcuda.so.1" driver
LD_LIBRARY_PATH=$PWD/driver HVD_NCCL_LIBRARY=$nccl run hvdrun --check-build
expect_status 0
expect_line out "NCCL $((version / 10000)).$((version / 100 % 100)).$((version % 100)) \\($nccl\\)"
echo "-- the toolkit's stub instead of a driver"
HVD_CUDA_LIBRARY=$driver run hvdrun --check-build
expect_status 0
ldconfig -p | grep -q libcuda.so.1 || expect_line out "stub, not a driver: take its folder out of LD_LIBRARY_PATH"
