#!/bin/bash
# Is the GPU plane right and fast on this machine? Prints what it has and a table, one line a check:
#   scripts/gpu-check.sh [SECONDS]      all together take at most SECONDS (420) after the build
# correctness of every collective (one rank by NCCL, two ranks on one GPU through the host, one rank
# per GPU where there are several), speed of the pack kernel against the GPU's own copy, that a step
# never waits for the device, abort and a new membership, memory, what PyTorch's step costs more, and
# that TensorFlow's tensors are right in any order.
# Status 0: nothing failed; 1: a check failed; 77 with the reason: no driver, GPU or NCCL.
# NCCL is taken from the linker's search, HVD_NCCL_LIBRARY, or PyTorch's package nvidia-nccl of
# $PYTHON (python3). With the fakes of tests/fake in LD_LIBRARY_PATH speeds are not judged.
# scripts/test.sh runs it as t4010 where there is a GPU.
set -u
src=$(cd "$(dirname "$0")/.." && pwd)
cd "$src" || exit 1
export B=${B:-build}
python=${PYTHON:-python3}
case ${1:-420} in *[!0-9]*) echo "usage: scripts/gpu-check.sh [SECONDS]" >&2; exit 2 ;; esac

make -s -j"$(nproc)" B="$B" all || { echo "gpu-check: the build failed; scripts/deps.sh says what it needs" >&2; exit 1; }
ends=$((SECONDS + ${1:-420}))
case $B in /*) build=$B ;; *) build=$src/$B ;; esac
export PATH=$build/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# NCCL of a pip package is on no search path.
pip_nccl() {
    "$python" -c 'import glob, sys
for p in sys.path:
    for lib in glob.glob(p + "/nvidia/nccl/lib/libnccl.so.2"):
        print(lib); sys.exit()' 2>/dev/null
}

facts() { hvdrun --check-build | sed -n '/NCCL (GPU tensors)/{n;s/^ *//p;}'; }
has=$(facts)
case $has in
*"NCCL, which is not here"*)
    [ -z "${HVD_NCCL_LIBRARY:-}" ] || { echo "$has"; exit 77; }
    HVD_NCCL_LIBRARY=$(pip_nccl)
    [ -n "$HVD_NCCL_LIBRARY" ] || { echo "$has"; exit 77; }
    export HVD_NCCL_LIBRARY
    has=$(facts)
    ;;
esac
gpus=$(sed -n 's/.*, \([0-9]*\) GPUs\{0,1\}.*/\1/p' <<<"$has")
case $has in *"NCCL 2."*) ;; *) gpus=0 ;; esac
[ "${gpus:-0}" -gt 0 ] || { echo "${has:-hvdrun --check-build says nothing of GPUs}"; exit 77; }
judged=1
case $has in *"Fake GPU"*) judged=0 ;; esac
echo "$has"
[ $judged = 1 ] || echo "These are the fakes of tests/fake: nothing here has run on a GPU."
printf '%-34s %-6s %s\n' check result measured

# $1 = check, $2 = pass|FAIL|skip|ran, $3 = measured
row() {
    [ "$2" != FAIL ] || failed=1
    printf '%-34s %-6s %s\n' "$1" "$2" "$3"
}

# Run a command with a limit; its output is in $work/out. $1 = seconds, rest = command
limited() {
    local left=$((ends - SECONDS)) limit=$1
    shift
    [ $left -lt "$limit" ] && limit=$left
    [ "$limit" -gt 0 ] || { echo "no time left" >"$work/out"; return 124; }
    timeout -k 5 "$limit" "$@" >"$work/out" 2>&1 </dev/null
}

why() { tail -n 3 "$work/out" | tr '\n' ' ' | cut -c 1-300; }

# A check that says itself how it went. $1 = check, $2 = seconds, rest = command. With
# way=nccl it fails when it went through the host.
way=''
export HVD_LOG=${HVD_LOG:-gpu:warn}
check() {
    local name=$1 seconds=$2 began=$SECONDS status
    shift 2
    limited "$seconds" "$@"
    status=$?
    if [ "$way" = nccl ] && grep -q 'go through the host' "$work/out"; then
        row "$name" FAIL "not by NCCL: $(sed -n 's/.*go through the host: *//p' "$work/out" | head -n 1)"
        return
    fi
    case $status in
    0) row "$name" pass "$(grep -v '^hvd' "$work/out" | tail -n 1), $((SECONDS - began)) s" ;;
    77) row "$name" skip "$(why)" ;;
    124 | 137) row "$name" FAIL "not done after $((SECONDS - began)) s: $(why)" ;;
    *) row "$name" FAIL "status $status: $(why)" ;;
    esac
}

# $1 = program, $2 = its source
compile() {
    gcc -std=gnu11 -O2 -w -I. -Iworker/include "$2" -o "$work/$1" -L"$build/lib" -lhvd \
        -Wl,-rpath,"$build/lib" -ldl -lm >"$work/out" 2>&1 && return
    row "$1" FAIL "$2 does not compile: $(why)"
    exit 1
}
export PYTHONPATH=$src/worker/python${PYTHONPATH:+:$PYTHONPATH} HVD_LIBRARY=$build/lib/libhvd.so
compile all tests/e2e/gpu_all.c
compile flow tests/gpu/flow.c
compile pack tests/gpu/pack.c

way=nccl check "every collective, NCCL, np 1" 90 hvdrun --prefix none -np 1 "$work/all"
HVD_GPU_COMPRESSION=fp16 way=nccl check "f32 travels as f16, NCCL, np 1" 60 hvdrun --prefix none -np 1 "$work/all"
SHARE=1 check "every collective, one GPU, np 2" 90 hvdrun --prefix none -np 2 "$work/all"
if [ "$gpus" -gt 1 ]; then
    way=nccl check "every collective, NCCL, np $gpus" 120 hvdrun --prefix none -np "$gpus" "$work/all"
else
    row "every collective, NCCL, np > 1" skip "one GPU here"
fi

repetitions=100
[ $judged = 1 ] || repetitions=1
if limited 60 "$work/pack" worker/plane/nccl/kernels/pack.ptx $repetitions; then
    read -r copy pack percent cast < <(tail -n 1 "$work/out")
    result=ran
    if [ $judged = 1 ]; then
        result=pass
        [ "$percent" -ge 80 ] || result=FAIL
    fi
    row "pack kernel, 161 gradients" $result \
        "$percent % of the copy ($pack of $copy GB/s; limit 80 %); to f16 $cast GB/s"
else
    row "pack kernel, 161 gradients" FAIL "$(why)"
fi

way=nccl check "a step never waits for the device" 100 "$work/flow" queue
HVD_NCCL_TIMEOUT_SECONDS=1 way=nccl check "abort, then a new membership" 80 "$work/flow" abort
way=nccl check "memory of 12 memberships" 60 "$work/flow" memory

# PyTorch's memory may be mapped piece by piece: NCCL and the plane must take it
if limited 60 env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$python" tests/gpu/torch_step.py 2; then
    row "PyTorch, expandable segments" pass "$(tail -n 1 "$work/out")"
elif [ $? = 77 ]; then
    row "PyTorch, expandable segments" skip "$(why)"
else
    row "PyTorch, expandable segments" FAIL "$(why)"
fi

limited 100 "$python" tests/gpu/torch_step.py 25
status=$?
case $status in
0)
    read -r plain _ with _ percent < <(tail -n 1 "$work/out")
    result=pass
    awk -v p="$percent" 'BEGIN { exit !(p < 2) }' || result=FAIL
    row "PyTorch step, np 1" $result "$percent % ($with, plain $plain ms; limit 2 %)"
    ;;
77) row "PyTorch step, np 1" skip "$(why)" ;;
*) row "PyTorch step, np 1" FAIL "status $status: $(why)" ;;
esac

# TensorFlow says nothing of its stream: the order of the two shows in the numbers alone
limited 90 "$python" tests/gpu/tf_step.py 15
status=$?
case $status in
0)
    read -r plain _ with _ percent < <(tail -n 1 "$work/out")
    row "TensorFlow step, np 1" ran "$percent % ($with, plain $plain ms); 60 rounds right"
    SHARE=1 check "TensorFlow, one GPU, np 2" 60 hvdrun --prefix none -np 2 "$python" tests/gpu/tf_step.py 0
    ;;
77) row "TensorFlow step, np 1" skip "$(why)" ;;
*) row "TensorFlow step, np 1" FAIL "status $status: $(why)" ;;
esac
exit $failed
