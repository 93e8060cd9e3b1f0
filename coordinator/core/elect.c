#include "coordinator/core/elect.h"

#include <string.h>

#include <hvd/hvd.h>

static int32_t first_arrival(const struct hvi_candidate *c, int32_t i)
{
    for (int32_t k = 0; k < i; k++)
        if (strcmp(c[k].host, c[i].host) == 0)
            return k;
    return i;
}

/* true when a is to be served before b; both have no wish. */
static bool before(const struct hvi_candidate *c, const int32_t *arrival, int32_t a,
                   int32_t b)
{
    bool old_a = c[a].last_rank >= 0;
    bool old_b = c[b].last_rank >= 0;

    if (old_a != old_b)
        return old_a;
    if (old_a) {
        if (c[a].first_epoch != c[b].first_epoch)
            return c[a].first_epoch < c[b].first_epoch;
        if (c[a].last_rank != c[b].last_rank)
            return c[a].last_rank < c[b].last_rank;
        return a < b;
    }
    if (arrival[a] != arrival[b])
        return arrival[a] < arrival[b];
    return a < b;
}

static int32_t free_slot(const bool *taken, int32_t count, const char *const *hosts,
                         const struct hvi_candidate *c)
{
    if (hosts != NULL && c->last_rank < 0)
        for (int32_t r = 0; r < count; r++)
            if (!taken[r] && strcmp(hosts[r], c->host) == 0)
                return r;
    for (int32_t r = 0; r < count; r++)
        if (!taken[r])
            return r;
    return -1;
}

void hvi_elect_ranks(const struct hvi_candidate *c, int32_t count,
                     const char *const *hosts, int32_t *ranks)
{
    bool taken[HVD_RANKS_MAX] = {false};
    int32_t arrival[HVD_RANKS_MAX];

    for (int32_t i = 0; i < count; i++) {
        arrival[i] = first_arrival(c, i);
        ranks[i] = c[i].want;
        if (c[i].want >= 0)
            taken[c[i].want] = true;
    }
    for (;;) {
        int32_t best = -1;

        for (int32_t i = 0; i < count; i++)
            if (ranks[i] < 0 && (best < 0 || before(c, arrival, i, best)))
                best = i;
        if (best < 0)
            return;
        ranks[best] = free_slot(taken, count, hosts, &c[best]);
        taken[ranks[best]] = true;
    }
}

bool hvi_elect_places(const char *const *host, int32_t count, struct hvi_place *out)
{
    int32_t size_of[HVD_RANKS_MAX] = {0};
    int32_t nhosts = 0;
    bool even = true;

    for (int32_t r = 0; r < count; r++) {
        int32_t k = 0;

        while (k < r && strcmp(host[k], host[r]) != 0)
            k++;
        out[r].host_index = k < r ? out[k].host_index : nhosts++;
        out[r].local_rank = size_of[out[r].host_index]++;
    }
    for (int32_t h = 1; h < nhosts; h++)
        even = even && size_of[h] == size_of[0];
    for (int32_t r = 0; r < count; r++) {
        out[r].local_size = size_of[out[r].host_index];
        out[r].cross_rank = out[r].cross_size = 0;
        for (int32_t h = 0; h < nhosts; h++) {
            bool has = size_of[h] > out[r].local_rank;

            out[r].cross_size += has;
            out[r].cross_rank += has && h < out[r].host_index;
        }
    }
    return even;
}
