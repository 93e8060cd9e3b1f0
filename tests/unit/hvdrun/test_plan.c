#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/plan.h"

struct made {
    struct hvi_hosts hosts;
    struct hvi_plan plan;
    struct hvi_err err;
    enum hvd_status rc;
};

static struct made make(const char *hosts, int np, bool oversubscribe)
{
    struct made m = {.rc = HVD_OK};
    struct hvi_plan_wish wish = {.np = np, .cores = 6, .oversubscribe = oversubscribe};

    if (hosts[0] != '\0')
        m.rc = hvi_hosts_parse(&m.hosts, hosts, &m.err);
    if (m.rc == HVD_OK)
        m.rc = hvi_plan_make(&m.hosts, &wish, &m.plan, &m.err);
    return m;
}

static void done(struct made *m)
{
    hvi_plan_fini(&m->plan);
    hvi_hosts_fini(&m->hosts);
}

/* "host.local_rank/local_size" of each rank */
static const char *places(const struct hvi_plan *p)
{
    static char text[1024];
    int n = 0;

    text[0] = '\0';
    for (int r = 0; r < p->np; r++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s.%d/%d", r > 0 ? " " : "",
                      p->host[p->place[r].host].name, p->place[r].local_rank,
                      p->place[r].local_size);
    return text;
}

Test(plan, lays_ranks_out_in_horovods_order, .timeout = 5)
{
    static const struct {
        const char *hosts;
        int np;
        const char *want;
    } rows[] = {
        {"", 2, "localhost.0/2 localhost.1/2"},
        {"", 0,
         "localhost.0/6 localhost.1/6 localhost.2/6 localhost.3/6 localhost.4/6 "
         "localhost.5/6"},
        {"a:2,b:1", 3, "a.0/2 a.1/2 b.0/1"},
        {"a:2,b:1", 0, "a.0/2 a.1/2 b.0/1"},
        {"a:2,b:4", 3, "a.0/2 a.1/2 b.0/1"},
        {"a:4,b:4", 2, "a.0/2 a.1/2"},
        {"a:2,b", 3, "a.0/2 a.1/2 b.0/1"},
        {"a,b", 5, "a.0/3 a.1/3 a.2/3 b.0/2 b.1/2"},
        {"a,b,c", 2, "a.0/1 b.0/1"},
        {"a,b", 0, "a.0/1 b.0/1"},
        {"localhost", 4, "localhost.0/4 localhost.1/4 localhost.2/4 localhost.3/4"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct made m = make(rows[i].hosts, rows[i].np, false);

        cr_assert_eq(m.rc, HVD_OK, "%s: %s", rows[i].hosts, m.err.text);
        cr_assert_str_eq(places(&m.plan), rows[i].want, "%s -np %d gave %s",
                         rows[i].hosts, rows[i].np, places(&m.plan));
        done(&m);
    }
}

Test(plan, cross_ranks_are_horovods, .timeout = 5)
{
    struct made m = make("a:2,b:4,c:1", 7, false);
    static const int size[7] = {3, 2, 3, 2, 1, 1, 3};
    static const int rank[7] = {0, 0, 1, 1, 0, 0, 2};

    cr_assert_eq(m.rc, HVD_OK);
    for (int r = 0; r < 7; r++) {
        cr_assert_eq(m.plan.place[r].cross_size, size[r], "rank %d", r);
        cr_assert_eq(m.plan.place[r].cross_rank, rank[r], "rank %d", r);
    }
    cr_assert_eq(m.plan.nhosts, 3u);
    cr_assert_eq(m.plan.first_rank[2], 6);
    done(&m);
}

Test(plan, too_many_ranks_is_arithmetic_in_one_line, .timeout = 5)
{
    struct made m = make("a:4,b:2", 8, false);

    cr_assert_eq(m.rc, HVD_EINVAL);
    cr_assert_str_eq(m.err.text,
                     "-np 8 needs 8 slots, hosts offer 6 (a:4 b:2); add slots or "
                     "hosts, or use --oversubscribe");
    cr_assert_null(m.plan.place);
    done(&m);
}

Test(plan, a_long_list_of_hosts_is_cut, .timeout = 5)
{
    struct made m = make("node[001-900]:1", 901, false);

    cr_assert_eq(m.rc, HVD_EINVAL);
    cr_assert(strstr(m.err.text, "hosts offer 900 (node001:1 ") != NULL, "%s",
              m.err.text);
    cr_assert(strstr(m.err.text, " ...)") != NULL, "%s", m.err.text);
    done(&m);
}

Test(plan, oversubscribing_goes_round_the_hosts, .timeout = 5)
{
    struct made m = make("a:1,b:1", 5, true);

    cr_assert_eq(m.rc, HVD_OK);
    cr_assert_str_eq(places(&m.plan), "a.0/3 a.1/3 a.2/3 b.0/2 b.1/2");
    done(&m);
}

Test(plan, oversubscribing_stops_at_max_slots, .timeout = 5)
{
    static const char text[] = "a slots=1 max_slots=2\nb slots=1 max_slots=3\n";
    struct hvi_plan_wish wish = {.np = 5, .oversubscribe = true};
    struct made m = {.rc = HVD_OK};

    cr_assert_eq(hvi_hosts_parse_file(&m.hosts, "h", text, sizeof text - 1, &m.err),
                 HVD_OK);
    cr_assert_eq(hvi_plan_make(&m.hosts, &wish, &m.plan, &m.err), HVD_OK);
    cr_assert_str_eq(places(&m.plan), "a.0/2 a.1/2 b.0/3 b.1/3 b.2/3");
    hvi_plan_fini(&m.plan);
    wish.np = 6;
    cr_assert_eq(hvi_plan_make(&m.hosts, &wish, &m.plan, &m.err), HVD_EINVAL);
    cr_assert_str_eq(m.err.text,
                     "-np 6 needs 6 slots, max_slots of the hosts allow 5 (a:2 b:3)");
    done(&m);
}

Test(plan, more_ranks_than_supported_is_a_limit, .timeout = 5)
{
    struct made m = make("a:1024,b:1024", 0, false);

    cr_assert_eq(m.rc, HVD_ELIMIT);
    cr_assert_str_eq(m.err.text, "2048 ranks asked for; at most 1024 are supported");
    done(&m);
    m = make("a:1024", 1024, false);
    cr_assert_eq(m.rc, HVD_OK);
    done(&m);
}
