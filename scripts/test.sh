#!/bin/bash
# Build and test everything; ends with "N passed, N failed, N skipped".
#   scripts/test.sh [PART...]      parts: checks unit san fuzz e2e; without one: all
#   make test                      the same
# unit    every test binary under build/tests/unit
# san     the same under ASan+UBSan, and (with plain.h) under TSan; a leak or race fails
# fuzz    every target under tests/fuzz, for HVD_FUZZ_SECONDS (10) each
# e2e     tests/e2e/t*.sh
# checks  include arrows, headers alone, longest functions, scripts parse
# Logs are in build/test-log. JOBS: how much runs at once (number of cores).
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build}
jobs=${JOBS:-$(nproc)}
logs=$PWD/build/test-log
[ "${B#/}" != "$B" ] && logs=$B/test-log
results=$logs/results
asan=$B-address-undefined
tsan=$B-thread
began=$SECONDS

for part in "$@"; do
    case $part in
    unit | e2e | san | fuzz | checks) ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown part '$part'; there are: checks unit san fuzz e2e" >&2; exit 2 ;;
    esac
done
[ $# -gt 0 ] || set -- checks unit san fuzz e2e
wants() {
    case " $parts " in *" $1 "*) return 0 ;; esac
    return 1
}
parts=$*
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

# Run a command as one test. $1 = name, rest = command
check() {
    local name=$1 log
    log=$logs/${name//\//.}.log
    shift
    if "$@" >"$log" 2>&1; then
        record pass "$name"
    else
        record fail "$name" "exit status $?"
        tail -n 30 "$log" | sed 's/^/  | /'
        return 1
    fi
}

# $1 = build directory, $2 = value of SAN, rest = make targets
build() {
    local dir=$1 san=$2
    shift 2
    check "build/$(basename "$dir")" nice -n 5 make -j"$jobs" -k B="$dir" SAN="$san" "$@"
}

# Test binaries of one build, "FLAVOUR BINARY" a line. $1 = build directory, $2 = flavour
list_unit() {
    local src
    find tests/unit -name 'test_*.c' | LC_ALL=C sort | while read -r src; do
        echo "$2 $1/${src%.c}"
    done
}

# One line of list_unit; run by xargs, so it finds what it needs in the environment.
run_listed() {
    local flavour=$1 bin=$2 name
    name=$flavour/${bin#*tests/unit/}
    name=${name/test_/}
    if ! [ -x "$bin" ]; then
        printf 'fail\t%s\tdid not build\n' "$name" >>"$results"
        echo "FAIL $name: did not build"
        return
    fi
    [ "$flavour" = tsan ] && export HVD_UNIT_PLAIN=1
    [ "$flavour" = unit ] || export HVD_UNIT_DEADLINE=${HVD_UNIT_DEADLINE:-600}
    scripts/run-unit "$bin" "$name" "$results" "$logs"
}
export -f run_listed
export results logs

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
    local seconds=${HVD_FUZZ_SECONDS:-10} log=$logs/fuzz.log status line rest
    if ! command -v clang >/dev/null; then
        record skip fuzz "no clang here; scripts/deps.sh --test installs it"
        return
    fi
    check build/fuzz nice -n 5 make -j"$jobs" -k B="$B" fuzz-bin
    timeout -k 5 900 scripts/fuzz.sh "$seconds" >"$log" 2>&1
    status=$?
    while IFS= read -r line; do
        case $line in
        "PASS "* | "FAIL "* | "SKIP "*)
            rest=${line#???? }
            record "$(echo "${line%% *}" | tr '[:upper:]' '[:lower:]')" \
                "fuzz/${rest%%[: ]*}" "$(echo "$rest" | sed 's/^[^: ]*:\{0,1\} *//')"
            ;;
        esac
    done <"$log"
    if [ $status != 0 ] && ! grep -q $'^fail\tfuzz/' "$results"; then
        record fail fuzz "scripts/fuzz.sh: exit status $status"
    fi
    [ $status = 0 ] || tail -n 40 "$log" | sed 's/^/  | /'
}

scripts_parse() {
    local script
    for script in scripts/*.sh scripts/run-unit tests/e2e/*.sh; do
        bash -n "$script" || return 1
    done
}

# ---- what is needed
scripts/deps.sh --test || scripts/deps.sh --check || exit 1

# ---- build, then whatever may run side by side, then what wants the machine for itself
say "building"
if wants unit || wants e2e; then
    build "$B" "" all unit
fi
if wants san; then
    build "$asan" address,undefined unit
    build "$tsan" thread unit
fi

if wants checks; then
    say "checks"
    check checks/includes scripts/check-includes
    check checks/headers scripts/check-headers
    check checks/scripts scripts_parse
    check checks/top-length scripts/top-length && sed 's/^/  | /' "$logs/checks.top-length.log"
fi

list=$logs/unit.list
: >"$list"
wants unit && list_unit "$B" unit >>"$list"
if wants san; then
    leak_gate
    list_unit "$asan" asan >>"$list"
    list_unit "$tsan" tsan >>"$list"
fi
if [ -s "$list" ]; then
    say "unit tests, $jobs at a time"
    # shellcheck disable=SC2016
    xargs -P "$jobs" -L 1 bash -c 'run_listed "$@"' _ <"$list"
fi

if wants fuzz; then
    say "fuzzing"
    run_fuzz
fi

if wants e2e; then
    say "end to end"
    tests/e2e/run.sh --results "$results"
fi

# ---- the sum
passed=$(grep -c ^pass "$results")
failed=$(grep -c ^fail "$results")
skipped=$(grep -c ^skip "$results")
say "done"
sed -n 's/^skip\t\([^\t]*\)\t/skipped: \1: /p' "$results" | sort | uniq -c |
    sed 's/^ *1 skipped/skipped/; s/^ *\([0-9]*\) skipped/skipped \1 times/'
sed -n 's/^fail\t\([^\t]*\)\t/failed: \1: /p' "$results" | sed 's/: $//'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
