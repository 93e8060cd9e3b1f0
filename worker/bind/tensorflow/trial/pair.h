/**
 * pair.h - a stand-in for libhvd: sums or gathers f32 tensors between two processes.
 *
 * It has the properties of hvd.h that the op library depends on: enqueue never blocks,
 * operations match by name whatever the order of submission, completion happens on a
 * thread of its own, a gather's result belongs to the library. All calls are made from
 * any thread. The socket is in TRIAL_FD, the rank (0 or 1) in TRIAL_RANK.
 */
#ifndef HVD_TRIAL_PAIR_H
#define HVD_TRIAL_PAIR_H

#include <stddef.h>
#include <stdint.h>

enum pair_kind { PAIR_SUM = 0, PAIR_GATHER = 1 };
enum pair_status {
    PAIR_OK = 0,
    PAIR_EINVAL = -1,
    PAIR_ENOMEM = -2,
    PAIR_EMISMATCH = -4,
    PAIR_EDUPLICATE = -5,
    PAIR_EPEER = -7
};

enum { PAIR_NAME_SIZE = 64 };

struct pair_op {
    int64_t handle;
    char name[PAIR_NAME_SIZE];
    enum pair_kind kind;
    const float *in; /* [elem_count], caller's, valid until complete */
    size_t elem_count;
    float *out; /* SUM: caller's; GATHER: NULL, then ours, 64-byte aligned */
    size_t out_elem_count;
    /* Called once on completion, on a thread of ours, from which no call may be made.
     */
    void (*done)(void *arg);
    void *arg; /* caller's */
    int sent, complete;
    enum pair_status status;
    char error[160];
    struct pair_op *next;
};

/** Copies op's fields up to `arg` and queues it; never waits for the peer. */
enum pair_status pair_enqueue(const struct pair_op *op, int64_t *out_handle);

/** Blocks until the operation is complete; NULL: no such handle. */
struct pair_op *pair_wait(int64_t handle);

/** Forget a completed operation. A gather's result stays with the caller, who frees it.
 */
void pair_release(struct pair_op *op);

/** Operations enqueued and not released. */
int pair_live(void);

/** Add an event with the present time; read and clear all as text, a line each. */
void pair_note(const char *what, const char *name);
int pair_notes(char *buf, int cap);

#endif
