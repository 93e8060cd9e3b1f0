#include "hvdrun/topo/topo.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

/* Only cores are kept: loading everything (caches, devices) takes far longer. */
static int load(hwloc_topology_t topo)
{
    if (hwloc_topology_set_all_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
        hwloc_topology_set_type_filter(topo, HWLOC_OBJ_CORE,
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
