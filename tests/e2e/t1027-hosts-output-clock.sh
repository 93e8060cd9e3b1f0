#!/bin/bash
# Output across hosts: who reads slowly, or not at all for longer than the lease, holds up
# output and nothing else; what a rank wrote before it was killed arrives. Clocks that jump
# by an hour, forth and back, change nothing.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 3
compile "$HVD_SRC/tests/e2e/steps.c" steps

cat >jump.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

/* The wall clock, an hour ahead and an hour behind in turn, every 100 ms. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);

    if (real == 0)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (real(id, t) != 0)
        return -1;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        t->tv_sec += t->tv_nsec / 100000000 % 2 ? 3600 : -3600;
    return 0;
}

int gettimeofday(struct timeval *restrict v, void *restrict zone)
{
    struct timespec t;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    v->tv_sec = t.tv_sec;
    v->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}
END
"${CC:-cc}" -O1 -shared -fPIC -o jump.so jump.c || die "cannot compile jump.c"
LD_PRELOAD=$T/jump.so sh -c 'date +%s; sleep 0.1; date +%s' | awk '{ d[NR] = $1 } END { exit !(d[1] - d[2] > 3000 || d[2] - d[1] > 3000) }' ||
    echo "the clock did not jump between two looks" # they may have been 200 ms apart

# A reader that stands still for 20 s, the last 5 of them beyond the lease.
mkfifo pipe
sh -c 'kill -STOP $$; exec cat' <pipe >got &
reader=$!
(
    # shellcheck disable=SC2016
    hosts_exec 1 hvdrun -H host1:1,host2:2,host3:1 sh -c '
        ./steps 1 1000 & i=0
        while [ $i -lt 40000 ]; do echo "$HVD_RANK line $i of many, long enough to fill what there is"; i=$((i + 1)); done
        wait' >pipe 2>slow.err
    echo $? >status
) &
stopped=$(now_ms)

# meanwhile
(
    export LD_PRELOAD=$T/jump.so
    hvdrun -np 3 ./steps 8 4096 5 >clock.out 2>clock.err
    echo $? >clock.status
) &
clock_began=$(now_ms)
run hosts_exec 1 hvdrun -H host2,host3 sh -c 'i=0; while [ $i -lt 3000 ]; do echo "$HVD_RANK $i"; i=$((i + 1)); done; [ $HVD_RANK = 0 ] || kill -9 $$; sleep 20'
expect_status 137
[ "$(grep -c '^\[1\]<stdout>:1 ' out)" = 3000 ] || die "of 3000 lines before a kill $(grep -c '^\[1\]' out) arrived"
echo "ok all lines of a rank that was killed after it had written them"

await 30 "the end of the job whose clocks jump" test -s clock.status
[ "$(cat clock.status)" = 0 ] || { cat clock.out clock.err; die "clocks that jump: status $(cat clock.status)"; }
[ -s clock.err ] && { cat clock.err; die "clocks that jump: nothing expected on stderr"; }
[ $(($(now_ms) - clock_began)) -ge 7000 ] || die "8 s were shorter"
echo "ok clocks that jump by an hour change nothing"

left=$((20000 - ($(now_ms) - stopped)))
[ $left -gt 0 ] && sleep "$((left / 1000)).$(printf %03d $((left % 1000)))"
[ -s status ] && { cat slow.err; die "the job ended while nobody read: $(cat status)"; }
kill -CONT $reader
await 30 "the end of the job once somebody reads" test -s status
wait $reader
[ "$(cat status)" = 0 ] || { cat slow.err; die "status $(cat status)"; }
for r in 0 1 2 3; do
    [ "$(grep -c "^\[$r\]<stdout>:$r line" got)" = 40000 ] || die "of rank $r's 40000 lines $(grep -c "^\[$r\]<stdout>:$r line" got) arrived"
    grep "^\[$r\]<stdout>:$r line" got | awk '{ if ($3 != NR - 1) exit 1 }' || die "rank $r's lines are out of order"
done
[ -s slow.err ] && { cat slow.err; die "nothing expected on stderr"; }
echo "ok nobody read for 20 s: the job waited, and 160000 lines arrived in order"
