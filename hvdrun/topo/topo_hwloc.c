#include "hvdrun/topo/topo.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kernel's files say where processors are. hwloc would also ask each of them itself, by
 * moving there, and so wait for whatever runs on it. */
static void ask_kernel_only(hwloc_topology_t topo)
{
#if HWLOC_API_VERSION >= 0x00020100
    (void)hwloc_topology_set_components(topo, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        "x86");
#else
    (void)topo;
#endif
}

/* Only cores and sockets are kept, and PCI devices where their place matters: loading
 * everything (caches, other devices) takes far longer. */
static int load(hwloc_topology_t topo, bool devices)
{
    if (hwloc_topology_set_all_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
        hwloc_topology_set_type_filter(topo, HWLOC_OBJ_CORE,
                                       HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
        hwloc_topology_set_type_filter(topo, HWLOC_OBJ_PACKAGE,
                                       HWLOC_TYPE_FILTER_KEEP_ALL) != 0)
        return -1;
    if (devices && hwloc_topology_set_type_filter(topo, HWLOC_OBJ_PCI_DEVICE,
                                                  HWLOC_TYPE_FILTER_KEEP_ALL) != 0)
        return -1;
    return hwloc_topology_load(topo);
}

#define PLUGINS "HWLOC_PLUGINS_PATH"

/* hwloc would first load its plugins, and with them OpenCL, GL and XML: longer than all
 * else that an agent does before its first rank. Cores and PCI places need none. */
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
    struct hvi_topo t;
    cpu_set_t all;
    int n;

    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof all, &all) != 0) { /* more than it can hold */
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? n : 1;
    }
    n = hvi_topo_look(&all, NULL, 0, &t) == NULL ? t.ncores : CPU_COUNT(&all);
    hvi_topo_fini(&t);
    return n > 0 ? n : 1;
}

/* The first object of this type around the core; -1: there is none. */
static int place_of(hwloc_topology_t topo, hwloc_obj_type_t type, hwloc_obj_t core)
{
    hwloc_obj_t obj = NULL;

    while ((obj = hwloc_get_next_obj_by_type(topo, type, obj)) != NULL)
        if (hwloc_bitmap_intersects(obj->cpuset, core->cpuset))
            return (int)obj->logical_index;
    return -1;
}

/* The part of `from` that is inside; false where cpu_set_t cannot name it. */
static bool part(hwloc_topology_t topo, hwloc_const_cpuset_t from,
                 hwloc_const_cpuset_t inside, cpu_set_t *out)
{
    hwloc_cpuset_t both = hwloc_bitmap_alloc();
    bool ok = both != NULL && hwloc_bitmap_and(both, from, inside) == 0 &&
              hwloc_cpuset_to_glibc_sched_affinity(topo, both, out, sizeof *out) == 0;

    hwloc_bitmap_free(both);
    return ok;
}

static const char *take_cores(hwloc_topology_t topo, hwloc_const_cpuset_t inside,
                              struct hvi_topo *out)
{
    int all = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    hwloc_obj_t core = NULL;

    out->core = calloc(all > 0 ? (size_t)all : 1, sizeof *out->core);
    if (out->core == NULL)
        return "out of memory";
    while ((core = hwloc_get_next_obj_by_type(topo, HWLOC_OBJ_CORE, core)) != NULL &&
           out->ncores < all) {
        struct hvi_topo_core *c = &out->core[out->ncores];

        if (!hwloc_bitmap_intersects(core->cpuset, inside))
            continue;
        if (!part(topo, core->cpuset, inside, &c->cpus))
            return "more processors than can be named";
        c->numa = place_of(topo, HWLOC_OBJ_NUMANODE, core);
        c->socket = place_of(topo, HWLOC_OBJ_PACKAGE, core);
        out->ncores++;
    }
    return out->ncores > 0 ? NULL : "hwloc knows no cores here";
}

static const char *take_near(hwloc_topology_t topo, hwloc_const_cpuset_t inside,
                             const char *const *pci, int npci, struct hvi_topo *out)
{
    out->near = calloc(npci > 0 ? (size_t)npci : 1, sizeof *out->near);
    if (out->near == NULL)
        return "out of memory";
    out->npci = npci;
    for (int i = 0; i < npci; i++) {
        hwloc_obj_t dev =
            pci[i][0] != '\0' ? hwloc_get_pcidev_by_busidstring(topo, pci[i]) : NULL;
        hwloc_obj_t at = dev != NULL ? hwloc_get_non_io_ancestor_obj(topo, dev) : NULL;

        if (at == NULL || !part(topo, at->cpuset, inside, &out->near[i]))
            CPU_ZERO(&out->near[i]);
    }
    return NULL;
}

static const char *look(const cpu_set_t *inside, const char *const *pci, int npci,
                        bool kernel_only, struct hvi_topo *out)
{
    const char *why = "hwloc cannot look at this host";
    hwloc_topology_t topo;
    hwloc_cpuset_t set = hwloc_bitmap_alloc();

    memset(out, 0, sizeof *out);
    if (set == NULL || init_without_plugins(&topo) != 0) {
        hwloc_bitmap_free(set);
        return why;
    }
    if (kernel_only)
        ask_kernel_only(topo);
    if (load(topo, npci > 0) == 0 &&
        hwloc_cpuset_from_glibc_sched_affinity(topo, set, inside, sizeof *inside) == 0)
        why = take_cores(topo, set, out);
    if (why == NULL)
        why = take_near(topo, set, pci, npci, out);
    if (why != NULL)
        hvi_topo_fini(out);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topo);
    return why;
}

const char *hvi_topo_look(const cpu_set_t *inside, const char *const *pci, int npci,
                          struct hvi_topo *out)
{
    const char *why = look(inside, pci, npci, true, out);

    return why == NULL ? NULL : look(inside, pci, npci, false, out);
}

void hvi_topo_fini(struct hvi_topo *t)
{
    free(t->core);
    free(t->near);
    memset(t, 0, sizeof *t);
}
