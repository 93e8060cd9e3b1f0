#!/bin/bash
# Run end-to-end tests one after another, each in a fresh directory and with a deadline.
#   tests/e2e/run.sh [--results FILE] [PATTERN...]     e.g. tests/e2e/run.sh 't01*' t3001
# A test is an executable bash script tests/e2e/tNNNN-name.sh. It gets
#   HVD_SRC    the source tree             HVD_BUILD  the build tree (env B, default build)
#   T          its own empty directory, which is also the working directory
#   PATH       with $HVD_BUILD/bin first
# and says how it went by its exit status: 0 passed, 77 skipped (the last line of its output
# is the reason), anything else failed. A line "# deadline: SECONDS" in it changes the 60 s it
# has. Processes of a test that outlive it are a failure and are killed.
# Prints PASS, FAIL or SKIP per test, then a sum; status 1 when one failed.
set -u
HVD_SRC=$(cd "$(dirname "$0")/../.." && pwd)
HVD_BUILD=${B:-build}
[ "${HVD_BUILD#/}" = "$HVD_BUILD" ] && HVD_BUILD=$HVD_SRC/$HVD_BUILD
export HVD_SRC HVD_BUILD PATH="$HVD_BUILD/bin:$PATH"

results=/dev/null
if [ "${1:-}" = --results ]; then
    results=$2
    shift 2
fi

# Processes that carry this test's mark in their environment. $1 = mark
leftovers() {
    # a zombie has an empty environ and is not counted
    grep -lzx "HVD_E2E_MARK=$1" /proc/[0-9]*/environ 2>/dev/null |
        sed 's|/proc/\([0-9]*\)/environ|\1|'
}

# Wait up to 3 s for the test's processes to go; prints what stays, and kills it. $1 = mark
reap_leftovers() {
    local pids pid until=$((SECONDS + 3))
    while pids=$(leftovers "$1") && [ -n "$pids" ] && [ $SECONDS -lt $until ]; do
        sleep 0.1
    done
    for pid in $pids; do
        echo "$pid ($(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null))"
        kill -KILL "$pid" 2>/dev/null
    done
}

# $1 = verdict, $2 = test, $3 = text
report() {
    printf '%-4s e2e/%s%s\n' "${1^^}" "$2" "${3:+: $3}"
    printf '%s\te2e/%s\t%s\n' "$1" "$2" "$3" >>"$results"
}

run_one() {
    local script=$1 name deadline mark log status took left
    name=$(basename "$script" .sh)
    deadline=$(sed -n 's/^# deadline: *\([0-9]\{1,\}\).*/\1/p' "$script" | head -n 1)
    deadline=${deadline:-60}
    T=$(mktemp -d "${TMPDIR:-/tmp}/hvd-e2e-XXXXXX") || exit 1
    mark=$name.$$.$RANDOM
    log=$T.log
    took=$SECONDS
    (cd "$T" && T=$T HVD_E2E_MARK=$mark \
        timeout -k 5 "$deadline" bash "$script" </dev/null >"$log" 2>&1)
    status=$?
    took=$((SECONDS - took))
    left=$(reap_leftovers "$mark")
    if [ $status = 77 ]; then
        report skip "$name" "$(tail -n 1 "$log")"
    elif [ $status = 124 ] || [ $status = 137 ]; then
        report fail "$name" "not done after $deadline s"
    elif [ $status != 0 ]; then
        report fail "$name" "exit status $status"
    elif [ -n "$left" ]; then
        report fail "$name" "left processes behind: $(echo "$left" | tr '\n' ' ')"
    else
        report pass "$name" "$took s"
        rm -rf "$T" "$log"
        return 0
    fi
    if [ $status = 77 ]; then
        rm -rf "$T" "$log"
        return 0
    fi
    sed 's/^/  | /' "$log" | tail -n "${HVD_E2E_TAIL:-40}"
    rm -rf "$T" "$log"
    return 1
}

[ $# -gt 0 ] || set -- 't[0-9]*'
failed=0
ran=0
for pattern in "$@"; do
    for script in "$HVD_SRC"/tests/e2e/${pattern%.sh}*.sh; do
        [ -r "$script" ] || continue
        case $(basename "$script") in t[0-9]*) ;; *) continue ;; esac
        ran=$((ran + 1))
        run_one "$script" || failed=$((failed + 1))
    done
done
if [ $ran = 0 ]; then
    echo "e2e/run.sh: no test matches: $*" >&2
    exit 2
fi
[ "$results" = /dev/null ] && echo "e2e: $ran run, $failed failed"
[ $failed = 0 ]
