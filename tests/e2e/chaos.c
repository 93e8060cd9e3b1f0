#include <hvd/hvd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define THREADS 3
#define NAMES 40
#define FLIGHT 8

static int me, n, rounds, set = -1, set_size, set_me;
static uint64_t seed;

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

struct flight {
    hvd_handle h;
    int kind, index, round, pset, members, my_place;
    int64_t dims[2];
    int64_t splits[64];
    float *in, *out;
    char name[64];
};

/* What rank r contributes to the operation (same on every rank that asks). */
static float value(int r, int index, int round, int64_t i)
{
    return (float)((r + 1) * (index + 1) % 13 + round % 5 + i % 3);
}

static int member(int pset, int i)
{
    return pset == 0 ? i : 2 * i; /* the set holds the even ranks */
}

/* All choices that must agree come from (index, round), never from the thread's dice.
 */
static void fill(struct flight *f, int thread, int index, int round)
{
    static const int kinds[] = {HVD_ALLREDUCE, HVD_ALLREDUCE, HVD_ALLGATHER,
                                HVD_BROADCAST, HVD_ALLTOALL,  HVD_REDUCESCATTER};

    memset(f, 0, sizeof *f);
    f->index = index;
    f->round = round;
    f->kind = kinds[index % 6];
    f->pset = index % 5 == 0 ? set : 0;
    f->members = f->pset == 0 ? n : set_size;
    f->my_place = f->pset == 0 ? me : set_me;
    f->dims[0] = 1 + (index * 7 + round % 3) % 50; /* the shape changes now and then */
    f->dims[1] = 1 + index % 4;
    if (f->kind == HVD_ALLGATHER)
        f->dims[0] = (index + me + round) % 6; /* uneven, empty too */
    if (f->kind == HVD_ALLTOALL) {
        f->dims[0] = 0;
        for (int i = 0; i < f->members; i++)
            f->dims[0] += f->splits[i] = (me + member(f->pset, i) + index + round) % 4;
    }
    snprintf(f->name, sizeof f->name, "t%d/op%d", thread, index);
}

static void submit(struct flight *f)
{
    int64_t count = f->dims[0] * f->dims[1];
    struct hvd_op op;

    f->in = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    IS(f->in != NULL);
    for (int64_t i = 0; i < count; i++)
        f->in[i] = value(me, f->index, f->round, i);
    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = f->kind;
    op.reduce_op = HVD_SUM;
    op.pset = f->pset;
    op.name = f->name;
    op.root = member(f->pset, f->index % f->members);
    op.in = (struct hvd_tensor){
        .data = f->in, .dims = f->dims, .ndim = 2, .dtype = HVD_FLOAT32};
    op.out = op.in;
    op.out.data = f->kind == HVD_BROADCAST ? f->in : NULL;
    if (f->kind == HVD_ALLTOALL) {
        op.splits = f->splits;
        op.nsplits = f->members;
    }
    IS(hvd_enqueue(&op, &f->h) == HVD_OK);
}

static void check(struct flight *f)
{
    struct hvd_tensor t;
    int64_t at = 0;

    IS(hvd_result(f->h, &t) == HVD_OK);
    const float *out = t.data;
    switch (f->kind) {
    case HVD_ALLREDUCE:
    case HVD_REDUCESCATTER: {
        int64_t rows = f->dims[0], first = 0;
        if (f->kind == HVD_REDUCESCATTER) {
            int64_t per = f->dims[0] / f->members, extra = f->dims[0] % f->members;
            rows = per + (f->my_place < extra);
            first = f->my_place * per + (f->my_place < extra ? f->my_place : extra);
        }
        IS(t.dims[0] == rows);
        for (int64_t i = 0; i < rows * f->dims[1]; i++) {
            float sum = 0;
            for (int m = 0; m < f->members; m++)
                sum += value(member(f->pset, m), f->index, f->round,
                             first * f->dims[1] + i);
            IS(out[i] == sum);
        }
        break;
    }
    case HVD_BROADCAST:
        for (int64_t i = 0; i < f->dims[0] * f->dims[1]; i++)
            IS(out[i] ==
               value(member(f->pset, f->index % f->members), f->index, f->round, i));
        break;
    case HVD_ALLGATHER:
        for (int m = 0; m < f->members; m++) {
            int r = member(f->pset, m);
            int64_t count = (int64_t)((f->index + r + f->round) % 6) * f->dims[1];
            for (int64_t i = 0; i < count; i++)
                IS(out[at + i] == value(r, f->index, f->round, i));
            at += count;
        }
        IS(t.dims[0] * f->dims[1] == at);
        break;
    case HVD_ALLTOALL: {
        int64_t got[64];
        IS(hvd_result_splits(f->h, got, 64) == f->members);
        for (int m = 0; m < f->members; m++) {
            int r = member(f->pset, m);
            int64_t before = 0;
            int64_t rows = (r + me + f->index + f->round) % 4;
            IS(got[m] == rows);
            for (int k = 0; k < f->my_place; k++)
                before += (r + member(f->pset, k) + f->index + f->round) % 4;
            for (int64_t i = 0; i < rows * f->dims[1]; i++)
                IS(out[at + i] ==
                   value(r, f->index, f->round, before * f->dims[1] + i));
            at += rows * f->dims[1];
        }
        break;
    }
    }
}

static void finish(struct flight *f, uint64_t *dice)
{
    enum hvd_status rc = HVD_INPROGRESS;

    switch (next(dice) % 3) {
    case 0:
        rc = hvd_wait(f->h, HVD_WAIT_DONE, 60000);
        break;
    case 1:
        for (int i = 0; i < 60000 && rc == HVD_INPROGRESS; i++) {
            rc = hvd_poll(f->h);
            if (rc == HVD_INPROGRESS)
                poll(NULL, 0, 1);
        }
        break;
    default:
        for (int i = 0; i < 60 && (rc == HVD_INPROGRESS || rc == HVD_ETIMEDOUT); i++)
            rc = hvd_wait(f->h, HVD_WAIT_ENQUEUED, 1000);
    }
    IS(rc == HVD_OK);
    check(f);
    IS(hvd_release(f->h) == HVD_OK);
    free(f->in);
}

static void *play(void *arg)
{
    int thread = (int)(intptr_t)arg;
    uint64_t dice = seed * 1000003u + (uint64_t)me * 101 + (uint64_t)thread + 1;
    int order[NAMES];
    struct flight *flights = malloc(FLIGHT * sizeof *flights);

    IS(flights != NULL);
    for (int round = 0; round < rounds; round++) {
        int count = 0;

        /* blocks of FLIGHT names: inside a block every rank has an order of its own */
        for (int i = 0; i < NAMES; i++)
            order[i] = i;
        for (int b = 0; b < NAMES; b += FLIGHT)
            for (int i = FLIGHT - 1; i > 0; i--) {
                int k = (int)(next(&dice) % (uint64_t)(i + 1));
                int t = order[b + i];
                order[b + i] = order[b + k];
                order[b + k] = t;
            }
        for (int i = 0; i < NAMES; i++) {
            struct flight *f = &flights[count];

            fill(f, thread, order[i], round);
            if (f->pset == 0 || set_me >= 0) {
                submit(f);
                count++;
            }
            if ((i + 1) % FLIGHT == 0) {
                while (count > 0)
                    finish(&flights[--count], &dice);
            }
        }
    }
    free(flights);
    return NULL;
}

/* Groups and unnamed operations, on the main thread meanwhile. */
static void play_groups(void)
{
    for (int round = 0; round < rounds; round++) {
        struct hvd_op ops[3];
        hvd_handle h[3];
        float v[3][5];
        int64_t five = 5;

        memset(ops, 0, sizeof ops);
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < 5; i++)
                v[k][i] = value(me, k, round, i);
            ops[k].size = sizeof ops[k];
            ops[k].kind = HVD_ALLREDUCE;
            ops[k].reduce_op = HVD_SUM;
            ops[k].in = (struct hvd_tensor){
                .data = v[k], .dims = &five, .ndim = 1, .dtype = HVD_FLOAT32};
            ops[k].out = ops[k].in;
        }
        IS(hvd_enqueue_group(ops, 3, round % 2 ? "group" : NULL, h) == HVD_OK);
        IS(hvd_wait_all(h, 3, HVD_WAIT_DONE, 60000) == HVD_OK);
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < 5; i++) {
                float sum = 0;
                for (int r = 0; r < n; r++)
                    sum += value(r, k, round, i);
                IS(v[k][i] == sum);
            }
            hvd_release(h[k]);
        }
        IS(hvd_barrier(0) == HVD_OK);
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int32_t ranks[64];
    int32_t last = -1;

    (void)argc;
    rounds = atoi(argv[1]);
    seed = strtoull(argv[2], NULL, 10);
    IS(hvd_init(NULL) == HVD_OK);
    me = hvd_rank();
    n = hvd_size();
    for (int r = 0; r < n; r += 2)
        ranks[set_size++] = r;
    if (set_size < n)
        IS(hvd_pset_add(ranks, set_size, &set) == HVD_OK);
    else
        set = 0;
    set_me = set == 0 ? me : (me % 2 == 0 ? me / 2 : -1);
    for (int t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, play, (void *)(intptr_t)t);
    play_groups();
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    IS(hvd_join(&last) == HVD_OK);
    IS(last >= 0 && last < n);
    if (set > 0)
        IS(hvd_pset_remove(set) == HVD_OK);
    IS(hvd_shutdown() == HVD_OK);
    return 0;
}
