#include "hvdrun/topo/share.h"

#include <string.h>

#include "proto/base/assert.h"

const char *hvi_bind_word(enum hvi_bind kind)
{
    static const char *const words[HVI_BIND_KINDS] = {"none",   "core", "numa",
                                                      "socket", "gpu",  "auto"};

    return words[kind];
}

const char *hvi_map_word(enum hvi_map kind)
{
    static const char *const words[HVI_MAP_KINDS] = {"slot", "core", "numa", "socket",
                                                     "auto"};

    return words[kind];
}

/* Where a rank is put before it is cut down to its own cores. */
enum region_kind { REGION_ALL = 0, REGION_NUMA, REGION_SOCKET, REGION_NEAR };

struct region {
    enum region_kind kind;
    int number; /* of the place, or index of near */
};

static int place(const struct hvi_topo_core *c, enum region_kind kind)
{
    return kind == REGION_NUMA ? c->numa : c->socket;
}

static bool holds(const struct hvi_topo *t, struct region r,
                  const struct hvi_topo_core *c)
{
    cpu_set_t both;

    if (r.kind == REGION_ALL)
        return true;
    if (r.kind != REGION_NEAR)
        return place(c, r.kind) == r.number;
    CPU_AND(&both, &t->near[r.number], &c->cpus);
    return CPU_COUNT(&both) > 0;
}

static int count(const struct hvi_topo *t, struct region r)
{
    int n = 0;

    for (int i = 0; i < t->ncores; i++)
        n += holds(t, r, &t->core[i]);
    return n;
}

/* Core number k of the region. */
static const struct hvi_topo_core *core_of(const struct hvi_topo *t, struct region r,
                                           int k)
{
    int i = 0;

    while (i + 1 < t->ncores && (!holds(t, r, &t->core[i]) || k-- > 0))
        i++;
    return &t->core[i];
}

static bool first_of_its_place(const struct hvi_topo *t, enum region_kind kind, int i)
{
    for (int k = 0; k < i; k++)
        if (place(&t->core[k], kind) == place(&t->core[i], kind))
            return false;
    return true;
}

/* How many places of this kind there are; number: of the one with this index. */
static int places(const struct hvi_topo *t, enum region_kind kind, int index,
                  int *number)
{
    int n = 0;

    for (int i = 0; i < t->ncores; i++)
        if (first_of_its_place(t, kind, i)) {
            if (n == index)
                *number = place(&t->core[i], kind);
            n++;
        }
    return n;
}

static struct region nth_place(const struct hvi_topo *t, enum region_kind kind, int i)
{
    struct region r = {kind, -1};
    int n = places(t, kind, -1, &r.number);

    HVI_ASSERT(n > 0);
    (void)places(t, kind, i % n, &r.number);
    return r;
}

/* The region near a rank's GPU; the same for GPUs that are near the same cores. */
static bool near_gpu(const struct hvi_topo *t, const struct hvi_share_wish *w, int rank,
                     struct region *out)
{
    int g = w->gpu != NULL ? w->gpu[rank] : -1;

    if (g < 0 || g >= t->npci || CPU_COUNT(&t->near[g]) == 0)
        return false;
    out->kind = REGION_NEAR;
    out->number = 0;
    while (!CPU_EQUAL(&t->near[out->number], &t->near[g]))
        out->number++;
    return count(t, *out) > 0;
}

static struct region region_of(const struct hvi_topo *t, const struct hvi_share_wish *w,
                               enum hvi_bind kind, int rank)
{
    struct region r = {REGION_ALL, 0};

    if (kind != HVI_BIND_GPU && w->map_by == HVI_MAP_NUMA)
        return nth_place(t, REGION_NUMA, rank);
    if (kind != HVI_BIND_GPU && w->map_by == HVI_MAP_SOCKET)
        return nth_place(t, REGION_SOCKET, rank);
    if (kind == HVI_BIND_GPU || w->map_by == HVI_MAP_AUTO)
        (void)near_gpu(t, w, rank, &r);
    return r;
}

static bool all_near(const struct hvi_topo *t, const struct hvi_share_wish *w)
{
    struct region r;

    for (int i = 0; i < w->nranks; i++)
        if (!near_gpu(t, w, i, &r))
            return false;
    return true;
}

/* Nobody said what to bind to. */
static enum hvi_bind choose(const struct hvi_topo *t, const struct hvi_share_wish *w,
                            const char **why)
{
    int unused;
    int nodes = places(t, REGION_NUMA, -1, &unused);

    *why = NULL;
    if (w->cores > 0 || w->map_by == HVI_MAP_CORE)
        return HVI_BIND_CORE;
    if (w->map_by == HVI_MAP_NUMA || w->map_by == HVI_MAP_SOCKET)
        return w->map_by == HVI_MAP_NUMA ? HVI_BIND_NUMA : HVI_BIND_SOCKET;
    if (nodes < 2)
        *why = "one NUMA node";
    else if (w->nranks > t->ncores)
        *why = "more ranks than cores";
    else if (w->self_bound != NULL)
        *why = w->self_bound;
    else if (w->ngpus > 0 && (w->nranks != w->ngpus || !all_near(t, w)))
        *why = "not one rank for each GPU";
    else if (w->ngpus == 0 && w->nranks % nodes != 0)
        *why = "the NUMA nodes would have different numbers of ranks";
    return *why == NULL ? HVI_BIND_NUMA : HVI_BIND_NONE;
}

static bool same_region(struct region a, struct region b)
{
    return a.kind == b.kind && a.number == b.number;
}

/* Cores [first, first + n) of its region are the rank's. */
struct cut {
    struct region region;
    int first, n;
};

static struct cut cut_one(const struct hvi_topo *t, const struct hvi_share_wish *w,
                          enum hvi_bind kind, int rank, bool *crowded)
{
    struct cut c = {region_of(t, w, kind, rank), 0, 0};
    int before = 0;
    int ranks = 0;
    int cores = count(t, c.region);
    int groups;

    for (int i = 0; i < w->nranks; i++)
        if (same_region(region_of(t, w, kind, i), c.region)) {
            before += i < rank;
            ranks++;
        }
    HVI_ASSERT(ranks > 0); /* this one at least */
    c.n = w->cores > 0 ? w->cores : w->map_by == HVI_MAP_CORE ? 1 : 0;
    if (c.n > cores)
        c.n = cores;
    *crowded |= (c.n > 0 ? c.n : 1) * ranks > cores || w->cores > cores;
    if (kind == HVI_BIND_GPU && w->cores == 0) {
        c.n = cores;
    } else if (c.n == 0) {
        c.first = (int)((long)before * cores / ranks);
        c.n = (int)((long)(before + 1) * cores / ranks) - c.first;
        c.n = c.n > 0 ? c.n : 1;
    } else if (c.n * ranks > cores) {
        groups = cores / c.n;
        c.first = before * groups / ranks * c.n;
    } else {
        c.first = w->map_by == HVI_MAP_CORE ? before * c.n
                                            : (int)((long)before * cores / ranks);
    }
    return c;
}

/* The cores of the cut, or the whole places that they are in. false: not known. */
static bool take(const struct hvi_topo *t, const struct hvi_share_wish *w,
                 enum hvi_bind kind, const struct cut *c, cpu_set_t *out)
{
    enum region_kind place_kind = kind == HVI_BIND_NUMA ? REGION_NUMA : REGION_SOCKET;
    int n = kind == HVI_BIND_CORE || kind == HVI_BIND_GPU || w->cores > 0 ? c->n : 1;

    CPU_ZERO(out);
    for (int k = 0; k < n; k++) {
        const struct hvi_topo_core *core = core_of(t, c->region, c->first + k);
        int number = place(core, place_kind);

        if (kind == HVI_BIND_CORE || kind == HVI_BIND_GPU) {
            CPU_OR(out, out, &core->cpus);
            continue;
        }
        if (number < 0)
            return false;
        for (int i = 0; i < t->ncores; i++)
            if (place(&t->core[i], place_kind) == number)
                CPU_OR(out, out, &t->core[i].cpus);
    }
    return true;
}

static bool overlap(const cpu_set_t *a, const cpu_set_t *b)
{
    cpu_set_t both;

    CPU_AND(&both, a, b);
    return CPU_COUNT(&both) > 0;
}

static void count_cores(const struct hvi_topo *t, const struct hvi_share_wish *w,
                        struct hvi_share *out)
{
    for (int i = 0; i < w->nranks; i++) {
        int here = 0;

        out[i].ncores = 0;
        for (int k = 0; k < t->ncores; k++)
            out[i].ncores += overlap(&t->core[k].cpus, &out[i].cpus);
        for (int k = 0; k < w->nranks; k++)
            here += overlap(&out[i].cpus, &out[k].cpus);
        out[i].threads =
            w->cores > 0 ? w->cores : out[i].ncores / (here > 0 ? here : 1);
        if (out[i].threads > out[i].ncores)
            out[i].threads = out[i].ncores;
        if (out[i].threads < 1)
            out[i].threads = 1;
    }
}

static void leave_unbound(const struct hvi_topo *t, const struct hvi_share_wish *w,
                          struct hvi_share *out)
{
    for (int i = 0; i < w->nranks; i++) {
        CPU_ZERO(&out[i].cpus);
        for (int k = 0; k < t->ncores; k++)
            CPU_OR(&out[i].cpus, &out[i].cpus, &t->core[k].cpus);
    }
}

void hvi_share_cut(const struct hvi_topo *t, const struct hvi_share_wish *w,
                   struct hvi_share *out, struct hvi_shares *all)
{
    enum hvi_bind kind = w->bind_to;
    const char *why = "not asked for";

    all->crowded = false;
    if (kind == HVI_BIND_AUTO)
        kind = choose(t, w, &why);
    else if (kind == HVI_BIND_GPU && !all_near(t, w)) {
        kind = HVI_BIND_NONE;
        why = "it is not known which processors given here are near its GPU";
    }
    for (int i = 0; i < w->nranks && kind != HVI_BIND_NONE; i++) {
        struct cut c = cut_one(t, w, kind, i, &all->crowded);

        if (!take(t, w, kind, &c, &out[i].cpus)) {
            kind = HVI_BIND_NONE;
            why = "hwloc knows no such place on this host";
        }
    }
    if (kind == HVI_BIND_NONE) {
        leave_unbound(t, w, out);
        all->crowded = false;
    }
    count_cores(t, w, out);
    all->kind = kind;
    all->why = kind == HVI_BIND_NONE ? why : NULL;
}
