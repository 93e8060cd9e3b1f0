#!/bin/bash
# --json-events: the life of a job as JSON lines, to a file or a descriptor; nobody who does
# not read them holds up the job.
. "$HVD_SRC/tests/e2e/lib.sh"

# Python expression over the list `e` of events in file $1 that must be true. $2 = expression
holds() {
    python3 - "$1" "$2" <<'PY' || die "not so in $1: $2: $(cat "$1")"
import json, sys
e = [json.loads(line) for line in open(sys.argv[1])]
kinds = [x["event"] for x in e]
sys.exit(0 if eval(sys.argv[2]) else 1)
PY
}

run hvdrun -np 2 --json-events events sh -c 'echo hello'
expect_status 0
[ -s err ] && die "nothing expected on stderr"
holds events 'kinds[0] == "job_start" and kinds[-1] == "job_end" and kinds[1] == "host_up"'
holds events 'e[0]["np"] == 2 and e[0]["command"] == ["sh", "-c", "echo hello"] and e[0]["hosts"] == [{"host": "localhost", "first_rank": 0, "ranks": 2}]'
holds events 'sorted(x["rank"] for x in e if x["event"] == "rank_start") == [0, 1]'
holds events 'all(x["pid"] > 1 and x["host"] == "localhost" for x in e if x["event"].startswith("rank_"))'
holds events '[x["status"] for x in e if x["event"] == "rank_exit"] == [0, 0] and e[-1]["status"] == 0'
holds events 'all(abs(x["time"] - e[0]["time"]) < 60 for x in e) and e[-1]["seconds"] < 60'
echo "ok a job that goes well"

run hvdrun -np 3 --json-events fd:7 sh -c 'if [ $HVD_RANK = 1 ]; then kill -SEGV $$; fi; sleep 100' 7>events
expect_status 139
holds events 'e[-1]["status"] == 139 and e[-1]["first_failed_rank"] == 1'
holds events '[x["signal"] for x in e if x.get("rank") == 1 and x["event"] == "rank_exit"] == ["SIGSEGV"]'
holds events '[x["stopped_by_hvdrun"] for x in e if x.get("rank") == 2 and x["event"] == "rank_exit"] == [True]'
run hvdrun -np 1 --timeout 0.2 --json-events events "$(printf 'sleep')" 100
expect_status 124
holds events 'any("time limit" in x["text"] for x in e if x["event"] == "message") and e[-1]["status"] == 124'
run hvdrun -np 1 --json-events events printf "$(printf '\377')"
holds events 'e[-1]["status"] == 0'
run hvdrun -np 1 --json-events events no-such-program
expect_status 127
holds events 'e[-1]["status"] == 127'
run hvdrun -np 1 --json-events fd:8 sh -c 'ls /proc/self/fd' 8>events
expect_status 0
refuse_line out ':8$'
echo "ok failures, signals, time limits; the ranks do not get the descriptor"

for bad in 'fd:9:descriptor 9 is not open' 'fd:x:.*not a whole number' '/nonexistent/x:/nonexistent/x: No such file' 'fifo:nobody reads'; do
    [ -p fifo ] || mkfifo fifo
    what=${bad%:*}
    run hvdrun -np 1 --json-events "$what" true
    expect_status 2
    [ "$(wc -l <err)" = 1 ] || die "not one line: $what"
    expect_line err "^hvdrun: --json-events: .*(${bad##*:})"
done
echo "ok what cannot be opened: one line, status 2"

run hvdrun --json-events /dev/full -np 1 true
expect_status 0
expect_line err '^hvdrun: --json-events: No space left on device: [0-9]+ bytes were lost$'
[ "$(wc -l <err)" = 1 ] || die "not one line"
echo "ok events that cannot be written are said to be lost"

# the disk is full with the very last line: a file may not be longer than 64 KiB
run hvdrun --json-events events -np 1 true
before=$(($(wc -c <events) - $(tail -n 1 events | wc -c) / 2))
head -c $((65536 - before)) /dev/zero >full
run bash -c 'trap "" XFSZ && ulimit -f 64 && exec hvdrun --json-events fd:8 -np 1 true' 8>>full
expect_status 0
[ "$(wc -c <full)" = 65536 ] || die "the file is not full"
expect_line err '^hvdrun: --json-events: File too large: [0-9]+ bytes were lost$'
[ "$(wc -l <err)" = 1 ] || die "not one line"
echo "ok so is the last of them"

exec 6<>fifo # filled, and nobody reads
dd if=/dev/zero bs=64k count=16 oflag=nonblock of=fifo 2>/dev/null
run hvdrun -np 2 --json-events fd:6 true
expect_status 0
expect_within 8000
echo "ok events that nobody reads do not hold up the end"
