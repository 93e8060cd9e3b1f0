/** Who gets which rank, who is local to whom. Pure arithmetic over the list of hellos. */
#ifndef HVI_COORDINATOR_CORE_ELECT_H
#define HVI_COORDINATOR_CORE_ELECT_H

#include <stdbool.h>
#include <stdint.h>

struct hvi_candidate {
    int32_t want;         /* HVD_RANK, or -1; distinct where >= 0 */
    int32_t last_rank;    /* rank in the epoch before, or -1 for a newcomer */
    uint32_t first_epoch; /* epoch it served first; 0 for a newcomer */
    const char *host;
};

/**
 * Give every candidate a rank of 0..count-1. Wanted ranks win; then those that served
 * before, longest service first (so that they keep state and rank 0); then newcomers by
 * host in order of first arrival, then by arrival. With a plan, a newcomer prefers a
 * slot of its own host.
 *
 * @param c      [count] in order of arrival
 * @param hosts  [count] host of every slot, or NULL
 * @param ranks  [count] out: rank of candidate i
 */
void hvi_elect_ranks(const struct hvi_candidate *c, int32_t count,
                     const char *const *hosts, int32_t *ranks);

struct hvi_place {
    int32_t host_index; /* hosts numbered by their lowest rank */
    int32_t local_rank, local_size, cross_rank, cross_size;
};

/**
 * Local and cross ranks as Horovod defines them: cross_rank counts the hosts before
 * mine that have a rank with my local_rank.
 *
 * @param host  [count] host name of every rank     @param out  [count]
 *
 * Returns  true when every host has the same number of ranks.
 */
bool hvi_elect_places(const char *const *host, int32_t count, struct hvi_place *out);

#endif
