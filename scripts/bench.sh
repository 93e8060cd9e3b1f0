#!/bin/bash
# Ours and the peers found on this machine, side by side in one interleaved run: allreduce by
# size, the exchange of a training step, launches, output, idle jobs, and what the machine can
# do. Prints tables with ratios and goals; a peer that is not installed is left out and named.
#   scripts/bench.sh [--reps N] [--np "2 4"] [--seconds S] [--max BYTES] [--out FILE]
#                    [--horovod PYTHON] [--python PYTHON] [--tensorflow PYTHON] [--readme]
#                    [--build | --no-build] [PART...]
# PART: ceilings allreduce steps torch tensorflow launch launch-hosts output idle control sweep;
# without one all but sweep. launch-hosts needs root, for hosts in network namespaces.
# --seconds: at most so long a size (1). --max: largest allreduce (67108864). --horovod: an
# interpreter with the original Horovod. --python: one with PyTorch (/usr/bin/python3).
# --tensorflow: one with TensorFlow (that of scripts/python-env.sh tf-current).
# --build: only build, --no-build: only measure what an earlier --build has built.
# FILE (build/bench.jsonl) keeps the samples; beside it come FILE's .json, .svg and .txt.
# --readme puts the goals' table into README.md. Let nothing else run meanwhile.
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
out=$B/bench.jsonl
readme=()
pass=()
build=1 measure=1 tensorflow=

while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --readme) readme=(--readme README.md); shift ;;
    --build) measure=; shift ;;
    --no-build) build=; shift ;;
    --tensorflow) [ $# -ge 2 ] || { echo "bench.sh: $1 needs a value" >&2; exit 2; }
        tensorflow=$2; shift 2 ;;
    --reps | --np | --seconds | --max | --out | --horovod | --python)
        [ $# -ge 2 ] || { echo "bench.sh: $1 needs a value" >&2; exit 2; }
        if [ "$1" = --out ]; then out=$2; else pass+=("$1" "$2"); fi
        shift 2
        ;;
    -*) echo "bench.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
    *) pass+=("$1"); shift ;;
    esac
done

build_all() {
    make -s -j"$(nproc)" B="$B" all "$B/lib/libhvi.a" >/dev/null || exit 1
    local bench=$B/tests/bench flags program mpi
    mkdir -p "$bench"
    flags="-std=c11 -D_GNU_SOURCE -O2 -I. -Iworker/include -Itests/bench"
    for program in bench_allreduce bench_step bench_init bench_lines; do
        # shellcheck disable=SC2086
        "${CC:-gcc}" $flags "tests/bench/$program.c" -o "$bench/$program" -L"$B/lib" -lhvd \
            -Wl,-rpath,"\$ORIGIN/../../lib" || exit 1
    done
    # shellcheck disable=SC2086
    "${CC:-gcc}" $flags -shared -fPIC tests/bench/libstep.c -o "$bench/libstep.so" -L"$B/lib" -lhvd \
        -Wl,-rpath,"\$ORIGIN/../../lib" || exit 1
    # shellcheck disable=SC2086
    "${CC:-gcc}" $flags tests/bench/bench_plane.c "$B/lib/libhvi.a" -lm -pthread -o "$bench/bench_plane" || exit 1
    # shellcheck disable=SC2086
    "${CC:-gcc}" $flags -O3 -march=native tests/bench/ceiling.c -o "$bench/ceiling" || exit 1
    make -s B="$B" "$bench/bench_coordinator" >/dev/null || exit 1
    for mpi in openmpi mpich; do
        command -v mpicc.$mpi >/dev/null || continue
        for program in mpi_allreduce mpi_step mpi_init; do
            # shellcheck disable=SC2086
            mpicc.$mpi $flags -w "tests/bench/$program.c" -o "$bench/$program.$mpi" ||
                { rm -f "$bench/$program.$mpi"; break; }
        done
    done
}

[ -z "$build" ] || build_all
[ -n "$measure" ] || exit 0
[ -n "$tensorflow" ] || tensorflow=$(scripts/python-env.sh --check tf-current)
python3 tests/bench/run.py --build "$B" --out "$out" --tensorflow "$tensorflow" ${pass[@]+"${pass[@]}"}
status=$?
[ $status -le 1 ] || exit $status
base=${out%.jsonl}
python3 tests/bench/table.py "$out" --json "$base.json" --svg "$base.svg" \
    ${readme[@]+"${readme[@]}"} | tee "$base.txt"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
exit $status
