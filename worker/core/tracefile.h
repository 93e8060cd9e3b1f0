/**
 * A Chrome trace file that is valid JSON whenever it is read, and bounded. One thread
 * at a time.
 */
#ifndef HVI_CORE_TRACEFILE_H
#define HVI_CORE_TRACEFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

struct hvi_trace;

/** One finished operation of one rank. Times in us of the monotonic clock. */
struct hvi_trace_op {
    int32_t rank;
    uint32_t pset, kind, dtype;
    int32_t status; /* enum hvd_status */
    int64_t bytes, submit_us, sealed_us, begin_us, end_us;
    int64_t copy_in_us, copy_out_us; /* durations; 0: nothing was copied */
    uint64_t seq;
    const char *name; /* any bytes; escaped here */
    size_t name_bytes;
};

/** Creates or truncates path. max_bytes: beyond it the oldest events go. HVD_EIO names
 * the path. */
enum hvd_status hvi_trace_open(const char *path, int64_t max_bytes,
                               struct hvi_trace **out, struct hvi_err *err);
/** Queue an event; HVD_ENOMEM. */
enum hvd_status hvi_trace_op(struct hvi_trace *t, const struct hvi_trace_op *op);
enum hvd_status hvi_trace_cycle(struct hvi_trace *t, int32_t rank, int64_t at_us);
/** Write what is queued. The first failure is remembered and given back ever after. */
enum hvd_status hvi_trace_flush(struct hvi_trace *t, struct hvi_err *err);
const char *hvi_trace_path(const struct hvi_trace *t);
void hvi_trace_free(struct hvi_trace *t); /* flushes; NULL allowed */

#endif
