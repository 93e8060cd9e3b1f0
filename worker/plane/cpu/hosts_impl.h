/**
 * Inside the plane of several hosts: the running group, its steps, and what the files of
 * the plane share. Only hosts*.c include this.
 *
 * A route is a list of steps; a step is one group of the plane below, local (this
 * host's members) or across (one member of every host), or nothing for this rank. Or it
 * is a flow: one group across, and local ones beside it (hosts_flow.c).
 */
#ifndef HVI_PLANE_CPU_HOSTS_IMPL_H
#define HVI_PLANE_CPU_HOSTS_IMPL_H

#include <stdatomic.h>

#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/group.h"
#include "worker/plane/cpu/hosts.h"
#include "worker/plane/sched/chunk.h"

#define HVI_HOSTS_LANES_MAX 4 /* DESIGN.md section 4 */
#define HVI_HOSTS_STEPS_MAX 4 /* with a local group, of a group that is no flow */
#define HVI_HOSTS_CHUNK_BYTES (256 * 1024)
#define HVI_HOSTS_CHUNKS_MAX (HVI_SHM_PARTS / 2)

/** A growable block. */
struct hvi_room {
    void *data;
    size_t size_bytes;
};

struct hvi_hosts;

struct hvi_flow {
    /** Fills h->over; false: this rank has no part in it. */
    bool (*begin_across)(struct hvi_hosts *h);
    /** Fills h->sub with local group `turn` of h->nturns, which `reserve` has set. */
    void (*begin_local)(struct hvi_hosts *h, int64_t turn);
    /** What it passes on of the group across has come. Not asked once that is over. */
    bool (*came)(const struct hvi_hosts *h, int64_t turn);
    /** Elements that the group across has after h->turn local groups. */
    int64_t (*fed)(const struct hvi_hosts *h);
};

enum hvi_hosts_between { HVI_HOSTS_BEFORE = 1, HVI_HOSTS_RUNNING, HVI_HOSTS_OVER };

struct hvi_route {
    /** Memory, whatever can fail. HVD_EINVAL, HVD_ELIMIT: equally on every member. */
    enum hvd_status (*reserve)(struct hvi_hosts *h, struct hvi_err *err);
    /** Step `step`, from 1: fills h->sub and h->running. HVD_OK; HVD_INPROGRESS: this
     *  rank has no part in it; an error: the plane is broken. */
    enum hvd_status (*begin)(struct hvi_hosts *h, int step, struct hvi_err *err);
    int nsteps;
    const struct hvi_flow *flow; /* instead of steps */
    bool sized; /* outputs get their size from the other ranks, in a step */
};

/** allgather and Adasum: where the parts of a piece are. */
struct hvi_hosts_part {
    const void *in;
    int64_t in_bytes;
    uint8_t *out; /* all members' parts, one after another; NULL: they are dropped */
    struct hvi_room block,
        lane; /* this host's parts; every host's share of this lane */
};

/** What the memory of a part of a piece is asked for with. */
struct hvi_hosts_place {
    struct hvi_hosts *h;
    int32_t piece, part;
};

struct hvi_hosts {
    struct hvi_plane base; /* first */
    struct hvi_plane *local, *mesh;
    int32_t *host_of; /* [size] */
    int size;
    int64_t chunk_bytes; /* of a lane, at least */
    _Atomic int aborted; /* enum hvd_status; 0: no */
    /* the running group */
    const struct hvi_group *g;
    const struct hvi_route *route; /* NULL: the group is one of the planes' below */
    int step;                      /* 0: not begun */
    struct hvi_plane *running;
    struct hvi_group sub;
    /* what a call of `alloc` has found, which has no way to say it; HVD_OK: nothing */
    enum hvd_status bad;
    struct hvi_err bad_err;
    /* flow: */
    struct hvi_chunks plan; /* of all elements */
    struct hvi_group over;  /* across */
    struct hvi_room over_pieces, over_rows, over_splits;
    enum hvi_hosts_between between;
    int64_t turn, nturns; /* local groups that are over, all of them */
    struct hvi_facts facts;
    int32_t *here;     /* [nhere] members on this host; in `ranks` */
    int32_t *across;   /* [nacross] members of the step between hosts; in `ranks` */
    int32_t *first_of; /* [nhosts + 1] first member of every host; in `ranks` */
    int32_t nhere, nacross, here_me, nhosts, my_host;
    int32_t lanes; /* K */
    int32_t lane;  /* that this rank carries; -1: none */
    bool straight; /* every host has K members: lane k is the k-th member's */
    int32_t nsub;  /* pieces that `pieces`, `rows`, `keep` have room for */
    int32_t width; /* entries of a piece in `rows` and `keep` */
    struct hvi_room ranks, pieces, rows, keep, lane_in, lane_out, junk, neutral;
    /* allgather */
    struct hvi_hosts_part *parts; /* [parts_cap] */
    int32_t parts_cap;
    struct hvi_room counts_own, counts_here, counts_all, offsets, zeros, scratch,
        places, splits;
};

/** For tests: what chunk_bytes is; equal on all ranks, before the first group. */
void hvi_hosts_set_chunk(struct hvi_plane *p, int64_t chunk_bytes);

bool hvi_room_grow(struct hvi_room *r, size_t size_bytes);
/** Room for the pieces of a step: most of them, and entries a piece at most. */
bool hvi_hosts_room(struct hvi_hosts *h, int64_t npieces, int32_t width);
/** Local rank that carries a lane on a host with nhere members. */
static inline int32_t hvi_hosts_carrier(const struct hvi_hosts *h, int32_t lane,
                                        int32_t nhere)
{
    return (int32_t)((int64_t)lane * nhere / h->lanes);
}
/** The lane that a local member carries, -1: none. */
int32_t hvi_hosts_lane_of(const struct hvi_hosts *h, int32_t local);

/* ---- allgather, alltoall: results whose size the other ranks tell */

/** What `reserve` ends with: HVD_OK, or HVD_ENOMEM in its words. */
enum hvd_status hvi_hosts_enough(const struct hvi_hosts *h, bool enough,
                                 struct hvi_err *err);

/** Memory for the sizes and the places of nparts parts of every piece; nothing has an
 *  output yet. */
bool hvi_hosts_reserve_parts(struct hvi_hosts *h, int32_t nparts);
/** That, and what goes in, with zeros for ranks that have joined. */
bool hvi_hosts_reserve_gather(struct hvi_hosts *h);
struct hvi_hosts_place *hvi_hosts_place_of(struct hvi_hosts *h, int32_t piece,
                                           int32_t nparts, int32_t part);
/** Bytes that a member has of piece i for this rank. */
int64_t *hvi_hosts_bytes_of(const struct hvi_hosts *h, int32_t member, int32_t i);
/** Where every member's part of the result begins, and the end: [nmembers + 1]. */
int64_t *hvi_hosts_offsets_of(const struct hvi_hosts *h, int32_t i);
/** Once all bytes_of piece i are there: offsets, rows, parts[i].out. HVD_EPROTO: they make
 *  no sense. */
enum hvd_status hvi_hosts_get_output(struct hvi_hosts *h, int32_t i,
                                     struct hvi_err *err);
/** Where the parts from a member on go, or NULL: they are dropped. */
uint8_t *hvi_hosts_out_at(const struct hvi_hosts *h, int32_t i, int32_t member);
/** For an `alloc`: notes what has gone wrong, the first time. */
void hvi_hosts_note(struct hvi_hosts *h, enum hvd_status rc, const struct hvi_err *err);
/** hvi_group.alloc: cookie is a struct hvi_room. */
void *hvi_hosts_room_for(void *cookie, const int64_t *rows, int32_t nmembers,
                         int64_t total_rows, size_t size_bytes);

/* ---- steps */

/** The step's, or the turn's, group: local, or across the members picked before. */
void hvi_hosts_begin(struct hvi_hosts *h, uint32_t kind, uint32_t dtype, bool local);
/** One more piece of it; returns its `keep` (or splits) array, [width]. */
int64_t *hvi_hosts_add(struct hvi_hosts *h, const void *in, void *out, int64_t count,
                       int64_t row);
/** The carriers of a lane, one a host; root's host: root instead when root_rank >= 0. */
void hvi_hosts_pick(struct hvi_hosts *h, int32_t lane, int32_t root_rank);
int32_t hvi_hosts_index(const int32_t *ranks, int32_t n, int32_t rank);

/** Start a group of a plane below in the middle of a route: whatever goes wrong breaks
 *  the plane. */
enum hvd_status hvi_hosts_start_below(const struct hvi_hosts *h, struct hvi_plane *p,
                                      const struct hvi_group *g, struct hvi_err *err);
/** Its progress. HVD_OK too where it has dropped what this rank has no memory for: that
 *  is said at the end of the route. */
enum hvd_status hvi_hosts_go_below(const struct hvi_hosts *h, struct hvi_plane *p,
                                   struct hvi_err *err);

enum hvd_status hvi_hosts_flow_start(struct hvi_hosts *h, struct hvi_err *err);
enum hvd_status hvi_hosts_flow_progress(struct hvi_hosts *h, struct hvi_err *err);
bool hvi_hosts_flow_wait(struct hvi_hosts *h, int timeout_ms);
/** Cuts all elements into chunks of at least least_bytes, at most HVI_HOSTS_CHUNKS_MAX;
 *  each is `lanes` equal multiples of 64 bytes, but the last. HVD_ENOMEM. */
enum hvd_status hvi_hosts_cut(struct hvi_hosts *h, int64_t least_bytes, int32_t lanes,
                              struct hvi_err *err);
/** So many elements of the group across have come. */
bool hvi_hosts_came(const struct hvi_hosts *h, int64_t elems);

extern const struct hvi_route hvi_hosts_allreduce, hvi_hosts_reducescatter,
    hvi_hosts_broadcast, hvi_hosts_barrier, hvi_hosts_allgather,
    hvi_hosts_allgather_straight, hvi_hosts_alltoall, hvi_hosts_adasum;

#endif
