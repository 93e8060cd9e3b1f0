#!/bin/bash
# The coordinator or the agent is stopped (SIGSTOP): said at once; when it goes on, so does
# the job; when it does not, the job ends with one line that says which, status 125.
. "$HVD_SRC/tests/e2e/lib.sh"

cat >loop.c <<'END'
#include <hvd/hvd.h>
#include <stdio.h>
#include <unistd.h>

/* Until there is a file "enough". */
int main(void)
{
    static float x[1024];
    enum hvd_status rc = HVD_OK;
    float end = 0, any = 0;

    if (hvd_init(NULL) != HVD_OK)
        return 9;
    for (long i = 0; rc == HVD_OK && any == 0; i++) {
        end = access("enough", F_OK) == 0;
        rc = hvd_allreduce(x, x, 1024, HVD_FLOAT32, HVD_SUM, "t");
        if (rc == HVD_OK)
            rc = hvd_allreduce(&end, &any, 1, HVD_FLOAT32, HVD_MAX, "end");
        if (i == 10 && hvd_rank() == 0) {
            printf("running\n");
            fflush(stdout);
        }
        usleep(1000);
    }
    hvd_shutdown();
    return rc == HVD_OK ? 0 : 4;
}
END
compile loop.c loop

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
