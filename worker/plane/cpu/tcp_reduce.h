/**
 * Inside the TCP plane: what its reductions share (tcp_reduce.c, tcp_chain.c). Inputs of
 * other members are staged, `window` chunks of every member at most; results are where the
 * outputs are.
 */
#ifndef HVI_PLANE_CPU_TCP_REDUCE_H
#define HVI_PLANE_CPU_TCP_REDUCE_H

#include "worker/plane/cpu/tcp.h"

/** Where what a member has sent of a chunk lies, [part_bytes]. */
static inline uint8_t *hvi_tcp_staging(const struct hvi_tcp *t, int32_t m,
                                       int64_t chunk)
{
    return t->staging +
           ((int64_t)m * HVI_TCP_WINDOW + chunk % t->window) * t->part_bytes;
}

/** The member has brought nothing for this chunk: it has joined. */
static inline uint8_t *hvi_tcp_absent(const struct hvi_tcp *t, int32_t m, int64_t chunk)
{
    return &t->absent[(int64_t)m * HVI_TCP_WINDOW + chunk % t->window];
}

/** Staging of this chunk is free. */
static inline bool hvi_tcp_has_room(const struct hvi_tcp *t, int64_t chunk)
{
    return chunk < t->folded + t->window;
}

/** The own input of this chunk is there. */
static inline bool hvi_tcp_is_fed(const struct hvi_tcp *t, int64_t chunk)
{
    struct hvi_span c = hvi_chunks_chunk(&t->plan, chunk);

    return t->fed >= c.first + c.count;
}

/** An element of a piece; NULL: this rank has joined. */
static inline const uint8_t *hvi_tcp_in_at(const struct hvi_piece *p, int64_t elem,
                                           int64_t es)
{
    return p->in == NULL ? NULL : (const uint8_t *)p->in + elem * es;
}

/** Adds the outputs of virtual elements; where there is no memory, `instead`, which
 *  begins with the first of them; NULL: scrap. */
void hvi_tcp_list_outputs(const struct hvi_tcp *t, struct hvi_span s, uint8_t *instead,
                          struct hvi_tcp_list *l);

extern const struct hvi_tcp_kind hvi_tcp_chain_kind;

#endif
