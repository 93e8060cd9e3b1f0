/* Plane hosts: one READY and one ORDER per host (PROTOCOL.md section 5). Connection k is
 * rank k - 1; ranks 0 and 1 are on host h0, 2 and 3 on h1, ... */
#include "feed.h"

static void assign(struct feed *f, int np, const char *name)
{
    feed_announce_all(f, np, &(struct feed_op){.name = name});
    feed_forget(f);
}

Test(hosts, a_name_is_given_to_all_and_ordered_once_a_host, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 0);

    feed_announce_all(f, 4, &(struct feed_op){.name = "x"});
    feed_is(f, "send 1 ASSIGN id=0 gen=1 name='x' ordered\n"
               "send 2 ASSIGN id=0 gen=1 name='x' ordered\n"
               "send 3 ASSIGN id=0 gen=1 name='x' ordered\n"
               "send 4 ASSIGN id=0 gen=1 name='x' ordered\n"
               "send 1 ORDER [seq=0 ids=0]\n"
               "send 3 ORDER [seq=0 ids=0]\n");
    feed_free(f);
}

Test(hosts, any_rank_speaks_for_its_host, .timeout = 10)
{
    struct feed *f = feed_up_hosts(6, 0);

    assign(f, 6, "x");
    feed_ready(f, 2, 1, 0, 1);
    feed_ready(f, 5, 1, 0, 1);
    feed_is(f, "");
    feed_ready(f, 4, 1, 0, 1);
    feed_is(f, "send 1 ORDER [seq=1 ids=0]\n"
               "send 3 ORDER [seq=1 ids=0]\n"
               "send 5 ORDER [seq=1 ids=0]\n");
    feed_free(f);
}

Test(hosts, a_host_speaks_once_and_for_members_only, .timeout = 10)
{
    static const int32_t ranks[] = {0, 1};
    struct feed *f = feed_up_hosts(4, 0);

    assign(f, 4, "x");
    feed_ready(f, 1, 1, 0, 1);
    feed_ready(f, 2, 1, 0, 1);
    feed_has(f, "READY of id 0 twice");
    feed_free(f);

    f = feed_up_hosts(4, 0);
    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, ranks);
    for (uint64_t conn = 1; conn <= 2; conn++)
        feed_announce(f, conn, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_has(f, "send 1 ORDER [seq=0 ids=0]\n");
    feed_lacks(f, "send 3 ORDER");
    feed_ready(f, 3, 1, 0, 1);
    feed_has(f, "READY of id 0 of another process set");
    feed_free(f);
}

Test(hosts, a_process_set_without_the_first_rank_has_a_forwarder_of_its_own,
     .timeout = 10)
{
    static const int32_t ranks[] = {1, 3};
    struct feed *f = feed_up_hosts(4, 0);

    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, ranks);
    feed_forget(f);
    feed_announce(f, 2, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_announce(f, 4, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_has(f, "send 1 ASSIGN id=0 gen=1 name='y' pset=1 ordered\n");
    feed_has(f, "send 1 ORDER [seq=0 ids=0]\nsend 2 ORDER [seq=0 ids=0]\n"
                "send 3 ORDER [seq=0 ids=0]\nsend 4 ORDER [seq=0 ids=0]\n");
    feed_forget(f);
    feed_announce_all(f, 4, &(struct feed_op){.name = "x"}); /* all of the order */
    feed_has(f, "send 1 ORDER [seq=1 ids=1]\nsend 2 ORDER [seq=1 ids=1]\n");
    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_remove(f, conn, 1);
    feed_forget(f);
    feed_ready(f, 1, 1, 1, 1);
    feed_ready(f, 3, 1, 1, 1);
    feed_is(f, "send 1 ORDER [seq=2 ids=1]\nsend 3 ORDER [seq=2 ids=1]\n");
    feed_free(f);
}

/* Rank 0 is stopped: it is asked, then spared, so that nothing piles up; when it goes on
 * it gets the order again, behind a MARK. */
Test(hosts, a_forwarder_that_does_not_read_is_left_out, .timeout = 10)
{
    static const int32_t ranks[] = {1, 3};
    struct feed *f = feed_up_hosts(4, 0);
    int asked = -1, spared = -1;

    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, ranks);
    feed_announce(f, 2, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_announce(f, 4, 1, &(struct feed_op){.name = "y", .pset = 1});
    for (int i = 0; i < 2000 && spared < 0; i++) {
        feed_forget(f);
        feed_ready(f, 2, 1, 0, 1);
        feed_ready(f, 4, 1, 0, 1);
        feed_has(f, "send 2 ORDER");
        feed_has(f, "send 4 ORDER");
        if (strstr(f->trace, "send 1 PROBE") != NULL)
            asked = i;
        if (strstr(f->trace, "send 1 ORDER") == NULL)
            spared = i;
    }
    cr_assert(asked >= 0 && spared > asked, "asked at %d, spared at %d", asked, spared);
    feed_probe_reply(f, 1, 0, "in the program");
    feed_forget(f);
    feed_ready(f, 2, 1, 0, 1);
    feed_ready(f, 4, 1, 0, 1);
    feed_has(f, "send 1 MARK seq=");
    feed_has(f, "send 1 ORDER");
    feed_free(f);
}

Test(hosts, each_host_gets_the_groups_that_concern_it, .timeout = 10)
{
    static const int32_t first[] = {0, 1}, second[] = {2, 3};
    struct feed *f = feed_up_hosts(4, 0);

    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, first);
    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, second);
    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_announce(f, conn, 1,
                      &(struct feed_op){.name = "y", .pset = conn <= 2 ? 1 : 2});
    feed_forget(f);
    assign(f, 4, "x");
    feed_ready(f, 1, 1, 0, 1);
    feed_is(f, "send 1 ORDER [seq=3 ids=0]\n");
    feed_ready(f, 3, 1, 1, 1);
    feed_is(f, "send 3 ORDER [seq=4 ids=1]\n");
    feed_free(f);
}

Test(hosts, what_rests_on_the_order_comes_behind_a_mark, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 0);

    assign(f, 4, "x"); /* seq 0 has gone to ranks 0 and 2 */
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .count = 9});
    feed_is(f, "send 1 EVICT id=0 gen=1\n"
               "send 2 MARK seq=1\n"
               "send 2 EVICT id=0 gen=1\n"
               "send 3 EVICT id=0 gen=1\n"
               "send 4 MARK seq=1\n"
               "send 4 EVICT id=0 gen=1\n");
    feed_bye(f, 1, 1); /* nothing was ordered since */
    feed_lacks(f, "MARK");
    feed_free(f);
}

Test(hosts, the_next_rank_forwards_when_the_first_leaves, .timeout = 10)
{
    static const int32_t ranks[] = {1, 3};
    struct feed *f = feed_up_hosts(4, 0);

    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, ranks);
    feed_announce(f, 2, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_announce(f, 4, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_forget(f);
    feed_bye(f, 1, 1);
    feed_is(f, "note bye rank=0 text='rank 0 (host h0, pid 100) has left'\n"
               "send 2 PEER_BYE rank=0\n"
               "send 3 PEER_BYE rank=0\n"
               "send 4 PEER_BYE rank=0\n"
               "send 1 PEER_BYE rank=0\n");
    feed_ready(f, 4, 1, 0, 1);
    feed_is(f, "");
    feed_ready(f, 1, 1, 0, 1); /* a leaver still speaks for its host */
    feed_is(f, "send 2 ORDER [seq=1 ids=0]\nsend 3 ORDER [seq=1 ids=0]\n"
               "send 4 ORDER [seq=1 ids=0]\n");
    feed_final(f, 1);
    feed_free(f);
}

Test(hosts, a_leaver_that_breaks_the_rules_is_lost, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 0);

    assign(f, 4, "x");
    feed_bye(f, 1, 1);
    feed_forget(f);
    feed_ready(f, 1, 1, 77, 1);
    feed_has(f, "close 1\n");
    feed_has(f, "READY of unknown id 77");
    feed_has(f, "send 2 CLOSED rank=0");
    feed_free(f);
}

Test(hosts, a_joined_rank_makes_names_wait_for_their_host, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 0);

    feed_join(f, 4, 1);
    for (uint64_t conn = 1; conn <= 3; conn++)
        feed_announce(f, conn, 1, &(struct feed_op){.name = "x"});
    feed_has(f, "send 4 ASSIGN id=0 gen=1 name='x'\n");
    feed_lacks(f, "ORDER");
    feed_forget(f);
    feed_ready(f, 1, 1, 0, 1);
    feed_ready(f, 3, 1, 0 | HVI_READY_JOINED, 1);
    feed_is(f, "send 1 ORDER [seq=0 ids=0]\nsend 3 ORDER [seq=0 ids=0]\n");
    feed_free(f);
}

Test(hosts, only_allreduce_runs_where_a_member_has_joined, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 0);

    feed_announce_all(f, 4, &(struct feed_op){.name = "g", .kind = HVD_ALLGATHER});
    feed_forget(f);
    feed_ready(f, 1, 1, 0, 1);
    feed_ready(f, 3, 1, 0 | HVI_READY_JOINED, 1); /* before rank 3's JOIN */
    feed_is(f, "send 1 ORDER [seq=1 status=-11 ids=0]\n"
               "send 3 ORDER [seq=1 status=-11 ids=0]\n");
    feed_free(f);
}

Test(hosts, a_host_of_joined_ranks_need_not_speak, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 0);

    assign(f, 4, "x");
    feed_ready(f, 1, 1, 0, 1);
    feed_join(f, 3, 1);
    feed_is(f, "");
    feed_join(f, 4, 1);
    feed_is(f, "send 1 ORDER [seq=1 ids=0]\nsend 3 ORDER [seq=1 ids=0]\n");
    feed_free(f);
}

Test(hosts, a_stall_names_ranks_not_hosts, .timeout = 10)
{
    static const int32_t three[] = {3};
    struct feed *f = feed_up_hosts(4, 10000);

    assign(f, 4, "x");
    feed_ready(f, 1, 1, 0, 1); /* h0 is complete, on h1 rank 2 waits for rank 3 */
    feed_stalled(f, 1, "x", 10000, 0, NULL);
    feed_is(f, "send 3 PROBE probe=1\nsend 4 PROBE probe=1\n");
    feed_stalled(f, 3, "x", 10000, 1, three);
    feed_probe_reply(f, 3, 1, "waits in allreduce 'x' for 10.0 s, 1 in flight");
    feed_probe_reply(f, 4, 1, "in the program");
    feed_has(f, "has waited 10.0 s for rank 3 (host h1, pid 103): in the program'\n");
    feed_free(f);
}

static void asked_all(struct feed *f)
{
    feed_is(f, "send 1 PROBE probe=1\nsend 2 PROBE probe=1\n"
               "send 3 PROBE probe=1\nsend 4 PROBE probe=1\n");
}

Test(hosts, a_stall_on_the_only_host_that_has_come_names_the_others_too, .timeout = 10)
{
    static const int32_t one[] = {1};
    struct feed *f = feed_up_hosts(4, 10000);

    assign(f, 4, "x");
    feed_stalled(f, 1, "x", 10000, 1, one); /* nothing has been said to us */
    asked_all(f);
    feed_probe_reply(f, 1, 1, "waits in allreduce 'x' for 9.0 s, 1 in flight");
    feed_probe_reply(f, 2, 1, "in the program");
    feed_probe_reply(f, 3, 1, "waits in allreduce 'x' for 9.0 s, 1 in flight");
    feed_probe_reply(f, 4, 1, "in the program");
    feed_has(f, "for rank 1 (host h0, pid 101): in the program; rank 3 (host h1, pid "
                "103): in the program'\n");
    feed_free(f);
}

/* h0 runs it; rank 2 is stopped with the ORDER unread, so rank 3 knows nothing of it */
Test(hosts, a_forwarder_that_is_stopped_is_named, .timeout = 10)
{
    for (int first = 0; first < 2; first++) {
        struct feed *f = feed_up_hosts(4, 10000);

        assign(f, 4, "x");
        feed_ready(f, 1, 1, 0, 1);
        feed_ready(f, 4, 1, 0, 1);
        feed_forget(f);
        feed_stalled(f, first == 0 ? 1 : 4, "x", 10000, first == 0 ? FEED_ORDERED : 0,
                     NULL);
        asked_all(f);
        feed_stalled(f, first == 0 ? 4 : 1, "x", 10000, first == 0 ? 0 : FEED_ORDERED,
                     NULL);
        feed_probe_reply(f, 1, 1, "runs");
        feed_probe_reply(f, 2, 1, "runs");
        feed_probe_reply(f, 4, 1, "waits in allreduce 'x' for 9.0 s, 1 in flight");
        feed_wait(f, 1000);
        feed_is(f, "note stall text='allreduce 'x' has waited 10.0 s for rank 2 (host "
                   "h1, pid 102): does not answer'\n");
        feed_free(f);
    }
}

/* what a set of others waits for may be with a rank that is no member */
Test(hosts, a_forwarder_outside_of_the_set_is_named, .timeout = 10)
{
    static const int32_t odd[] = {1, 3};
    struct feed *f = feed_up_hosts(4, 10000);

    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_pset_add(f, conn, 2, odd);
    feed_announce(f, 2, 1, &(struct feed_op){.name = "x", .pset = 1});
    feed_announce(f, 4, 1, &(struct feed_op){.name = "x", .pset = 1});
    feed_has(f, "ORDER");
    feed_forget(f);
    feed_stalled_in(f, 4, "x", 1, 10000, 0, NULL);
    asked_all(f);
    feed_probe_reply(f, 1, 1, "in the program");
    feed_probe_reply(f, 2, 1, "runs");
    feed_probe_reply(f, 4, 1, "waits in allreduce 'x' for 9.0 s, 1 in flight");
    feed_wait(f, 1000);
    feed_is(f, "note stall text='allreduce 'x' in process set 1 has waited 10.0 s for "
               "rank 2 (host h1, pid 102): does not answer'\n");
    feed_free(f);
}

/* the root of a broadcast has done its part: it is not what others wait for */
Test(hosts, who_has_ended_its_part_is_not_named, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 10000);

    assign(f, 4, "x");
    feed_stalled(f, 3, "x", 10000, FEED_ORDERED, NULL);
    asked_all(f);
    feed_probe_reply(f, 1, 1, "in the program");
    feed_probe_reply(f, 2, 1, "in the program");
    feed_probe_reply(f, 3, 1, "runs");
    feed_probe_reply(f, 4, 1, "runs");
    feed_is(f, "note stall text='allreduce 'x' has waited 10.0 s for rank 3 (host h1, "
               "pid 103): runs'\n");
    feed_free(f);
}

Test(hosts, what_has_gone_on_meanwhile_is_no_stall, .timeout = 10)
{
    struct feed *f = feed_up_hosts(4, 10000);

    assign(f, 4, "x");
    feed_stalled(f, 3, "x", 10000, 0, NULL);
    asked_all(f);
    for (uint64_t conn = 1; conn <= 4; conn++)
        feed_probe_reply(f, conn, 1, "in the program");
    feed_is(f, "");
    feed_free(f);
}
