#include "feed.h"

#include <signal.h>

#define HVI_PLANE_AUTO 0
#define HVI_PLANE_TCP 2

static const char *const hosts[] = {"a", "a", "b"};

/* Three ranks, agents on connections 51 (host a: ranks 0, 1) and 52 (host b: rank 2). */
static struct feed *with_agents(void)
{
    struct feed *f = feed_new(&(struct hvi_core_config){
        .np = 3, .hosts = hosts, .stall_warn_ms = 10000, .linger_ms = -1});

    feed_agent(f, 51, "a");
    feed_agent(f, 52, "b");
    feed_started(f, 51, 0);
    feed_started(f, 51, 1);
    feed_started(f, 52, 2);
    feed_form(f, 1, 3, 1, HVI_PLANE_AUTO);
    return f;
}

Test(epoch, bye_is_echoed_and_told, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_AUTO);

    feed_bye(f, 2, 1);
    feed_is(f,
            "note bye rank=1 text='rank 1 (host a, pid 101) has left'\n"
            "send 1 PEER_BYE rank=1\nsend 3 PEER_BYE rank=1\nsend 2 PEER_BYE rank=1\n");
    feed_final(f, 2);
    feed_is(f, "");
    /* what needs the leaver gets no id; what does not goes on */
    feed_announce(f, 1, 1, &(struct feed_op){.name = "x"});
    feed_announce(f, 3, 1, &(struct feed_op){.name = "x"});
    feed_is(f, "");
    feed_bye(f, 1, 1);
    feed_bye(f, 3, 1);
    feed_lacks(f, "CLOSED");
    feed_free(f);
}

Test(epoch, a_leaver_that_ends_before_its_final_is_lost, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_AUTO);

    feed_bye(f, 2, 1);
    feed_forget(f);
    feed_closed(f, 2); /* others may be in a group with it */
    feed_is(f,
            "note lost rank=1 text='rank 1 (host a, pid 101): connection lost in "
            "hvd_shutdown'\n"
            "send 1 CLOSED rank=1 HVD_EPEER cause='connection lost in hvd_shutdown'\n"
            "send 3 CLOSED rank=1 HVD_EPEER cause='connection lost in hvd_shutdown'\n");
    feed_free(f);
}

Test(epoch, a_leaver_hears_of_a_loss, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_AUTO);

    feed_bye(f, 2, 1);
    feed_forget(f);
    feed_closed(f, 3);
    feed_has(f, "send 1 CLOSED rank=2");
    feed_has(f, "send 2 CLOSED rank=2");
    feed_forget(f);
    feed_closed(f, 2); /* of no consequence any more */
    feed_bye(f, 1, 1);
    feed_is(f, "send 1 PEER_BYE rank=0\n");
    feed_form(f, 11, 3, 2, HVI_PLANE_AUTO);
    feed_free(f);
}

Test(epoch, a_leaver_killed_by_a_signal_is_told_as_such, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_bye(f, 2, 1);
    feed_forget(f);
    feed_exited(f, 51, 1, SIGKILL);
    feed_is(f, ""); /* its FINAL may still lie in the connection */
    feed_closed(f, 2);
    feed_has(f, "note lost rank=1 text='rank 1 (host a, pid 101): killed by SIGKILL in "
                "hvd_shutdown'");
    feed_lacks(f, "note left");
    feed_has(f, "send 1 CLOSED rank=1");
    feed_free(f);
}

Test(epoch, a_leaver_that_ended_well_is_awaited_over_a_slow_network, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_bye(f, 2, 1);
    feed_forget(f);
    feed_exited(f, 51, 1, 0);
    feed_wait(f, 2000);
    feed_final(f, 2);
    feed_wait(f, 10000);
    feed_lacks(f, "note lost");
    feed_lacks(f, "CLOSED");
    feed_free(f);
}

Test(epoch, a_leaver_that_ended_well_in_the_middle_of_a_group_is_lost, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_exited(f, 51, 1, 0);
    feed_bye(f, 2, 1); /* slower than its agent's word */
    feed_wait(f, 2000);
    feed_lacks(f, "note lost");
    feed_closed(f, 2);
    feed_has(f,
             "note lost rank=1 text='rank 1 (host a, pid 101): exited with status 0 in "
             "hvd_shutdown'");
    feed_has(f, "send 1 CLOSED rank=1");
    feed_free(f);
}

Test(epoch, what_is_complete_is_ordered_before_the_leaver_goes, .timeout = 10)
{
    static const int32_t pair[] = {0, 2};
    struct feed *f = feed_up(3, HVI_PLANE_TCP);

    for (uint64_t c = 1; c <= 3; c++)
        feed_pset_add(f, c, 2, pair);
    feed_announce_all(f, 3, &(struct feed_op){.name = "x"});
    feed_forget(f);
    feed_ready(f, 1, 1, 0, 1);
    feed_bye(f, 2, 1);
    feed_ready(f, 3, 1, 0, 1); /* crossed with PEER_BYE */
    feed_lacks(f, "ORDER");
    /* a set without the leaver lives */
    feed_announce(f, 1, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_announce(f, 3, 1, &(struct feed_op){.name = "y", .pset = 1});
    feed_has(f, "send 3 ORDER [seq=1 ids=1]\n");
    feed_free(f);
}

Test(epoch, end_of_connection_is_a_loss, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_AUTO);

    feed_announce(f, 1, 1, &(struct feed_op){.name = "x"});
    feed_closed(f, 2);
    feed_is(f, "note lost rank=1 text='rank 1 (host a, pid 101): connection lost'\n"
               "send 1 CLOSED rank=1 HVD_EPEER cause='connection lost'\n"
               "send 3 CLOSED rank=1 HVD_EPEER cause='connection lost'\n");
    /* what was sent before CLOSED was read is ignored; later ends are not told again */
    feed_announce(f, 3, 1, &(struct feed_op){.name = "x"});
    feed_closed(f, 3);
    feed_is(f, "");
    feed_bye(f, 1, 1);
    feed_is(f, "send 1 PEER_BYE rank=0\n");
    /* and all may come again */
    feed_form(f, 11, 3, 2, HVI_PLANE_AUTO);
    feed_free(f);
}

Test(epoch, the_agents_word_says_how_it_ended, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_closed(f, 2);
    feed_is(f, "");
    feed_wait(f, 50);
    feed_exited(f, 51, 1, SIGKILL);
    feed_is(f, "note left rank=1 text='rank 1 (host a, pid 101): killed by SIGKILL'\n"
               "note lost rank=1 text='rank 1 (host a, pid 101): killed by SIGKILL'\n"
               "send 1 CLOSED rank=1 HVD_EPEER cause='killed by SIGKILL'\n"
               "send 3 CLOSED rank=1 HVD_EPEER cause='killed by SIGKILL'\n");
    feed_free(f);
}

Test(epoch, an_end_without_a_word_of_the_agent_is_decided_in_time, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_closed(f, 2);
    feed_wait(f, 199);
    feed_is(f, "");
    feed_wait(f, 1);
    feed_has(
        f, "CLOSED rank=1 HVD_EPEER cause='connection lost (its process still runs)'");
    feed_free(f);
}

Test(epoch, an_exit_with_the_connection_held_open_is_decided_in_time, .timeout = 10)
{
    struct feed *f = with_agents();

    /* a forked child keeps the socket */
    feed_exited(f, 52, 2, SIGSEGV);
    feed_lacks(f, "CLOSED");
    feed_wait(f, 200);
    feed_has(f, "send 1 CLOSED rank=2 HVD_EPEER cause='killed by SIGSEGV'");
    feed_has(f, "note left rank=2");
    feed_free(f);
}

Test(epoch, a_bye_behind_the_exit_is_no_loss, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_exited(f, 52, 2, 0);
    feed_leave(f, 3, 1);
    feed_wait(f, 1000);
    feed_lacks(f, "CLOSED");
    feed_lacks(f, "note lost");
    feed_lacks(f, "note left");
    feed_free(f);
}

Test(epoch, an_exit_with_status_0_and_no_bye_is_a_loss, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_exited(f, 51, 0, 0);
    feed_closed(f, 1);
    feed_has(f, "note left rank=0");
    feed_has(f, "cause='exited with status 0 without hvd_shutdown'");
    feed_free(f);
}

Test(epoch, only_the_first_loss_is_told, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_exited(f, 51, 1, SIGKILL);
    feed_closed(f, 2);
    feed_forget(f);
    feed_exited(f, 52, 2, 1 << 8); /* it gave up after HVD_EPEER */
    feed_closed(f, 3);
    feed_wait(f, 1000);
    feed_lacks(f, "note lost");
    feed_lacks(f, "CLOSED");
    feed_free(f);
}

Test(epoch, a_silent_host_is_lost_after_the_lease, .timeout = 10)
{
    struct feed *f = with_agents();
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;

    for (int i = 0; i < 7; i++) {
        feed_wait(f, 2000);
        feed_msg(f, 51, HVI_MSG_HEARTBEAT, &beat);
    }
    feed_has(f, "send 51 HEARTBEAT\n");
    feed_lacks(f, "CLOSED");
    feed_wait(f, 1100);
    feed_has(f, "note fatal text='host b is lost: no heartbeat for 15 s'");
    feed_has(
        f,
        "send 1 CLOSED rank=2 HVD_EPEER cause='host b is lost: no heartbeat for 15 s'");
    feed_lacks(f, "host a is lost");
    feed_free(f);
}

/* The ranks' connections come before and behind the agent's: none is looked at again. */
Test(epoch, a_lost_host_takes_the_connections_of_its_ranks, .timeout = 10)
{
    struct feed *f = feed_new(&(struct hvi_core_config){
        .np = 2, .hosts = hosts, .lease_ms = 3000, .linger_ms = -1});

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_agent(f, 51, "a");
    feed_started(f, 51, 0);
    feed_started(f, 51, 1);
    feed_hello(f, 60, &(struct feed_hello){.want = 1});
    feed_forget(f);
    feed_wait(f, 3000);
    feed_has(f, "close 51\n");
    feed_has(f, "close 1\n");
    feed_has(f, "close 60\n");
    feed_free(f);
}

Test(epoch, the_end_of_an_agent_takes_its_ranks, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_closed(f, 52);
    feed_has(f, "send 1 CLOSED rank=2 HVD_EPEER cause='the agent of host b is gone'");
    feed_free(f);
}

Test(epoch, an_agent_speaks_for_its_own_ranks_only, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_exited(f, 52, 0, SIGKILL);
    feed_has(f, "close 52\n");
    feed_lacks(f, "CLOSED rank=0");
    feed_free(f);
}

Test(epoch, a_wrong_epoch_is_a_violation, .timeout = 10)
{
    struct feed *f = feed_up(2, HVI_PLANE_AUTO);

    feed_announce(f, 1, 7, &(struct feed_op){.name = "x"});
    feed_has(f, "protocol error: ANNOUNCE of epoch 7 in epoch 1");
    feed_free(f);
}

Test(epoch, stop_closes_everything, .timeout = 10)
{
    struct feed *f = with_agents();

    feed_hello(f, 9, &(struct feed_hello){.want = -1, .pid = 77});
    feed_forget(f);
    feed_stop(f, "hvdrun has ended");
    feed_has(f, "send 9 REFUSED HVD_ESHUTDOWN text='hvdrun has ended' last\n");
    feed_has(f, "send 3 CLOSED rank=-1 HVD_ESHUTDOWN cause='hvdrun has ended'\n");
    feed_has(f, "close 51\n");
    feed_has(f, "finish 0\n");
    feed_free(f);
}

Test(epoch, lingers_and_finishes, .timeout = 10)
{
    struct feed *f = feed_new(&(struct hvi_core_config){.np = 2, .linger_ms = 3000});

    feed_wait(f, 60000);
    feed_is(f, ""); /* nobody came yet: it waits for ever */
    feed_form(f, 1, 2, 1, HVI_PLANE_AUTO);
    feed_leave(f, 1, 1);
    feed_leave(f, 2, 1);
    feed_wait(f, 2999);
    feed_lacks(f, "finish");
    feed_form(f, 3, 2, 2, HVI_PLANE_AUTO);
    feed_wait(f, 60000);
    feed_leave(f, 3, 2);
    feed_closed(f, 4);
    feed_forget(f);
    feed_wait(f, 3000);
    feed_is(f, "finish 1\n");
    feed_free(f);
}

Test(epoch, timeline_goes_to_rank_0_and_its_control_to_all, .timeout = 10)
{
    struct feed *f = feed_up(3, HVI_PLANE_AUTO);
    Hvi__TimelineChunk chunk = HVI__TIMELINE_CHUNK__INIT;
    Hvi__TimelineCtl ctl = HVI__TIMELINE_CTL__INIT;

    chunk.epoch = ctl.epoch = 1;
    chunk.rank = 99; /* the coordinator knows better */
    chunk.events.data = (uint8_t *)"abc";
    chunk.events.len = 3;
    feed_msg(f, 3, HVI_MSG_TIMELINE_CHUNK, &chunk);
    feed_is(f, "send 1 TIMELINE_CHUNK from=2 bytes=3\n");
    feed_msg(f, 2, HVI_MSG_TIMELINE_CTL, &ctl); /* not its business */
    feed_is(f, "");
    feed_msg(f, 1, HVI_MSG_TIMELINE_CTL, &ctl);
    feed_is(f, "send 2 TIMELINE_CTL\nsend 3 TIMELINE_CTL\n");
    feed_free(f);
}

/* ---- stalls */

static struct feed *stalled(bool agents, uint32_t shutdown_ms)
{
    struct feed *f;

    if (agents)
        return with_agents();
    f = feed_new(&(struct hvi_core_config){.np = 3,
                                           .stall_warn_ms = 10000,
                                           .stall_shutdown_ms = shutdown_ms,
                                           .linger_ms = -1});
    feed_form(f, 1, 3, 1, HVI_PLANE_AUTO);
    return f;
}

Test(stall, names_tensor_ranks_and_what_they_do, .timeout = 10)
{
    struct feed *f = stalled(false, 0);

    feed_announce(f, 1, 1, &(struct feed_op){.name = "grad"});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "grad"});
    feed_stalled(f, 1, "grad", 10000, 0, NULL);
    feed_is(f, "send 3 PROBE probe=1\n");
    feed_stalled(f, 2, "grad", 10010, 0, NULL);
    feed_is(f, "");
    feed_probe_reply(f, 3, 1, "in the program; last submitted 'loss' 12.0 s ago");
    feed_is(
        f,
        "note stall text='allreduce 'grad' has waited 10.0 s for rank 2 (host a, pid "
        "102): in the program; last submitted 'loss' 12.0 s ago'\n");
    /* once per warning time */
    feed_wait(f, 5000);
    feed_stalled(f, 1, "grad", 15000, 0, NULL);
    feed_is(f, "");
    feed_wait(f, 5000);
    feed_stalled(f, 1, "grad", 20000, 0, NULL);
    feed_is(f, "send 3 PROBE probe=2\n");
    feed_wait(f, 999);
    feed_is(f, "");
    feed_wait(f, 1);
    feed_is(
        f,
        "note stall text='allreduce 'grad' has waited 20.0 s for rank 2 (host a, pid "
        "102): does not answer'\n");
    feed_free(f);
}

Test(epoch, ends_when_a_link_between_live_ranks_is_broken, .timeout = 10)
{
    struct feed *f = feed_up(3, 0);
    Hvi__Suspect m = HVI__SUSPECT__INIT;

    m.epoch = 1;
    m.text = (char *)"the connection to rank 2 is\nbroken";
    feed_msg(f, 2, HVI_MSG_SUSPECT, &m);
    feed_is(f, "note stall text='rank 1 (host a, pid 101): the connection to rank 2 "
               "is\\x0abroken'\n"
               "send 1 CLOSED rank=-1 HVD_EPEER cause='rank 1 (host a, pid 101): the "
               "connection to rank 2 is\\x0abroken'\n"
               "send 2 CLOSED rank=-1 HVD_EPEER cause='rank 1 (host a, pid 101): the "
               "connection to rank 2 is\\x0abroken'\n"
               "send 3 CLOSED rank=-1 HVD_EPEER cause='rank 1 (host a, pid 101): the "
               "connection to rank 2 is\\x0abroken'\n");
    feed_msg(f, 1, HVI_MSG_SUSPECT, &m); /* the other end, a little later */
    feed_is(f, "");
    feed_free(f);
}

Test(stall, asks_the_agent_about_the_process, .timeout = 10)
{
    struct feed *f = stalled(true, 0);
    Hvi__ProcState state = HVI__PROC_STATE__INIT;
    int32_t ranks[] = {2};
    char stopped[] = "stopped", *states[] = {stopped};

    feed_announce(f, 1, 1, &(struct feed_op){.name = "grad"});
    feed_announce(f, 2, 1, &(struct feed_op){.name = "grad"});
    feed_stalled(f, 1, "grad", 10000, 0, NULL);
    feed_is(f, "send 3 PROBE probe=1\nsend 52 PROC_PROBE probe=1 ranks=2\n");
    state.probe = 1;
    state.n_ranks = state.n_states = 1;
    state.ranks = ranks;
    state.states = states;
    feed_msg(f, 52, HVI_MSG_PROC_STATE, &state);
    feed_is(
        f,
        "note stall text='allreduce 'grad' has waited 10.0 s for rank 2 (host a, pid "
        "102): stopped'\n");
    feed_free(f);
}

Test(stall, waits_for_rank_and_agent, .timeout = 10)
{
    struct feed *f = stalled(true, 0);
    Hvi__ProcState state = HVI__PROC_STATE__INIT;
    int32_t ranks[] = {2};
    char running[] = "running", *states[] = {running};

    feed_announce(f, 1, 1, &(struct feed_op){.name = "grad"});
    feed_stalled(f, 1, "grad", 10000, 0, NULL);
    feed_forget(f);
    feed_probe_reply(f, 2, 1, "in the program");
    feed_probe_reply(f, 3, 1, "in the program");
    feed_is(f, "");
    state.probe = 1;
    state.n_ranks = state.n_states = 1;
    state.ranks = ranks;
    state.states = states;
    feed_msg(f, 52, HVI_MSG_PROC_STATE, &state);
    feed_is(f, ""); /* the agent of rank 1 is slow */
    feed_wait(f, 1000);
    feed_is(f,
            "note stall text='allreduce 'grad' has waited 10.0 s for rank 1 (host a, "
            "pid 101): in the program; rank 2 (host a, pid 102): running, in the "
            "program'\n");
    feed_free(f);
}

Test(stall, takes_the_boards_word_for_known_names, .timeout = 10)
{
    static const int32_t missing[] = {1, 2};
    struct feed *f = stalled(false, 0);

    feed_announce_all(f, 3, &(struct feed_op){.name = "x"});
    feed_forget(f);
    feed_stalled(f, 1, "x", 10000, 2, missing);
    feed_is(f, "send 2 PROBE probe=1\nsend 3 PROBE probe=1\n");
    feed_probe_reply(f, 2, 1, "waits in allreduce 'x' for 10.0 s, 1 in flight");
    feed_probe_reply(f, 3, 1, "has submitted nothing yet");
    /* who waits in it itself is not the cause */
    feed_is(f,
            "note stall text='allreduce 'x' has waited 10.0 s for rank 2 (host a, pid "
            "102): has submitted nothing yet'\n");
    feed_free(f);
}

Test(stall, counts_what_waits_for_the_same_ranks, .timeout = 10)
{
    struct feed *f = stalled(false, 0);

    for (int i = 0; i < 3; i++) {
        char name[32];

        snprintf(name, sizeof name, "g%d", i);
        feed_announce(f, 1, 1, &(struct feed_op){.name = name});
        feed_announce(f, 2, 1, &(struct feed_op){.name = name});
        feed_stalled(f, 1, name, 10000, 0, NULL);
    }
    feed_is(f, "send 3 PROBE probe=1\n");
    feed_wait(f, 1000);
    feed_has(f, "'g0' has waited 10.0 s");
    feed_has(f, "(2 more operations wait for the same)");
    feed_free(f);
}

Test(stall, ends_the_job_only_when_asked, .timeout = 10)
{
    struct feed *f = stalled(false, 20000);

    feed_announce(f, 1, 1, &(struct feed_op){.name = "grad"});
    feed_stalled(f, 1, "grad", 10000, 0, NULL);
    feed_wait(f, 10000);
    feed_has(f, "note stall");
    feed_lacks(f, "CLOSED");
    feed_stalled(f, 1, "grad", 20000, 0, NULL);
    feed_forget(f);
    feed_wait(f, 1000);
    feed_has(f,
             "note fatal text='stalled: allreduce 'grad' has waited 20.0 s for rank 1");
    feed_has(f, "send 1 CLOSED rank=-1 HVD_ETIMEDOUT");
    feed_has(f, "send 3 CLOSED rank=-1 HVD_ETIMEDOUT");
    feed_free(f);
}

Test(stall, nothing_known_means_no_report, .timeout = 10)
{
    struct feed *f = stalled(false, 0);

    feed_stalled(f, 1, "never heard of", 10000, 0, NULL);
    feed_wait(f, 5000);
    feed_is(f, "");
    feed_free(f);
}

Test(stall, remembers_a_bounded_number_of_names, .timeout = 20)
{
    static const int32_t missing[] = {1};
    struct feed *f = stalled(false, 0);
    char name[32];

    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "n%d", i);
        feed_stalled(f, 1, name, 10000, 1, missing);
        feed_wait(f, 5);
    }
    feed_wait(f, 60000);
    feed_forget(f);
    feed_stalled(f, 1, "fresh", 10000, 1, missing);
    feed_has(f, "send 2 PROBE");
    feed_free(f);
}

Test(stall, process_set_calls_are_watched_too, .timeout = 10)
{
    static const int32_t set[] = {0, 1};
    struct feed *f = stalled(false, 0);

    feed_pset_add(f, 1, 2, set);
    feed_wait(f, 4000);
    feed_pset_add(f, 2, 2, set);
    feed_wait(f, 5999);
    feed_is(f, "");
    feed_wait(f, 1);
    feed_is(f, "send 3 PROBE probe=1\n");
    feed_probe_reply(f, 3, 1, "has submitted nothing yet");
    feed_is(f,
            "note stall text='hvd_pset_add has waited 10.0 s for rank 2 (host a, pid "
            "102): has submitted nothing yet'\n");
    feed_wait(f, 9000);
    feed_is(f, "");
    feed_wait(f, 1000);
    feed_is(f, "send 3 PROBE probe=2\n");
    feed_pset_add(f, 3, 2, set);
    feed_has(f, "send 1 PSET_REPLY add pset=1 HVD_OK");
    feed_free(f);
}

Test(epoch, a_rank_that_asks_whether_the_coordinator_is_there_is_answered,
     .timeout = 10)
{
    struct feed *f =
        feed_new(&(struct hvi_core_config){.np = 2, .hosts = hosts, .linger_ms = -1});
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;

    feed_hello(f, 1, &(struct feed_hello){.want = 0});
    feed_forget(f);
    feed_msg(f, 1, HVI_MSG_HEARTBEAT, &beat); /* waits in hvd_init */
    feed_is(f, "send 1 HEARTBEAT\n");
    feed_free(f);
    f = feed_up(2, HVI_PLANE_AUTO);
    feed_forget(f);
    feed_msg(f, 2, HVI_MSG_HEARTBEAT, &beat);
    feed_is(f, "send 2 HEARTBEAT\n");
    feed_free(f);
}
