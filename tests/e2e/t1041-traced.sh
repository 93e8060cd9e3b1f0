#!/bin/bash
# A rank that a debugger holds does not end the job, however much longer than the lease: on one
# host over each plane, and on another host. The stall report says who holds it; when the
# debugger lets it go, the job ends well.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
command -v gdb >/dev/null || { echo "gdb is not installed; scripts/deps.sh --test"; exit 77; }

compile "$HVD_SRC/tests/e2e/loop.c" loop
lease=3 # the least; a broken link between hosts is given 5 s more

pid_of_rank_1() { pid=$(sed -n 's/^\[1\]<stdout>:pid //p' out) && [ -n "$pid" ]; }

# $1 = what to say, $2 = what runs gdb where rank 1 is, $3... = command that starts the job
one() {
    local what=$1 where=$2 job gdb held
    shift 2
    rm -f enough go held out err
    "$@" >out 2>err &
    job=$!
    await 20 "rank 1" pid_of_rank_1
    # shellcheck disable=SC2086
    $where gdb -nx -q -batch -p "$pid" -ex 'shell touch held' \
        -ex 'shell while [ ! -e go ]; do sleep 0.1; done' -ex detach >gdb.out 2>&1 </dev/null &
    gdb=$!
    await 30 "gdb at rank 1" eval "[ -e held ] || ! kill -0 $gdb"
    if [ ! -e held ]; then
        kill "$job"
        wait $job
        grep -qiE 'ptrace: |not permitted' gdb.out && echo "ptrace is not possible here" && exit 77
        cat gdb.out
        die "gdb did not hold rank 1"
    fi
    held=$(now_ms)
    await 10 "the report that names gdb" grep -qE "rank 1 \(host .*, pid $pid\): traced by gdb \(pid [0-9]+\)" err
    await 20 "the end of lease and verdict" eval "[ \$((\$(now_ms) - $held)) -gt $(((lease + 7) * 1000)) ] || ! kill -0 $job"
    kill -0 $job || die "$what: the job ended while rank 1 was held"
    touch enough go
    wait $gdb
    wait $job
    status=$?
    expect_status 0
    refuse_line err 'broken|lost|too long|the job ends'
    echo "ok $what: rank 1 in gdb for $((lease + 7)) s, the report names gdb, status 0"
}

export HVD_LEASE_SECONDS=$lease HVD_STALL_CHECK_TIME_SECONDS=1
for plane in shm tcp; do
    one "one host, plane $plane" "" env HVD_CPU_PLANE=$plane hvdrun -np 2 ./loop
done

# shellcheck source=tests/e2e/hosts.sh
. "$HVD_SRC/tests/e2e/hosts.sh"
(hosts_need) >why || { echo "ok without other hosts: $(tail -n 1 why)"; exit 0; }
hosts_need
hosts_up 2
one "another host" "hosts_exec 2" hosts_exec 1 hvdrun -H host1:1,host2:1 ./loop
