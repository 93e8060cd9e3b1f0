/**
 * What the CPU planes share about a sealed group: checks that come out equal on every
 * member, the effective scale, output memory, and the table of who has how many rows in
 * allgather and alltoall. No I/O.
 */
#ifndef HVI_PLANE_CPU_GROUP_H
#define HVI_PLANE_CPU_GROUP_H

#include "worker/plane/plane.h"

/** Facts of the running group, computed once at its start. */
struct hvi_facts {
    uint32_t elem_size;
    double post;         /* postscale with the 1/size of AVERAGE */
    int64_t total_bytes; /* of all pieces' `count` */
    bool joined;         /* this rank takes part with the neutral element */
    bool no_memory;      /* an output could not be had: payload is dropped */
};

/**
 * Check a group and compute its facts.
 *
 * @param nranks  ranks this plane has (Adasum wants all of them)
 *
 * Returns  HVD_OK; HVD_EUNSUPPORTED, HVD_EINVAL, HVD_ELIMIT: equal on every member,
 * since it depends only on what all members have in common; HVD_EINTERNAL: the caller
 *          broke the rules of plane.h.
 */
enum hvd_status hvi_group_check(const struct hvi_group *g, int nranks,
                                struct hvi_facts *out, struct hvi_err *err);

/** Output memory of piece i from `alloc` where it has none and should; on failure the
 *  piece keeps out == NULL (its payload is dropped) and facts->no_memory is set. */
void hvi_group_alloc(const struct hvi_group *g, struct hvi_facts *f, int32_t i,
                     const int64_t *rows, int64_t total_rows, size_t size_bytes);
/** The same for all pieces of kinds whose result has the input's or the kept rows' size
 *  (allreduce, broadcast, reducescatter). */
void hvi_group_alloc_all(const struct hvi_group *g, struct hvi_facts *f);

/** HVD_OK, or HVD_ENOMEM when payload was dropped: what progress returns at the end. */
enum hvd_status hvi_group_end(const struct hvi_facts *f, struct hvi_err *err);

/** Elements member keeps of piece i in reducescatter, and where they begin in `in`. */
void hvi_group_kept(const struct hvi_group *g, int32_t i, int32_t member,
                    int64_t *first_elem, int64_t *elem_count);

#endif
