#!/bin/bash
# Build and test everything; ends with "N passed, N failed" or "N passed, N failed, N skipped".
#   scripts/test.sh [PART...]      parts: checks unit e2e python san fuzz; without one: all
#   make test                      the same
# checks  include arrows, headers alone, scripts parse, longest functions
# unit    every test binary under build/tests/unit
# e2e     tests/e2e/t*.sh
# python  tests/python with Debian's PyTorch, and with the newest PyTorch and TensorFlow and an
#         older TensorFlow if they are there (scripts/python-env.sh torch-current ...)
# san     unit tests and the API's end-to-end tests under ASan+UBSan and under TSan;
#         a leak, a race or undefined behaviour fails
# fuzz    every target under tests/fuzz, for HVD_FUZZ_SECONDS (10) each
# Every step has a deadline, and all together HVD_TEST_MINUTES (44); what then has not run
# has failed. Logs are in build/test-log. JOBS: how much runs at once (number of cores).
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build}
jobs=${JOBS:-$(nproc)}
began=$SECONDS
ends=$(($(date +%s) + 60 * ${HVD_TEST_MINUTES:-44}))
case $B in /*) logs=$B/test-log ;; *) logs=$PWD/$B/test-log ;; esac
results=$logs/results
asan=$B-address-undefined
tsan=$B-thread
# what MAKEFLAGS of `make test` says is for that make, not for ours
unset MAKEFLAGS MFLAGS MAKELEVEL

for part in "$@"; do
    case $part in
    unit | e2e | python | san | fuzz | checks) ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown part '$part'; there are: checks unit e2e python san fuzz" >&2; exit 2 ;;
    esac
done
[ $# -gt 0 ] || set -- checks unit e2e python san fuzz
parts=" $* "
wants() {
    case $parts in *" $1 "*) return 0 ;; esac
    return 1
}
rm -rf "$logs"
mkdir -p "$logs" || exit 1
: >"$results"

say() {
    printf '== %s (%d s)\n' "$*" $((SECONDS - began))
}

# $1 = pass|fail|skip, $2 = name, $3 = reason
record() {
    printf '%s\t%s\t%s\n' "$1" "$2" "${3:-}" >>"$results"
    printf '%-4s %s%s\n' "${1^^}" "$2" "${3:+: $3}"
}

# Seconds that a step may take: $1 (soak: a hundred times that), or what is left of the
# whole if that is less.
allowed() {
    local wanted=$1 left=$((ends - $(date +%s)))
    [ "${HVD_SOAK:-0}" = 1 ] && wanted=$((wanted * 100))
    [ $left -lt 1 ] && left=1
    echo $((left < wanted ? left : wanted))
}

# Run a command as one test. $1 = name, $2 = seconds it may take, rest = command
check() {
    local name=$1 log seconds status
    seconds=$(allowed "$2")
    log=$logs/${name//\//.}.log
    shift 2
    timeout -k 5 "$seconds" "$@" >"$log" 2>&1
    status=$?
    case $status in
    0) record pass "$name"; return 0 ;;
    124 | 137) record fail "$name" "not done after $seconds s" ;;
    *) record fail "$name" "exit status $status" ;;
    esac
    tail -n 30 "$log" | sed 's/^/  | /'
    return 1
}

# $1 = build directory, $2 = value of SAN, rest = make targets
build() {
    local dir=$1 san=$2
    shift 2
    check "build/$(basename "$dir")" 900 nice -n 5 make -j"$jobs" -k B="$dir" SAN="$san" "$@"
}

# Run the unit test binaries of one build, several at a time. $1 = build directory,
# $2 = flavour: unit, asan or tsan
unit_tests() {
    local src
    # shellcheck disable=SC2016
    find tests/unit -name 'test_*.c' | LC_ALL=C sort | while read -r src; do
        echo "$2 $1/${src%.c}"
    done | xargs -r -P "$jobs" -L 1 bash -c 'run_listed "$@"' _
}

# One line of that list. Runs in a bash of its own: needs only what is exported.
run_listed() {
    local flavour=$1 bin=$2 name deadline=300
    name=$flavour/${bin#*tests/unit/}
    name=${name/test_/}
    [ "$flavour" = unit ] || deadline=600
    [ "$flavour" = tsan ] && export HVD_UNIT_PLAIN=1
    if ! [ -x "$bin" ]; then
        record fail "$name" "did not build"
        return
    fi
    HVD_UNIT_DEADLINE=$(allowed "${HVD_UNIT_DEADLINE:-$deadline}")
    export HVD_UNIT_DEADLINE
    scripts/run-unit "$bin" "$name" "$results" "$logs"
}
export -f run_listed record allowed
export results logs ends

# Does LeakSanitizer work here, and does our gate see a leak? A container without ptrace
# cannot; leaks are then not looked for, which is a skip with that reason.
leak_gate() {
    local dir=$logs/leak-gate
    mkdir -p "$dir"
    printf '%s\n' '#include <stdlib.h>' 'int main(void)' '{' \
        '    volatile char *p = malloc(10);' '    p[0] = 1;' '    p = NULL;' \
        '    return p != NULL;' '}' >"$dir/leak.c"
    if ! gcc -g -fsanitize=address "$dir/leak.c" -o "$dir/leak" 2>"$dir/err"; then
        record fail san/leak-gate "the probe does not build: $(head -n 1 "$dir/err")"
        return
    fi
    ASAN_OPTIONS=log_path=$dir/report "$dir/leak" 2>/dev/null
    if grep -qs 'detected memory leaks' "$dir"/report.*; then
        record pass san/leak-gate
    elif grep -qs ptrace "$dir"/report.*; then
        record skip san/leak-gate "ptrace is not allowed here: leaks are not looked for"
        export HVD_DETECT_LEAKS=0
    else
        record fail san/leak-gate "a program that leaks was not reported"
    fi
}

# scripts/fuzz.sh prints "PASS|FAIL|SKIP name[: reason]" per target.
run_fuzz() {
    local seconds=${HVD_FUZZ_SECONDS:-10} log=$logs/fuzz.log status line rest verdict limit
    if ! command -v clang >/dev/null; then
        record skip fuzz "no clang here; scripts/deps.sh --test installs it"
        return
    fi
    check build/fuzz 600 nice -n 5 make -j"$jobs" -k B="$B" fuzz-bin
    limit=$(allowed 900)
    timeout -k 5 "$limit" scripts/fuzz.sh "$seconds" >"$log" 2>&1
    status=$?
    while IFS= read -r line; do
        verdict=${line%% *}
        rest=${line#???? }
        case $verdict in
        PASS | FAIL | SKIP)
            record "${verdict,,}" "fuzz/${rest%%[: ]*}" "$(sed 's/^[^: ]*:\{0,1\} *//' <<<"$rest")"
            ;;
        esac
    done <"$log"
    if [ $status = 124 ] || [ $status = 137 ]; then
        record fail fuzz "not done after $limit s"
    elif [ $status != 0 ] && ! grep -q $'^fail\tfuzz/' "$results"; then
        record fail fuzz "scripts/fuzz.sh: exit status $status"
    elif ! grep -q $'\tfuzz/' "$results"; then
        record fail fuzz "no target has run"
    fi
    [ $status = 0 ] || tail -n 40 "$log" | sed 's/^/  | /'
}

# $1 = prefix of the names, rest = arguments of tests/e2e/run.sh
run_e2e() {
    local prefix=$1 mine=$logs/$1.results
    shift
    : >"$mine"
    tests/e2e/run.sh --budget "$(allowed 1500)" --prefix "$prefix" --results "$mine" "$@"
    [ -s "$mine" ] || record fail "$prefix" "no test has run"
    cat "$mine" >>"$results"
}

# The Python package; PyTorch's absence is a skip.
run_python() {
    local log=$logs/python.log mine=$logs/python.results limit status
    : >"$mine"
    if ! timeout -k 5 "$(allowed 600)" scripts/python-env.sh torch-debian >"$log" 2>&1; then
        record skip python "no PyTorch: $(tail -n 1 "$log")"
        return
    fi
    limit=$(allowed 1500)
    timeout -k 5 "$limit" tests/python/run.sh --results "$mine" >"$log" 2>&1
    status=$?
    if [ $status = 124 ] || [ $status = 137 ]; then
        record fail python "not done after $limit s"
    elif [ $status != 0 ] && ! grep -q ^fail "$mine"; then
        record fail python "tests/python/run.sh: exit status $status"
    fi
    sed 's/^/  | /' "$log" | tail -n 80
    sed 's/\t/\tpython\//' "$mine" >>"$results"
}

scripts_parse() {
    local script
    for script in .ci/run scripts/*.sh scripts/run-unit scripts/top-length scripts/check-headers \
        tests/e2e/*.sh tests/python/*.sh; do
        bash -n "$script" || return 1
    done
}
export -f scripts_parse

# ---- what is needed
scripts/deps.sh --test || scripts/deps.sh --check || exit 1

if wants checks; then
    say "checks"
    check checks/includes 60 scripts/check-includes
    check checks/headers 300 scripts/check-headers
    check checks/scripts 60 bash -c scripts_parse
    check checks/top-length 60 scripts/top-length
    sed 's/^/  | /' "$logs/checks.top-length.log"
fi

if wants unit || wants e2e || wants python; then
    say "build"
    build "$B" "" all unit
fi
if wants unit; then
    say "unit tests, $jobs at a time"
    unit_tests "$B" unit
fi
if wants e2e; then
    say "end to end"
    run_e2e e2e
fi

if wants python; then
    say "Python package"
    run_python
fi

if wants san; then
    say "sanitizers"
    leak_gate
    build "$asan" address,undefined all unit
    build "$tsan" thread all unit
    unit_tests "$asan" asan
    unit_tests "$tsan" tsan
    # libhvd in several processes, as programs use it
    B=$asan run_e2e asan-e2e 't300[1-4]*' t3011 't400[1236]*'
    B=$tsan run_e2e tsan-e2e 't300[1-4]*' t3011 't400[1236]*'
fi

if wants fuzz; then
    say "fuzzing"
    run_fuzz
fi

# ---- the sum
passed=$(grep -c ^pass "$results")
failed=$(grep -c ^fail "$results")
skipped=$(grep -c ^skip "$results")
say "done"
# one line a reason; the name is that of the first
awk -F'\t' '$1 == "skip" {
        if (!($3 in count)) { first[$3] = $2; order[++n] = $3 }
        count[$3]++
    }
    END {
        for (i = 1; i <= n; i++) {
            r = order[i]
            more = count[r] > 1 ? sprintf(" and %d more", count[r] - 1) : ""
            printf "skipped: %s%s: %s\n", first[r], more, r
        }
    }' "$results"
sed -n 's/^fail\t\([^\t]*\)\t/failed: \1: /p' "$results" | sed 's/: $//'
if [ "$skipped" = 0 ]; then
    echo "$passed passed, $failed failed"
else
    echo "$passed passed, $failed failed, $skipped skipped"
fi
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
