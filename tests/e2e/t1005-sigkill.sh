#!/bin/bash
# Whichever process of a job is killed with SIGKILL, at whatever moment: nothing stays
# behind, and hvdrun's status says what happened. 20 moments for each kind of process.
# deadline: 240
. "$HVD_SRC/tests/e2e/lib.sh"
phases=${HVD_E2E_PHASES:-20}

# Each rank has children of its own, one in the background and one in a session of its own.
cat >tree.sh <<'END'
sleep 300 &
setsid sleep 300 &
sleep 300
END

# $1 = hvdrun's pid, $2 = kind of process; prints the pid to kill
victim() {
    case $2 in
    hvdrun) echo "$1" ;;
    agent) agent_of "$1" ;;
    coordinator) coordinator_of "$1" ;;
    keeper) keeper_of "$1" ;;
    rank) rank_of "$1" sh ;;
    esac
}

# $1 = kind, $2 = status hvdrun must end with
one() {
    local pid target mark=$1.$$.$RANDOM
    JOB_MARK=$mark hvdrun -np 3 sh tree.sh >out 2>err &
    pid=$!
    # from the moment it exists to well into the running job
    await 5 "the $1 process" eval 'target=$(victim $pid '"$1"')'
    sleep "0.$(printf %03d $((RANDOM % 250)))"
    kill -KILL "$target" || die "$1 is not there any more"
    wait $pid
    status=$?
    expect_status "$2"
    await 3 "the end of all processes after $1 was killed: $(carrying JOB_MARK "$mark" | xargs -r ps -o pid,args -p)" \
        nobody_carries JOB_MARK "$mark"
    await 2 "removal of the runtime directory" eval '! ls -d '"$XDG_RUNTIME_DIR"'/hvd-* 2>/dev/null | grep -q .'
}

export XDG_RUNTIME_DIR=$T/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
for kind in hvdrun:137 agent:125 coordinator:125 keeper:125 rank:137; do
    for ((i = 0; i < phases; i++)); do
        one "${kind%:*}" "${kind#*:}"
    done
    echo "ok ${kind%:*} killed at $phases moments: nothing left, status ${kind#*:}"
done
