#!/bin/bash
# Allreduce of 4 B to 256 MiB at np 2 and 4: ours (shared memory, TCP), Open MPI (default and
# tuned), PyTorch's Gloo; and what an idle rank costs. Peers that are not installed are left
# out and named. All peers take turns within each repetition: compare only within one run.
#   scripts/bench.sh [--reps N] [--np "2 4"] [--seconds S] [--max BYTES] [--out FILE]
# --seconds: at most so long a size (2). The JSON lines stay in FILE (build/bench.jsonl).
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
reps=3
nps="2 4"
seconds=2
max=268435456
out=$B/bench.jsonl

while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --reps | --np | --seconds | --max | --out)
        [ $# -ge 2 ] || { echo "bench.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --reps) reps=$2 ;;
        --np) nps=$2 ;;
        --seconds) seconds=$2 ;;
        --max) max=$2 ;;
        --out) out=$2 ;;
        esac
        shift 2
        ;;
    *) echo "bench.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
done

make -s -j"$(nproc)" B="$B" all >/dev/null || exit 1
mkdir -p "$B/tests/bench"
bench=$B/tests/bench
flags="-std=c11 -D_GNU_SOURCE -O2 -Itests/bench"
# shellcheck disable=SC2086
"${CC:-gcc}" $flags -Iworker/include tests/bench/bench_allreduce.c -o "$bench/bench_allreduce" \
    -L"$B/lib" -lhvd -Wl,-rpath,"\$ORIGIN/../../lib" || exit 1

mpi=""
gloo=""
# shellcheck disable=SC2086
if command -v mpicc.openmpi >/dev/null && command -v mpirun.openmpi >/dev/null &&
    mpicc.openmpi $flags tests/bench/mpi_allreduce.c -o "$bench/mpi_allreduce"; then
    mpi=1
else
    echo "bench.sh: no Open MPI here; scripts/deps.sh --bench installs it" >&2
fi
if /usr/bin/python3 -c 'import torch.distributed' 2>/dev/null; then
    gloo=1
else
    echo "bench.sh: no PyTorch for /usr/bin/python3; scripts/deps.sh --bench installs it" >&2
fi

: >"$out"
failures=0
# Run a peer, keep its JSON lines. $@ = command
take() {
    local lines
    lines=$(timeout -k 5 "$((60 + 20 * ${seconds%.*}))" "$@" 2>"$out.err" |
        sed -n 's/.*\({"peer".*}\).*/\1/p')
    if [ -n "$lines" ]; then
        printf '%s\n' "$lines" >>"$out"
    else
        failures=$((failures + 1))
        echo "bench.sh: no result from: $*" >&2
        tail -n 5 "$out.err" >&2
    fi
}

hvd="$B/bin/hvdrun -np"
mpirun="mpirun.openmpi --oversubscribe"
[ "$(id -u)" = 0 ] && mpirun+=" --allow-run-as-root"
export OMPI_MCA_btl_base_warn_component_unused=0
# Open MPI allocates a temporary in every call: this keeps malloc from giving it back.
tuned="-x GLIBC_TUNABLES=glibc.malloc.hugetlb=1 -x MALLOC_MMAP_MAX_=0
    -x MALLOC_TRIM_THRESHOLD_=8000000000"

echo "$reps repetitions on $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
# shellcheck disable=SC2086
for ((rep = 1; rep <= reps; rep++)); do
    for np in $nps; do
        echo "repetition $rep, np=$np"
        HVD_CPU_PLANE=shm take $hvd $np "$bench/bench_allreduce" hvd-shm $seconds $max
        HVD_CPU_PLANE=shm take $hvd $np "$bench/bench_allreduce" hvd-shm-alloc $seconds $max alloc
        HVD_CPU_PLANE=tcp take $hvd $np "$bench/bench_allreduce" hvd-tcp $seconds $max
        if [ -n "$mpi" ]; then
            take $mpirun -np $np "$bench/mpi_allreduce" openmpi $seconds $max
            take $mpirun $tuned -np $np "$bench/mpi_allreduce" openmpi-tuned $seconds $max
        fi
        [ -z "$gloo" ] ||
            take /usr/bin/python3 tests/bench/gloo_allreduce.py gloo $np $seconds $max
    done
done
for np in $nps; do
    take $hvd "$np" "$bench/bench_allreduce" hvd idle 10
done
python3 tests/bench/table.py "$out" || exit 1
[ $failures = 0 ] || echo "bench.sh: $failures runs gave no result, see above" >&2
[ $failures = 0 ]
