#!/bin/bash
# A helper of hvdrun dies in the middle of allreduces; a rank leaves without a word: what
# the person at the terminal reads, and the status.
# deadline: 90
. "$HVD_SRC/tests/e2e/lib.sh"

cat >loop.c <<'END'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* argv[1]: what rank 1 does after 200 rounds: "_exit", "exit", "shutdown"; or "" */
int main(int argc, char **argv)
{
    static float x[1024];
    enum hvd_status rc = HVD_OK;
    const char *act = argc > 1 ? argv[1] : "";

    if (hvd_init(NULL) != HVD_OK)
        return 9;
    for (long i = 0; rc == HVD_OK; i++) {
        rc = hvd_allreduce(x, x, 1024, HVD_FLOAT32, HVD_SUM, "t");
        if (i == 100 && hvd_rank() == 0) {
            printf("running\n");
            fflush(stdout);
        }
        if (i == 200 && hvd_rank() == 1 && strcmp(act, "_exit") == 0)
            _exit(0);
        if (i == 200 && hvd_rank() == 1 && strcmp(act, "exit") == 0)
            exit(0);
        if (i == 200 && hvd_rank() == 1 && strcmp(act, "shutdown") == 0)
            break;
    }
    printf("rank %d: %d: %s\n", hvd_rank(), (int)rc, rc != HVD_OK ? hvd_last_error() : "");
    fflush(stdout);
    hvd_shutdown();
    /* a program that does not mind */
    return strcmp(act, "_exit") == 0 && argc > 2 ? 0 : rc == HVD_OK ? 0 : 4;
}
END
compile loop.c loop

for part in coordinator agent keeper; do
    rm -f out err
    mark=$$.$RANDOM
    JOB_MARK=$mark hvdrun --grace 2 -np 3 ./loop >out 2>err &
    pid=$!
    await 20 "the first hundred allreduces" grep -qs running out
    await 3 "the $part" eval "victim=\$(${part}_of \$pid)"
    kill -KILL "${victim:?}"
    killed=$(now_ms)
    wait $pid
    status=$?
    took_ms=$(($(now_ms) - killed))
    expect_status 125
    expect_within 3000
    case $part in
    coordinator) expect_line err '^hvdrun: the coordinator was killed by signal 9 \(SIGKILL\); the job ends$' ;;
    agent) expect_line err '^hvdrun: the agent on localhost was killed by signal 9 \(SIGKILL\); the job ends$' ;;
    keeper) expect_line err '^hvdrun: localhost: the keeper process died' ;;
    esac
    [ "$(grep -c '^hvdrun: ' err)" = 1 ] || die "one line of hvdrun expected"
    await 2 "the end of all processes" nobody_carries JOB_MARK "$mark"
    echo "ok $part killed: one line, status 125, over after $took_ms ms"
done

run hvdrun --grace 2 -np 3 ./loop _exit mind-not
expect_status 1
expect_line err '^hvdrun: rank 1 on localhost \(pid [0-9]+\) ended \(status 0\) without hvd_shutdown\(\)'
expect_line out 'rank 0: -7: .*rank 1'
expect_within 4000
run hvdrun --grace 2 -np 3 ./loop _exit
expect_status 4
expect_line err '^hvdrun: rank 1 on localhost \(pid [0-9]+\) ended \(status 0\) without hvd_shutdown\(\)'
echo "ok a rank that leaves with _exit(0) is named; status 1, or that of a rank that failed for it"

for how in exit shutdown; do
    run hvdrun --grace 2 -np 3 ./loop $how
    expect_status 4
    expect_line out 'rank [02]: -8: .*rank 1'
    expect_within 4000
done
echo "ok after a normal exit or shutdown the others' calls say who left"

# an agent that closes its output: how it ends is awaited, and it is not called killed
mkdir odd
cp "$HVD_BUILD/bin/hvdrun" odd/hvdrun
ln -s "$HVD_BUILD/bin/hvd-coordinator" odd/hvd-coordinator
agent_that() {
    printf '#!/bin/sh\n%s\n' "$1" >odd/hvd-agent
    chmod +x odd/hvd-agent
    run odd/hvdrun -np 1 true
    expect_status 125
    expect_within 4000
    [ "$(wc -l <err)" = 1 ] || die "one line expected"
}
agent_that 'exec >&-; sleep 0.3; exit 3'
expect_line err '^hvdrun: the agent on localhost exited with status 3; the job ends$'
agent_that 'exec >&-; exec sleep 20'
expect_line err '^hvdrun: the agent on localhost closed its output and did not end; the job ends$'
echo "ok an agent that closes its output"
