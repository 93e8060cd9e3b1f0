# shellcheck shell=bash
# Helpers for the end-to-end tests; a test sources it: . "$HVD_SRC/tests/e2e/lib.sh"

# End the test as failed. $1... = why
die() {
    echo "FAILED: $*" >&2
    for file in out err; do
        [ -s "$T/$file" ] && { echo "--- $file"; tail -n 40 "$T/$file"; } >&2
    done
    exit 1
}

# Run a command with its output in $T/out and $T/err; its status is in $status, the time it
# took in $took_ms. $1... = command
run() {
    local start
    start=$(now_ms)
    "$@" >"$T/out" 2>"$T/err"
    status=$?
    took_ms=$(($(now_ms) - start))
}

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# $1 = status the last run must have had
expect_status() { [ "$status" = "$1" ] || die "status $status, not $1"; }

# $1 = out or err, $2 = extended regular expression one of its lines must match
expect_line() { grep -qE -- "$2" "$T/$1" || die "no line of $1 matches: $2"; }

# $1 = out or err, $2 = expression no line may match
refuse_line() { ! grep -qE -- "$2" "$T/$1" || die "a line of $1 matches: $2"; }

# The last run took at most $1 ms
expect_within() { [ "$took_ms" -le "$1" ] || die "took $took_ms ms, more than $1"; }

# How long this machine now takes for what takes it 100 alone, 100 to 500: the time of a loop (some
# 50 ms) by what it had of a CPU. Limits grow by it. Ask when nothing of the test itself runs.
slowed() {
    local TIMEFORMAT='%R %U %S' real user sys i percent
    read -r real user sys < <({ time for ((i = 0; i < 20000; i++)); do :; done; } 2>&1)
    percent=$((10#${real/[.,]/} * 100 / (10#${user/[.,]/} + 10#${sys/[.,]/} + 1)))
    echo $((percent < 100 ? 100 : percent > 500 ? 500 : percent))
}

# Wait until a command succeeds. $1 = seconds, $2 = what is awaited, $3... = command
await() {
    local until=$(($(now_ms) + $1 * 1000)) what=$2
    shift 2
    until "$@"; do
        [ "$(now_ms)" -lt $until ] || die "did not come in time: $what"
        sleep 0.01
    done
}

# Children of process $1 whose command name is $2, one pid a line. The kernel's list may miss
# one while others come and go: use these functions with await.
children() {
    local pid
    for pid in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && echo "$pid"
    done
}

# First child of process $1 named $2; status 1 when there is none
child() { children "$1" "$2" | head -n 1 | grep .; }

# The parts of a running hvdrun, whose pid is $1
agent_of() { child "$1" hvd-agent; }
coordinator_of() { child "$1" hvd-coordinator; }
keeper_of() {
    local agent
    agent=$(agent_of "$1") && child "$agent" hvd-keeper
}
# A rank, by the name of its program. $1 = pid of hvdrun, $2 = name
rank_of() {
    local agent
    agent=$(agent_of "$1") && child "$agent" "$2"
}

# Rank $3 of the hvdrun whose pid is $1, by the name $2 of its program
rank_number() {
    local agent pid
    agent=$(agent_of "$1") || return 1
    for pid in $(children "$agent" "$2"); do
        grep -qzx "HVD_RANK=$3" "/proc/$pid/environ" 2>/dev/null && echo "$pid" && return 0
    done
    return 1
}

# Live processes (no zombies) that have the variable $1 set to $2
carrying() {
    grep -lzx "$1=$2" /proc/[0-9]*/environ 2>/dev/null | sed 's|/proc/\([0-9]*\)/.*|\1|' |
        grep -vx $$
}

nobody_carries() { [ -z "$(carrying "$1" "$2")" ]; }

# Build a C program against libhvd. $1 = source, $2 = program
compile() {
    "${CC:-cc}" -O1 -g -I"$HVD_SRC/worker/include" -o "$2" "$1" ${CFLAGS_E2E:-} ${HVD_E2E_CFLAGS:-} \
        -L"$HVD_BUILD/lib" -lhvd -lpthread -Wl,-rpath,"$HVD_BUILD/lib" || die "cannot compile $1"
}
