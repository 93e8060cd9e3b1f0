#include "hvdrun/topo/topo.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

/* topo_flat.c has no places to tell apart. */
static bool without_hwloc(void)
{
    cpu_set_t one;
    cpu_set_t got;
    const char *why;

    CPU_ZERO(&one);
    CPU_SET(0, &one);
    why = hvi_topo_shares(HVI_TOPO_CORE, &one, 1, &got);
    return why != NULL && strcmp(why, "built without hwloc") == 0;
}

/* Two sockets, each one NUMA node, of four cores of two processors: 16. */
static void pretend(cpu_set_t *all, int first, int last)
{
    setenv("HWLOC_SYNTHETIC", "pack:2 [numa] core:4 pu:2", 1);
    CPU_ZERO(all);
    for (int i = first; i <= last; i++)
        CPU_SET(i, all);
}

static bool is(const cpu_set_t *set, int first, int last)
{
    int n = 0;

    for (int i = first; i <= last; i++)
        n += CPU_ISSET(i, set) != 0;
    return n == last - first + 1 && CPU_COUNT(set) == n;
}

Test(topo, gives_each_rank_whole_cores_side_by_side, .timeout = 20)
{
    cpu_set_t all;
    cpu_set_t got[3];

    if (without_hwloc())
        return;
    pretend(&all, 0, 15);
    cr_assert_null(hvi_topo_shares(HVI_TOPO_CORE, &all, 3, got));
    cr_assert(is(&got[0], 0, 3)); /* 8 cores over 3: 2, 3, 3 */
    cr_assert(is(&got[1], 4, 9));
    cr_assert(is(&got[2], 10, 15));
}

Test(topo, gives_the_node_or_socket_where_the_share_begins, .timeout = 20)
{
    cpu_set_t all;
    cpu_set_t got[4];

    if (without_hwloc())
        return;
    pretend(&all, 0, 15);
    cr_assert_null(hvi_topo_shares(HVI_TOPO_SOCKET, &all, 4, got));
    for (int i = 0; i < 4; i++)
        cr_assert(is(&got[i], i / 2 * 8, i / 2 * 8 + 7));
    cr_assert_null(hvi_topo_shares(HVI_TOPO_NUMA, &all, 4, got));
    for (int i = 0; i < 4; i++)
        cr_assert(is(&got[i], i / 2 * 8, i / 2 * 8 + 7));
}

Test(topo, stays_inside_what_was_inherited, .timeout = 20)
{
    cpu_set_t all;
    cpu_set_t got[2];

    if (without_hwloc())
        return;
    pretend(&all, 5, 9); /* half of core 2, all of 3 and 4 */
    cr_assert_null(hvi_topo_shares(HVI_TOPO_CORE, &all, 2, got));
    cr_assert(is(&got[0], 5, 5));
    cr_assert(is(&got[1], 6, 9));
    cr_assert_null(hvi_topo_shares(HVI_TOPO_SOCKET, &all, 1, got));
    cr_assert(is(&got[0], 5, 7));
}

Test(topo, says_why_it_cannot, .timeout = 20)
{
    cpu_set_t all;
    cpu_set_t got[4];
    const char *why;

    if (without_hwloc())
        return;
    pretend(&all, 0, 5);
    why = hvi_topo_shares(HVI_TOPO_CORE, &all, 4, got);
    cr_assert_not_null(why);
    cr_assert_str_eq(why, "fewer cores than ranks");
}
