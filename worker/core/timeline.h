/**
 * Chrome trace of this job's operations (HOROVOD_TIMELINE, hvd_timeline_start). Every rank records
 * events; rank 0 writes the file for all. No cost while off: one load of a flag.
 */
#ifndef HVI_CORE_TIMELINE_H
#define HVI_CORE_TIMELINE_H

#include "worker/core/ctx.h"

/* Under ctx->lock: an entry was submitted / has got its place in the order. */
void hvi_timeline_submit(struct hvi_ctx *c, const struct hvi_entry *e);
void hvi_timeline_sealed(struct hvi_ctx *c, const struct hvi_entry *e);
/* Under exec: a run begins / ends on the plane named `plane`. */
void hvi_timeline_begin(struct hvi_ctx *c, const struct hvi_run *run, const char *plane);
void hvi_timeline_end(struct hvi_ctx *c, const struct hvi_run *run);
/* Messages of the coordinator. */
void hvi_timeline_control(struct hvi_ctx *c, const Hvi__TimelineCtl *m);
void hvi_timeline_chunk(struct hvi_ctx *c, const Hvi__TimelineChunk *m);

/* API side. */
enum hvd_status hvi_timeline_open(struct hvi_ctx *c, const char *path, bool mark_cycles,
                                  struct hvi_err *err);
enum hvd_status hvi_timeline_close(struct hvi_ctx *c, struct hvi_err *err);
/* Reads HVD_TIMELINE / HOROVOD_TIMELINE after forming; frees at the end. */
enum hvd_status hvi_timeline_setup(struct hvi_ctx *c, struct hvi_err *err);
void hvi_timeline_fini(struct hvi_ctx *c);
/* Link thread: ship what is recorded; returns ms until the next look, -1 while off. */
int hvi_timeline_tick(struct hvi_ctx *c, int64_t now_ms);

#endif
