#!/bin/bash
# deadline: 560
# scripts/gpu-check.sh on this machine's own GPUs.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
has=$(hvdrun --check-build | sed -n '/NCCL (GPU tensors)/{n;s/^ *//p;}')
case $has in
*"Fake GPU"*) echo "the driver on the search path is a fake"; exit 77 ;;
*"driver for CUDA"*", 0 GPUs"*) echo "no GPU: $has"; exit 77 ;;
*"driver for CUDA"*) ;;
*) echo "$has"; exit 77 ;;
esac
B=$HVD_BUILD exec "$HVD_SRC/scripts/gpu-check.sh"
