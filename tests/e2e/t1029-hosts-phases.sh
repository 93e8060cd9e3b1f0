#!/bin/bash
# A rank is killed, or its host is cut off, at any moment of epochs of all kinds of operations: before,
# in and after each phase (fail points), and at moments drawn by chance. The call of every survivor
# returns an error within a second of the time that it takes to know; nobody hangs, nobody stays.
# deadline: 240
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 12
compile "$HVD_SRC/tests/e2e/mixed.c" mixed
rounds=3 cuts=1
[ "${HVD_SOAK:-0}" = 1 ] && rounds=100 cuts=50
seed=${HVD_SEED:-$(($(date +%s) % 30000))}
RANDOM=$seed
echo "HVD_SEED=$seed"

# Start a job on hosts FIRST to LAST. $1 = its name, rest: FIRST LAST RANKS_PER_HOST PROGRAM...
job() {
    local name=$1 first=$2 last=$3 ranks=$4 list
    shift 4
    list=$(seq -f "host%g:$ranks" -s, "$first" "$last")
    rm -f "$name.status" "$name.out" "$name.err" # not those of the job before
    (
        export JOB=$name.$$
        hosts_exec "$first" hvdrun --grace 3 -H "$list" "$@" >"$name.out" 2>"$name.err"
        echo $? >"$name.status"
    ) &
}
ranks_of() { carrying JOB "$1.$$" | while read -r p; do [ "$(cat "/proc/$p/comm")" = mixed ] && echo "$p"; done 2>/dev/null; }
gone() { [ -z "$(ranks_of "$1")" ]; }
longest=0
# Each of the $2 survivors of job $1 has had its error, at most $3 ms after its call. In the first
# init, which waits for all ranks, before the grace time was over: they ignore SIGTERM.
# All jobs are over: what slows the machine then is not ours.
errors_in_time() {
    local name=$1 got ms most=$3
    got=$(grep -cE ': (init|join|shutdown|barrier|broadcast|(large )?all[a-z]*|reducescatter): -[0-9]+ after [0-9]+ ms: ' "$name.out")
    [ "$got" -ge "$2" ] || { cat "$name.out" "$name.err"; die "$name: $got of $2 survivors have an error"; }
    for ms in $(sed -n '/rank -1: init/d; s/.*: -[0-9]* after \([0-9]*\) ms: .*/\1/p' "$name.out"); do
        [ "$ms" -le "$most" ] || most=$(($3 * $(slowed) / 100))
        [ "$ms" -le "$most" ] || { cat "$name.out" "$name.err"; die "$name: a call returned after $ms ms"; }
        [ "$ms" -le $longest ] || longest=$ms
    done
}

# ---- fail points: four at a time, six ranks on three hosts each; rank 3 dies
# $1 = plane, rest: points
at_points() {
    local plane=$1 k=0 point
    shift
    for point in "$@"; do
        # shellcheck disable=SC2016
        HVD_CPU_PLANE=$plane job "point$k" $((k * 3 + 1)) $((k * 3 + 3)) 2 \
            sh -c '[ $HVD_RANK != 3 ] || export HVD_FAILPOINT=$1; exec ./mixed $2' - "$point" $RANDOM
        k=$((k + 1))
    done
    k=0
    for point in "$@"; do
        await 20 "the end of the job with $point, plane $plane" test -s "point$k.status"
        k=$((k + 1))
    done
    k=0
    for point in "$@"; do
        [ "$(cat "point$k.status")" = 137 ] || { cat point$k.out point$k.err; die "$point: status $(cat "point$k.status")"; }
        grep -qE '^hvdrun: rank 3 on host[0-9]+ \(pid [0-9]+\) was killed' point$k.err || { cat point$k.err; die "$point: rank 3 is not named"; }
        errors_in_time "point$k" 5 1500
        k=$((k + 1))
    done
}
for plane in auto tcp; do
    at_points $plane form:kill formed:kill form:kill:2 formed:kill:2
    at_points $plane announced:kill:7 collective:kill:33 moving:kill:3 moving:kill:50
    at_points $plane moved:kill:33 leaving:kill bye:kill leaving:kill:2
done
echo "ok a rank killed at each of 12 points, planes hosts and tcp: the others' calls return after $longest ms at most"

# ---- SIGKILL at any time
longest=0
for ((i = 0; i < rounds; i++)); do
    for k in 0 1 2 3; do job "any$k" $((k * 3 + 1)) $((k * 3 + 3)) 2 ./mixed $RANDOM; done
    for k in 0 1 2 3; do await 20 "the second epoch of job any$k" grep -qs running any$k.out; done
    for k in 0 1 2 3; do
        sleep "0.$(printf %03d $((RANDOM % 300)))"
        victim=$(ranks_of any$k | shuf -n 1)
        kill -KILL "${victim:?}" || die "any$k is over: $(cat any$k.err)"
    done
    for k in 0 1 2 3; do await 10 "the end of job any$k" test -s any$k.status; done
    for k in 0 1 2 3; do
        [ "$(cat any$k.status)" = 137 ] || { cat any$k.out any$k.err; die "any$k: status $(cat any$k.status)"; }
        errors_in_time any$k 5 1500
    done
done
echo "ok $((4 * rounds)) kills by chance: the others' calls return after $longest ms at most"

# ---- a host is cut off at any time; lease 3 s
export HVD_LEASE_SECONDS=3
longest=0
for ((i = 0; i < cuts; i++)); do
    for k in 0 1 2 3; do job "cut$k" $((k * 3 + 1)) $((k * 3 + 3)) 2 ./mixed $RANDOM; done
    for k in 0 1 2 3; do await 20 "the second epoch of job cut$k" grep -qs running cut$k.out; done
    for k in 0 1 2 3; do
        sleep "0.$(printf %03d $((RANDOM % 300)))"
        hosts_unplug $((k * 3 + 3))
    done
    for k in 0 1 2 3; do await 15 "the end of job cut$k" test -s cut$k.status; done
    for k in 0 1 2 3; do
        [ "$(cat cut$k.status)" = 125 ] || { cat cut$k.out cut$k.err; die "cut$k: status $(cat cut$k.status)"; }
        grep -qE "^hvdrun: .*host$((k * 3 + 3))" cut$k.err || { cat cut$k.err; die "cut$k: its host is not named"; }
        errors_in_time cut$k 4 5000
        await 10 "the end of the ranks on the host that was cut off" gone cut$k
        hosts_heal $((k * 3 + 3))
    done
done
echo "ok $((4 * cuts)) hosts cut off by chance: the others' calls return after $longest ms at most, lease 3 s"

# ---- twelve hosts: a large allreduce goes along a chain
longest=0
job chain 1 12 1 ./mixed $RANDOM 2000000
await 30 "the second epoch of job chain" grep -qs running chain.out
sleep "0.$(printf %03d $((RANDOM % 1000)))"
kill -KILL "$(ranks_of chain | shuf -n 1)"
await 15 "the end of job chain" test -s chain.status
[ "$(cat chain.status)" = 137 ] || { cat chain.out chain.err; die "chain: status $(cat chain.status)"; }
errors_in_time chain 11 2000
job chain 1 12 1 ./mixed $RANDOM 2000000
await 30 "the second epoch of job chain" grep -qs running chain.out
sleep "0.$(printf %03d $((RANDOM % 1000)))"
hosts_unplug 7
await 15 "the end of job chain" test -s chain.status
grep -qE "^hvdrun: .*host7" chain.err || { cat chain.err; die "host7 is not named"; }
errors_in_time chain 11 6000
await 10 "the end of the rank on the host that was cut off" gone chain
echo "ok twelve hosts, a rank killed, then a host cut off: the others' calls return after $longest ms at most"
