#include "feed.h"

#define HVI_PLANE_SHM 1
#define HVI_PLANE_TCP 2

Test(negotiate, gives_an_id_when_all_have_announced, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_SHM);

    feed_announce(f, 2, 1, &(struct feed_op){.name = "x"});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x"});
    feed_is(f, "");
    feed_announce(f, 3, 1, &(struct feed_op){.name = "x"});
    feed_is(f, "send 1 ASSIGN id=0 gen=1 name='x'\n"
               "send 2 ASSIGN id=0 gen=1 name='x'\n"
               "send 3 ASSIGN id=0 gen=1 name='x'\n");
    feed_announce_all(f, 3, &(struct feed_op){.name = "y", .kind = HVD_BROADCAST});
    feed_is(f, "send 1 ASSIGN id=1 gen=1 name='y'\n"
               "send 2 ASSIGN id=1 gen=1 name='y'\n"
               "send 3 ASSIGN id=1 gen=1 name='y'\n");
    feed_free(f);
}

Test(negotiate, names_ranks_and_difference_of_a_mismatch, .timeout = 10)
{
    static const struct {
        struct feed_op a, b;
        const char *says;
    } cases[] = {
        {{.count = 4}, {.count = 5}, "shape [4] on rank 0, [5] on rank 2"},
        {{.dtype = HVD_FLOAT32},
         {.dtype = HVD_FLOAT64},
         "dtype float32 on rank 0, float64 on rank 2"},
        {{.reduce_op = HVD_SUM}, {.reduce_op = HVD_MAX}, "on rank 0, max on rank 2"},
        {{.kind = HVD_ALLREDUCE}, {.kind = HVD_ALLGATHER}, "allgather on rank 2"},
        {{.kind = HVD_BROADCAST, .root = 0},
         {.kind = HVD_BROADCAST, .root = 1},
         "root 0 on rank 0, 1 on rank 2"},
        {{.prescale = 0.5},
         {.prescale = 0.25},
         "prescale 0.5 on rank 0, 0.25 on rank 2"},
        {{.ntensors = 2},
         {.ntensors = 3},
         "number of tensors 2 on rank 0, 3 on rank 2"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = feed_up(3, HVI_PLANE_SHM);
        struct feed_op a = cases[i].a, b = cases[i].b;
        char line[400];

        a.name = b.name = "grad";
        feed_announce(f, 3, 1, &b); /* who comes first does not change the text */
        feed_announce(f, 1, 1, &a);
        feed_announce(f, 2, 1, &a);
        feed_has(f, cases[i].says);
        feed_has(f, "(ranks 0 and 1 against rank 2)");
        for (int c = 1; c <= 3; c++) {
            snprintf(line, sizeof line, "send %d FAIL name='grad' HVD_EMISMATCH", c);
            feed_has(f, line);
        }
        feed_lacks(f, "ASSIGN");
        /* the job goes on, also under that name */
        feed_forget(f);
        feed_announce_all(f, 3, &a);
        feed_has(f, "send 3 ASSIGN id=0 gen=1 name='grad'");
        feed_free(f);
    }
}

Test(negotiate, treats_a_group_as_one, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    feed_announce(f, 1, 1, &(struct feed_op){.name = "g", .ntensors = 3});
    feed_is(f, "");
    feed_announce(f, 2, 1, &(struct feed_op){.name = "g", .ntensors = 3});
    feed_is(f,
            "send 1 ASSIGN id=0 gen=1 name='g'\nsend 2 ASSIGN id=0 gen=1 name='g'\n");
    feed_free(f);
}

Test(negotiate, evicts_a_name_that_changes_and_counts_generations, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    feed_announce_all(f, 2, &(struct feed_op){.name = "x", .count = 4});
    feed_forget(f);
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x", .count = 8});
    feed_is(f, "send 1 EVICT id=0 gen=1\nsend 2 EVICT id=0 gen=1\n");
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .count = 8});
    feed_is(f,
            "send 1 ASSIGN id=0 gen=2 name='x'\nsend 2 ASSIGN id=0 gen=2 name='x'\n");
    /* one that had it published announces again: an error, not a stall */
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .count = 9});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x", .count = 8});
    feed_has(f, "FAIL name='x' HVD_EMISMATCH");
    feed_free(f);
}

Test(negotiate, evicts_the_oldest_when_the_cache_is_full, .timeout = 10)
{
    struct feed *f = feed_new(
        &(struct hvi_core_config){.np = 2, .cache_capacity = 2, .linger_ms = -1});

    feed_form(f, 1, 2, 1, HVI_PLANE_SHM);
    feed_announce_all(f, 2, &(struct feed_op){.name = "a"});
    feed_announce_all(f, 2, &(struct feed_op){.name = "b"});
    feed_forget(f);
    feed_announce_all(f, 2, &(struct feed_op){.name = "c"});
    feed_is(f,
            "send 1 EVICT id=0 gen=1\nsend 2 EVICT id=0 gen=1\n"
            "send 1 ASSIGN id=0 gen=2 name='c'\nsend 2 ASSIGN id=0 gen=2 name='c'\n");
    feed_announce_all(f, 2, &(struct feed_op){.name = "a"});
    feed_is(f,
            "send 1 EVICT id=1 gen=1\nsend 2 EVICT id=1 gen=1\n"
            "send 1 ASSIGN id=1 gen=2 name='a'\nsend 2 ASSIGN id=1 gen=2 name='a'\n");
    feed_free(f);
}

Test(negotiate, keeps_ids_below_4096_over_ten_thousand_names, .timeout = 30)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);
    char name[32];

    for (int i = 0; i < 10000; i++) {
        const char *at;

        feed_forget(f);
        snprintf(name, sizeof name, "n%d", i);
        feed_announce_all(f, 2, &(struct feed_op){.name = name});
        at = strstr(f->trace, "ASSIGN id=");
        cr_assert_not_null(at);
        cr_assert_lt(atoi(at + 10), 4096);
        cr_assert_eq(strstr(f->trace, "EVICT") != NULL, i >= 4096, "name %d: %s", i,
                     f->trace);
    }
    feed_free(f);
}

Test(negotiate, ends_who_breaks_the_rules, .timeout = 10)
{
    static const struct feed_op cases[] = {
        {.name = "x", .pset = 7},
        {.name = "x", .kind = HVD_BROADCAST, .root = 5},
        {.name = "x", .kind = 99},
        {.name = "x", .dtype = 77},
        {.name = "", .kind = HVD_ALLREDUCE},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = feed_up(2, HVI_PLANE_SHM);

        feed_announce(f, 2, 1, &cases[i]);
        feed_has(f, "send 2 CLOSED rank=1 HVD_EPROTO cause='protocol error: ");
        feed_has(f, "send 1 CLOSED rank=1 HVD_EPEER");
        feed_free(f);
    }
}

Test(negotiate, announcing_twice_is_a_violation, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    feed_announce(f, 2, 1, &(struct feed_op){.name = "x"});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x"});
    feed_has(f, "request 'x' was announced twice");
    feed_free(f);
}

Test(negotiate, bounds_what_one_rank_has_pending, .timeout = 60)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);
    char name[32];
    int i;

    for (i = 0; i < 70000 && strstr(f->trace, "FAIL") == NULL; i++) {
        snprintf(name, sizeof name, "n%d", i);
        feed_announce(f, 1, 1, &(struct feed_op){.name = name});
    }
    cr_assert_leq(i, 65537);
    cr_assert_gt(i, 1000);
    feed_has(f, "send 1 FAIL");
    feed_has(f, "HVD_ELIMIT");
    feed_lacks(f, "send 2");
    feed_free(f);
}

/* ---- plane tcp: the coordinator orders */

Test(order, first_time_operations_are_ordered_at_once, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_TCP);

    feed_announce_all(f, 2, &(struct feed_op){.name = "x"});
    feed_is(f, "send 1 ASSIGN id=0 gen=1 name='x'\nsend 2 ASSIGN id=0 gen=1 name='x'\n"
               "send 1 ORDER [seq=0 ids=0]\nsend 2 ORDER [seq=0 ids=0]\n");
    feed_ready(f, 2, 1, 0, 1);
    feed_is(f, "");
    feed_ready(f, 1, 1, 0, 1);
    feed_is(f, "send 1 ORDER [seq=1 ids=0]\nsend 2 ORDER [seq=1 ids=0]\n");
    feed_free(f);
}

static void know(struct feed *f, int np, int n)
{
    char name[32];

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "n%d", i);
        feed_announce_all(f, np, &(struct feed_op){.name = name, .count = 1024});
    }
    feed_forget(f);
}

static void ready_many(struct feed *f, uint64_t conn, uint32_t n)
{
    struct hvi_ready_id ids[64];
    struct hvi_event ev = {
        .kind = HVI_EV_READY, .conn = conn, .epoch = 1, .ids = ids, .nids = n};

    for (uint32_t i = 0; i < n; i++)
        ids[i] = (struct hvi_ready_id){i, 1};
    feed_step(f, &ev);
}

Test(order, fuses_up_to_the_threshold, .timeout = 10)
{
    struct feed *f = feed_new(
        &(struct hvi_core_config){.np = 2, .fusion_bytes = 3 * 4096, .linger_ms = -1});

    feed_form(f, 1, 2, 1, HVI_PLANE_TCP);
    know(f, 2, 7);
    ready_many(f, 1, 7);
    feed_is(f, "");
    ready_many(f, 2, 7);
    feed_is(f, "send 1 ORDER [seq=7 ids=0,1,2] [seq=8 ids=3,4,5] [seq=9 ids=6]\n"
               "send 2 ORDER [seq=7 ids=0,1,2] [seq=8 ids=3,4,5] [seq=9 ids=6]\n");
    feed_free(f);
}

Test(order, puts_higher_priority_first, .timeout = 10)
{
    struct feed *f = feed_new(
        &(struct hvi_core_config){.np = 2, .fusion_bytes = 1, .linger_ms = -1});

    feed_form(f, 1, 2, 1, HVI_PLANE_TCP);
    feed_announce_all(f, 2, &(struct feed_op){.name = "low"});
    feed_announce_all(f, 2, &(struct feed_op){.name = "high", .priority = 5});
    feed_announce_all(f, 2, &(struct feed_op){.name = "low2"});
    feed_forget(f);
    ready_many(f, 1, 3);
    ready_many(f, 2, 3);
    feed_has(f, "ORDER [seq=3 ids=1] [seq=4 ids=0] [seq=5 ids=2]\n");
    feed_free(f);
}

Test(order, ignores_an_old_generation_and_refuses_an_unknown_one, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_TCP);

    feed_announce_all(f, 2, &(struct feed_op){.name = "x", .count = 4});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x", .count = 8});
    feed_forget(f);
    feed_ready(f, 2, 1, 0, 1); /* crossed with the EVICT */
    feed_is(f, "");
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .count = 8});
    feed_has(f, "ASSIGN id=0 gen=2");
    feed_ready(f, 2, 1, 0, 9);
    feed_has(f, "READY of unknown id 0, generation 9");
    feed_free(f);
}

Test(order, evicting_takes_readiness_back, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_TCP);

    feed_announce_all(f, 2, &(struct feed_op){.name = "x", .count = 4});
    feed_forget(f);
    feed_ready(f, 2, 1, 0, 1);
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x", .count = 8});
    feed_is(f, "send 1 EVICT id=0 gen=1\nsend 2 EVICT id=0 gen=1\n");
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .count = 4}); /* again */
    feed_has(f,
             "FAIL name='x' HVD_EMISMATCH text='the ranks disagree: shape [8] on rank "
             "0, [4] on rank 1'");
    feed_lacks(f, "ORDER");
    feed_free(f);
}

Test(order, readiness_twice_is_a_violation, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_TCP);

    feed_announce_all(f, 2, &(struct feed_op){.name = "x"});
    feed_ready(f, 2, 1, 0, 1);
    feed_ready(f, 2, 1, 0, 1);
    feed_has(f, "READY of id 0 twice");
    feed_free(f);
}

/* ---- join */

Test(join, counts_as_ready_for_allreduce_only, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_SHM);

    feed_announce(f, 1, 1, &(struct feed_op){.name = "x"});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x"});
    feed_is(f, "");
    feed_join(f, 3, 1);
    feed_is(f, "send 1 ASSIGN id=0 gen=1 name='x'\nsend 2 ASSIGN id=0 gen=1 name='x'\n"
               "send 3 ASSIGN id=0 gen=1 name='x'\n");
    feed_announce(f, 1, 1, &(struct feed_op){.name = "b", .kind = HVD_BROADCAST});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "b", .kind = HVD_BROADCAST});
    feed_has(f, "send 2 FAIL name='b' HVD_EUNSUPPORTED text='rank 2 joined (hvd_join)");
    feed_forget(f);
    feed_join(f, 1, 1);
    feed_is(f, "");
    feed_join(f, 2, 1);
    feed_is(f, "send 1 JOIN_DONE last=1 gen=1\nsend 2 JOIN_DONE last=1 gen=1\n"
               "send 3 JOIN_DONE last=1 gen=1\n");
    /* and again */
    feed_join(f, 3, 1);
    feed_join(f, 2, 1);
    feed_join(f, 1, 1);
    feed_has(f, "send 2 JOIN_DONE last=0 gen=2\n");
    feed_free(f);
}

Test(join, is_over_when_nothing_of_before_is_in_flight, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    feed_announce(f, 1, 1, &(struct feed_op){.name = "x"});
    feed_join_as(f, 1, 1, true);
    feed_is(f, "");
    feed_join(f, 2, 1); /* all have joined: x is complete, the join is not over */
    feed_is(f,
            "send 1 ASSIGN id=0 gen=1 name='x'\nsend 2 ASSIGN id=0 gen=1 name='x'\n");
    feed_join(f, 1, 1); /* x has ended */
    feed_is(f, "send 1 JOIN_DONE last=1 gen=1\nsend 2 JOIN_DONE last=1 gen=1\n");
    /* twice the same is nonsense */
    feed_join_as(f, 1, 1, true);
    feed_join_as(f, 1, 1, true);
    feed_has(f, "JOIN twice");
    feed_free(f);
}

Test(join, completes_what_is_ready_on_plane_tcp, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_TCP);

    feed_announce_all(f, 2, &(struct feed_op){.name = "x"});
    feed_announce_all(f, 2, &(struct feed_op){.name = "b", .kind = HVD_ALLGATHER});
    feed_forget(f);
    feed_ready(f, 1, 1, 0, 1);
    feed_ready(f, 1, 1, 1, 1);
    feed_join(f, 2, 1);
    feed_has(f, "send 1 ORDER [seq=2 ids=0] [seq=3 status=-11 ids=1]\n");
    feed_free(f);
}

Test(join, is_answered_when_a_rank_has_left, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_SHM);

    feed_bye(f, 2, 1);
    feed_forget(f);
    feed_join(f, 1, 1);
    feed_is(f, "send 1 PEER_BYE rank=1\n");
    feed_free(f);
}

/* ---- process sets */

Test(psets, are_made_when_all_agree, .timeout = 10)
{
    static const int32_t evens[] = {2, 0}, same[] = {0, 2};
    struct feed *f = feed_up(3, HVI_PLANE_SHM);

    feed_pset_add(f, 1, 2, evens);
    feed_pset_add(f, 2, 2, evens);
    feed_is(f, "");
    feed_pset_add(f, 3, 2, same);
    feed_is(f, "send 1 PSET_REPLY add pset=1 HVD_OK ranks=0,2\n"
               "send 2 PSET_REPLY add pset=1 HVD_OK ranks=0,2\n"
               "send 3 PSET_REPLY add pset=1 HVD_OK ranks=0,2\n");
    /* its operations concern its members only */
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x", .pset = 1});
    feed_announce(f, 3, 1, &(struct feed_op){.name = "x", .pset = 1});
    feed_is(f, "send 1 ASSIGN id=0 gen=1 name='x' pset=1\n"
               "send 3 ASSIGN id=0 gen=1 name='x' pset=1\n");
    /* removing evicts; ids of sets are never reused */
    for (uint64_t c = 1; c <= 3; c++)
        feed_pset_remove(f, c, 1);
    feed_has(f, "send 1 EVICT id=0 gen=1\n");
    feed_has(f, "send 2 PSET_REPLY remove pset=1 HVD_OK\n");
    feed_forget(f);
    for (uint64_t c = 1; c <= 3; c++)
        feed_pset_add(f, c, 2, evens);
    feed_has(f, "send 2 PSET_REPLY add pset=2 HVD_OK ranks=0,2\n");
    /* what crossed with the removal is dropped */
    feed_forget(f);
    feed_announce(f, 1, 1, &(struct feed_op){.name = "late", .pset = 1});
    feed_is(f, "");
    feed_free(f);
}

Test(psets, fail_on_all_with_one_text, .timeout = 10)
{
    static const int32_t a[] = {0, 1}, b[] = {0, 2}, all[] = {0, 1, 2}, bad[] = {0, 7},
                         twice[] = {1, 1};
    static const struct {
        const int32_t *first, *second;
        size_t n, m;
        const char *says;
    } cases[] = {
        {a, b, 2, 2,
         "HVD_EMISMATCH text='the ranks disagree: hvd_pset_add([0, 1]) on rank 0, "
         "hvd_pset_add([0, 2]) on rank 2'"},
        {bad, bad, 2, 2, "HVD_EINVAL text='process set: there is no rank 7 (0 to 2)'"},
        {twice, twice, 2, 2, "HVD_EINVAL text='process set: rank 1 is repeated'"},
        {a, a, 0, 0, "HVD_EINVAL text='a process set needs at least one rank'"},
        {all, all, 3, 3, "HVD_EDUPLICATE text='process set 0 has the same ranks'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = feed_up(3, HVI_PLANE_SHM);

        feed_pset_add(f, 1, cases[i].n, cases[i].first);
        feed_pset_add(f, 2, cases[i].n, cases[i].first);
        feed_pset_add(f, 3, cases[i].m, cases[i].second);
        feed_has(f, cases[i].says);
        feed_has(f, "send 1 PSET_REPLY");
        feed_has(f, "send 3 PSET_REPLY");
        feed_free(f);
    }
}

Test(psets, adding_against_removing_is_a_mismatch, .timeout = 10)
{
    static const int32_t a[] = {0};
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    feed_pset_add(f, 1, 1, a);
    feed_pset_remove(f, 2, 3);
    feed_has(f, "hvd_pset_add([0]) on rank 0, hvd_pset_remove(3) on rank 1");
    feed_free(f);
}

Test(psets, set_0_and_unknown_sets_stay, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    for (uint32_t id = 0; id < 10; id += 9) {
        feed_forget(f);
        feed_pset_remove(f, 1, id);
        feed_pset_remove(f, 2, id);
        feed_has(f, "HVD_EINVAL");
    }
    feed_free(f);
}

Test(psets, calls_after_a_rank_left_fail, .timeout = 10)
{
    static const int32_t a[] = {0};
    struct feed *f = feed_up(2, HVI_PLANE_SHM);

    feed_bye(f, 2, 1);
    feed_forget(f);
    feed_pset_add(f, 1, 1, a);
    feed_has(f, "send 1 PSET_REPLY add pset=0 HVD_ESHUTDOWN");
    feed_free(f);
}

Test(psets, static_sets_have_ids_from_1, .timeout = 10)
{
    static const int32_t set[] = {1, 2};
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 3, .linger_ms = -1});

    for (int r = 0; r < 3; r++)
        feed_hello(f, 1 + (uint64_t)r,
                   &(struct feed_hello){.want = r, .set = set, .nset = 2});
    feed_has(f, "psets=1");
    for (int r = 0; r < 3; r++)
        feed_formed(f, 1 + (uint64_t)r, 1, 1, 0, "");
    feed_forget(f);
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .pset = 1});
    feed_announce(f, 3, 1, &(struct feed_op){.name = "x", .pset = 1});
    feed_has(f, "send 3 ASSIGN id=0 gen=1 name='x' pset=1\n");
    feed_free(f);
}
