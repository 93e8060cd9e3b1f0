#include "hvdrun/topo/topo.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdlib.h>
#include <string.h>

/* Only cores and sockets are kept: loading everything (caches, devices) takes far longer. */
static int load(hwloc_topology_t topo)
{
    if (hwloc_topology_set_all_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
        hwloc_topology_set_type_filter(topo, HWLOC_OBJ_CORE,
                                       HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
        hwloc_topology_set_type_filter(topo, HWLOC_OBJ_PACKAGE,
                                       HWLOC_TYPE_FILTER_KEEP_ALL) != 0)
        return -1;
    return hwloc_topology_load(topo);
}

/* Cores with at least one processor in the set this process is bound to. */
static int count(hwloc_topology_t topo, hwloc_const_cpuset_t bound)
{
    int n = 0;
    hwloc_obj_t core = NULL;

    while ((core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core)) != NULL)
        n += hwloc_bitmap_intersects(core->cpuset, bound);
    return n > 0 ? n : hwloc_bitmap_weight(bound);
}

#define PLUGINS "HWLOC_PLUGINS_PATH"

/* hwloc would first load its plugins, and with them OpenCL, GL and XML: longer than all
 * else that an agent does before its first rank. Cores need none. */
static int init_without_plugins(hwloc_topology_t *topo)
{
    const char *was = getenv(PLUGINS);
    char *kept = was != NULL ? strdup(was) : NULL;
    int rc;

    setenv(PLUGINS, "/dev/null", 1);
    rc = hwloc_topology_init(topo);
    if (kept != NULL)
        setenv(PLUGINS, kept, 1);
    else
        unsetenv(PLUGINS);
    free(kept);
    return rc;
}

int hvi_topo_cores(void)
{
    int n = 0;
    hwloc_topology_t topo;
    hwloc_cpuset_t bound = hwloc_bitmap_alloc();

    if (bound == NULL || init_without_plugins(&topo) != 0) {
        hwloc_bitmap_free(bound);
        return 1;
    }
    if (load(topo) == 0) {
        if (hwloc_get_cpubind(topo, bound, HWLOC_CPUBIND_PROCESS) != 0)
            hwloc_bitmap_copy(bound, hwloc_topology_get_allowed_cpuset(topo));
        n = count(topo, bound);
    }
    hwloc_bitmap_free(bound);
    hwloc_topology_destroy(topo);
    return n > 0 ? n : 1;
}

/* Cores with a processor in `bound`, in hwloc's order, which keeps neighbours together.
 * Returns how many; list is the caller's to free. */
static int list_cores(hwloc_topology_t topo, hwloc_const_cpuset_t bound,
                      hwloc_obj_t **list)
{
    int all = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    int n = 0;
    hwloc_obj_t core = NULL;

    *list = calloc(all > 0 ? (size_t)all : 1, sizeof(hwloc_obj_t));
    if (*list == NULL)
        return 0;
    while ((core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core)) != NULL)
        if (n < all && hwloc_bitmap_intersects(core->cpuset, bound))
            (*list)[n++] = core;
    return n;
}

/* Adds the processors of `kind` around the core. */
static void add_around(hwloc_topology_t topo, enum hvi_topo_bind kind, hwloc_obj_t core,
                       hwloc_cpuset_t set)
{
    hwloc_obj_type_t type =
        kind == HVI_TOPO_NUMA ? HWLOC_OBJ_NUMANODE : HWLOC_OBJ_PACKAGE;
    hwloc_obj_t obj = NULL;

    while ((obj = hwloc_get_next_obj_by_type(topo, type, obj)) != NULL)
        if (hwloc_bitmap_intersects(obj->cpuset, core->cpuset))
            hwloc_bitmap_or(set, set, obj->cpuset);
}

static const char *cut(hwloc_topology_t topo, enum hvi_topo_bind kind,
                       hwloc_const_cpuset_t bound, int n, cpu_set_t *out)
{
    hwloc_obj_t *core = NULL;
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    int ncores = list_cores(topo, bound, &core);
    const char *why = NULL;

    if (set == NULL || ncores < n)
        why = set == NULL ? "out of memory" : "fewer cores than ranks";
    for (int i = 0; i < n && why == NULL; i++) {
        int first = (int)((long)i * ncores / n);
        int end = (int)((long)(i + 1) * ncores / n);

        hwloc_bitmap_zero(set);
        for (int k = first; k < end && kind == HVI_TOPO_CORE; k++)
            hwloc_bitmap_or(set, set, core[k]->cpuset);
        if (kind != HVI_TOPO_CORE)
            add_around(topo, kind, core[first], set);
        hwloc_bitmap_and(set, set, bound);
        if (hwloc_bitmap_iszero(set))
            why = "hwloc knows no such place on this host";
        else if (hwloc_cpuset_to_glibc_sched_affinity(topo, set, &out[i],
                                                      sizeof out[i]) != 0)
            why = "more processors than can be named";
    }
    hwloc_bitmap_free(set);
    free(core);
    return why;
}

const char *hvi_topo_shares(enum hvi_topo_bind kind, const cpu_set_t *inherited, int n,
                            cpu_set_t *out)
{
    const char *why = "hwloc cannot look at this host";
    hwloc_topology_t topo;
    hwloc_cpuset_t bound = hwloc_bitmap_alloc();

    if (bound == NULL || init_without_plugins(&topo) != 0) {
        hwloc_bitmap_free(bound);
        return why;
    }
    if (load(topo) == 0 && hwloc_cpuset_from_glibc_sched_affinity(
                               topo, bound, inherited, sizeof *inherited) == 0)
        why = cut(topo, kind, bound, n, out);
    hwloc_bitmap_free(bound);
    hwloc_topology_destroy(topo);
    return why;
}
