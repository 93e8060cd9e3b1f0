/**
 * allgather and alltoall (and the inputs of Adasum) as one exchange: every member has a
 * *stream* of bytes, a head (how many rows it has of every tensor, and for alltoall for
 * whom) and then its tensors one after another. A member picks its part out of every
 * other member's stream. Heads come first, because only all heads together say how
 * large the results are and where in them a member's rows begin. Streams may be cut
 * anywhere at a multiple of 8 bytes. Pure bookkeeping and copies, no I/O.
 *
 * With `direct` (set before begin, kept) every member has a stream of its own for every
 * other one, which holds nothing but what that one needs: the head has one word a
 * tensor. Then data goes from and to where hvi_gather_sends() and hvi_gather_block()
 * say, and fill and take are not used.
 *
 *     hvi_gather_begin()                      own head, own stream's length
 *     hvi_gather_fill() ...                   produce the own stream, front to back
 *     hvi_gather_head() of every member       consume heads
 *     hvi_gather_place()                      rows, outputs, the own part copied
 *     hvi_gather_take() of every other        consume data, front to back
 */
#ifndef HVI_PLANE_CPU_GATHER_H
#define HVI_PLANE_CPU_GATHER_H

#include "worker/plane/cpu/group.h"
#include "worker/plane/sched/chunk.h"

/** One tensor of one member's stream. Rows until hvi_gather_place(), then elements. */
struct hvi_block {
    int64_t before, mine, after; /* for members before this one, for it, after it */
    uint8_t *to;                 /* where `mine` goes; NULL: dropped */
};

struct hvi_gather_cursor {
    int32_t piece;
    int64_t at; /* elements of the piece already passed */
};

struct hvi_gather {
    const struct hvi_group *g;
    uint32_t elem_size;
    int32_t head_words;       /* a piece: 1 allgather, nmembers alltoall, 0 adasum */
    int64_t head_bytes;       /* of every member's head */
    int64_t filled;           /* bytes of the own stream produced */
    bool direct;              /* streams from one member to one */
    bool stream;              /* use non-temporal stores for outputs */
    int64_t *head;            /* [npieces * head_words] own */
    int64_t *sent_elems;      /* [npieces] of the own inputs that anyone gets */
    int64_t *all_rows;        /* [npieces] of the results */
    struct hvi_block *blocks; /* [nmembers][npieces] */
    int64_t *stream_bytes;    /* [nmembers]; others' are known after place */
    struct hvi_gather_cursor *cursors; /* [nmembers] where take goes on */
    struct hvi_gather_cursor own;      /* where fill goes on */
    size_t head_cap, pieces_cap, blocks_cap, members_cap; /* entries */
    uint8_t *scratch; /* adasum: [nmembers] whole inputs; kept for the next group */
    size_t scratch_cap;
};

struct hvi_gather *hvi_gather_new(void);     /* NULL: no memory */
void hvi_gather_free(struct hvi_gather *ga); /* accepts NULL */

/** Start with a checked group. HVD_EINVAL: alltoall's splits do not fit the input (the
 *  engine checks that before it announces; rows beyond their sum go nowhere);
 * HVD_ELIMIT, HVD_ENOMEM. For HVD_ALLREDUCE (adasum) also places: results go to
 * scratch. */
enum hvd_status hvi_gather_begin(struct hvi_gather *ga, const struct hvi_group *g,
                                 struct hvi_facts *f, struct hvi_err *err);
/** Rows of piece i for every member, [nmembers]. HVD_EINVAL as above. */
enum hvd_status hvi_gather_splits(const struct hvi_group *g, int32_t i, int64_t *rows,
                                  struct hvi_err *err);
/** The next size_bytes of the own stream. */
void hvi_gather_fill(struct hvi_gather *ga, uint8_t *to, int64_t size_bytes);
/** Bytes [offset, offset + size) of a member's head (this rank's own too is known by
 *  begin). HVD_EPROTO names the rank whose head makes no sense. */
enum hvd_status hvi_gather_head(struct hvi_gather *ga, int32_t member, int64_t offset,
                                const uint8_t *data, int64_t size_bytes,
                                struct hvi_err *err);
/** All heads are here. Fills `rows` of all pieces, then asks for the outputs' memory. */
enum hvd_status hvi_gather_place(struct hvi_gather *ga, struct hvi_facts *f,
                                 struct hvi_err *err);
/** The next size_bytes of a member's stream after its head. */
void hvi_gather_take(struct hvi_gather *ga, int32_t member, const uint8_t *data,
                     int64_t size_bytes);

static inline struct hvi_block *hvi_gather_block(const struct hvi_gather *ga,
                                                 int32_t member, int32_t piece)
{
    return &ga->blocks[(int64_t)member * ga->g->npieces + piece];
}

/** direct: the words of the head for this member, npieces of them. */
void hvi_gather_head_for(const struct hvi_gather *ga, int32_t member, int64_t *out);
/** direct: elements of the own input of a piece that go to this member. */
struct hvi_span hvi_gather_sends(const struct hvi_gather *ga, int32_t member,
                                 int32_t piece);

/** Adasum: combine the gathered inputs into the outputs. */
void hvi_gather_adasum(struct hvi_gather *ga, const struct hvi_facts *f);

#endif
