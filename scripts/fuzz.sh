#!/bin/bash
# Run every fuzz target for some seconds, as many at once as there are cores.
#   scripts/fuzz.sh [SECONDS [TARGET...]]     make fuzz FUZZ_SECONDS=60
# Prints a line per target: "PASS|FAIL|SKIP name: what was done"; status 1 when one failed.
# A crash: its input, its report and how to replay it are named. Corpora grow from run to run
# under build-fuzz/corpus. Without clang the targets are built with $CC and run over the seeds
# once. JOBS: targets at once. tests/fuzz/README.md tells more.
set -u
cd "$(dirname "$0")/.." || exit 2
export B=${B:-build}
F=$B-fuzz
jobs=${JOBS:-$(nproc)}
export F

case ${1:-} in
-h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
export seconds=${1:-60}
case $seconds in
'' | *[!0-9]* | 0) echo "fuzz.sh: SECONDS is a whole number of at least 1, not '$seconds'" >&2; exit 2 ;;
esac
[ $# -gt 0 ] && shift
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    mapfile -t targets < <(for f in tests/fuzz/fuzz_*.c; do basename "$f" .c; done)
fi
for target in "${targets[@]}"; do
    [ -f "tests/fuzz/$target.c" ] || { echo "fuzz.sh: there is no tests/fuzz/$target.c" >&2; exit 2; }
done

log=$F/log
mkdir -p "$log" "$F/seeds" || exit 2
rm -f "$log"/*

# ---- build; a target that does not build fails alone
if command -v "${FUZZ_CC:-clang}" >/dev/null; then
    mode=fuzz
    goals=("${targets[@]/#/$F/}")
else
    mode=replay
    goals=("${targets[@]/#/$B/tests/fuzz/}")
fi
make -s -k -j"$jobs" B="$B" "$B/tests/fuzz/seeds" "${goals[@]}" >"$log/build" 2>&1
built=$?
"$B/tests/fuzz/seeds" "$F/seeds" || { cat "$log/build"; echo "FAIL seeds: not written"; exit 1; }

# Directories of inputs that exist. $1 = target
inputs() {
    local dir
    for dir in "$F/corpus/$1" "$F/seeds/$1" "tests/fuzz/corpus/$1"; do
        [ -d "$dir" ] && echo "$dir"
    done
}

# $1 = binary: is it there and as new as what it is made of?
fresh() {
    [ -x "$1" ] && { [ $built = 0 ] || make -q -s B="$B" "$1" 2>/dev/null; }
}

# One target under libFuzzer. $1 = target
fuzz_one() {
    local target=$1 out=$F/log/$1 artifact status runs edges options=() dirs
    if ! fresh "$F/$target"; then
        echo "FAIL $target: did not build"
        grep -m 5 -E 'error|undefined' "$F/log/build" | sed 's/^/  | /'
        return
    fi
    mkdir -p "$F/corpus/$target" "$F/crashes"
    rm -f "$F/crashes/$target"-*
    [ -f "tests/fuzz/$target.dict" ] && options+=("-dict=tests/fuzz/$target.dict")
    mapfile -t dirs < <(inputs "$target")
    # 10 s for one input is a hang; 256 MiB at once is more than any limit of ours allows
    timeout -k 5 $((seconds * 2 + 60)) "$F/$target" -max_total_time="$seconds" \
        -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=16384 \
        -print_final_stats=1 -artifact_prefix="$F/crashes/$target-" "${options[@]}" \
        "${dirs[@]}" >"$out" 2>&1
    status=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out")
    edges=$(grep -o 'cov: [0-9]*' "$out" | tail -n 1)
    artifact=$(find "$F/crashes" -name "$target-*" | head -n 1)
    if [ $status = 0 ] && [ "${runs:-0}" -gt 0 ]; then
        echo "PASS $target: $runs inputs in $seconds s, ${edges#cov: } edges"
        return
    fi
    if [ $status = 124 ] || [ $status = 137 ]; then
        echo "FAIL $target: not done $((seconds + 60)) s after its time"
    elif [ -n "$artifact" ]; then
        echo "FAIL $target: $(grep -m 1 -E 'broken promise|ERROR: |runtime error' "$out" | cut -c 1-160)"
        echo "  | input $artifact; report $out; again: $F/$target $artifact"
    else
        echo "FAIL $target: exit status $status, ${runs:-0} inputs; report $out"
        tail -n 5 "$out" | sed 's/^/  | /'
    fi
}

# One target over its seeds, once. $1 = target
replay_one() {
    local target=$1 out=$F/log/$1 status dirs
    if ! fresh "$B/tests/fuzz/$target"; then
        echo "FAIL $target: did not build"
        grep -m 5 -E 'error|undefined' "$F/log/build" | sed 's/^/  | /'
        return
    fi
    mapfile -t dirs < <(inputs "$target")
    if [ ${#dirs[@]} = 0 ]; then
        echo "SKIP $target: it has no seeds, and there is no clang to make some"
        return
    fi
    timeout -k 5 300 "$B/tests/fuzz/$target" "${dirs[@]}" >"$out" 2>&1
    status=$?
    if [ $status = 0 ]; then
        echo "PASS $target: no clang here; $(tail -n 1 "$out")"
    else
        echo "FAIL $target: exit status $status; report $out"
        tail -n 5 "$out" | sed 's/^/  | /'
    fi
}
export -f inputs fresh fuzz_one replay_one
export built

printf '%s\n' "${targets[@]}" |
    xargs -P "$jobs" -I{} bash -c "${mode}_one {} >\"\$F/log/{}.verdict\"; cat \"\$F/log/{}.verdict\""
failed=0
for target in "${targets[@]}"; do
    grep -qsE '^(PASS|SKIP) ' "$log/$target.verdict" || failed=1
done
exit $failed
