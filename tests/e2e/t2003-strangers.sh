#!/bin/bash
# deadline: 60
# Garbage, half a hello, floods and port scans on the coordinator's listener: the job runs on
# undisturbed, and the log stays short.
. "$HVD_SRC/tests/e2e/lib.sh"
set -eu
fail() {
    echo "not so: $*"
    cat c.err w*.err
    exit 1
}
hvd-coordinator --np 2 --listen 127.0.0.1:0 --key-file key --linger 0.2 >c.out 2>c.err &
coord=$!
until=$((SECONDS + 10))
while ! [ -s c.out ]; do
    [ $SECONDS -lt $until ] || fail "the coordinator does not start"
    sleep 0.02
done
HVD_COORDINATOR=$(sed -n 's/.*HVD_COORDINATOR=\([^ ]*\) .*/\1/p' c.out)
export HVD_COORDINATOR HVD_KEY_FILE=$T/key
port=${HVD_COORDINATOR##*:}

cat >steps.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(void)
{
    struct timespec pause = {0, 20 * 1000 * 1000}, before, after;
    char name[16];
    long ms;

    for (int i = 0; i < 150; i++) {
        int32_t v = i;

        clock_gettime(CLOCK_MONOTONIC, &before);
        if (i % 50 == 0 && hvd_init(NULL) != HVD_OK) {
            fprintf(stderr, "init %d: %s\n", i, hvd_last_error());
            return 1;
        }
        clock_gettime(CLOCK_MONOTONIC, &after);
        ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
        if (i % 50 == 0) {
            printf("in after %ld ms\n", i > 0 ? ms : 0); /* the first waits for the other */
            fflush(stdout);
        }
        snprintf(name, sizeof name, "v%d", i); /* always new: each needs the coordinator */
        if (hvd_allreduce(&v, &v, 1, HVD_INT32, HVD_SUM, name) != HVD_OK || v != 2 * i) {
            fprintf(stderr, "step %d: %s\n", i, hvd_last_error());
            return 1;
        }
        nanosleep(&pause, NULL);
        if (i % 50 == 49)
            hvd_shutdown();
    }
    return 0;
}
C
cc -std=gnu11 -I"$HVD_SRC/worker/include" steps.c -o steps -L"$HVD_BUILD/lib" -lhvd \
    -Wl,-rpath,"$HVD_BUILD/lib"
./steps >w0.out 2>w0.err &
w0=$!
./steps >w1.out 2>w1.err &
w1=$!

# a wrong hello, over and over; some are cut short, some are far too long
for ((i = 0; i < 60; i++)); do
    { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || fail "no connection $i"
    head -c $((i * 40)) /dev/urandom >&3 2>/dev/null || true
    exec 3>&-
done
# 500 connections that say one byte a second, many more than the coordinator keeps
trap '' PIPE
counted=0 slow=100
fds=()
for ((i = 0; i < 500; i++)); do
    exec {fd}<>"/dev/tcp/127.0.0.1/$port" || fail "no connection $i"
    fds+=("$fd")
done
until_s=$((SECONDS + 40))
while kill -0 $w0 2>/dev/null; do
    [ $SECONDS -lt $until_s ] || fail "rank 0 has not ended within 40 s beside 500 slow strangers"
    for fd in "${fds[@]}"; do
        { printf H >&"$fd"; } 2>/dev/null || true # it may have been turned away by now
    done
    kept=$(find "/proc/$coord/fd" -mindepth 1 2>/dev/null | wc -l)
    # it shows them only to root: it holds a key
    if [ "$kept" -ge 3 ]; then counted=1; fi
    [ "$kept" -le 90 ] || fail "the coordinator keeps $kept descriptors"
    now=$(slowed)
    [ "$now" -le $slow ] || slow=$now
    sleep 1 # their pace: a byte a second
done
wait $w0 || fail "rank 0 is disturbed ($?)"
wait $w1 || fail "rank 1 is disturbed ($?)"
[ "$(wc -l <w0.out)" = 3 ] || fail "rank 0 did not come three times"
for ms in $(sed -n 's/^in after \([0-9]*\) ms$/\1/p' w0.out w1.out); do
    [ "$ms" -le $((10 * slow)) ] || fail "a hvd_init took $ms ms (all takes $slow %)"
done
for fd in "${fds[@]}"; do
    exec {fd}>&-
done
status=0
wait $coord || status=$?
[ $status = 0 ] || fail "the coordinator ended with $status"
lines=$(wc -l <c.err)
[ "$lines" -ge 1 ] && [ "$lines" -le 15 ] || fail "$lines lines about strangers"
grep -qv 'turned away' c.err && fail "something else than 'turned away' was said"

# A machine that connects over and over, as fast as it can and without a word, keeps nobody out:
# neither ranks of other addresses nor those of its own.
cat >flood.c <<'C'
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* flood SOURCE PORT: 3000 connections a second from there, and as many at once */
int main(int argc, char **argv)
{
    static int fds[3000];
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    struct timespec pause = {0, 1000 * 1000};

    if (argc != 3)
        return 2;
    from.sin_addr.s_addr = inet_addr(argv[1]);
    to.sin_addr.s_addr = inet_addr("127.0.0.1");
    to.sin_port = htons((unsigned short)atoi(argv[2]));
    alarm(20);
    for (unsigned i = 0;; i++) {
        int *fd = &fds[i % 3000];

        if (*fd > 0)
            close(*fd);
        *fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (bind(*fd, (struct sockaddr *)&from, sizeof from) != 0)
            return 1;
        connect(*fd, (struct sockaddr *)&to, sizeof to);
        if (i == 3000 && write(1, "on\n", 3) != 3)
            return 1;
        if (i % 3 == 0)
            nanosleep(&pause, NULL);
    }
}
C
cat >come.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <time.h>

int main(void)
{
    struct timespec a, b;

    clock_gettime(CLOCK_MONOTONIC, &a);
    if (hvd_init(NULL) != HVD_OK) {
        printf("%s\n", hvd_last_error());
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%ld\n", (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000);
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
C
cc -std=gnu11 flood.c -o flood
cc -std=gnu11 -I"$HVD_SRC/worker/include" come.c -o come -L"$HVD_BUILD/lib" -lhvd \
    -Wl,-rpath,"$HVD_BUILD/lib"
hard=$(ulimit -Hn)
sources="127.0.0.9 127.0.0.1"
if [ "$hard" != unlimited ] && [ "$hard" -lt 4096 ]; then
    echo "not checked: a flood; it needs 4096 open files"
    sources=
fi
for source in $sources; do
    hvd-coordinator --np 1 --listen 127.0.0.1:0 --key-file key --linger 3 >c.out 2>c2.err &
    coord=$!
    await 10 "the coordinator" test -s c.out
    HVD_COORDINATOR=$(sed -n 's/.*HVD_COORDINATOR=\([^ ]*\) .*/\1/p' c.out)
    (ulimit -n 4096; exec ./flood $source "${HVD_COORDINATOR##*:}") >flood.out &
    flood=$!
    await 10 "the flood" test -s flood.out
    for i in 1 2 3; do
        ./come >came || fail "beside a flood from $source: $(cat came)"
        echo "beside a flood from $source: in after $(cat came) ms"
        [ "$(cat came)" -le $((10 * slow)) ] || fail "a hvd_init beside a flood from $source took $(cat came) ms"
    done
    kill $flood $coord
    for pid in $flood $coord; do
        status=0
        wait "$pid" || status=$?
        [ $status = 143 ] || fail "the flood or its coordinator (pid $coord) ended with $status: pid $pid"
    done
done
if [ $counted = 0 ]; then
    [ "$(id -u)" != 0 ] || fail "the coordinator's descriptors cannot be counted"
    echo "not checked: how many descriptors the coordinator keeps; only root sees them"
fi
echo "strangers harm nobody ($lines lines)"
