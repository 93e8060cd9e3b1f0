/**
 * Inside the TCP plane: connections, the running group's state, and what a kind of
 * collective has to say. Only tcp*.c include this.
 *
 * Wire. Between two ranks goes one stream each way: messages of the groups that both
 * are members of, in the order of the groups. A message is `u64 seq, u32 step, u32
 * length`, little-endian, then length bytes. step counts the messages of a group in one
 * direction of one connection. Which messages there are, and in which order, is a
 * function of the group and of what all ranks were told alike (hvi_tcp_one_host, chain):
 * both ends know what comes next and check it, nothing is negotiated.
 *
 * A kind is a table of functions about message i to or from a member: how many there
 * are, whether the next one may go out or come in now, where its bytes are. tcp.c moves
 * the bytes; work() does the local part (folding) whenever something has moved.
 */
#ifndef HVI_PLANE_CPU_TCP_H
#define HVI_PLANE_CPU_TCP_H

#include <poll.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/gather.h"
#include "worker/plane/cpu/group.h"
#include "worker/plane/cpu/spin.h"
#include "worker/plane/sched/chunk.h"

enum {
    HVI_TCP_HEAD_BYTES = 16,
    HVI_TCP_BUF_BYTES = 4096, /* a small message and its header: one recv */
    HVI_TCP_WINDOW = 4,       /* chunks of a reduction in flight, at most */
    HVI_TCP_NEAR_WINDOW = 2,  /* where they are to stay in one cache */
    HVI_TCP_IOV_MAX = 64,
    HVI_TCP_LOOK_MS = 1000 /* between two looks at the links */
};
#define HVI_TCP_DATA_BYTES (1024 * 1024) /* a message of what is not reduced */
#define HVI_TCP_PART_MAX_BYTES (256 * 1024)
#define HVI_TCP_PART_MIN_BYTES (16 * 1024)
#define HVI_TCP_CHAIN_MAX_BYTES (32 * 1024) /* with more, long chains stall */
#define HVI_TCP_SMALL_BYTES (16 * 1024)     /* everyone folds everything: one hop */

struct hvi_tcp;

/** One message of a kind's plan, seen from this rank. */
struct hvi_tcp_msg {
    int64_t size_bytes; /* of the payload */
    bool ready;         /* may be sent now; there is room to receive it now */
    bool may_be_empty;  /* received: length 0 is right too (the sender has joined) */
};

/** A list of memory being built, from `skip` bytes behind its begin on. */
struct hvi_tcp_list {
    struct iovec v[HVI_TCP_IOV_MAX + 1]; /* one more for what is read ahead */
    int n;
    int64_t skip, size_bytes;
};

struct hvi_tcp_kind {
    int64_t (*send_count)(const struct hvi_tcp *t, int32_t m);
    int64_t (*recv_count)(const struct hvi_tcp *t, int32_t m);
    struct hvi_tcp_msg (*send_at)(const struct hvi_tcp *t, int32_t m, int64_t i);
    struct hvi_tcp_msg (*recv_at)(const struct hvi_tcp *t, int32_t m, int64_t i);
    /** Where message i lies: adds to the list until all is in it or it is full. */
    void (*send_list)(const struct hvi_tcp *t, int32_t m, int64_t i,
                      struct hvi_tcp_list *l);
    void (*recv_list)(const struct hvi_tcp *t, int32_t m, int64_t i,
                      struct hvi_tcp_list *l);
    /** Message i of member m is here, with size_bytes. NULL: nothing to note. */
    enum hvd_status (*received)(struct hvi_tcp *t, int32_t m, int64_t i,
                                int64_t size_bytes, struct hvi_err *err);
    /** The local part. HVD_OK: all of it is done; *moved is set when some was. */
    enum hvd_status (*work)(struct hvi_tcp *t, bool *moved, struct hvi_err *err);
    /** Elements of the result that are there; NULL: not known before the end. */
    int64_t (*done)(struct hvi_tcp *t);
};

/** One connection. */
struct hvi_tcp_peer {
    int fd;                  /* -1: this rank */
    bool readable, writable; /* worth a try */
    bool held;               /* the next message must wait for this rank */
    int64_t unanswered_ms;   /* since when it owes an answer, as far as was seen; 0 */
    /* of the running group: */
    int64_t sent, received; /* whole messages */
    int64_t send_at;   /* bytes of header and payload of the next one that are out */
    int64_t recv_at;   /* payload bytes of the next one that are in */
    int64_t recv_size; /* its payload; -1: its header has not been taken */
    /* bytes read ahead: */
    int buf_from, buf_end;
    uint8_t buf[HVI_TCP_BUF_BYTES];
};

struct hvi_tcp {
    struct hvi_plane base; /* first */
    uint64_t magic;
    int size;
    struct hvi_tcp_peer *peers; /* [size] by global rank */
    int abort_fd;               /* eventfd: wakes a poll */
    _Atomic int aborted;        /* enum hvd_status; 0: no */
    enum hvd_status broken;     /* what progress found; 0: nothing. The plane is over */
    struct hvi_spin spin;
    struct pollfd *polls; /* [size + 1] */
    int32_t *polled;      /* [size] member of every entry */
    nfds_t npolls;
    int limit_ms;    /* a link that does not answer so long is broken; 0: no limit */
    int64_t look_ms; /* when to look next */
    bool one_host;   /* all ranks run on it */
    bool quiet;      /* the last wait ended without anything */
    uint64_t last_seq;
    bool ran;
    int64_t part_bytes; /* largest reduced message; staging is [size][window] of them */
    int64_t small_bytes;        /* payload up to here: everyone folds everything */
    int32_t chain_members;      /* with so many, and so much payload of each of them, */
    int64_t chain_member_bytes; /* an allreduce goes along a chain */
    uint8_t *staging;
    uint8_t *scrap;  /* [part_bytes] where unwanted payload goes */
    uint8_t *absent; /* [size][window] the member has joined */
    int64_t *kept;   /* [size] reducescatter: elements every member keeps */
    int64_t *heads;  /* exchange: [nmembers][2][npieces] sent, received */
    size_t heads_cap;

    /* the running group */
    const struct hvi_group *g;
    const struct hvi_tcp_kind *kind;
    struct hvi_facts facts;
    struct hvi_chunks plan; /* of all elements, or of those this rank keeps */
    struct hvi_gather *gather;
    bool stream;                     /* outputs do not fit the cache */
    bool work_over;                  /* the local part is done */
    int64_t window;                  /* chunks in flight */
    int64_t part_elems;              /* elements of a reduced message at most */
    int64_t fed;                     /* elements of the own input that are there */
    int64_t folded;                  /* chunks of the plan */
    int64_t finished;                /* sliced: of which all slices are here */
    int32_t arrived[HVI_TCP_WINDOW]; /* inputs of chunk k, at k % window */
    int32_t heads_here;              /* exchange: others' heads that have come */
    bool placed; /* exchange: sizes are known, outputs have memory */
};

struct hvi_tcp *hvi_tcp_from_plane(struct hvi_plane *p);

static inline struct hvi_tcp_peer *hvi_tcp_peer(const struct hvi_tcp *t, int32_t member)
{
    return &t->peers[t->g->members[member]];
}

/** Adds a segment; false: the list is full. */
bool hvi_tcp_add(struct hvi_tcp_list *l, const void *data, int64_t size_bytes);
/** Adds memory that does not matter: zeros to send, or scrap to receive. */
bool hvi_tcp_add_zeros(struct hvi_tcp_list *l, int64_t size_bytes);
bool hvi_tcp_add_scrap(const struct hvi_tcp *t, struct hvi_tcp_list *l,
                       int64_t size_bytes);

/** For tests: cut as if part_bytes (a multiple of 64) were the largest reduced message
 * and the least payload that is sliced; equal on all ranks, before the first group. */
void hvi_tcp_set_part(struct hvi_plane *p, int64_t part_bytes);

/** Looks for a member that owes an answer for longer than the limit: HVD_EPEER. */
enum hvd_status hvi_tcp_look(struct hvi_tcp *t, struct hvi_err *err);

/** One start per kind (facts are set); each sets `kind`. */
enum hvd_status hvi_tcp_allreduce_start(struct hvi_tcp *t, struct hvi_err *err);
enum hvd_status hvi_tcp_reducescatter_start(struct hvi_tcp *t, struct hvi_err *err);
enum hvd_status hvi_tcp_broadcast_start(struct hvi_tcp *t, struct hvi_err *err);
enum hvd_status hvi_tcp_gather_start(struct hvi_tcp *t, struct hvi_err *err);
enum hvd_status hvi_tcp_barrier_start(struct hvi_tcp *t, struct hvi_err *err);

#endif
