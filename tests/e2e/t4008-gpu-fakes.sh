#!/bin/bash
# The fakes are strict: what a GPU or NCCL would suffer from in silence ends a program that does it.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
cat >misuse.c <<'C'
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/plane/nccl/api.h"

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxPushCurrent_v2(void *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int ncclGetUniqueId(struct hvi_nccl_id *);
int ncclCommInitRankConfig(struct ncclComm **, int, struct hvi_nccl_id, int, struct hvi_nccl_config *);
int ncclCommGetAsyncError(struct ncclComm *, int *);
int ncclCommAbort(struct ncclComm *);
int ncclAllReduce(const void *, void *, size_t, int, int, struct ncclComm *, void *);
int ncclBroadcast(const void *, void *, size_t, int, int, struct ncclComm *, void *);

static void *stream;
static uint64_t a, b;

static void open_gpu(int device)
{
    void *context;

    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, device);
    cuCtxPushCurrent_v2(context);
    cuStreamCreate(&stream, 1);
    cuMemAlloc_v2(&a, 4096);
    cuMemAlloc_v2(&b, 4096);
}

static struct ncclComm *join(struct hvi_nccl_id id, int rank)
{
    struct hvi_nccl_config config = HVI_NCCL_CONFIG;
    struct ncclComm *comm = NULL;
    int state = HVI_NCCL_IN_PROGRESS;

    open_gpu(rank);
    ncclCommInitRankConfig(&comm, 2, id, rank, &config);
    for (int i = 0; state == HVI_NCCL_IN_PROGRESS && i < 5000; i++) {
        usleep(1000);
        ncclCommGetAsyncError(comm, &state);
    }
    return comm;
}

/* Rank 1 launches the two the other way round, or uses what it has aborted. */
static void rank_main(struct hvi_nccl_id id, int rank, int aborted)
{
    struct ncclComm *comm = join(id, rank);
    void *at = (void *)(uintptr_t)a;

    if (aborted) {
        ncclCommAbort(comm);
        ncclAllReduce(at, at, 4, HVI_NCCL_FLOAT32, HVI_NCCL_SUM, comm, stream);
        return;
    }
    for (int i = 0; i < 2; i++)
        if ((i ^ rank) == 0)
            ncclAllReduce(at, at, 4, HVI_NCCL_FLOAT32, HVI_NCCL_SUM, comm, stream);
        else
            ncclBroadcast(at, at, 4, HVI_NCCL_FLOAT32, 0, comm, stream);
    cuStreamSynchronize(stream);
}

static int ranks(int aborted)
{
    struct hvi_nccl_id id;
    int status = 0;
    int worst = 0;

    ncclGetUniqueId(&id);
    for (int r = 0; r < 2; r++)
        if (fork() == 0) {
            alarm(20);
            rank_main(id, r, aborted);
            _exit(0);
        }
    while (wait(&status) > 0)
        worst = WIFSIGNALED(status) ? WTERMSIG(status) : worst;
    return worst;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "order") == 0)
        return ranks(0);
    if (strcmp(what, "aborted") == 0)
        return ranks(1);
    if (strcmp(what, "context") == 0)
        return cuMemAlloc_v2(&a, 16) == 201 ? 3 : 0;
    open_gpu(0);
    if (strcmp(what, "free") == 0) {
        cuMemcpyDtoDAsync_v2(a, b, 4096, stream);
        cuMemFree_v2(a); /* before the copy, which takes its time */
        cuStreamSynchronize(stream);
    } else if (strcmp(what, "twice") == 0) {
        cuMemFree_v2(a);
        cuMemFree_v2(a);
    }
    return 0;
}
C
fake=$HVD_BUILD/tests/fake
CFLAGS_E2E="-I$HVD_SRC $fake/libnccl.so.2 $fake/libcuda.so.1" compile misuse.c misuse
export LD_LIBRARY_PATH=$fake
echo "-- another order of launches on one rank"
run ./misuse order
expect_status 6
expect_line err 'fake NCCL: ranks have launched different operations'
echo "-- a communicator that was aborted"
run ./misuse aborted
expect_status 6
expect_line err 'fake NCCL: a call on a communicator that was destroyed or aborted'
echo "-- no current context"
run ./misuse context
expect_status 3
echo "-- memory that queued work still uses"
FAKE_CUDA_DELAY_US=1000000 run ./misuse free
[ "$status" = 139 ] || die "status $status, not SIGSEGV"
echo "-- memory that is freed twice"
run ./misuse twice
expect_status 134
expect_line err 'fake CUDA: cuMemFree of .*, twice'
