#include "hvdrun/topo/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hvdrun/topo/plain.h"

const char *hvi_layout_self_bound(const char *program,
                                  const char *(*get)(const void *, const char *),
                                  const void *env)
{
    static const char *const vars[] = {"OMP_PLACES", "OMP_PROC_BIND",
                                       "GOMP_CPU_AFFINITY", "KMP_AFFINITY"};
    static const char *const programs[] = {"numactl", "taskset", "hwloc-bind",
                                           "likwid-pin"};
    const char *slash = program != NULL ? strrchr(program, '/') : NULL;

    for (size_t i = 0; i < sizeof vars / sizeof vars[0]; i++) {
        const char *v = get(env, vars[i]);

        if (v != NULL && v[0] != '\0' && strcasecmp(v, "false") != 0 &&
            strcasecmp(v, "disabled") != 0)
            return "OpenMP variables bind the threads";
    }
    for (size_t i = 0; program != NULL && i < sizeof programs / sizeof programs[0]; i++)
        if (strcmp(slash != NULL ? slash + 1 : program, programs[i]) == 0)
            return "the program binds by itself";
    return NULL;
}

/* Which GPU each rank has. HVD_EINVAL: not as many as asked for. */
static enum hvd_status deal_gpus(const struct hvi_layout_wish *w, struct hvi_layout *l,
                                 struct hvi_err *err)
{
    const char *what = w->gpus > 0 ? "--gpus-per-rank" : "--bind-to gpu";
    bool asked = w->gpus > 0 || w->bind_to == HVI_BIND_GPU;
    int groups = l->gpus.n / l->per_rank;

    if (asked && groups == 0)
        return hvi_fail(err, HVD_EINVAL,
                        "%s: a rank needs %d GPU%s, %d visible on this host%s%.200s",
                        what, l->per_rank, l->per_rank == 1 ? "" : "s", l->gpus.n,
                        w->visible != NULL ? ": CUDA_VISIBLE_DEVICES=" : "",
                        w->visible != NULL ? w->visible : "");
    if (asked && w->nranks > groups && !w->crowd_gpus)
        return hvi_fail(
            err, HVD_EINVAL,
            "%s: %d ranks on this host need %d GPUs, %d are visible%s%.200s; "
            "start fewer ranks here, or let them share: --oversubscribe-gpu",
            what, w->nranks, w->nranks * l->per_rank, l->gpus.n,
            w->visible != NULL ? ": CUDA_VISIBLE_DEVICES=" : "",
            w->visible != NULL ? w->visible : "");
    for (int i = 0; i < w->nranks; i++)
        l->gpu[i] = w->nranks <= groups ? i * l->per_rank
                    : asked             ? i % groups * l->per_rank
                                        : -1;
    return HVD_OK;
}

/* Of one NUMA node no more is wanted than its cores. */
static bool may_be_plain(const struct hvi_layout_wish *w)
{
    return w->bind_to == HVI_BIND_NONE ||
           (w->bind_to == HVI_BIND_AUTO && w->cores == 0 &&
            (w->map_by == HVI_MAP_AUTO || w->map_by == HVI_MAP_SLOT));
}

static void share(const struct hvi_layout_wish *w, struct hvi_layout *l)
{
    struct hvi_share_wish wish = {.nranks = w->nranks,
                                  .bind_to = w->bind_to,
                                  .map_by = w->map_by,
                                  .cores = w->cores,
                                  .ngpus = l->gpus.n / l->per_rank,
                                  .gpu = l->gpu,
                                  .self_bound = w->self_bound};
    const char *pci[HVI_GPUS_MAX];
    cpu_set_t inherited;
    struct hvi_topo topo = {.ncores = 0};

    for (int i = 0; i < l->gpus.n; i++)
        pci[i] = l->gpus.list[i].pci;
    CPU_ZERO(&inherited);
    if (sched_getaffinity(0, sizeof inherited, &inherited) != 0)
        l->shares.why = "more processors than can be named";
    else if (!may_be_plain(w) || !hvi_plain_look("", &inherited, &topo))
        l->shares.why = hvi_topo_look(
            &inherited, pci, w->bind_to == HVI_BIND_NONE ? 0 : l->gpus.n, &topo);
    if (l->shares.why == NULL) {
        hvi_share_cut(&topo, &wish, l->rank, &l->shares);
        hvi_topo_fini(&topo);
        return;
    }
    for (int i = 0; i < w->nranks; i++) {
        int named = CPU_COUNT(&inherited);
        int all = named > 0 ? named : (int)sysconf(_SC_NPROCESSORS_ONLN);
        int threads = w->cores > 0 ? w->cores : all / w->nranks;

        l->rank[i].cpus = inherited;
        l->rank[i].ncores = all;
        l->rank[i].threads = threads > 0 ? threads : 1;
    }
}

enum hvd_status hvi_layout_make(const struct hvi_layout_wish *w, struct hvi_layout *out,
                                struct hvi_err *err)
{
    static struct hvi_gpus found;
    const char *root = getenv(HVI_GPU_ROOT_ENV);
    enum hvd_status rc = HVD_OK;

    memset(out, 0, sizeof *out);
    out->nranks = w->nranks;
    out->per_rank = w->gpus > 0 ? w->gpus : 1;
    out->masked = w->gpus > 0;
    out->rank = calloc((size_t)w->nranks, sizeof *out->rank);
    out->gpu = calloc((size_t)w->nranks, sizeof *out->gpu);
    if (out->rank == NULL || out->gpu == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
        goto done;
    }
    hvi_gpus_find(root != NULL ? root : "", &found);
    hvi_gpus_visible(&found, w->visible, &out->gpus);
    rc = deal_gpus(w, out, err);
    if (rc == HVD_OK)
        share(w, out);
done:
    if (rc != HVD_OK)
        hvi_layout_fini(out);
    return rc;
}

void hvi_layout_fini(struct hvi_layout *l)
{
    free(l->rank);
    free(l->gpu);
    memset(l, 0, sizeof *l);
}

void hvi_layout_mask(const struct hvi_layout *l, int rank, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < l->per_rank && used + HVI_GPU_NAME_MAX < cap; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%s", i > 0 ? "," : "",
                                 l->gpus.list[l->gpu[rank] + i].name);
}

void hvi_layout_cpus(const struct hvi_layout *l, int rank, char *out, size_t cap)
{
    const cpu_set_t *set = &l->rank[rank].cpus;
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < CPU_SETSIZE && used + 24 < cap; i++) {
        size_t last = i;

        if (!CPU_ISSET(i, set))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set))
            last++;
        used +=
            (size_t)snprintf(out + used, cap - used, last > i ? "%s%zu-%zu" : "%s%zu",
                             used > 0 ? "," : "", i, last);
        i = last;
    }
}

void hvi_layout_words(const struct hvi_layout *l, int rank, char *out, size_t cap)
{
    const struct hvi_share *s = &l->rank[rank];
    int gpu = l->gpu[rank];
    char cpus[512];
    size_t used;

    hvi_layout_cpus(l, rank, cpus, sizeof cpus);
    if (l->shares.kind != HVI_BIND_NONE)
        used = (size_t)snprintf(out, cap, "bound to %s", hvi_bind_word(l->shares.kind));
    else
        used = (size_t)snprintf(out, cap, "not bound (%s)", l->shares.why);
    used += (size_t)snprintf(out + used, cap - used, ": %d core%s, processors %s",
                             s->ncores, s->ncores == 1 ? "" : "s", cpus);
    for (int i = 0; gpu >= 0 && i < l->per_rank && used + 160 < cap; i++) {
        const struct hvi_gpu *g = &l->gpus.list[gpu + i];

        used += (size_t)snprintf(
            out + used, cap - used, "%s%s%s%s%s", i == 0 ? "; GPU " : ", ", g->name,
            g->pci[0] != '\0' ? " (" : "", g->pci, g->pci[0] != '\0' ? ")" : "");
    }
}
