/**
 * A library of one function, for benches that are not in C: the exchange of bench_step.c
 * over tensors of the caller's.
 */
#include <hvd/hvd.h>

#include "steps.h"

/**
 * Sum `count` float32 tensors in place over all ranks, enqueued by name, last one first.
 *
 * @param tensor  [count] their memory, caller's
 * @param elems   [count] their lengths, in elements
 * @param count   at most STEPS_TENSORS_MAX
 *
 * Returns  HVD_OK or what failed first.    Blocks  until all are complete.
 */
__attribute__((visibility("default"))) enum hvd_status
bench_exchange(float *const *tensor, const int64_t *elems, int count);

enum hvd_status bench_exchange(float *const *tensor, const int64_t *elems, int count)
{
    hvd_handle handle[STEPS_TENSORS_MAX];
    enum hvd_status rc = HVD_OK;
    char name[32];

    for (int i = count - 1; i >= 0; i--) {
        struct hvd_op op = {.size = sizeof op,
                            .kind = HVD_ALLREDUCE,
                            .reduce_op = HVD_SUM,
                            .name = name};

        snprintf(name, sizeof name, "libstep/%d", i);
        op.in.data = tensor[i];
        op.in.dims = &elems[i];
        op.in.ndim = 1;
        op.in.dtype = HVD_FLOAT32;
        op.out = op.in;
        rc = hvd_enqueue(&op, &handle[i]);
        if (rc != HVD_OK)
            return rc;
    }
    rc = hvd_wait_all(handle, count, HVD_WAIT_DONE, -1);
    for (int i = 0; i < count; i++)
        hvd_release(handle[i]);
    return rc;
}
