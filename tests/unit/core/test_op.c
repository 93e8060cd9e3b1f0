#include "test.h"

#include <poll.h>
#include <pthread.h>

#include "worker/core/op.h"

Test(op, handles_are_generations_and_stale_ones_fail, .timeout = 10)
{
    struct hvi_op *op = hvi_op_new(0);
    struct hvi_op *found;
    hvd_handle first;

    cr_assert_eq(hvi_handle_add(op), HVD_OK);
    first = op->handle;
    cr_assert_neq(first, 0);
    found = hvi_handle_get(first);
    cr_assert_eq(found, op);
    hvi_op_unref(found);
    cr_assert_eq(hvi_handle_drop(first), HVD_OK);
    cr_assert_null(hvi_handle_get(first));
    cr_assert_eq(hvi_handle_drop(first), HVD_EHANDLE, "released twice");
    hvi_op_unref(op);

    op = hvi_op_new(0);
    cr_assert_eq(hvi_handle_add(op), HVD_OK);
    cr_assert_neq(op->handle, first, "the slot is used again, the handle is another");
    cr_assert_null(hvi_handle_get(first));
    hvi_handle_drop(op->handle);
    hvi_op_unref(op);
    cr_assert_null(hvi_handle_get(0));
    cr_assert_null(hvi_handle_get(-1));
}

static void on_done(void *arg, hvd_handle handle, enum hvd_status status)
{
    int *calls = arg;

    (void)handle;
    cr_assert(hvi_op_in_callback());
    cr_assert_eq(status, HVD_EPEER);
    (*calls)++;
}

Test(op, completion_calls_back_once_and_queues, .timeout = 10)
{
    struct hvi_op *op = hvi_op_new(0);
    struct pollfd p = {.fd = hvi_done_fd(), .events = POLLIN};
    hvd_handle done[4];
    int calls = 0;

    op->done = on_done;
    op->arg = &calls;
    cr_assert_eq(hvi_handle_add(op), HVD_OK);
    cr_assert_eq(poll(&p, 1, 0), 0, "nothing is done yet");
    hvi_op_complete(op, HVD_EPEER, "rank 3 was lost");
    cr_assert_eq(calls, 1);
    cr_assert_not(hvi_op_in_callback());
    cr_assert_eq(poll(&p, 1, 0), 1);
    cr_assert_eq(hvi_done_take(done, 4), 1);
    cr_assert_eq(done[0], op->handle);
    cr_assert_eq(poll(&p, 1, 0), 0, "the descriptor is quiet again");
    cr_assert_str_eq(op->error, "rank 3 was lost");
    hvi_handle_drop(op->handle);
    hvi_op_unref(op);
}

Test(op, a_released_handle_is_not_reported, .timeout = 10)
{
    struct pollfd p = {.fd = hvi_done_fd(), .events = POLLIN};
    hvd_handle done[4];

    for (int late = 0; late < 2; late++) {
        struct hvi_op *op = hvi_op_new(0);

        cr_assert_eq(hvi_handle_add(op), HVD_OK);
        if (late)
            hvi_handle_drop(op->handle);
        hvi_op_complete(op, HVD_OK, NULL);
        if (!late)
            hvi_handle_drop(op->handle);
        cr_assert_eq(poll(&p, 1, 0), !late);
        cr_assert_eq(hvi_done_take(done, 4), 0);
        cr_assert_eq(poll(&p, 1, 0), 0, "the descriptor is quiet");
        hvi_op_unref(op);
    }
}

Test(op, many_handles_keep_their_identity, .timeout = 20)
{
    enum { N = 10000 };
    static struct hvi_op *ops[N];

    for (int i = 0; i < N; i++) {
        ops[i] = hvi_op_new(0);
        cr_assert_eq(hvi_handle_add(ops[i]), HVD_OK);
    }
    for (int i = 0; i < N; i++) {
        struct hvi_op *found = hvi_handle_get(ops[i]->handle);

        cr_assert_eq(found, ops[i]);
        hvi_op_unref(found);
        hvi_handle_drop(ops[i]->handle);
        hvi_op_unref(ops[i]);
    }
}

Test(op, counts_the_first_handles_that_are_done, .timeout = 10)
{
    struct hvi_op *op[3];
    hvd_handle handle[4];

    for (int i = 0; i < 3; i++) {
        op[i] = hvi_op_new(0);
        cr_assert_eq(hvi_handle_add(op[i]), HVD_OK);
        handle[i] = op[i]->handle;
    }
    handle[3] = 0;
    cr_assert_eq(hvi_handles_done(handle, 3), 0);
    hvi_op_complete(op[0], HVD_OK, NULL);
    hvi_op_complete(op[2], HVD_OK, NULL);
    cr_assert_eq(hvi_handles_done(handle, 3), 1, "the second is in progress");
    cr_assert_eq(hvi_handles_done(handle + 2, 2), 1, "0 is no handle");
    hvi_op_complete(op[1], HVD_EPEER, "rank 1 was lost");
    cr_assert_eq(hvi_handles_done(handle, 3), 1, "a failure is told by a wait for it");
    for (int i = 0; i < 3; i++) {
        hvi_handle_drop(handle[i]);
        hvi_op_unref(op[i]);
    }
    cr_assert_eq(hvi_handles_done(handle, 3), 0, "released");
}
