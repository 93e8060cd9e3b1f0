#include "hvdrun/topo/plain.h"
#include "hvdrun/topo/share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

/* topo_flat.c has no places to tell apart. */
static bool without_hwloc(void)
{
    struct hvi_topo t;
    cpu_set_t one;
    const char *why;

    CPU_ZERO(&one);
    CPU_SET(0, &one);
    why = hvi_topo_look(&one, NULL, 0, &t);
    hvi_topo_fini(&t);
    return why != NULL && strcmp(why, "built without hwloc") == 0;
}

static void range(cpu_set_t *all, int first, int last)
{
    CPU_ZERO(all);
    for (int i = first; i <= last; i++)
        CPU_SET(i, all);
}

/* Two sockets, each one NUMA node, of four cores of two processors: 16. */
static void pretend(struct hvi_topo *t, int first, int last)
{
    cpu_set_t all;

    setenv("HWLOC_SYNTHETIC", "pack:2 [numa] core:4 pu:2", 1);
    range(&all, first, last);
    cr_assert_null(hvi_topo_look(&all, NULL, 0, t));
}

static bool is(const struct hvi_share *s, int first, int last)
{
    int n = 0;

    for (int i = first; i <= last; i++)
        n += CPU_ISSET(i, &s->cpus) != 0;
    return n == last - first + 1 && CPU_COUNT(&s->cpus) == n;
}

static struct hvi_shares cut(const struct hvi_topo *t, enum hvi_bind bind_to,
                             enum hvi_map map_by, int n, int cores,
                             struct hvi_share *out)
{
    struct hvi_share_wish w = {
        .nranks = n, .bind_to = bind_to, .map_by = map_by, .cores = cores};
    struct hvi_shares all;

    hvi_share_cut(t, &w, out, &all);
    return all;
}

Test(topo, gives_each_rank_whole_cores_side_by_side, .timeout = 20)
{
    struct hvi_topo t;
    struct hvi_share got[3];

    if (without_hwloc())
        return;
    pretend(&t, 0, 15);
    cr_assert_eq(cut(&t, HVI_BIND_CORE, HVI_MAP_AUTO, 3, 0, got).kind, HVI_BIND_CORE);
    cr_assert(is(&got[0], 0, 3)); /* 8 cores over 3: 2, 3, 3 */
    cr_assert(is(&got[1], 4, 9));
    cr_assert(is(&got[2], 10, 15));
    cr_assert_eq(got[0].threads, 2);
    cr_assert_eq(got[1].threads, 3);
    hvi_topo_fini(&t);
}

Test(topo, gives_the_node_or_socket_where_the_share_begins, .timeout = 20)
{
    static const enum hvi_bind kinds[] = {HVI_BIND_SOCKET, HVI_BIND_NUMA};
    struct hvi_topo t;
    struct hvi_share got[4];

    if (without_hwloc())
        return;
    pretend(&t, 0, 15);
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(cut(&t, kinds[k], HVI_MAP_AUTO, 4, 0, got).kind, kinds[k]);
        for (int i = 0; i < 4; i++) {
            cr_assert(is(&got[i], i / 2 * 8, i / 2 * 8 + 7));
            cr_assert_eq(got[i].threads, 2); /* 4 cores, 2 ranks */
        }
    }
    hvi_topo_fini(&t);
}

Test(topo, stays_inside_what_was_inherited, .timeout = 20)
{
    struct hvi_topo t;
    struct hvi_share got[2];

    if (without_hwloc())
        return;
    pretend(&t, 5, 9); /* half of core 2, all of 3 and 4 */
    cut(&t, HVI_BIND_CORE, HVI_MAP_AUTO, 2, 0, got);
    cr_assert(is(&got[0], 5, 5));
    cr_assert(is(&got[1], 6, 9));
    cut(&t, HVI_BIND_SOCKET, HVI_MAP_AUTO, 1, 0, got);
    cr_assert(is(&got[0], 5, 7));
    hvi_topo_fini(&t);
}

Test(topo, lets_ranks_share_where_cores_are_too_few, .timeout = 20)
{
    struct hvi_topo t;
    struct hvi_share got[5];
    struct hvi_shares all;

    if (without_hwloc())
        return;
    pretend(&t, 0, 5);
    all = cut(&t, HVI_BIND_CORE, HVI_MAP_AUTO, 5, 0, got);
    cr_assert(all.crowded && all.kind == HVI_BIND_CORE);
    cr_assert(is(&got[0], 0, 1));
    cr_assert(is(&got[4], 4, 5));
    cr_assert_eq(got[4].threads, 1);
    all = cut(&t, HVI_BIND_CORE, HVI_MAP_AUTO, 2, 2, got); /* 4 of 3 cores */
    cr_assert(all.crowded);
    cr_assert(is(&got[0], 0, 3) && is(&got[1], 0, 3));
    all = cut(&t, HVI_BIND_CORE, HVI_MAP_AUTO, 1, 9, got);
    cr_assert(all.crowded && is(&got[0], 0, 5) && got[0].threads == 3);
    cr_assert(!cut(&t, HVI_BIND_CORE, HVI_MAP_AUTO, 3, 1, got).crowded);
    hvi_topo_fini(&t);
}

Test(topo, gives_as_many_cores_as_asked_for, .timeout = 20)
{
    struct hvi_topo t;
    struct hvi_share got[4];

    if (without_hwloc())
        return;
    pretend(&t, 0, 15);
    /* nothing else said: bound to them, spread; side by side by core */
    cr_assert_eq(cut(&t, HVI_BIND_AUTO, HVI_MAP_AUTO, 2, 2, got).kind, HVI_BIND_CORE);
    cr_assert(is(&got[0], 0, 3) && is(&got[1], 8, 11));
    cr_assert_eq(got[1].threads, 2);
    cut(&t, HVI_BIND_CORE, HVI_MAP_CORE, 2, 2, got);
    cr_assert(is(&got[0], 0, 3) && is(&got[1], 4, 7));
    cut(&t, HVI_BIND_NUMA, HVI_MAP_AUTO, 1, 3, got);
    cr_assert(is(&got[0], 0, 7) && got[0].threads == 3);
    cut(&t, HVI_BIND_NUMA, HVI_MAP_AUTO, 1, 6, got); /* of both */
    cr_assert(is(&got[0], 0, 15) && got[0].threads == 6);
    cr_assert_eq(cut(&t, HVI_BIND_NONE, HVI_MAP_AUTO, 2, 3, got).kind, HVI_BIND_NONE);
    cr_assert(is(&got[0], 0, 15) && got[0].threads == 3);
    hvi_topo_fini(&t);
}

Test(topo, goes_round_the_places_of_the_map, .timeout = 20)
{
    struct hvi_topo t;
    struct hvi_share got[4];

    if (without_hwloc())
        return;
    pretend(&t, 0, 15);
    cut(&t, HVI_BIND_CORE, HVI_MAP_SOCKET, 4, 0, got);
    cr_assert(is(&got[0], 0, 3) && is(&got[1], 8, 11));
    cr_assert(is(&got[2], 4, 7) && is(&got[3], 12, 15));
    cr_assert_eq(cut(&t, HVI_BIND_AUTO, HVI_MAP_NUMA, 3, 0, got).kind, HVI_BIND_NUMA);
    cr_assert(is(&got[0], 0, 7) && is(&got[1], 8, 15) && is(&got[2], 0, 7));
    cr_assert(got[0].threads == 2 && got[1].threads == 4);
    cut(&t, HVI_BIND_CORE, HVI_MAP_CORE, 3, 0, got);
    cr_assert(is(&got[0], 0, 1) && is(&got[1], 2, 3) && is(&got[2], 4, 5));
    hvi_topo_fini(&t);
}

static bool says(struct hvi_shares all, const char *why)
{
    return all.kind == HVI_BIND_NONE && strcmp(all.why, why) == 0;
}

Test(topo, binds_unasked_only_where_it_is_right, .timeout = 20)
{
    struct hvi_share got[9];
    struct hvi_share_wish w = {.nranks = 2,
                               .bind_to = HVI_BIND_AUTO,
                               .map_by = HVI_MAP_AUTO,
                               .self_bound = "they do"};
    struct hvi_shares all;
    struct hvi_topo t;

    if (without_hwloc())
        return;
    pretend(&t, 0, 15);
    cr_assert_eq(cut(&t, HVI_BIND_AUTO, HVI_MAP_AUTO, 4, 0, got).kind, HVI_BIND_NUMA);
    cr_assert(is(&got[1], 0, 7) && is(&got[2], 8, 15));
    cr_assert(says(cut(&t, HVI_BIND_AUTO, HVI_MAP_AUTO, 3, 0, got),
                   "the NUMA nodes would have different numbers of ranks"));
    cr_assert(is(&got[2], 0, 15) && got[2].threads == 2);
    cr_assert(
        says(cut(&t, HVI_BIND_AUTO, HVI_MAP_AUTO, 9, 0, got), "more ranks than cores"));
    hvi_share_cut(&t, &w, got, &all);
    cr_assert(says(all, "they do"));
    w.self_bound = NULL;
    w.ngpus = 8; /* their places are not known, and 6 are left over */
    hvi_share_cut(&t, &w, got, &all);
    cr_assert(says(all, "not one rank for each GPU"));
    hvi_topo_fini(&t);
    pretend(&t, 0, 7);
    cr_assert(says(cut(&t, HVI_BIND_AUTO, HVI_MAP_AUTO, 2, 0, got), "one NUMA node"));
    hvi_topo_fini(&t);
}

/* As pretend(), with a GPU in each socket: 17:00.0 in the second, b3:00.0 in the first. */
static void with_gpus(struct hvi_topo *t, int first, int last)
{
    static const char *const pci[] = {"0000:17:00.0", "0000:b3:00.0", ""};
    cpu_set_t all;

    unsetenv("HWLOC_SYNTHETIC");
    setenv("HWLOC_XMLFILE", HVD_TEST_SRC "/tests/unit/hvdrun/two-gpus.xml", 1);
    range(&all, first, last);
    cr_assert_null(hvi_topo_look(&all, pci, 3, t));
}

Test(topo, puts_ranks_near_their_gpus, .timeout = 20)
{
    static const int gpu[] = {0, 1, 0, 1};
    static const int unknown[] = {0, 2};
    struct hvi_share got[4];
    struct hvi_share_wish w = {.nranks = 2,
                               .bind_to = HVI_BIND_GPU,
                               .map_by = HVI_MAP_AUTO,
                               .ngpus = 2,
                               .gpu = gpu};
    struct hvi_shares all;
    struct hvi_topo t;

    if (without_hwloc())
        return;
    with_gpus(&t, 0, 15);
    hvi_share_cut(&t, &w, got, &all);
    cr_assert_eq(all.kind, HVI_BIND_GPU);
    cr_assert(is(&got[0], 8, 15) && is(&got[1], 0, 7) && got[0].threads == 4);
    w.bind_to = HVI_BIND_AUTO;
    hvi_share_cut(&t, &w, got, &all);
    cr_assert_eq(all.kind, HVI_BIND_NUMA);
    cr_assert(is(&got[0], 8, 15) && is(&got[1], 0, 7));
    w.nranks = 4;
    w.bind_to = HVI_BIND_CORE;
    hvi_share_cut(&t, &w, got, &all);
    cr_assert(is(&got[0], 8, 11) && is(&got[2], 12, 15));
    cr_assert(is(&got[1], 0, 3) && is(&got[3], 4, 7));
    w.map_by = HVI_MAP_SLOT; /* said: not by GPU */
    hvi_share_cut(&t, &w, got, &all);
    cr_assert(is(&got[0], 0, 3));
    w = (struct hvi_share_wish){
        .nranks = 2, .bind_to = HVI_BIND_GPU, .map_by = HVI_MAP_AUTO, .gpu = unknown};
    hvi_share_cut(&t, &w, got, &all);
    cr_assert_eq(all.kind, HVI_BIND_NONE);
    hvi_topo_fini(&t);
    with_gpus(&t, 0, 7); /* nothing near 17:00.0 was given */
    w.gpu = gpu;
    hvi_share_cut(&t, &w, got, &all);
    cr_assert_eq(all.kind, HVI_BIND_NONE);
    w.bind_to = HVI_BIND_NUMA;
    hvi_share_cut(&t, &w, got, &all);
    cr_assert(all.kind == HVI_BIND_NUMA && is(&got[0], 0, 7));
    hvi_topo_fini(&t);
}

static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "mkdir -p '%s/sys/devices/system/%.*s'", root,
             (int)(strrchr(name, '/') - name), name);
    cr_assert_eq(system(path), 0);
    snprintf(path, sizeof path, "%s/sys/devices/system/%s", root, name);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

Test(topo, one_node_needs_no_hwloc_to_count_its_cores, .timeout = 20)
{
    char root[] = "/tmp/topo-XXXXXX", command[64];
    cpu_set_t all;
    struct hvi_topo t;

    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_XMLFILE");
    cr_assert_not_null(mkdtemp(root));
    range(&all, 1, 5);
    cr_assert_not(hvi_plain_look(root, &all, &t));
    put(root, "node/online", "0\n");
    put(root, "cpu/smt/active", "0\n");
    cr_assert(hvi_plain_look(root, &all, &t));
    cr_assert_eq(t.ncores, 5);
    cr_assert(CPU_COUNT(&t.core[4].cpus) == 1 && CPU_ISSET(5, &t.core[4].cpus));
    cr_assert(t.core[0].numa == 0 && t.core[0].socket == -1);
    hvi_topo_fini(&t);
    put(root, "cpu/smt/active", "1\n");
    cr_assert_not(hvi_plain_look(root, &all, &t));
    cr_assert_null(t.core);
    for (int i = 1; i <= 5; i++) {
        char name[64];

        snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", i);
        put(root, name, i == 5 ? "5\n" : i % 2 == 1 ? "1,3\n" : "2,4,8-9\n");
    }
    cr_assert(hvi_plain_look(root, &all, &t));
    cr_assert_eq(t.ncores, 3);
    cr_assert(CPU_COUNT(&t.core[1].cpus) == 2 && CPU_ISSET(4, &t.core[1].cpus));
    hvi_topo_fini(&t);
    put(root, "cpu/cpu5/topology/thread_siblings_list", "4-\n");
    cr_assert_not(hvi_plain_look(root, &all, &t));
    put(root, "node/online", "0-1\n");
    put(root, "cpu/smt/active", "0\n");
    cr_assert_not(hvi_plain_look(root, &all, &t));
    put(root, "node/online", "0\n");
    setenv("HWLOC_SYNTHETIC", "pack:2 [numa] core:4 pu:2", 1);
    cr_assert_not(hvi_plain_look(root, &all, &t));
    unsetenv("HWLOC_SYNTHETIC");
    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

Test(topo, hwloc_counts_as_many, .timeout = 20)
{
    struct hvi_topo plain, full;
    cpu_set_t all;

    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_XMLFILE");
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    if (without_hwloc() || !hvi_plain_look("", &all, &plain))
        return;
    cr_assert_null(hvi_topo_look(&all, NULL, 0, &full));
    cr_assert_eq(plain.ncores, full.ncores);
    for (int i = 0; i < full.ncores; i++)
        cr_assert_eq(full.core[i].numa, 0);
    hvi_topo_fini(&plain);
    hvi_topo_fini(&full);
}
