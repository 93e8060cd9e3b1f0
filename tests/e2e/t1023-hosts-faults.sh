#!/bin/bash
# What breaks between hosts, all at the same time, each with a job of its own: power, links
# in one direction, hosts that stand still, a link between two ranks. Within 20 s nobody of
# a job is left, and hvdrun, where it can, has said which host. A worker that is stopped is
# no loss.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 15
compile "$HVD_SRC/tests/e2e/steps.c" steps
# The ranks are grandchildren of the agent, and have children of their own.
cat >tree.sh <<'END'
setsid sleep 400 &
sleep 400 &
./steps 300 65536 5
END

# Start a job on hosts A and more. $1 = its name, $2 = host of hvdrun, rest: hosts
job() {
    local name=$1 at=$2 list
    shift 2
    list=$(printf ',host%s:2' "$@")
    (
        export JOB=$name.$$
        hosts_exec "$at" hvdrun --grace 2 -H "${list#,}" sh tree.sh >"$name.out" 2>"$name.err"
        echo $? >"$name.status"
    ) &
}
ranks() { carrying JOB "$1.$$" | while read -r p; do cat "/proc/$p/comm"; done 2>/dev/null | grep -cE '^(steps|sleep|sh)$'; }
gone() { [ "$(ranks "$1")" = 0 ]; }
on_host() { # pids of job $1 on host $2
    local pid
    for pid in $(hosts_pids "$2"); do
        grep -qzx "JOB=$1.$$" "/proc/$pid/environ" 2>/dev/null &&
            grep -qE '^(steps|sleep|sh)$' "/proc/$pid/comm" && echo "$pid"
    done
}
none_on() { [ -z "$(on_host "$@")" ]; }

hvdrun_ends() { # of job $1, within $2 s
    local until=$(($(now_ms) + $2 * 1000))
    until [ -s "$1.status" ]; do
        [ "$(now_ms)" -lt $until ] || { cat "$1.err"; die "hvdrun of job $1 does not end"; }
        sleep 0.05
    done
}

job power 1 1 2
job there 3 3 4
job back 5 5 6
job frozen 7 7 8
job launcher 9 9 10
job link 11 11 12 13
job stopped 14 14 15
for name in power there back frozen launcher link stopped; do
    await 20 "the steps of job $name" grep -qs running $name.out
done
steps_at() { on_host "$1" "$2" | while read -r p; do [ "$(cat "/proc/$p/comm")" = steps ] && echo "$p"; done | head -n 1; }
stopped=$(steps_at stopped 15)

broken=$(now_ms)
hosts_kill 1                 # the launcher's host loses power
hosts_partition 3 4 oneway   # nothing reaches host4 from host3
hosts_partition 6 5 oneway   # nothing reaches the launcher's host from host6
hosts_freeze 8
hosts_freeze 9
hosts_partition 12 13        # control is well; the data between two ranks is not
kill -STOP "$stopped"
left() { echo $((broken + $1 * 1000 - $(now_ms))) | awk '{ print int($1 / 1000) }'; }

# 20 s is the promise; 2 s more are for a machine that is busy
declare -A over=()
check() { [ -n "${over[$1]-}" ] || { "${@:2}" && over[$1]=$(($(now_ms) - broken)); }; }
all_over() {
    check power gone power
    check there gone there
    check back gone back
    check frozen none_on frozen 7
    check launcher none_on launcher 10
    [ ${#over[@]} = 5 ]
}
await "$(left 22)" "the end of the ranks of all jobs but ${!over[*]}" all_over
for name in there back frozen; do
    hvdrun_ends $name 5
    [ "$(cat $name.status)" = 125 ] || { cat $name.err; die "job $name: status $(cat $name.status), not 125"; }
done
grep -qE '^hvdrun: .*host4' there.err || { cat there.err; die "host4 is not named"; }
grep -qE '^hvdrun: .*host6' back.err || { cat back.err; die "host6 is not named"; }
grep -qE '^hvdrun: .*host8.*(no heartbeat|not responding)' frozen.err || { cat frozen.err; die "host8 is not named"; }
echo "ok over after: power ${over[power]} ms, link there ${over[there]}, link back ${over[back]}, frozen host ${over[frozen]}, frozen launcher ${over[launcher]}"

hosts_thaw 8
hosts_thaw 9
await 10 "the end of the ranks on a host that goes on after its lease" gone frozen
await 10 "the end of the ranks of a launcher that goes on after its lease" gone launcher
hvdrun_ends launcher 10
[ "$(cat launcher.status)" = 125 ] || { cat launcher.err; die "a frozen launcher: status $(cat launcher.status)"; }
echo "ok who was frozen for longer than the lease ends too"

await "$(left 30)" "the end of the job with a broken link" test -s link.status
[ "$(cat link.status)" = 4 ] || { cat link.err link.out; die "a broken link: status $(cat link.status)"; }
why='rank [2345] \(host host1[23], pid [0-9]+\): tcp: (the connection to rank [2345] is broken: no answer|receiving from rank [2345]: Connection timed out)'
grep -qE "^hvdrun: $why" link.err || { cat link.out link.err; die "hvdrun does not name the broken link"; }
[ "$(grep -cE "rank [0-5]: -7: .*$why" link.out)" = 6 ] || { cat link.out link.err; die "not every rank is told of the broken link"; }
await 5 "the end of the ranks of the job with a broken link" gone link
echo "ok a broken link between two live ranks is named, $(($(now_ms) - broken)) ms after"

[ -s stopped.status ] && { cat stopped.err; die "a stopped worker was taken for lost"; }
expect_stall() { grep -qE "rank [23] .*stopped" stopped.err; }
await 5 "the report of a stopped worker: $(cat stopped.err)" expect_stall
kill -CONT "$stopped"
kill -TERM "$(carrying JOB "stopped.$$" | while read -r p; do [ "$(cat "/proc/$p/comm" 2>/dev/null)" = hvdrun ] && echo "$p"; done | head -n 1)"
await 10 "the end of the job with the stopped worker" gone stopped
await 5 "the end of its hvdrun" test -s stopped.status
echo "ok a stopped worker is reported as stopped, and is not lost"
