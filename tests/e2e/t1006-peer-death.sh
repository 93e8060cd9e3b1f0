#!/bin/bash
# A rank is killed in the middle of allreduces, also one whose forked child is alive and keeps
# its sockets: the loss is reported within half a second, the calls of the others return
# HVD_EPEER and name the rank, and the job ends within the grace time and a second.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"

cat >loop.c <<'END'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static float x[65536];
    char name[32];
    enum hvd_status rc = HVD_OK;

    if (hvd_init(NULL) != HVD_OK)
        return 9;
    if (hvd_rank() == 1 && argc > 1) { /* a child that keeps what we have open */
        if (fork() == 0) {
            if (strcmp(argv[1], "session") == 0)
                setsid();
            sleep(300);
            _exit(0);
        }
    }
    for (long i = 0; rc == HVD_OK; i++) {
        snprintf(name, sizeof name, "t%ld", i % 8);
        rc = hvd_allreduce(x, x, 65536, HVD_FLOAT32, HVD_SUM, name);
        if (i == 100 && hvd_rank() == 0) {
            printf("running\n");
            fflush(stdout);
        }
    }
    printf("rank %d: %d: %s\n", hvd_rank(), (int)rc, hvd_last_error());
    fflush(stdout);
    if (argc > 2) /* stays although it knows: the launcher must end it */
        sleep(300);
    return 4;
}
END
compile loop.c loop

# $1 = plane, $2... = arguments of the program
one() {
    local plane=$1 pid victim killed reported mark=$$.$RANDOM
    shift
    rm -f out err
    JOB_MARK=$mark HVD_CPU_PLANE=$plane hvdrun --grace 2 -np 3 ./loop "$@" >out 2>err &
    pid=$!
    await 20 "the first hundred allreduces" grep -qs running out
    await 5 "rank 1" eval 'victim=$(rank_number $pid loop 1)'
    kill -KILL "${victim:?}"
    killed=$(now_ms)
    await 5 "the report" grep -q "hvdrun: rank 1 on localhost (pid $victim) was killed by signal 9 (SIGKILL)" err
    reported=$(($(now_ms) - killed))
    wait $pid
    status=$?
    took_ms=$(($(now_ms) - killed))
    expect_status 137
    [ $reported -le 500 ] || die "reported after $reported ms"
    expect_within 3000
    for rank in 0 2; do
        expect_line out "^\[$rank\]<stdout>:rank $rank: -7: .*rank 1"
    done
    await 2 "the end of all processes" nobody_carries JOB_MARK "$mark"
    echo "ok $plane ${*:-plain}: reported after $reported ms, over after $took_ms ms"
}

for plane in shm tcp; do
    one $plane
    one $plane group
    one $plane session
    one $plane group stay
done
