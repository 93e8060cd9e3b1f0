#!/bin/bash
# What is left in the runtime directory by those who had no time to clean up goes with the
# next run of the same user; what somebody uses stays.
. "$HVD_SRC/tests/e2e/lib.sh"
export XDG_RUNTIME_DIR=$T/run
mkdir -m 700 "$XDG_RUNTIME_DIR"

# Start a job whose pid is $pid and whose directory is $dir
begin() {
    hvdrun -np 1 sh -c 'echo running; exec sleep 60' >out 2>err &
    pid=$!
    await 10 "the rank" grep -qs running out
    dir=$(ls -td "$XDG_RUNTIME_DIR"/hvd-?????? | head -n 1)
    [ -S "$dir/coord" ] || die "no socket in the runtime directory"
}

begin
dead=$dir
agent='' keeper='' coordinator='' rank=''
await 3 "the agent" eval 'agent=$(agent_of $pid)'
await 3 "the keeper" eval 'keeper=$(keeper_of $pid)'
await 3 "the coordinator" eval 'coordinator=$(coordinator_of $pid)'
await 3 "the rank" eval 'rank=$(rank_of $pid sleep)'
kill -STOP "$pid" "$agent" "$keeper" "$coordinator"
kill -KILL "$pid" "$agent" "$keeper" "$coordinator" "$rank"
wait $pid
[ -d "$dead" ] || die "the directory of the killed is gone already: the test shows nothing"

begin
alive=$dir
[ "$alive" != "$dead" ] || die "the second job has the directory of the first"
touch -d '1 hour ago' "$dead" "$alive"
run hvdrun -np 1 true
expect_status 0
[ ! -e "$dead" ] || die "the directory of the killed is still there"
[ -S "$alive/coord" ] || die "the directory of a living job was touched"
kill -TERM $pid
wait $pid
[ -z "$(ls "$XDG_RUNTIME_DIR")" ] || die "something stays: $(ls "$XDG_RUNTIME_DIR")"
echo "ok the dead's directory goes with the next run, the living's stays"

# a socket of a rank that was killed in hvd_init, without hvdrun
mkdir -m 700 "$XDG_RUNTIME_DIR/hvd-aB3xYz"
python3 -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()' \
    "$XDG_RUNTIME_DIR/hvd-aB3xYz/w1-0"
touch -d '1 hour ago' "$XDG_RUNTIME_DIR/hvd-aB3xYz"
hvd-coordinator --np 1 --listen "unix:$T/c" --key-file key --linger 0 >where 2>err &
pid=$!
await 5 "the coordinator" test -s where
HVD_COORDINATOR=unix:$T/c HVD_KEY_FILE=key run "$HVD_BUILD/examples/allreduce"
expect_status 0
wait $pid
[ -z "$(ls "$XDG_RUNTIME_DIR")" ] || die "something stays: $(ls "$XDG_RUNTIME_DIR")"
echo "ok so does a dead rank's, with the next rank"
