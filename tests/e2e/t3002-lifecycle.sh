#!/bin/bash
# deadline: 120
# init and shutdown a hundred times in one process, each in far less than a second (the figure is printed); a forked child is
# refused and harms nobody; exit without shutdown is a clean goodbye.
set -eu
cat >cycle.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void need(int ok, const char *what)
{
    if (ok)
        return;
    printf("not so: %s: %s\n", what, hvd_last_error());
    exit(1);
}

static void fork_once(void)
{
    int32_t v = 1;
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        if (hvd_get_state() != HVD_FORKED)
            _exit(1);
        if (hvd_allreduce(&v, &v, 1, HVD_INT32, HVD_SUM, "child") != HVD_EFORKED)
            _exit(2);
        if (hvd_init(NULL) != HVD_EFORKED)
            _exit(3);
        exit(0); /* with atexit: must say nothing to anybody */
    }
    need(waitpid(child, &status, 0) == child && status == 0, "the child was refused");
    need(hvd_allreduce(&v, &v, 1, HVD_INT32, HVD_SUM, "parent") == HVD_OK, "after fork");
    need(v == hvd_size(), "the sum after fork");
}

int main(void)
{
    double began_s = now_s();

    need(hvd_rank() < 0 && hvd_barrier(0) == HVD_ESTATE, "refused before init");
    for (int i = 0; i < 100; i++) {
        int32_t v = i;

        need(hvd_init(NULL) == HVD_OK, "init");
        need(hvd_allreduce(&v, &v, 1, HVD_INT32, HVD_SUM, "v") == HVD_OK, "allreduce");
        need(v == i * hvd_size(), "sum");
        need(hvd_shutdown() == HVD_OK, "shutdown");
        need(hvd_epoch() == 0, "no epoch when down");
    }
    double each_s = (now_s() - began_s) / 100;
    need(hvd_init(NULL) == HVD_OK, "init");
    fork_once();
    printf("%.4f s a cycle, rank %d\n", each_s, hvd_rank());
    need(each_s < LIMIT_S, "a cycle takes little time");
    return 0; /* atexit says goodbye */
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -DLIMIT_S=1.0 -std=gnu11 -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" cycle.c -o cycle \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
./cycle
for np in 2 4; do
    hvdrun -np $np ./cycle >out 2>err || { cat out err; exit 1; }
    cat out
    [ "$(grep -c 's a cycle' out)" = $np ]
done
