#include "hvdrun/hosts/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char localhost_name[] = "localhost";

void hvi_plan_fini(struct hvi_plan *p)
{
    free(p->place);
    free(p->host);
    free(p->first_rank);
    free(p->all);
    memset(p, 0, sizeof *p);
}

/* "host1:4 host2:2 ...", cut when there are many. */
static void list_slots(const struct hvi_host *host, size_t n, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n && used + 80 < cap; i++) {
        int w = snprintf(out + used, cap - used, "%s%.40s:%d", i > 0 ? " " : "",
                         host[i].name, host[i].slots);

        used += w > 0 ? (size_t)w : 0;
    }
    if (used + 80 >= cap)
        snprintf(out + used, cap - used, " ...");
}

/* Fills in the numbers that nobody said. Returns the sum. */
static long fill_slots(struct hvi_host *host, size_t n,
                       const struct hvi_plan_wish *wish)
{
    bool any = false;
    long sum = 0;

    for (size_t i = 0; i < n; i++)
        any = any || host[i].slots > 0;
    for (size_t i = 0; i < n; i++) {
        if (host[i].slots == 0 && !any && wish->np > 0)
            host[i].slots = wish->np / (int)n + ((int)i < wish->np % (int)n ? 1 : 0);
        else if (host[i].slots == 0)
            host[i].slots = 1;
        sum += host[i].slots;
    }
    return sum;
}

/* More ranks than slots: go round the hosts that have no limit or have not reached it.
 * Returns how many could not be placed. */
static long oversubscribe(struct hvi_host *host, size_t n, long missing)
{
    size_t full = 0; /* hosts in a row that take no more */

    for (size_t i = 0; missing > 0 && full < n; i = (i + 1) % n) {
        bool takes = host[i].max == 0 || host[i].slots < host[i].max;

        full = takes ? 0 : full + 1;
        host[i].slots += takes;
        missing -= takes;
    }
    return missing > 0 ? missing : 0;
}

static void assign(struct hvi_plan *p, const struct hvi_host *host, size_t n)
{
    int rank = 0;

    for (size_t h = 0; h < n && rank < p->np; h++) {
        int here = host[h].slots < p->np - rank ? host[h].slots : p->np - rank;

        if (here == 0)
            continue;
        p->host[p->nhosts] = host[h];
        p->host[p->nhosts].slots = here;
        p->first_rank[p->nhosts] = rank;
        for (int l = 0; l < here; l++, rank++) {
            p->place[rank].host = (int)p->nhosts;
            p->place[rank].local_rank = l;
            p->place[rank].local_size = here;
        }
        p->nhosts++;
    }
    for (int r = 0; r < p->np; r++) {
        struct hvi_place *me = &p->place[r];

        for (size_t h = 0; h < p->nhosts; h++) {
            bool has = p->host[h].slots > me->local_rank;

            me->cross_rank += has && (int)h < me->host;
            me->cross_size += has;
        }
    }
}

enum hvd_status hvi_plan_make(const struct hvi_hosts *hosts,
                              const struct hvi_plan_wish *wish, struct hvi_plan *out,
                              struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    size_t n = hosts->n > 0 ? hosts->n : 1;
    struct hvi_host *host = calloc(n, sizeof *host);
    struct hvi_plan p = {0};
    char list[300];
    long sum, asked;

    if (host == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    if (hosts->n > 0)
        memcpy(host, hosts->list, n * sizeof *host);
    else
        host[0] = (struct hvi_host){.name = localhost_name,
                                    .slots = wish->np > 0 ? wish->np : wish->cores};
    sum = fill_slots(host, n, wish);
    p.all = malloc(n * sizeof *p.all);
    if (p.all == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
        goto done;
    }
    memcpy(p.all, host, n * sizeof *p.all);
    p.nall = n;
    asked = wish->np > 0 ? wish->np : sum;
    if (asked > HVD_RANKS_MAX) {
        rc = hvi_fail(err, HVD_ELIMIT, "%ld ranks asked for; at most %d are supported",
                      asked, HVD_RANKS_MAX);
        goto done;
    }
    p.np = (int)asked;
    if (p.np > sum && !wish->oversubscribe) {
        list_slots(host, n, list, sizeof list);
        rc =
            hvi_fail(err, HVD_EINVAL,
                     "-np %d needs %d slots, %s %ld (%s); add slots or hosts%s, or use "
                     "--oversubscribe",
                     p.np, p.np, wish->from != NULL ? wish->from : "hosts offer", sum,
                     list, wish->from != NULL ? ", name others with -H" : "");
        goto done;
    }
    sum = p.np - oversubscribe(host, n, p.np - sum);
    if (sum < p.np) {
        list_slots(host, n, list, sizeof list);
        rc = hvi_fail(err, HVD_EINVAL,
                      "-np %d needs %d slots, max_slots of the hosts allow %ld (%s)",
                      p.np, p.np, sum, list);
        goto done;
    }
    p.place = calloc((size_t)p.np, sizeof *p.place);
    p.host = calloc(n, sizeof *p.host);
    p.first_rank = calloc(n, sizeof *p.first_rank);
    if (p.place == NULL || p.host == NULL || p.first_rank == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
        goto done;
    }
    assign(&p, host, n);
    *out = p;
    memset(&p, 0, sizeof p);
done:
    hvi_plan_fini(&p);
    free(host);
    return rc;
}
