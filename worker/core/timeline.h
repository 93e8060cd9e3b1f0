/**
 * Chrome trace of this job's operations (HOROVOD_TIMELINE, hvd_timeline_start). Every
 * rank records its operations; rank 0 writes the file for all (PROTOCOL.md:
 * TIMELINE_CTL, TIMELINE_CHUNK). No cost while off: one load of a flag.
 *
 * In the file a tensor is a process and a rank is a thread of it: NEGOTIATE_<KIND> from
 * submission to the place in the order, QUEUE until the plane begins, <KIND> until
 * done; every rank's tick as an instant event. Inside <KIND>, MEMCPY_IN_FUSION_BUFFER
 * and MEMCPY_OUT_FUSION_BUFFER are the time its group spent copying into and out of
 * staging memory: sums, drawn at the two ends, since copying alternates with the
 * reduction chunk by chunk. Times are of the monotonic clock, one for all ranks of a
 * host.
 */
#ifndef HVI_CORE_TIMELINE_H
#define HVI_CORE_TIMELINE_H

#include "worker/core/ctx.h"

/* false: nobody asks when what happens. */
bool hvi_timeline_on(const struct hvi_ctx *c);
/* Under exec: a run begins / ends on the plane. */
void hvi_timeline_begin(struct hvi_ctx *c, struct hvi_run *run);
void hvi_timeline_end(struct hvi_ctx *c, const struct hvi_run *run,
                      enum hvd_status status);
/* Messages of the coordinator. */
void hvi_timeline_control(struct hvi_ctx *c, const Hvi__TimelineCtl *m);
void hvi_timeline_chunk(struct hvi_ctx *c, const Hvi__TimelineChunk *m);

/* API side. */
enum hvd_status hvi_timeline_open(struct hvi_ctx *c, const char *path, bool mark_cycles,
                                  struct hvi_err *err);
enum hvd_status hvi_timeline_close(struct hvi_ctx *c, struct hvi_err *err);
/* Reads HVD_TIMELINE / HOROVOD_TIMELINE after forming; frees at the end. */
enum hvd_status hvi_timeline_setup(struct hvi_ctx *c, struct hvi_err *err);
/* Before BYE: ship the rest; rank 0 waits for what the others ship, at most 2 s. */
void hvi_timeline_leave(struct hvi_ctx *c);
void hvi_timeline_fini(struct hvi_ctx *c);
/* Link thread: ship what is recorded; returns ms until the next look, -1 while off. */
int hvi_timeline_tick(struct hvi_ctx *c, int64_t now_ms);

#endif
