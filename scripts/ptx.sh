#!/bin/bash
# Make worker/plane/nccl/kernels/pack.ptx from pack.cu, or prove that it is current.
#   scripts/ptx.sh             needs nvcc; writes the file
#   scripts/ptx.sh --check     ptxas takes it for every architecture from sm_75 on, and nvcc of
#                              the same version makes the same file; status 77: no toolkit here
# nvcc 13 can only write PTX that asks for compute_75 and the newest drivers. The kernel needs
# neither, so .version and .target are lowered: any driver from CUDA 11.0 on compiles it.
set -eu
cd "$(dirname "$0")/../worker/plane/nccl/kernels"
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
VERSION=7.0 TARGET=sm_70
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT

nvcc_version() { nvcc --version | sed -n 's/^Cuda compilation tools, release .*, V//p'; }

# $1 = file to write
make_ptx() {
    nvcc -ptx -arch=compute_75 -O3 -o "$here/raw.ptx" pack.cu
    {
        echo "// Made by scripts/ptx.sh from pack.cu with nvcc $(nvcc_version). Do not edit."
        sed -e '/^\/\//d' -e '/^$/d' -e "s/^\.version .*/.version $VERSION/" \
            -e "s/^\.target .*/.target $TARGET/" "$here/raw.ptx"
    } >"$1"
}

if [ "${1:-}" != --check ]; then
    make_ptx pack.ptx
    exit
fi
command -v ptxas >/dev/null || { echo "no ptxas here"; exit 77; }
n=0
for arch in $(ptxas --help | grep -o 'sm_[0-9]*\b' | sort -uV); do
    [ "${arch#sm_}" -ge 75 ] || continue
    ptxas -arch="$arch" -o "$here/out.cubin" pack.ptx
    n=$((n + 1))
done
[ $n -gt 0 ] || { echo "ptxas names no architecture"; exit 1; }
echo "ptxas accepts pack.ptx for $n architectures"
made=$(sed -n '1s/.* with nvcc \([^ ]*\)\. .*/\1/p' pack.ptx)
if ! command -v nvcc >/dev/null || [ "$(nvcc_version)" != "$made" ]; then
    echo "not compared with its source: made by nvcc $made, which is not here"
    exit 0
fi
make_ptx "$here/again.ptx"
cmp pack.ptx "$here/again.ptx" || { echo "pack.ptx is not what pack.cu gives: run scripts/ptx.sh"; exit 1; }
echo "pack.ptx is what nvcc $made makes of pack.cu"
