#include "feed.h"

#define HVI_PLANE_AUTO 0
#define HVI_PLANE_SHM 1
#define HVI_PLANE_TCP 2

static struct feed *feed_job(uint32_t np)
{
    return feed_new(
        &(struct hvi_core_config){.np = np, .start_timeout_ms = 5000, .linger_ms = -1});
}

Test(form, welcomes_when_all_have_come, .timeout = 10)
{
    struct feed *f = feed_job(3);

    feed_hello(f, 1, &(struct feed_hello){.want = 2, .host = "b"});
    feed_hello(f, 2, &(struct feed_hello){.want = 0, .host = "a"});
    feed_is(f, "");
    feed_hello(f, 3, &(struct feed_hello){.want = 1, .host = "a"});
    feed_is(f, "send 2 WELCOME epoch=1 attempt=1 plane=1 rank=0/3 local=0/2 cross=0/2 "
               "peers=3\n"
               "send 3 WELCOME epoch=1 attempt=1 plane=1 rank=1/3 local=1/2 cross=0/1 "
               "peers=3\n"
               "send 1 WELCOME epoch=1 attempt=1 plane=1 rank=2/3 local=0/1 cross=1/2 "
               "peers=3\n");
    feed_formed(f, 1, 1, 1, 0, "");
    feed_formed(f, 2, 1, 1, 0, "");
    feed_is(f, "");
    feed_formed(f, 3, 1, 1, 0, "");
    feed_is(f, "send 2 GO\nsend 3 GO\nsend 1 GO\n");
    feed_free(f);
}

Test(form, ranks_without_wish_go_by_host_in_order_of_arrival, .timeout = 10)
{
    struct feed *f = feed_job(4);

    feed_hello(f, 1, &(struct feed_hello){.want = -1, .host = "x", .pid = 11});
    feed_hello(f, 2, &(struct feed_hello){.want = -1, .host = "y", .pid = 12});
    feed_hello(f, 3, &(struct feed_hello){.want = -1, .host = "x", .pid = 13});
    feed_hello(f, 4, &(struct feed_hello){.want = -1, .host = "y", .pid = 14});
    feed_has(f,
             "send 1 WELCOME epoch=1 attempt=1 plane=1 rank=0/4 local=0/2 cross=0/2");
    feed_has(f,
             "send 3 WELCOME epoch=1 attempt=1 plane=1 rank=1/4 local=1/2 cross=0/2");
    feed_has(f,
             "send 2 WELCOME epoch=1 attempt=1 plane=1 rank=2/4 local=0/2 cross=1/2");
    feed_has(f,
             "send 4 WELCOME epoch=1 attempt=1 plane=1 rank=3/4 local=1/2 cross=1/2");
    feed_free(f);
}

Test(form, ranks_keep_their_numbers_in_the_next_epoch, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = -1, .pid = 11});
    feed_hello(f, 2, &(struct feed_hello){.want = -1, .pid = 12});
    feed_formed(f, 1, 1, 1, 0, "");
    feed_formed(f, 2, 1, 1, 0, "");
    feed_leave(f, 1, 1);
    feed_leave(f, 2, 1);
    feed_forget(f);
    feed_hello(f, 4, &(struct feed_hello){.want = -1, .pid = 12});
    feed_hello(f, 3, &(struct feed_hello){.want = -1, .pid = 11});
    feed_has(f, "send 3 WELCOME epoch=2 attempt=1 plane=1 rank=0/2");
    feed_has(f, "send 4 WELCOME epoch=2 attempt=1 plane=1 rank=1/2");
    feed_free(f);
}

Test(form, a_hundred_epochs_in_one_life, .timeout = 20)
{
    struct feed *f = feed_job(3);

    for (uint32_t e = 1; e <= 100; e++) {
        uint64_t first = (uint64_t)e * 10;

        feed_form(f, first, 3, e, HVI_PLANE_AUTO);
        feed_announce(f, first, e, &(struct feed_op){.name = "x"});
        feed_announce(f, first + 1, e, &(struct feed_op){.name = "x"});
        feed_announce(f, first + 2, e, &(struct feed_op){.name = "x"});
        feed_has(f, "ASSIGN id=0 gen=1 name='x'");
        for (uint64_t c = first; c < first + 3; c++) {
            feed_leave(f, c, e);
        }
        feed_forget(f);
    }
    feed_free(f);
}

Test(form, a_new_hello_waits_for_the_old_epoch, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_form(f, 1, 2, 1, HVI_PLANE_AUTO);
    feed_leave(f, 1, 1);
    feed_hello(f, 3, &(struct feed_hello){.want = 0});
    feed_forget(f);
    feed_wait(f, 1000);
    feed_is(f, "");
    feed_bye(f, 2, 1);
    feed_hello(f, 4, &(struct feed_hello){.want = 1});
    feed_lacks(f, "WELCOME"); /* the old one still runs what was ordered */
    feed_final(f, 2);
    feed_has(f, "send 3 WELCOME epoch=2 attempt=1");
    feed_has(f, "send 4 WELCOME epoch=2 attempt=1");
    feed_free(f);
}

/* ---- refusals of one */

Test(form, refuses_one_hello_with_the_reason, .timeout = 10)
{
    static const struct {
        struct feed_hello h;
        const char *says;
    } cases[] = {
        {{.want = 1, .version = "0.0.9"},
         "HVD_EVERSION text='version mismatch: libhvd 0.0.9 in rank 1 (host a, pid "
         "101), "
         "hvd-coordinator 0.1.0"},
        {{.want = 4}, "HVD_EINVAL text='HVD_RANK=4, but the job has 3 ranks (0 to 2)'"},
        {{.want = -7, .pid = 5}, "HVD_EINVAL text='HVD_RANK=-7"},
        {{.want = 0, .pid = 9},
         "HVD_EDUPLICATE text='rank 0 is taken: rank 0 (host a, pid 100) came first'"},
        {{.want = 1, .plane = 9}, "HVD_EINVAL text='unknown data plane 9'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = feed_job(3);

        feed_hello(f, 1, &(struct feed_hello){.want = 0});
        feed_hello(f, 2, &cases[i].h);
        feed_has(f, "send 2 REFUSED ");
        feed_has(f, cases[i].says);
        feed_has(f, " last\n");
        feed_lacks(f, "send 1");
        /* the others are unharmed */
        feed_forget(f);
        feed_hello(f, 3, &(struct feed_hello){.want = 1});
        feed_hello(f, 4, &(struct feed_hello){.want = 2});
        feed_has(f, "send 1 WELCOME");
        feed_free(f);
    }
}

Test(form, refuses_more_workers_than_ranks, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_form(f, 1, 2, 1, HVI_PLANE_AUTO);
    for (int i = 0; i < 2; i++) /* they wait for the epoch's end */
        feed_hello(f, 10 + (uint64_t)i,
                   &(struct feed_hello){.want = -1, .pid = 70 + i});
    feed_is(f, "");
    feed_hello(f, 12, &(struct feed_hello){.want = -1, .pid = 72});
    feed_has(
        f,
        "send 12 REFUSED HVD_ELIMIT text='all 2 ranks of the job have come already'");
    feed_free(f);
}

/* ---- refusals of all */

Test(form, start_timeout_names_the_missing, .timeout = 10)
{
    struct feed *f = feed_job(4);

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_wait(f, 2000);
    feed_hello(f, 2, &(struct feed_hello){.want = 2});
    feed_wait(f, 2999);
    feed_is(f, "");
    feed_wait(f, 1);
    feed_is(
        f,
        "send 1 REFUSED HVD_ETIMEDOUT text='start timeout after 5 s: rank 1: has not "
        "connected and rank 3: has not connected' last\n"
        "send 2 REFUSED HVD_ETIMEDOUT text='start timeout after 5 s: rank 1: has not "
        "connected and rank 3: has not connected' last\n"
        "note fatal text='start timeout after 5 s: rank 1: has not connected and rank "
        "3: has not connected'\n");
    feed_free(f);
}

Test(form, start_timeout_knows_what_agents_said, .timeout = 10)
{
    static const char *const hosts[] = {"a", "a", "b"};
    struct feed *f = feed_new(&(struct hvi_core_config){
        .np = 3, .hosts = hosts, .start_timeout_ms = 5000, .linger_ms = -1});

    feed_agent(f, 50, "a");
    feed_started(f, 50, 0);
    feed_started(f, 50, 1);
    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_wait(f, 5000);
    feed_has(
        f,
        "rank 1 (host a): pid 101 runs, but has not called hvd_init and rank 2 (host "
        "b): has not connected");
    feed_free(f);
}

Test(form, a_rank_that_exited_before_init_ends_the_wait, .timeout = 10)
{
    static const char *const hosts[] = {"a", "a"};
    struct feed *f =
        feed_new(&(struct hvi_core_config){.np = 2, .hosts = hosts, .linger_ms = -1});

    feed_agent(f, 50, "a");
    feed_started(f, 50, 0);
    feed_started(f, 50, 1);
    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_forget(f);
    feed_exited(f, 50, 1, 3 << 8);
    feed_has(
        f,
        "send 1 REFUSED HVD_EPEER text='the job cannot start: rank 1 (host a) exited "
        "with status 3 before hvd_init' last\n");
    feed_free(f);
}

/* Rank 1 has come, and its connection ended before or after the agent told. */
Test(form, a_rank_that_ended_in_init_is_said_to_have_come, .timeout = 10)
{
    static const char *const hosts[] = {"a", "a", "a"};

    for (int closed_first = 0; closed_first < 2; closed_first++) {
        struct feed *f = feed_new(
            &(struct hvi_core_config){.np = 3, .hosts = hosts, .linger_ms = -1});

        feed_agent(f, 50, "a");
        for (int32_t r = 0; r < 3; r++)
            feed_started(f, 50, r);
        feed_hello(f, 1, &(struct feed_hello){.want = 0});
        feed_hello(f, 2, &(struct feed_hello){.want = 1});
        if (closed_first)
            feed_closed(f, 2);
        feed_exited(f, 50, 1, 9);
        feed_has(f, "send 1 REFUSED HVD_EPEER text='the job cannot start: rank 1 (host "
                    "a) killed by SIGKILL while it waited in hvd_init' last\n");
        feed_free(f);
    }
}

/* Rank 1 is refused for its version, and ends. */
Test(form, a_rank_that_ended_after_a_failed_init_is_said_to_have, .timeout = 10)
{
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 2, .linger_ms = -1});

    feed_agent(f, 50, "a");
    feed_started(f, 50, 0);
    feed_started(f, 50, 1);
    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_hello(f, 2, &(struct feed_hello){.want = 1, .version = "9.9"});
    feed_exited(f, 50, 1, 1 << 8);
    feed_has(f, "rank 1 exited with status 1 after its hvd_init had failed");
    feed_started(f, 50, 1); /* another process */
    feed_hello(f, 3, &(struct feed_hello){.want = 0});
    feed_exited(f, 50, 1, 1 << 8);
    feed_has(f, "rank 1 exited with status 1 before hvd_init");
    feed_free(f);
}

Test(form, of_several_that_exited_the_first_is_named, .timeout = 10)
{
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 4, .linger_ms = -1});

    feed_agent(f, 50, "a");
    for (int32_t r = 0; r < 4; r++)
        feed_started(f, 50, r);
    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_exited(f, 50, 2, 11);
    feed_has(f, "note lost rank=2");
    feed_has(f, "send 1 REFUSED HVD_EPEER text='the job cannot start: rank 2 killed by "
                "SIGSEGV before hvd_init' last\n");
    feed_exited(f, 50, 0, 9 << 8); /* it was told, and gave up */
    feed_exited(f, 50, 1, 0);
    feed_forget(f);
    feed_hello(f, 2, &(struct feed_hello){.want = 3});
    feed_has(f, "send 2 REFUSED HVD_EPEER text='the job cannot start: rank 2 killed by "
                "SIGSEGV before hvd_init' last\n");
    cr_assert(strstr(f->trace, "note fatal") == NULL, "%s", f->trace);
    feed_free(f);
}

Test(form, a_lost_host_ends_the_wait_for_its_ranks, .timeout = 10)
{
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 2, .linger_ms = -1});

    feed_agent(f, 50, "a");
    feed_agent(f, 51, "b");
    feed_started(f, 50, 0);
    feed_started(f, 51, 1);
    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_closed(f, 51);
    feed_has(f, "send 1 REFUSED HVD_EPEER text='the agent of host b is gone");
    feed_free(f);
}

/* Ranks 0 and 1 on host a, 2 on host b. */
static struct feed *two_and_one(void)
{
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 3, .linger_ms = -1});

    feed_agent(f, 50, "a");
    feed_agent(f, 51, "b");
    feed_started(f, 50, 0);
    feed_started(f, 50, 1);
    feed_started(f, 51, 2);
    return f;
}

Test(form, refuses_who_comes_after_a_host_was_lost, .timeout = 10)
{
    static const int32_t with[] = {0, 2}, without[] = {0, 1};
    struct feed *f = two_and_one();

    feed_closed(f, 51);
    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_has(f, "send 1 REFUSED HVD_EPEER text='the agent of host b is gone");
    feed_hello(f, 2, &(struct feed_hello){.want = 0, .ranks = with, .nranks = 2});
    feed_has(f, "send 2 REFUSED HVD_EPEER text='the agent of host b is gone");
    feed_hello(f, 3, &(struct feed_hello){.want = 2}); /* it lives, its keeper not */
    feed_has(f, "send 3 REFUSED HVD_EPEER text='the agent of host b is gone");
    feed_forget(f);
    feed_hello(f, 4, &(struct feed_hello){.want = 0, .ranks = without, .nranks = 2});
    feed_hello(f, 5, &(struct feed_hello){.want = 1, .ranks = without, .nranks = 2});
    feed_has(f, "send 4 WELCOME epoch=1 attempt=1 plane=1 rank=0/2");
    feed_free(f);
}

Test(form, a_lost_host_leaves_a_job_without_it_alone, .timeout = 10)
{
    static const int32_t without[] = {0, 1};
    struct feed *f = two_and_one();

    feed_hello(f, 4, &(struct feed_hello){.want = 0, .ranks = without, .nranks = 2});
    feed_closed(f, 51);
    feed_is(f, "");
    feed_hello(f, 5, &(struct feed_hello){.want = 1, .ranks = without, .nranks = 2});
    feed_has(f, "send 4 WELCOME epoch=1 attempt=1 plane=1 rank=0/2");
    feed_free(f);
}

Test(form, refuses_all_when_static_sets_differ, .timeout = 10)
{
    static const int32_t a[] = {0, 1}, b[] = {0};
    struct feed *f = feed_job(3);

    feed_hello(f, 1, &(struct feed_hello){.want = 0, .set = a, .nset = 2});
    feed_hello(f, 2, &(struct feed_hello){.want = 1, .set = a, .nset = 2});
    feed_hello(f, 3, &(struct feed_hello){.want = 2, .set = b, .nset = 1});
    feed_has(
        f, "send 1 REFUSED HVD_EMISMATCH text='the static process sets differ between "
           "rank 0 (host a, pid 100) and rank 2 (host a, pid 102)");
    feed_has(f, "send 3 REFUSED");
    feed_has(f, "note fatal");
    feed_lacks(f, "WELCOME");
    feed_free(f);
}

/* ---- sub-jobs */

Test(form, a_list_of_ranks_makes_a_smaller_job, .timeout = 10)
{
    static const int32_t list[] = {3, 1};
    struct feed *f = feed_job(4);

    feed_hello(f, 1, &(struct feed_hello){.want = 1, .ranks = list, .nranks = 2});
    feed_hello(f, 2, &(struct feed_hello){.want = 3, .ranks = list, .nranks = 2});
    feed_has(f, "send 2 WELCOME epoch=1 attempt=1 plane=1 rank=0/2");
    feed_has(f, "send 1 WELCOME epoch=1 attempt=1 plane=1 rank=1/2");
    feed_free(f);
}

Test(form, lists_of_ranks_must_be_good_and_equal, .timeout = 10)
{
    static const int32_t good[] = {0, 1}, other[] = {1, 0}, alien[] = {0, 9},
                         twice[] = {0, 0};
    static const struct {
        struct feed_hello h;
        const char *says;
    } cases[] = {
        {{.want = 1, .ranks = other, .nranks = 2}, "HVD_EMISMATCH"},
        {{.want = 1}, "HVD_EMISMATCH"},
        {{.want = 2, .ranks = good, .nranks = 2}, "rank 2 is not in its own list"},
        {{.want = 1, .ranks = alien, .nranks = 2}, "9 is unknown"},
        {{.want = 1, .ranks = twice, .nranks = 2}, "0 is repeated"},
        {{.want = -1, .ranks = good, .nranks = 2}, "needs HVD_RANK"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = feed_job(3);

        feed_hello(f, 1, &(struct feed_hello){.want = 0, .ranks = good, .nranks = 2});
        feed_hello(f, 2, &cases[i].h);
        feed_has(f, "send 2 REFUSED");
        feed_has(f, cases[i].says);
        feed_free(f);
    }
}

/* ---- the data plane */

Test(form, plane_follows_memory_and_wishes, .timeout = 10)
{
    static const struct {
        uint32_t wish0, wish1;
        const char *memory1, *says;
    } cases[] = {
        {HVI_PLANE_AUTO, HVI_PLANE_AUTO, "memory", "plane=1 rank=0/2"},
        {HVI_PLANE_AUTO, HVI_PLANE_AUTO, "another", "plane=2 rank=0/2"},
        {HVI_PLANE_AUTO, HVI_PLANE_AUTO, "", "plane=2 rank=0/2"},
        {HVI_PLANE_AUTO, HVI_PLANE_TCP, "memory", "plane=2 rank=0/2"},
        {HVI_PLANE_SHM, HVI_PLANE_AUTO, "memory", "plane=1 rank=0/2"},
        {HVI_PLANE_SHM, HVI_PLANE_TCP, "memory",
         "HVD_EMISMATCH text='HVD_CPU_PLANE is shm on rank 0 and tcp on rank 1'"},
        {HVI_PLANE_SHM, HVI_PLANE_SHM, "another",
         "HVD_EUNSUPPORTED text='HVD_CPU_PLANE=shm is not possible: rank 0 (host a, "
         "pid 100) "
         "and rank 1 (host a, pid 101) cannot share memory"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = feed_job(2);

        feed_hello(f, 1, &(struct feed_hello){.want = 0, .plane = cases[i].wish0});
        feed_hello(f, 2,
                   &(struct feed_hello){.want = 1,
                                        .plane = cases[i].wish1,
                                        .host_id = cases[i].memory1});
        feed_has(f, cases[i].says);
        feed_free(f);
    }
}

/* One letter a rank: its host, which is also its memory. */
static struct feed *job_on(const char *where)
{
    struct feed *f = feed_job((uint32_t)strlen(where));

    for (int r = 0; where[r] != '\0'; r++) {
        char host[2] = {where[r], '\0'};

        feed_hello(f, 1 + (uint64_t)r,
                   &(struct feed_hello){.want = r, .host = host, .host_id = host});
    }
    return f;
}

Test(form, hosts_of_several_ranks_share_memory_inside, .timeout = 10)
{
    static const struct {
        const char *where;
        int plane;
    } cases[] = {
        {"aabb", 3}, {"aab", 3}, {"abb", 3},  {"aaaa", 1},
        {"ab", 2},   {"abc", 2}, {"abab", 2}, {"aba", 2},
    };
    char want[64];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct feed *f = job_on(cases[i].where);

        snprintf(want, sizeof want, "WELCOME epoch=1 attempt=1 plane=%d rank=1/",
                 cases[i].plane);
        feed_has(f, want);
        feed_free(f);
    }
}

Test(form, several_hosts_fall_back_to_tcp_and_are_ordered, .timeout = 10)
{
    struct feed *f = job_on("aab");

    feed_forget(f);
    feed_formed(f, 2, 1, 1, HVD_ENOMEM, "no memory for the segment");
    feed_has(f, "send 1 WELCOME epoch=1 attempt=2 plane=2 rank=0/3");
    feed_free(f);
    f = job_on("aab");
    for (uint64_t c = 1; c <= 3; c++)
        feed_formed(f, c, 1, 1, 0, "");
    feed_forget(f);
    feed_announce_all(f, 3, &(struct feed_op){.name = "x"});
    feed_has(f, "send 3 ORDER [seq=0 ids=0]\n");
    feed_free(f);
}

Test(form, falls_back_to_tcp_once, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_hello(f, 2, &(struct feed_hello){.want = 1});
    feed_forget(f);
    feed_formed(f, 2, 1, 1, HVD_ENOMEM, "no memory for the segment");
    feed_is(
        f,
        "note info text='shared memory failed on rank 1 (host a, pid 101): no memory "
        "for the segment; using TCP'\n"
        "send 1 WELCOME epoch=1 attempt=2 plane=2 rank=0/2 local=0/2 cross=0/1 "
        "peers=2\n"
        "send 2 WELCOME epoch=1 attempt=2 plane=2 rank=1/2 local=1/2 cross=0/1 "
        "peers=2\n");
    feed_formed(f, 1, 1, 1, 0, ""); /* of the attempt before: ignored */
    feed_is(f, "");
    feed_formed(f, 1, 1, 2, 0, "");
    feed_formed(f, 2, 1, 2, HVD_EIO, "no route");
    feed_wait(f, 200);
    feed_has(
        f, "send 1 CLOSED rank=1 HVD_EIO cause='could not form the tcp data plane: no "
           "route'");
    feed_free(f);
}

Test(form, no_fallback_when_shm_was_asked_for, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = 0, .plane = HVI_PLANE_SHM});
    feed_hello(f, 2, &(struct feed_hello){.want = 1});
    feed_forget(f);
    feed_formed(f, 1, 1, 1, HVD_ENOMEM, "no memory for the segment");
    feed_is(f, "");
    feed_wait(f, 200);
    feed_has(
        f,
        "note lost rank=0 text='rank 0 (host a, pid 100) could not form the shm data "
        "plane");
    feed_has(
        f,
        "send 2 CLOSED rank=0 HVD_ENOMEM cause='could not form the shm data plane: no "
        "memory for the segment'");
    feed_free(f);
}

/* Who cannot reach a dead peer says so first; the dead one is the cause. */
Test(form, a_loss_explains_a_failure_to_form, .timeout = 10)
{
    struct feed *f = feed_job(3);

    for (int r = 0; r < 3; r++)
        feed_hello(f, 1 + (uint64_t)r,
                   &(struct feed_hello){.want = r, .plane = HVI_PLANE_TCP});
    feed_forget(f);
    feed_formed(f, 1, 1, 1, HVD_EIO, "rank 2: connection reset by peer");
    feed_formed(f, 2, 1, 1, HVD_EIO, "rank 2: connection reset by peer");
    feed_is(f, "");
    feed_wait(f, 20);
    feed_closed(f, 3);
    feed_has(f, "send 1 CLOSED rank=2 HVD_EPEER cause='connection lost'");
    feed_wait(f, 5000);
    feed_lacks(f, "could not form");
    feed_free(f);
}

/* It hung up on its peers, who are heard first. */
Test(form, a_limit_explains_broken_connections, .timeout = 10)
{
    struct feed *f = feed_job(2);

    for (int r = 0; r < 2; r++)
        feed_hello(f, 1 + (uint64_t)r,
                   &(struct feed_hello){.want = r, .plane = HVI_PLANE_SHM});
    feed_forget(f);
    feed_formed(f, 2, 1, 1, HVD_EIO, "rank 0: connection reset by peer");
    feed_wait(f, 20);
    feed_formed(f, 1, 1, 1, HVD_ELIMIT, "too many open files");
    feed_is(f, "");
    feed_wait(f, 200);
    feed_has(f, "send 2 CLOSED rank=0 HVD_ELIMIT cause='could not form the shm data "
                "plane: too many open files'");
    feed_free(f);
}

Test(form, forming_has_a_deadline, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_hello(f, 2, &(struct feed_hello){.want = 1});
    feed_formed(f, 1, 1, 1, 0, "");
    feed_forget(f);
    feed_wait(f, 5000);
    feed_has(
        f,
        "send 1 CLOSED rank=1 HVD_ETIMEDOUT cause='did not form the data plane within "
        "5 s'");
    feed_free(f);
}

Test(form, a_loss_while_forming_closes_the_epoch, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_hello(f, 2, &(struct feed_hello){.want = 1});
    feed_formed(f, 1, 1, 1, 0, "");
    feed_forget(f);
    feed_closed(f, 2);
    feed_has(f, "send 1 CLOSED rank=1 HVD_EPEER cause='connection lost'");
    feed_free(f);
}

Test(form, a_waiting_rank_may_leave, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_closed(f, 1);
    feed_hello(f, 2, &(struct feed_hello){.want = 1});
    feed_lacks(f, "WELCOME");
    feed_hello(f, 3, &(struct feed_hello){.want = 0});
    feed_has(f, "send 3 WELCOME");
    feed_has(f, "send 2 WELCOME");
    feed_free(f);
}

Test(form, messages_before_their_time_are_violations, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_opened(f, 1, false);
    feed_formed(f, 1, 1, 1, 0, "");
    feed_is(
        f, "send 1 REFUSED HVD_EPROTO text='protocol error: unexpected FORMED' last\n");
    feed_hello(f, 2, &(struct feed_hello){.want = 0});
    feed_hello(f, 3, &(struct feed_hello){.want = 1});
    feed_forget(f);
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x"});
    feed_has(f, "protocol error: ANNOUNCE before GO");
    feed_free(f);
}

Test(form, a_waiting_rank_that_speaks_out_of_turn_is_refused, .timeout = 10)
{
    struct feed *f = feed_job(2);

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x"});
    feed_is(
        f,
        "send 1 REFUSED HVD_EPROTO text='protocol error: unexpected ANNOUNCE' last\n");
    feed_hello(f, 2, &(struct feed_hello){.want = 0});
    feed_hello(f, 3, &(struct feed_hello){.want = 1});
    feed_has(f, "send 2 WELCOME");
    feed_free(f);
}

/* Every action of a job of two, from the first HELLO to the end of the program. */
Test(form, golden_trace_of_a_whole_life, .timeout = 10)
{
    static const int32_t one[] = {1};
    struct feed *f = feed_new(&(struct hvi_core_config){
        .np = 2, .cache_capacity = 2, .stall_warn_ms = 5000, .linger_ms = 1000});

    feed_hello(f, 1, &(struct feed_hello){.want = 1, .plane = HVI_PLANE_TCP});
    feed_hello(f, 2, &(struct feed_hello){.want = 0});
    feed_formed(f, 1, 1, 1, 0, "");
    feed_formed(f, 2, 1, 1, 0, "");
    feed_announce(f, 2, 1, &(struct feed_op){.name = "a"});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "b"});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "b"});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "a"});
    feed_ready(f, 1, 1, 1, 1);
    feed_ready(f, 2, 1, 1, 1);
    feed_announce(f, 1, 1, &(struct feed_op){.name = "c", .count = 3});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "c", .count = 4});
    feed_announce(f, 1, 1, &(struct feed_op){.name = "c"});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "c"});
    feed_pset_add(f, 1, 1, one);
    feed_pset_add(f, 2, 1, one);
    feed_announce(f, 1, 1, &(struct feed_op){.name = "a", .pset = 1});
    feed_join(f, 1, 1);
    feed_join(f, 2, 1);
    feed_leave(f, 2, 1);
    feed_leave(f, 1, 1);
    feed_wait(f, 1000);
    feed_is(f, "send 2 WELCOME epoch=1 attempt=1 plane=2 rank=0/2 local=0/2 cross=0/1 "
               "peers=2\n"
               "send 1 WELCOME epoch=1 attempt=1 plane=2 rank=1/2 local=1/2 cross=0/1 "
               "peers=2\n"
               "send 2 GO\n"
               "send 1 GO\n"
               "send 2 ASSIGN id=0 gen=1 name='b'\n"
               "send 1 ASSIGN id=0 gen=1 name='b'\n"
               "send 2 ORDER [seq=0 ids=0]\n"
               "send 1 ORDER [seq=0 ids=0]\n"
               "send 2 ASSIGN id=1 gen=1 name='a'\n"
               "send 1 ASSIGN id=1 gen=1 name='a'\n"
               "send 2 ORDER [seq=1 ids=1]\n"
               "send 1 ORDER [seq=1 ids=1]\n"
               "send 2 ORDER [seq=2 ids=1]\n"
               "send 1 ORDER [seq=2 ids=1]\n"
               "send 2 FAIL name='c' HVD_EMISMATCH text='the ranks disagree: shape [4] "
               "on rank 0, "
               "[3] on rank 1'\n"
               "send 1 FAIL name='c' HVD_EMISMATCH text='the ranks disagree: shape [4] "
               "on rank 0, "
               "[3] on rank 1'\n"
               "send 2 EVICT id=0 gen=1\n"
               "send 1 EVICT id=0 gen=1\n"
               "send 2 ASSIGN id=0 gen=2 name='c'\n"
               "send 1 ASSIGN id=0 gen=2 name='c'\n"
               "send 2 ORDER [seq=3 ids=0]\n"
               "send 1 ORDER [seq=3 ids=0]\n"
               "send 2 PSET_REPLY add pset=1 HVD_OK ranks=1\n"
               "send 1 PSET_REPLY add pset=1 HVD_OK ranks=1\n"
               "send 2 EVICT id=1 gen=1\n"
               "send 1 EVICT id=1 gen=1\n"
               "send 1 ASSIGN id=1 gen=2 name='a' pset=1\n"
               "send 2 ORDER [seq=4 ids=1]\n"
               "send 1 ORDER [seq=4 ids=1]\n"
               "send 2 JOIN_DONE last=0 gen=1\n"
               "send 1 JOIN_DONE last=0 gen=1\n"
               "note bye rank=0 text='rank 0 (host a, pid 100) has left'\n"
               "send 1 PEER_BYE rank=0\n"
               "send 2 PEER_BYE rank=0\n"
               "send 1 PEER_BYE rank=1\n"
               "finish 0\n");
    cr_assert(f->finished && f->status == 0);
    feed_free(f);
}

/* Ranks and their agent have connections of their own: a rank may be the first to be heard. */
Test(form, a_start_that_is_told_late_takes_nothing_back, .timeout = 10)
{
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 2, .linger_ms = -1});

    feed_agent(f, 50, "a");
    feed_form(f, 1, 2, 1, HVI_PLANE_AUTO);
    feed_started(f, 50, 0);
    feed_started(f, 50, 1);
    for (uint64_t c = 1; c <= 2; c++)
        feed_bye(f, c, 1);
    for (uint64_t c = 1; c <= 2; c++)
        feed_final(f, c);
    feed_hello(f, 3, &(struct feed_hello){.want = 0});
    feed_forget(f);
    feed_exited(f, 50, 1, 0);
    feed_has(f, "text='the job cannot start: rank 1 exited with status 0 and will not "
                "come back'");
    feed_free(f);
}
