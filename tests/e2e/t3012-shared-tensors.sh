#!/bin/bash
# Tensors from hvd_alloc, which peers read and write where they lie: the same bits as
# ordinary ones, alone and fused, whole and in parts, with some ranks' tensors ordinary, while
# memory is freed and allocated again. After a failure nobody else sees them any more.
set -eu
cat >shared.c <<'C'
#include <hvd/hvd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { TENSORS = 40, ROUNDS = 6 };
static int me, n;
static int64_t count_of(int i)
{
    static const int64_t counts[] = {3, 1000, 70001, 20, 300000, 16384, 1, 50001};

    return counts[i % 8];
}

static void fill(float *v, int64_t count, int i, int round)
{
    for (int64_t k = 0; k < count; k++)
        v[k] = (float)((k * 7 + i * 13 + round * 5 + me * 3) % 1001) * 0.37f - 150;
}

static hvd_handle sum(float *v, int64_t count, const char *kind, int i)
{
    char name[40];
    int64_t dims[1] = {count};
    struct hvd_op op;
    hvd_handle h;

    snprintf(name, sizeof name, "%s/%d", kind, i);
    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = HVD_ALLREDUCE;
    op.reduce_op = HVD_AVERAGE;
    op.name = name;
    op.in = op.out =
        (struct hvd_tensor){.data = v, .dims = dims, .ndim = 1, .dtype = HVD_FLOAT32};
    IS(hvd_enqueue(&op, &h) == HVD_OK);
    return h;
}

static void finish(hvd_handle *h)
{
    IS(hvd_wait_all(h, TENSORS, HVD_WAIT_DONE, 60000) == HVD_OK);
    for (int i = 0; i < TENSORS; i++)
        IS(hvd_release(h[i]) == HVD_OK);
}

int main(int argc, char **argv)
{
    bool mixed = argc > 1 && strcmp(argv[1], "mixed") == 0;
    static float *v[TENSORS], *whole[TENSORS], *want[TENSORS];
    hvd_handle h[TENSORS];

    IS(hvd_init(NULL) == HVD_OK);
    me = hvd_rank();
    n = hvd_size();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < TENSORS; i++) {
            size_t bytes = (size_t)count_of(i) * sizeof(float);

            if (round == 0)
                want[i] = malloc(bytes);
            if (round == 0 || (round == 3 && i % 3 == 0)) { /* some anew */
                hvd_free(whole[i]);
                whole[i] = hvd_alloc(bytes + 400);
                IS(whole[i] != NULL && whole[i][99] == 0);
            }
            /* a part, at any element; or an ordinary tensor */
            v[i] = whole[i] + i % 7;
            if (mixed && (i + me) % 2 == 0)
                v[i] = malloc(bytes);
            IS(v[i] != NULL && want[i] != NULL);
            fill(v[i], count_of(i), i, round);
            memcpy(want[i], v[i], bytes);
        }
        for (int i = TENSORS - 1; i >= 0; i--)
            h[i] = sum(want[i], count_of(i), "ordinary", i);
        finish(h);
        for (int i = TENSORS - 1; i >= 0; i--)
            h[i] = sum(v[i], count_of(i), "shared", i);
        finish(h);
        for (int i = 0; i < TENSORS; i++) {
            IS(memcmp(v[i], want[i], (size_t)count_of(i) * sizeof(float)) == 0);
            if (mixed && (i + me) % 2 == 0)
                free(v[i]);
        }
    }
    for (int i = 0; i < TENSORS; i++) { /* freed while peers may still read */
        v[i] = whole[i];
        h[i] = sum(v[i], count_of(i), "last", i);
        hvd_free(whole[i]);
    }
    finish(h);
    IS(hvd_shutdown() == HVD_OK);
    printf("rank %d is done\n", me);
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -g -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" shared.c -o shared \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
for how in all mixed; do
    for np in 2 3; do
        timeout -k 5 60 hvdrun -np $np ./shared $how >out.txt 2>&1 || {
            cat out.txt
            echo "$how, $np ranks: no good end"
            exit 1
        }
        [ "$(grep -c 'is done' out.txt)" = $np ]
    done
done

# A rank dies in the middle of an allreduce, as soon as it sees a result: it could as well be
# stopped there, and go on later. What the survivor has of it is then memory of its own.
cat >dies.c <<'C'
#include <hvd/hvd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { COUNT = 8 << 20, WHOLE = 3 };

/* Peers could map the memory at p. */
static int is_shared(const void *p)
{
    unsigned long at = (unsigned long)p, from, to;
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int shared = -1;

    IS(f != NULL);
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= at && at < to)
            shared = strstr(line, "hvd-tensor") != NULL;
    fclose(f);
    return shared;
}

int main(void)
{
    int64_t dims[1] = {COUNT};
    struct hvd_op op;
    enum hvd_status rc;
    hvd_handle h;
    float *v;

    IS(hvd_init(NULL) == HVD_OK);
    v = hvd_alloc(COUNT * sizeof *v);
    IS(v != NULL);
    v[0] = 1;
    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = HVD_ALLREDUCE;
    op.reduce_op = HVD_SUM;
    op.name = "v";
    op.in = op.out =
        (struct hvd_tensor){.data = v, .dims = dims, .ndim = 1, .dtype = HVD_FLOAT32};
    for (int i = 0; i <= WHOLE; i++) {
        volatile float *first = v;
        float before = *first;

        IS(is_shared(v + COUNT / 2) == 1);
        IS(hvd_enqueue(&op, &h) == HVD_OK);
        if (i == WHOLE && hvd_rank() == 1) {
            while (*first == before)
                ;
            raise(SIGKILL);
        }
        rc = hvd_wait(h, HVD_WAIT_DONE, 60000);
        IS(rc == (i < WHOLE ? HVD_OK : HVD_EPEER));
        IS(hvd_release(h) == HVD_OK);
    }
    printf("shared: %d\n", is_shared(v + COUNT / 2));
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -g -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" dies.c -o dies \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
status=0
timeout -k 5 60 hvdrun --grace 30 -np 2 ./dies >out.txt 2>&1 || status=$?
[ $status = 137 ] && grep -q 'shared: 0' out.txt || {
    cat out.txt
    echo "a rank that dies in the middle: status $status, or the survivor's tensor is still shared"
    exit 1
}
