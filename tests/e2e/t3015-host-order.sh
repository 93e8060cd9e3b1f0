#!/bin/bash
# deadline: 100
# Several "hosts" (HVD_HOSTNAME), where one rank forwards the order to its host: a small id
# cache, so that ids change their meaning all the time; ranks leave, the forwarders first,
# while a process set goes on; ranks disagree about an operation while others are under way;
# every rank, the forwarders too, is stopped for a while; a forwarder that dies ends the job
# on every rank.
set -eu
cat >order.c <<'C'
#include <hvd/hvd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static int n;

static hvd_handle sum_of(float *v, int64_t count, int32_t pset, const char *stem, int i)
{
    struct hvd_op op = {.size = sizeof op, .kind = HVD_ALLREDUCE, .reduce_op = HVD_SUM, .pset = pset};
    hvd_handle h = 0;
    char name[32];

    snprintf(name, sizeof name, "%s.%d", stem, i);
    op.name = name;
    op.in = (struct hvd_tensor){.data = v, .dims = &count, .ndim = 1, .dtype = HVD_FLOAT32};
    op.out = op.in;
    IS(hvd_enqueue(&op, &h) == HVD_OK);
    return h;
}

static hvd_handle sum(float *v, int32_t pset, const char *stem, int i)
{
    return sum_of(v, 1, pset, stem, i);
}

/* This process stands still for 20 ms, some ms from now. */
static void stop_for_a_while(int from_now_ms)
{
    pid_t me = getpid();
    pid_t child = fork();

    IS(child >= 0);
    if (child > 0)
        return;
    usleep(from_now_ms * 1000);
    kill(me, SIGSTOP);
    usleep(20 * 1000);
    kill(me, SIGCONT);
    _exit(0);
}

/* order leave|stop|die */
int main(int argc, char **argv)
{
    int32_t odd[8], set = 0, nodd = 0;
    hvd_handle h[20];
    float v[20], odd_one[2];
    int stops = argc == 2 && strcmp(argv[1], "stop") == 0;

    signal(SIGCHLD, SIG_IGN);
    IS(argc == 2 && hvd_init(NULL) == HVD_OK);
    n = hvd_size();
    for (int r = 1; r < n; r += 2)
        odd[nodd++] = r;
    IS(hvd_pset_add(odd, nodd, &set) == HVD_OK);
    for (int step = 0; step < 15; step++) { /* 20 names, a cache of 8 */
        for (int i = 0; i < 20; i++)
            v[i] = (float)(hvd_rank() + step);
        /* the last rank brings another size from time to time */
        hvd_handle differs = sum_of(odd_one, hvd_rank() == n - 1 && step % 3 == 0 ? 2 : 1, 0, "size", 0);
        if (stops && step % n == hvd_rank())
            stop_for_a_while(step % 4);
        for (int k = 0; k < 20; k++) {
            int i = (k * 7 + hvd_rank() * 3 + step) % 20; /* another order on every rank */

            h[i] = sum(&v[i], 0, "grad", i);
        }
        for (int i = 0; i < 20; i++) {
            IS(hvd_wait(h[i], HVD_WAIT_DONE, 20000) == HVD_OK);
            IS(v[i] == (float)(n * (n - 1) / 2 + n * step));
            IS(hvd_release(h[i]) == HVD_OK);
        }
        IS(hvd_wait(differs, HVD_WAIT_DONE, 20000) == (step % 3 == 0 ? HVD_EMISMATCH : HVD_OK));
        IS(hvd_release(differs) == HVD_OK);
    }
    if (strcmp(argv[1], "die") == 0) {
        float x = 1;

        enum hvd_status rc = hvd_barrier(0); /* may not have ended everywhere */
        if (hvd_rank() == 2) /* the forwarder of the second host */
            raise(SIGKILL);
        if (rc == HVD_OK)
            rc = hvd_allreduce(&x, &x, 1, HVD_FLOAT32, HVD_SUM, "never");
        printf("rank %d: %s\n", hvd_rank(), rc == HVD_EPEER ? "told of the loss" : "not told");
        return rc == HVD_EPEER ? 0 : 1;
    }
    for (int i = 0; hvd_rank() % 2 == 1 && i < 100; i++) {
        float x = 1;
        hvd_handle one = sum(&x, set, "odd", i % 12);

        IS(hvd_wait(one, HVD_WAIT_DONE, 20000) == HVD_OK && x == (float)nodd);
        IS(hvd_release(one) == HVD_OK);
    }
    IS(hvd_shutdown() == HVD_OK);
    printf("is content\n");
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -g -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" order.c -o order \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"

# $1 = ranks, $2 = ranks of a host, $3 = what they do
job() {
    HVD_LOG=form:info hvdrun -np "$1" --cache-capacity 8 \
        sh -c "HVD_HOSTNAME=h\$((HVD_RANK / $2)) exec ./order $3" >out 2>err
}

for hosts in "4 2 leave" "6 3 leave" "5 2 leave" "5 2 stop"; do
    # shellcheck disable=SC2086
    job $hosts || { cat out err; exit 1; }
    [ "$(grep -c 'is content' out)" = "${hosts%% *}" ] || { cat out err; exit 1; }
    grep -q 'plane=hosts' err || { echo "not on plane hosts"; cat err; exit 1; }
    echo "ranks, ranks of a host, what they do: $hosts: done"
done
if job 4 2 die; then
    echo "a rank was killed, and the job says that all is well"
    exit 1
fi
[ "$(grep -c 'told of the loss' out)" = 3 ] || { cat out err; exit 1; }
echo "a forwarder's death is told"
