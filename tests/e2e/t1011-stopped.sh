#!/bin/bash
# The coordinator or the agent is stopped (SIGSTOP): said at once; when it goes on, so does
# the job; when it does not, the job ends with one line that says which, status 125.
. "$HVD_SRC/tests/e2e/lib.sh"

compile "$HVD_SRC/tests/e2e/loop.c" loop

# Start a job whose pid is $pid and whose part $1 is $victim; $2 = lease in seconds
begin() {
    rm -f enough out err
    mark=$$.$RANDOM
    HVD_LEASE_SECONDS=$2 JOB_MARK=$mark hvdrun --grace 2 -np 2 ./loop >out 2>err &
    pid=$!
    await 20 "the first allreduces" grep -qs running out
    await 3 "the $1" eval "victim=\$($1_of \$pid)"
    kill -STOP "${victim:?}"
    stopped=$(now_ms)
    await 2 "the word that the $1 is stopped" grep -qE "^hvdrun: the $1.* \(pid $victim\) is stopped \(SIGSTOP\)" err
}

for part in coordinator agent; do
    begin $part 15
    kill -CONT "$victim"
    await 2 "the word that the $part goes on" grep -qE "^hvdrun: the $part.* \(pid $victim\) goes on$" err
    touch enough
    wait $pid
    status=$?
    expect_status 0
    [ "$(grep -c '^hvdrun: ' err)" = 2 ] || die "two lines of hvdrun expected"
    echo "ok $part stopped and continued: two lines, status 0"

    begin $part 3
    wait $pid
    status=$?
    took_ms=$(($(now_ms) - stopped))
    expect_status 125
    expect_within 12000
    expect_line err "^hvdrun: the $part.* \(pid $victim\) is stopped \(SIGSTOP\) and was not heard of for too long; the job ends$"
    [ "$(grep -c '^hvdrun: ' err)" = 2 ] || die "two lines of hvdrun expected"
    await 2 "the end of all processes" nobody_carries JOB_MARK "$mark"
    echo "ok $part stopped for good: status 125, over after $took_ms ms"
done

HVD_LEASE_SECONDS=1 run hvdrun -np 1 true
expect_status 2
expect_line err '^hvdrun: HVD_LEASE_SECONDS: 1 is out of range'
echo "ok a lease that is too short is refused"
