/**
 * Inside the plane of several hosts: the running group, its steps, and what the files of
 * the plane share. Only hosts*.c include this.
 *
 * A route is a list of steps; a step is one group of the plane below, local (this
 * host's members) or across (one member of every host), or nothing for this rank.
 */
#ifndef HVI_PLANE_CPU_HOSTS_IMPL_H
#define HVI_PLANE_CPU_HOSTS_IMPL_H

#include <stdatomic.h>

#include "worker/plane/cpu/group.h"
#include "worker/plane/cpu/hosts.h"
#include "worker/plane/sched/chunk.h"

#define HVI_HOSTS_LANES_MAX 4 /* DESIGN.md section 4 */
#define HVI_HOSTS_STEPS_MAX 4 /* local groups of one group */

/** A growable block. */
struct hvi_room {
    void *data;
    size_t size_bytes;
};

struct hvi_hosts;

struct hvi_route {
    /** Memory, whatever can fail; false: none. */
    bool (*reserve)(struct hvi_hosts *h);
    /** Step `step`, from 1: fills h->sub and h->running. HVD_OK; HVD_INPROGRESS: this
     *  rank has no part in it; an error: the plane is broken. */
    enum hvd_status (*begin)(struct hvi_hosts *h, int step, struct hvi_err *err);
    int nsteps;
    bool sized; /* outputs get their size from the other ranks, in a step */
};

/** allgather and Adasum: where the parts of a piece are. */
struct hvi_hosts_part {
    const void *in;
    int64_t in_bytes;
    uint8_t *out; /* all members' parts, one after another */
    struct hvi_room block,
        lane; /* this host's parts; every host's share of this lane */
};

struct hvi_hosts {
    struct hvi_plane base; /* first */
    struct hvi_plane *local, *mesh;
    int32_t *host_of; /* [size] */
    int size;
    _Atomic int aborted; /* enum hvd_status; 0: no */
    /* the running group */
    const struct hvi_group *g;
    const struct hvi_route *route; /* NULL: the group is one of the planes' below */
    int step;                      /* 0: not begun */
    struct hvi_plane *running;
    struct hvi_group sub;
    struct hvi_facts facts;
    int32_t *here;     /* [nhere] members on this host; in `ranks` */
    int32_t *across;   /* [nacross] members of the step between hosts; in `ranks` */
    int32_t *first_of; /* [nhosts + 1] first member of every host; in `ranks` */
    int32_t nhere, nacross, here_me, nhosts, my_host;
    int32_t lanes; /* K */
    int32_t lane;  /* that this rank carries; -1: none */
    bool straight; /* every host has K members: lane k is the k-th member's */
    int64_t share; /* allreduce: elements of this rank's lane */
    int32_t nsub;  /* pieces that `pieces`, `rows`, `keep` have room for */
    int32_t width; /* entries of a piece in `rows` and `keep` */
    struct hvi_room ranks, pieces, rows, keep, lane_in, lane_out, junk;
    /* allgather */
    struct hvi_hosts_part *parts; /* [parts_cap] */
    int32_t parts_cap;
    struct hvi_room counts_own, counts_here, counts_all, offsets, zeros, scratch;
};

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

/** The step's group: local with its number among the local ones (0 ...), or across the
 *  members picked before. */
void hvi_hosts_begin(struct hvi_hosts *h, uint32_t kind, uint32_t dtype, bool local,
                     int part);
/** One more piece of it; returns its `keep` (or splits) array, [width]. */
int64_t *hvi_hosts_add(struct hvi_hosts *h, const void *in, void *out, int64_t count,
                       int64_t row);
/** The carriers of a lane, one a host; root's host: root instead when root_rank >= 0. */
void hvi_hosts_pick(struct hvi_hosts *h, int32_t lane, int32_t root_rank);
int32_t hvi_hosts_index(const int32_t *ranks, int32_t n, int32_t rank);

extern const struct hvi_route hvi_hosts_allreduce, hvi_hosts_reducescatter,
    hvi_hosts_broadcast, hvi_hosts_barrier, hvi_hosts_allgather, hvi_hosts_adasum;

#endif
