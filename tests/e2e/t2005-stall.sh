#!/bin/bash
# deadline: 60
# A stall is named: which operation, which rank it waits for, and what that rank does: in the
# program, in another collective, stopped. The job goes on when the rank comes.
set -eu
fail() {
    echo "not so: $*"
    sed 's/^/out: /' out
    sed 's/^/err: /' err
    exit 1
}
cat >stall.c <<'C'
#include <hvd/hvd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int sum(const char *name)
{
    float v = 1;

    if (hvd_allreduce(&v, &v, 1, HVD_FLOAT32, HVD_SUM, name) == HVD_OK)
        return v == (float)hvd_size();
    fprintf(stderr, "%s: %s\n", name, hvd_last_error());
    return 0;
}

/* with_sum: the barrier is waited for in vain first, then "grad" is reduced. */
static int barrier(int first_ms, int with_sum)
{
    struct hvd_op op = {.size = sizeof op, .kind = HVD_BARRIER, .name = "other"};
    hvd_handle h;
    int ok = hvd_enqueue(&op, &h) == HVD_OK;

    if (with_sum)
        ok = ok && hvd_wait(h, HVD_WAIT_DONE, first_ms) == HVD_ETIMEDOUT && sum("grad");
    return ok && hvd_wait(h, HVD_WAIT_DONE, -1) == HVD_OK && hvd_release(h) == HVD_OK;
}

static void stop(void)
{
    printf("stop %d\n", (int)getpid());
    fflush(stdout);
    raise(SIGSTOP);
}

/* The process stands still; within 10 s. */
static int await_stopped(int pid)
{
    char path[64], state;
    struct timespec pause = {0, 1000000};

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    for (int i = 0; i < 10000; i++) {
        FILE *f = fopen(path, "r");
        int read = f != NULL && fscanf(f, "%*d (%*[^)]) %c", &state) == 1;

        if (f != NULL)
            fclose(f);
        if (read && state == 'T')
            return 1;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "process %d did not stop in 10 s\n", pid);
    return 0;
}

/* Ranks 0 and 2 meet, again and again. Rank 1 is stopped: no member, but the first rank of
 * rank 2's host. */
static int outsider(void)
{
    int32_t pid = hvd_rank() == 1 ? (int32_t)getpid() : 0;
    static const int32_t ranks[] = {0, 2};
    struct hvd_op op = {.size = sizeof op, .kind = HVD_BARRIER, .name = "ours"};
    hvd_handle h;

    if (hvd_pset_add(ranks, 2, &op.pset) != HVD_OK ||
        hvd_allreduce(&pid, &pid, 1, HVD_INT32, HVD_SUM, "who stops") != HVD_OK)
        return 0;
    if (hvd_rank() == 1) {
        stop();
        return 1;
    }
    if (hvd_rank() == 2 && !await_stopped(pid))
        return 0;
    for (int i = 0; i < 1000; i++)
        if (hvd_enqueue(&op, &h) != HVD_OK || hvd_wait(h, HVD_WAIT_DONE, -1) != HVD_OK ||
            hvd_release(h) != HVD_OK)
            return 0;
    return 1;
}

/* stall busy|crossed|stopped|outsider: what rank 2, or 1, does before "grad" again */
int main(int argc, char **argv)
{
    int crossed = argc == 2 && strcmp(argv[1], "crossed") == 0;
    int ok;

    if (argc != 2 || hvd_init(NULL) != HVD_OK)
        return 1;
    ok = sum("first") && sum("grad");
    if (hvd_rank() == 2 && strcmp(argv[1], "busy") == 0)
        usleep(1700 * 1000);
    if (hvd_rank() == 2 && strcmp(argv[1], "stopped") == 0)
        stop();
    if (strcmp(argv[1], "outsider") == 0)
        ok = ok && outsider();
    if (hvd_rank() == 2 && crossed)
        ok = ok && barrier(1700, 1);
    else
        ok = ok && sum("grad") && (!crossed || barrier(0, 0));
    hvd_shutdown();
    return ok ? 0 : 1;
}
C
sed -i '/(void)v;/d; /float v = 1;\n    int ok/d' stall.c
cc -std=gnu11 -I"$HVD_SRC/worker/include" stall.c -o stall -L"$HVD_BUILD/lib" -lhvd \
    -Wl,-rpath,"$HVD_BUILD/lib"

# $1 = what happens, $2 = plane (hosts: ranks 1 and 2 share one), $3 = the operation that waits,
# $4 = rank it waits for, $5 = what the report says of it
job() {
    local until pid status=0 job
    local plane=$2 host=one
    # shellcheck disable=SC2016
    [ "$plane" != hosts ] || { plane=auto; host='h$(((HVD_RANK + 1) / 2))'; }
    HVD_STALL_CHECK_TIME_SECONDS=1 HVD_CPU_PLANE=$plane hvdrun -np 3 \
        sh -c "HVD_HOSTNAME=$host exec ./stall $1" >out 2>err &
    job=$!
    until=$((SECONDS + 20))
    while ! grep -q "$3 has waited 1\.[0-9] s for rank $4 (host .*, pid [0-9]*): $5" err; do
        [ $SECONDS -lt $until ] || fail "$1, plane $2: no report that says '$5'"
        sleep 0.05
    done
    pid=$(sed -n 's/.*stop \([0-9]*\)$/\1/p' out)
    [ -z "$pid" ] || kill -CONT "$pid"
    wait $job || status=$?
    [ $status = 0 ] || fail "$1, plane $2: the job ended with $status"
    grep "$3.* has waited.* for rank" err | grep -q "for rank [^$4]\|; rank" &&
        fail "$1, plane $2: others are blamed"
    return 0
}

grad="allreduce 'grad'"
for plane in shm tcp hosts; do
    job busy $plane "$grad" 2 "[a-z]*, in the program; last submitted 'grad'"
    job stopped $plane "$grad" 2 stopped
    job crossed $plane "$grad" 2 "[a-z]*, waits in barrier 'other'"
done
job outsider hosts "$grad" 1 stopped # not the barriers before
echo "stalls are named"
