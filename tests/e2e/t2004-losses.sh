#!/bin/bash
# deadline: 60
# A standalone job loses a rank: the others hear who, and the coordinator ends with 1. A
# stopped coordinator tells its ranks. A stalled operation is reported with tensor and rank.
. "$HVD_SRC/tests/e2e/lib.sh"
set -eu
die() { # with what the job's processes have said
    echo "not so: $*"
    for f in *.out *.err; do [ -s "$f" ] && sed "s/^/$f: /" "$f"; done
    exit 1
}
cat >loop.c <<'C'
#include <hvd/hvd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* loop WHAT RANK: that rank does it at step 50: kill, exit, sleep (before its allreduce) */
int main(int argc, char **argv)
{
    (void)argc;
    if (hvd_init(NULL) != HVD_OK) {
        fprintf(stderr, "init: %s\n", hvd_last_error());
        return 1;
    }
    for (int i = 0;; i++) {
        float v = 1;
        bool_step:
        if (i == 50 && hvd_rank() == atoi(argv[2])) {
            if (strcmp(argv[1], "kill") == 0)
                raise(SIGKILL);
            if (strcmp(argv[1], "exit") == 0)
                _exit(0);
            if (strcmp(argv[1], "sleep") == 0)
                sleep(30);
            if (strcmp(argv[1], "ready") == 0) {
                puts("running");
                fflush(stdout);
            }
        }
        if (hvd_allreduce(&v, &v, 1, HVD_FLOAT32, HVD_SUM, "v") != HVD_OK) {
            fprintf(stderr, "%s\n", hvd_last_error());
            return 3;
        }
        if (i == -1)
            goto bool_step;
    }
}
C
sed -i '/bool_step/d; /if (i == -1)/d' loop.c
cc -std=gnu11 -I"$HVD_SRC/worker/include" loop.c -o loop -L"$HVD_BUILD/lib" -lhvd \
    -Wl,-rpath,"$HVD_BUILD/lib"

# Start a job of 3: loop $1 $2; more options in $3
start() {
    rm -f ./*.out ./*.err
    # shellcheck disable=SC2086
    hvd-coordinator --np 3 --listen 127.0.0.1:0 --key-file key --linger 0.2 ${3:-} >c.out 2>c.err &
    coord=$!
    await 10 "the coordinator" test -s c.out
    HVD_COORDINATOR=$(sed -n 's/.*HVD_COORDINATOR=\([^ ]*\) .*/\1/p' c.out)
    export HVD_COORDINATOR HVD_KEY_FILE=$T/key
    for i in 0 1 2; do
        HVD_RANK=$i ./loop "$1" "$2" >w$i.out 2>w$i.err &
        eval "w$i=$!"
    done
}

# $1 = rank, $2 = status
ended() {
    local status=0 pid
    eval "pid=\$w$1"
    wait "$pid" || status=$?
    [ $status = "$2" ] || die "rank $1 ended with $status, not $2"
}

for how in kill exit; do
    start $how 1
    case $how in kill) ended 1 137 ;; exit) ended 1 0 ;; esac
    ended 0 3
    ended 2 3
    grep -q 'rank 1 (.*) was lost: connection lost' w0.err || die "rank 0 is not told who"
    grep -q 'rank 1 (.*) was lost: connection lost' w2.err || die "rank 2 is not told who"
    status=0
    wait $coord || status=$?
    [ $status = 1 ] || die "the coordinator ended with $status after a loss"
    grep -q 'rank 1 (host .*, pid .*): connection lost' c.err || die "the coordinator is silent"
done

start ready 0
await 10 "step 50 of rank 0" test -s w0.out
kill -TERM $coord
for i in 0 1 2; do
    ended $i 3
    grep -q 'the coordinator was stopped (SIGTERM)' w$i.err || die "rank $i is not told why"
done
status=0
wait $coord || status=$?
[ $status = 143 ] || die "a terminated coordinator ended with $status"

# Stopped, not ended: its connections stay. Ranks at work, one that waits in hvd_init for
# others, and one that connects now say so after the lease.
export HVD_LEASE_SECONDS=3
start ready 0
await 10 "step 50 of rank 0" test -s w0.out
at_work=$HVD_COORDINATOR
HVD_LOG=debug hvd-coordinator --np 2 --listen "unix:$T/sock" --key-file key >c2.out 2>c2.err &
coord2=$!
HVD_COORDINATOR=unix:$T/sock ./loop sleep 0 2>w3.err &
# shellcheck disable=SC2034 # ended() reads it
w3=$!
await 10 "a rank in hvd_init at the second coordinator" grep -q HELLO c2.err
kill -STOP $coord $coord2
./loop sleep 0 2>w4.err &
# shellcheck disable=SC2034
w4=$!
SECONDS=0
for i in 0 1 2; do ended $i 3; done
ended 3 1
ended 4 1
[ $SECONDS -le 8 ] || die "a stopped coordinator is noticed after $SECONDS s"
for i in 0 1 2 4; do
    grep -q "the coordinator at $at_work has not answered for [34] s, since ..:..:..; is it stopped?" \
        w$i.err || die "rank $i does not say that the coordinator is stopped"
done
grep -q "the coordinator at unix:$T/sock has not answered for [34] s" w3.err ||
    die "a rank in hvd_init does not say that the coordinator is stopped"
kill -KILL $coord $coord2
for pid in $coord $coord2; do
    status=0
    wait "$pid" || status=$?
    [ $status = 137 ] || die "a stopped coordinator ended by itself, with $status"
done

# the others wait longer than the lease, and ask: this coordinator answers
start sleep 2 '--stall-warning 1 --stall-shutdown 5'
ended 0 3
ended 1 3
# shellcheck disable=SC2154 # start() sets it
kill -KILL "$w2"
grep -q "allreduce 'v' has waited 1\.[0-9] s for rank 2 (host .*): in the program; last submitted 'v'" \
    c.err || die "no stall report"
grep -q "stalled: allreduce 'v' has waited 5\.[0-9] s for rank 2" c.err || die "no stall shutdown"
grep -q "allreduce 'v' has waited" w0.err || die "rank 0 is not told of the stall"
status=0
wait $coord || status=$?
[ $status = 125 ] || die "after a stall shutdown the coordinator ended with $status"
echo "losses are well"
