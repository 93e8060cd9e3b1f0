#!/bin/bash
# Signals to hvdrun: INT and TERM end the job with 128 + n, the second INT at once; USR1 goes
# to the ranks; nobody stays behind.
# deadline: 90
. "$HVD_SRC/tests/e2e/lib.sh"

# Start a job in the background and wait until its ranks say "ready". Sets pid and mark.
# $1... = arguments of hvdrun
start() {
    mark=$$.$RANDOM
    rm -f out err
    JOB_MARK=$mark hvdrun "$@" >out 2>err &
    pid=$!
    await 10 "ready from all ranks" eval '[ "$(grep -cs ready out)" = 2 ]'
    begun=$(now_ms)
}

# $1 = status the job must end with, $2 = most milliseconds since start
finish() {
    wait $pid
    status=$?
    took_ms=$(($(now_ms) - begun))
    expect_status "$1"
    expect_within "$2"
    await 2 "the end of all processes" nobody_carries JOB_MARK "$mark"
}

plain='echo ready; sleep 100; true'
deaf='trap "" INT TERM HUP; echo ready; sleep 100; sleep 100; sleep 100'
polite='trap "echo saved; exit 0" INT TERM; echo ready; while :; do sleep 0.1; done'

for signal in INT:130 TERM:143 HUP:129 QUIT:131; do
    start -np 2 sh -c "$plain"
    kill -"${signal%:*}" $pid
    finish "${signal#*:}" 3000
done
echo "ok INT, TERM, HUP, QUIT end the job: 128 + n"

for signal in INT:130 TERM:143; do
    start -np 2 sh -c "$polite"
    kill -"${signal%:*}" $pid
    finish "${signal#*:}" 3000
    [ "$(grep -c saved out)" = 2 ] || die "the ranks' handlers did not run"
done
echo "ok the ranks' own handlers run"

for signal in INT:130 TERM:143; do
    start -np 2 --grace 1 sh -c "$deaf"
    kill -"${signal%:*}" $pid
    finish "${signal#*:}" 3000
    [ $took_ms -ge 900 ] || die "killed after $took_ms ms, before the grace time"
done
echo "ok ranks that do not end are killed after the grace time"

start -np 2 --grace 60 sh -c "$deaf"
kill -INT $pid
await 2 "the first line" grep -q 'interrupted: asking 2 ranks to end' err
kill -INT $pid
finish 130 3000
expect_line err 'interrupted again: killing 2 ranks'
echo "ok the second Ctrl-C kills at once"

start -np 2 sh -c 'trap "echo one" USR1; trap "echo two" USR2; echo ready; while :; do sleep 0.1; done'
kill -USR1 $pid
await 3 "USR1 at both ranks" eval '[ "$(grep -c one out)" = 2 ]'
kill -USR2 $pid
await 3 "USR2 at both ranks" eval '[ "$(grep -c two out)" = 2 ]'
kill -TERM $pid
finish 143 3000
echo "ok USR1 and USR2 are passed on"

start -np 2 sh -c "$plain"
kill -TSTP $pid
await 3 "hvdrun stopped" eval 'grep -q "^State:.T" /proc/$pid/status'
await 3 "a rank" eval 'rank=$(rank_of $pid sh)' # sets rank
await 3 "ranks stopped" eval 'grep -q "^State:.T" /proc/$rank/status'
kill -CONT $pid
await 3 "ranks running again" eval '! grep -q "^State:.T" /proc/$rank/status'
kill -TERM $pid
finish 143 4000
echo "ok TSTP and CONT stop and continue the ranks"

# a stopped rank takes its SIGTERM, and SIGKILL
start -np 2 --grace 1 sh -c "$plain"
await 3 "a rank" eval 'rank=$(rank_of $pid sh)' # sets rank
kill -STOP "${rank:?}"
kill -TERM $pid
finish 143 3000
echo "ok a stopped rank ends too"

start -np 2 sh -c "setsid sh -c 'sleep 100' & $plain"
kill -TERM $pid
finish 143 4000
echo "ok a descendant that left its process group ends too"

cat >ctrl-c.py <<'END'
import os, pty, sys
keys = sys.argv[1].encode().decode("unicode_escape").encode()
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
seen = b""
while True:
    try:
        seen += os.read(fd, 65536)
    except OSError:
        break
    if seen.count(b"ready") >= 2 and keys:
        os.write(fd, keys)
        keys = b""
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
run python3 ctrl-c.py '\x03' hvdrun -np 2 sh -c 'trap "echo int; exit 3" INT; echo ready; while :; do sleep 0.1; done'
expect_status 130
[ "$(grep -c '>:int' out)" = 2 ] || die "each rank takes one SIGINT"
expect_line out 'hvdrun: interrupted: asking 2 ranks to end'
run python3 ctrl-c.py '\x03' hvdrun -np 2 --grace 1 sh -c "$deaf"
expect_status 130
expect_within 4000
echo "ok Ctrl-C on a terminal"

# Nobody reads the output: hvdrun ends all the same.
# $1 = pid of a rank that writes without end: it sleeps only when nobody takes its output
still_stuck() {
    local i
    for ((i = 0; i < 20; i++)); do
        grep -q ') S ' "/proc/$1/stat" || return 1
    done
}
# No signal is pending for $1, or it is gone: a second one would be merged with the first
taken() {
    [ ! -e "/proc/$1/status" ] || grep -qE '^ShdPnd:[[:space:]]*0+$' "/proc/$1/status" 2>/dev/null
}
# $1 = signals to send, $2 = status, $3 = most milliseconds, $4... = arguments of hvdrun
unread() {
    local signals=$1 want=$2 most=$3 begun
    shift 3
    rm -f status pid
    mark=$$.$RANDOM
    {
        JOB_MARK=$mark hvdrun "$@" 2>err &
        echo $! >pid
        wait $!
        echo $? >status
    } | sleep 60 &
    reader=$!
    await 5 "pid of hvdrun" [ -s pid ]
    await 5 "a rank" eval 'rank=$(rank_of $(cat pid) yes)'
    await 10 "a full pipe" still_stuck "$rank"
    begun=$(now_ms)
    for signal in $signals; do
        kill -"$signal" "$(cat pid)" 2>/dev/null
        await 5 "hvdrun takes the signal" taken "$(cat pid)"
    done
    await 20 "the end of hvdrun" [ -s status ]
    took_ms=$(($(now_ms) - begun))
    kill $reader
    [ "$(cat status)" = "$want" ] || die "status $(cat status), not $want"
    expect_within "$most"
    await 3 "the end of all processes" nobody_carries JOB_MARK "$mark"
}
unread TERM 143 4500 --grace 1 -np 2 yes
unread 'INT INT INT' 130 3000 --grace 20 -np 2 yes
unread '' 124 7000 --grace 1 --timeout 2 -np 2 yes
echo "ok signals and the time limit work while nobody reads the output (last: $took_ms ms)"

cat >blocked.py <<'END'
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
END
run timeout -s KILL 20 python3 blocked.py hvdrun -np 2 sh -c 'exit 3'
expect_status 3
run timeout -s KILL 20 python3 blocked.py hvdrun doctor
expect_status 0
echo "ok signals blocked and SIGCHLD ignored by who starts hvdrun"
