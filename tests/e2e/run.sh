#!/bin/bash
# Run end-to-end tests one after another, each in a fresh directory and with a deadline.
#   tests/e2e/run.sh [--results FILE] [--prefix NAME] [--budget SECONDS] [PATTERN...]
#   e.g. tests/e2e/run.sh 't01*' t3001
# A test is a bash script tests/e2e/tNNNN-name.sh. It gets
#   HVD_SRC    the source tree             HVD_BUILD  the build tree (env B, default build)
#   T          its own empty directory, which is also the working directory
#   PATH       with $HVD_BUILD/bin first   HVD_E2E_CFLAGS  for programs that use libhvd:
#                                          -fsanitize=... when the build tree has it
# and says how it went by its exit status: 0 passed, 77 skipped (the last line of its output
# is the reason), anything else failed. A line "# deadline: SECONDS" in it changes the 60 s it
# has (a sanitizer's build tree: three times that). Processes of a test that outlive it are a
# failure and are killed; so is a sanitizer's report. --budget: for all tests together; those
# that do not get their turn have failed. HVD_SOAK=1: a hundred times the deadlines.
# Prints PASS, FAIL or SKIP per test, then a sum; status 1 when one failed.
set -u
HVD_SRC=$(cd "$(dirname "$0")/../.." && pwd)
HVD_BUILD=${B:-build}
[ "${HVD_BUILD#/}" = "$HVD_BUILD" ] && HVD_BUILD=$HVD_SRC/$HVD_BUILD
export HVD_SRC HVD_BUILD PATH="$HVD_BUILD/bin:$PATH" HVD_E2E_CFLAGS=
# a batch job's hosts are no business of the tests
for name in $(compgen -e | grep -E '^(FLUX_URI|SLURMD?_.*|PBS_.*|LSB_.*|CSM_ALLOCATION_ID|PE_HOSTFILE|.*HYDRA_HOST_FILE|.*_default_hostfile|KUBERNETES_SERVICE_HOST)$'); do
    unset "$name"
done
# nor is the Python of whoever runs them
unset VIRTUAL_ENV HVD_PYTHON HOROVOD_PYTHON PYTHONPATH PYTHONHOME
export NO_COLOR=1 # what a test compares has no colors, on a terminal either

results=/dev/null
prefix=e2e
budget=
while [ $# -gt 1 ]; do
    case $1 in
    --results) results=$2 ;;
    --prefix) prefix=$2 ;;
    --budget) budget=$2 ;;
    *) break ;;
    esac
    shift 2
done

slower=1
case $HVD_BUILD in
*-address-undefined) HVD_E2E_CFLAGS="-g -fsanitize=address,undefined" slower=3 ;;
*-thread) HVD_E2E_CFLAGS="-g -fsanitize=thread" slower=3 ;;
esac
[ "${HVD_SOAK:-0}" = 1 ] && slower=100

# Processes that carry this test's mark in their environment, and coordinators of its session:
# they hold a key, and show their environment only to root. $1 = mark, $2 = session
leftovers() {
    local file state session
    {
        # a zombie has an empty environ and is not counted
        grep -lzx "HVD_E2E_MARK=$1" /proc/[0-9]*/environ 2>/dev/null
        grep -lx hvd-coordinator /proc/[0-9]*/comm 2>/dev/null | while read -r file; do
            read -r state _ _ session _ < <(sed 's/.*) //' "${file%comm}stat" 2>/dev/null)
            [ "$session" = "$2" ] && [ "$state" != Z ] && echo "$file"
        done
    } | sed 's|/proc/\([0-9]*\)/.*|\1|' | sort -u
}

# Wait up to 3 s for the test's processes to go; prints what stays, and kills it.
# $1 = mark, $2 = session
reap_leftovers() {
    local pids pid until=$((SECONDS + 3))
    while pids=$(leftovers "$1" "$2") && [ -n "$pids" ] && [ $SECONDS -lt $until ]; do
        sleep 0.1
    done
    for pid in $pids; do
        echo "$pid ($(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null))"
        kill -KILL "$pid" 2>/dev/null
    done
}

# $1 = verdict, $2 = test, $3 = text
report() {
    printf '%-4s %s/%s%s\n' "${1^^}" "$prefix" "$2" "${3:+: $3}"
    printf '%s\t%s/%s\t%s\n' "$1" "$prefix" "$2" "$3" >>"$results"
}

# Where sanitizers write. $1 = path without the process number
sanitizer_options() {
    export ASAN_OPTIONS="log_path=$1:detect_leaks=${HVD_DETECT_LEAKS:-1}"
    export UBSAN_OPTIONS="log_path=$1:print_stacktrace=1"
    export TSAN_OPTIONS="log_path=$1:suppressions=$HVD_SRC/scripts/tsan.supp:print_suppressions=0:second_deadlock_stack=1:die_after_fork=0"
}

run_one() {
    local script=$1 name deadline mark log status took left sanitizer
    name=$(basename "$script" .sh)
    deadline=$(sed -n 's/^# deadline: *\([0-9]\{1,\}\).*/\1/p' "$script" | head -n 1)
    deadline=$((${deadline:-60} * slower))
    if [ -n "$budget" ]; then
        left=$((budget - SECONDS))
        if [ $left -le 0 ]; then
            report fail "$name" "not run: the $budget s for all tests are used up"
            return 1
        fi
        [ $left -lt $deadline ] && deadline=$left
    fi
    T=$(mktemp -d "${TMPDIR:-/tmp}/hvd-e2e-XXXXXX") || exit 1
    mark=$name.$$.$RANDOM
    log=$T.log
    took=$SECONDS
    (
        cd "$T" || exit 1
        [ -z "$HVD_E2E_CFLAGS" ] || sanitizer_options "$T.san"
        echo $BASHPID >"$T.session"
        T=$T HVD_E2E_MARK=$mark exec setsid timeout -k 5 "$deadline" bash "$script" </dev/null >"$log" 2>&1
    )
    status=$?
    took=$((SECONDS - took))
    left=$(reap_leftovers "$mark" "$(cat "$T.session")")
    sanitizer=$(cat "$T".san.* 2>/dev/null | grep -m1 -E '^SUMMARY|runtime error')
    cat "$T".san.* >>"$log" 2>/dev/null
    if [ $status = 124 ] || [ $status = 137 ]; then
        report fail "$name" "not done after $deadline s"
    elif [ -n "$sanitizer" ]; then
        report fail "$name" "$sanitizer"
    elif [ $status = 77 ]; then
        report skip "$name" "$(tail -n 1 "$log")"
    elif [ $status != 0 ]; then
        report fail "$name" "exit status $status"
    elif [ -n "$left" ]; then
        report fail "$name" "left processes behind: $(echo "$left" | tr '\n' ' ')"
    else
        report pass "$name" "$took s"
        status=0
    fi
    if [ $status != 77 ] && { [ $status != 0 ] || [ -n "$left$sanitizer" ]; }; then
        tail -n "${HVD_E2E_TAIL:-40}" "$log" | sed 's/^/  | /'
        status=1
    else
        status=0
    fi
    rm -rf "$T" "$log" "$T.session" "$T".san.*
    return $status
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
