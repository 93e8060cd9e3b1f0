#!/bin/bash
# Ranks that do not come together: a rank that ends before hvd_init, only some ranks that
# call it, and settings of the start timeout.
# deadline: 90
. "$HVD_SRC/tests/e2e/lib.sh"

cat >some.c <<'END'
#include <hvd/hvd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* argv[1]: what rank 1 does instead of hvd_init; rank 3 comes when rank 0 has gone */
int main(int argc, char **argv)
{
    const char *rank = getenv("HVD_RANK");
    enum hvd_status rc;

    if (strcmp(argv[1], "waits") == 0) { /* for rank 2, which never comes */
        if (rank[0] == '2')
            pause();
    } else if (rank[0] == '1') {
        if (strcmp(argv[1], "sleep") == 0)
            sleep(300);
        return atoi(argv[1]);
    }
    if (rank[0] == '0') {
        FILE *f = fopen("pid", "w");

        fprintf(f, "%d", getpid());
        fclose(f);
    }
    if (rank[0] == '3') {
        FILE *f = NULL;
        int pid = 0;

        signal(SIGTERM, SIG_IGN);
        alarm(20); /* ends it with SIGALRM, if what it awaits does not come */
        while ((f = fopen("pid", "r")) == NULL || fscanf(f, "%d", &pid) != 1)
            usleep(1000);
        while (kill(pid, 0) == 0)
            usleep(1000);
        alarm(0);
    }
    rc = hvd_init(NULL);
    printf("rank %s: %d: %s\n", rank, (int)rc, hvd_last_error());
    return rc == HVD_OK ? 0 : 5;
}
END
compile some.c some

run hvdrun --start-timeout 1 --grace 2 -np 3 ./some sleep
expect_status 125
expect_line err '^hvdrun: .*rank 1'
expect_line out '^\[0\]<stdout>:rank 0: -6: .*rank 1'
expect_line out '^\[2\]<stdout>:rank 2: -6: .*rank 1'
refuse_line err 'rank [02] on localhost'
expect_within 6000
echo "ok a rank that never calls hvd_init is named after the start timeout"

run hvdrun --start-timeout 1 --grace 2 -np 3 ./some 0
expect_status 125
expect_line err '^hvdrun: .*rank 1.*exited'
expect_within 6000
echo "ok a rank that ended (status 0) before hvd_init is named, with its state"

run hvdrun --grace 2 -np 3 ./some 6
expect_status 6
expect_line err '^hvdrun: rank 1 on localhost \(pid [0-9]+\) exited with status 6'
expect_within 4000
echo "ok a rank that failed before hvd_init ends the job with its status"

rm -f pid
run hvdrun --grace 5 -np 4 ./some 6
expect_status 6
expect_line err '^hvdrun: rank 1 on localhost \(pid [0-9]+\) exited with status 6'
for rank in 0 2 3; do
    expect_line out "^\[$rank\]<stdout>:rank $rank: -7: .*rank 1 .*exited with status 6 before hvd_init"
done
echo "ok the first that failed is named, also to those who come when others have given up"

HVD_LOG=net:debug hvdrun --grace 5 -np 3 ./some waits >out 2>err &
job=$!
two_wait() { [ "$(grep -c ' HELLO ' err)" = 2 ]; }
await 10 "ranks 0 and 1 in hvd_init" two_wait
is_up() { rank_number $job some 1 >pid1; }
await 10 "rank 1" is_up
kill -ALRM "$(cat pid1)"
wait $job
status=$?
expect_status 142
expect_line out "^\[0\]<stdout>:rank 0: -7: .*rank 1 .*killed by SIGALRM while it waited in hvd_init"
echo "ok a rank that is killed while it waits in hvd_init is said to have come"

HOROVOD_START_TIMEOUT=1 run hvdrun -np 3 ./some sleep
expect_status 125
expect_within 6000
echo "ok HOROVOD_START_TIMEOUT counts"

run hvdrun -np 2 hostname
expect_status 0
[ "$(grep -c "^\[[01]\]<stdout>:$(hostname)$" out)" = 2 ] || die "two lines expected"
echo "ok programs that never call hvd_init need not"
