#!/bin/bash
# deadline: 60
# hvd-coordinator on its own: workers find it by HVD_COORDINATOR and HVD_KEY_FILE, over TCP and
# over a Unix socket, on both planes; it makes the key file, and ends with the job.
set -eu
fail() {
    echo "not so: $*"
    cat -- *.out *.err 2>/dev/null
    exit 1
}

# Wait until the coordinator says where it listens. $1 = its stdout
endpoint() {
    local until=$((SECONDS + 10)) where
    while [ $SECONDS -lt $until ]; do
        where=$(sed -n 's/.*HVD_COORDINATOR=\([^ ]*\) .*/\1/p' "$1" 2>/dev/null || true)
        [ -n "$where" ] && echo "$where" && return
        sleep 0.02
    done
    echo "the coordinator does not say where it listens" >&2
    return 1
}

# $1 = ranks, $2 = --listen, $3 = plane
job() {
    local pids=() pid i coord
    rm -f key ./*.out ./*.err
    hvd-coordinator --np "$1" --listen "$2" --key-file key --linger 0.2 >c.out 2>c.err &
    coord=$!
    HVD_COORDINATOR=$(endpoint c.out)
    export HVD_COORDINATOR HVD_KEY_FILE=$T/key HVD_CPU_PLANE=$3
    [ "$(stat -c %a key)" = 600 ] || fail "the key file has mode $(stat -c %a key)"
    for ((i = 0; i < $1; i++)); do
        "$HVD_BUILD/examples/allreduce" >w$i.out 2>w$i.err &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "a worker ended with $?"
    done
    wait $coord || fail "the coordinator ended with $?"
    [ -s c.err ] && fail "the coordinator complained"
    [ "$(cat w*.out | grep -c "of $1: average")" = "$1" ] || fail "$1 lines expected"
    [ "$(cat w*.out | sed 's/.*sum/sum/' | sort -u | wc -l)" = 1 ] || fail "the sums differ"
}

job 1 127.0.0.1:0 auto
job 3 127.0.0.1:0 auto
job 4 "unix:$T/sock" shm
[ ! -e sock ] || fail "the socket file stays behind"
job 2 127.0.0.1:0 tcp
echo "standalone jobs are well"
