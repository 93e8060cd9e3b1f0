#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "proto/base/clock.h"
#include "worker/board/board.h"

static struct hvi_board *new_board(int nlocal, uint64_t fusion_bytes)
{
    size_t size = (hvi_board_size(nlocal) + 63) / 64 * 64;
    void *mem = aligned_alloc(64, size);

    cr_assert_not_null(mem);
    memset(mem, 0, size);
    cr_assert_null(hvi_board_attach(mem, nlocal),
                   "an unformatted board must be refused");
    hvi_board_format(mem, nlocal, fusion_bytes);
    cr_assert_null(hvi_board_attach(mem, nlocal + 1), "another number of ranks");
    return hvi_board_attach(mem, nlocal);
}

static struct hvi_board_meta meta_of(int nmembers, uint32_t kind, int64_t bytes)
{
    struct hvi_board_meta m;

    memset(&m, 0, sizeof m);
    for (int r = 0; r < nmembers; r++)
        hvi_board_mask_set(&m.members, r);
    m.bytes = bytes;
    m.prescale = m.postscale = 1.0;
    m.kind = kind;
    m.reduce_op = HVD_SUM;
    m.dtype = HVD_FLOAT32;
    m.fuses = kind == HVD_ALLREDUCE;
    return m;
}

static void define(struct hvi_board *b, uint32_t id, uint32_t generation, int nmembers,
                   uint32_t kind, int64_t bytes)
{
    struct hvi_board_meta m = meta_of(nmembers, kind, bytes);

    hvi_board_define(b, id, generation, &m);
}

static bool poll_once(struct hvi_board *b)
{
    struct hvi_board_mask wake;

    return hvi_board_poll(b, &wake);
}

Test(board, seals_when_the_last_rank_arrives, .timeout = 10)
{
    struct hvi_board *b = new_board(3, 1 << 20);
    struct hvi_board_mask wake;
    static struct hvi_board_group g;

    define(b, 7, 1, 3, HVD_ALLREDUCE, 100);
    hvi_board_publish(b, 0, 7, 1);
    hvi_board_publish(b, 2, 7, 1);
    cr_assert_not(hvi_board_poll(b, &wake), "rank 1 is missing");
    hvi_board_publish(b, 1, 7, 1);
    cr_assert(hvi_board_poll(b, &wake));
    for (int r = 0; r < 3; r++) {
        cr_assert(hvi_board_mask_has(&wake, r));
        cr_assert(hvi_board_unread(b, r));
        cr_assert(hvi_board_read(b, r, &g));
        cr_assert_eq(g.nids, 1);
        cr_assert_eq(g.ids[0].id, 7);
        cr_assert_eq(g.ids[0].generation, 1);
        cr_assert_not(hvi_board_read(b, r, &g));
    }
    free(b);
}

Test(board, fuses_up_to_the_threshold_and_only_alike, .timeout = 10)
{
    struct hvi_board *b = new_board(1, 1000);
    static struct hvi_board_group g;

    define(b, 0, 1, 1, HVD_ALLREDUCE, 400);
    define(b, 1, 1, 1, HVD_ALLREDUCE, 400);
    define(b, 2, 1, 1, HVD_ALLREDUCE, 400);
    define(b, 3, 1, 1, HVD_BROADCAST, 4);
    for (uint32_t id = 0; id < 4; id++)
        hvi_board_publish(b, 0, id, 1);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_eq(g.nids, 2, "800 of 1000 bytes, a third would be too much");
    cr_assert_eq(g.ids[0].id, 0);
    cr_assert_eq(g.ids[1].id, 1);
    for (int i = 0; i < 2; i++) {
        cr_assert(hvi_board_backlog(b));
        poll_once(b);
        cr_assert(hvi_board_read(b, 0, &g));
        cr_assert_eq(g.nids, 1);
    }
    cr_assert_not(hvi_board_backlog(b));
    cr_assert_not(hvi_board_read(b, 0, &g));
    free(b);
}

Test(board, larger_than_the_threshold_goes_alone, .timeout = 10)
{
    struct hvi_board *b = new_board(1, 1000);
    static struct hvi_board_group g;

    define(b, 0, 1, 1, HVD_ALLREDUCE, 5000);
    define(b, 1, 1, 1, HVD_ALLREDUCE, 10);
    hvi_board_publish(b, 0, 0, 1);
    hvi_board_publish(b, 0, 1, 1);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_eq(g.nids, 1);
    cr_assert_eq(g.ids[0].id, 0);
    free(b);
}

Test(board, higher_priority_runs_earlier, .timeout = 10)
{
    struct hvi_board *b = new_board(1, 0);
    struct hvi_board_meta m = meta_of(1, HVD_BROADCAST, 4);
    static struct hvi_board_group g;

    m.priority = 0;
    hvi_board_define(b, 0, 1, &m);
    m.priority = 5;
    hvi_board_define(b, 1, 1, &m);
    hvi_board_publish(b, 0, 0, 1);
    hvi_board_publish(b, 0, 1, 1);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_eq(g.ids[0].id, 1);
    free(b);
}

Test(board, only_members_see_a_group, .timeout = 10)
{
    struct hvi_board *b = new_board(3, 1 << 20);
    static struct hvi_board_group g;

    define(b, 5, 1, 2, HVD_BROADCAST, 8); /* ranks 0 and 1 */
    hvi_board_publish(b, 0, 5, 1);
    hvi_board_publish(b, 1, 5, 1);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert(hvi_board_read(b, 1, &g));
    cr_assert_not(hvi_board_read(b, 2, &g));
    free(b);
}

Test(board, joined_ranks_count_for_allreduce_only, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);
    static struct hvi_board_group g;

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    define(b, 2, 1, 2, HVD_BROADCAST, 8);
    hvi_board_publish(b, 0, 1, 1);
    cr_assert_not(poll_once(b));
    hvi_board_join(b, 1, 0);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_not(g.joined_bad);
    cr_assert(hvi_board_read(b, 1, &g), "a joined rank takes part with zeros");
    hvi_board_publish(b, 0, 2, 1);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert(g.joined_bad);
    hvi_board_join_done(b, 1);
    hvi_board_publish(b, 0, 1, 1);
    cr_assert_not(poll_once(b), "rank 1 is no longer joined");
    free(b);
}

Test(board, an_old_join_is_forgotten, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    hvi_board_join_done(b, 3);
    hvi_board_join(b, 1, 2); /* said before it knew of join 3 */
    hvi_board_publish(b, 0, 1, 1);
    cr_assert_not(poll_once(b));
    free(b);
}

Test(board, eviction_gives_the_unsealed_back, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);
    static struct hvi_board_group g;

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    hvi_board_publish(b, 0, 1, 1);
    poll_once(b);
    cr_assert(hvi_board_evict(b, 0, 1, 1), "published, not sealed");
    cr_assert_not(hvi_board_evict(b, 1, 1, 1), "rank 1 had not published");
    hvi_board_publish(b, 1, 1, 1); /* late: of the dead generation */
    cr_assert_not(poll_once(b));
    define(b, 1, 2, 2, HVD_BROADCAST, 8);
    hvi_board_publish(b, 0, 1, 2);
    cr_assert_not(poll_once(b), "rank 1's old publication must not count");
    hvi_board_publish(b, 1, 1, 2);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_eq(g.ids[0].generation, 2);
    free(b);
}

Test(board, withdrawing_takes_back_what_is_not_sealed, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    hvi_board_publish(b, 0, 1, 1);
    poll_once(b);
    cr_assert(hvi_board_withdraw(b, 0, 1));
    hvi_board_publish(b, 1, 1, 1);
    cr_assert_not(poll_once(b));
    hvi_board_publish(b, 0, 1, 1);
    cr_assert(poll_once(b));
    cr_assert_not(hvi_board_withdraw(b, 0, 1), "it is sealed");
    free(b);
}

Test(board, nothing_is_sealed_that_needs_a_rank_that_left, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);
    static struct hvi_board_group g;

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    define(b, 2, 1, 1, HVD_ALLREDUCE, 8);
    hvi_board_publish(b, 1, 1, 1);
    hvi_board_leave(b, 1);
    hvi_board_publish(b, 0, 1, 1);
    hvi_board_publish(b, 0, 2, 1);
    poll_once(b);
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_eq(g.nids, 1);
    cr_assert_eq(g.ids[0].id, 2, "only the set without rank 1");
    cr_assert_not(hvi_board_read(b, 0, &g));
    free(b);
}

Test(board, missing_names_who_has_not_come, .timeout = 10)
{
    struct hvi_board *b = new_board(4, 1 << 20);
    struct hvi_board_mask m;

    define(b, 1, 1, 4, HVD_ALLREDUCE, 8);
    cr_assert_not(hvi_board_missing(b, 0, 1, 1, &m), "rank 0 does not wait");
    hvi_board_publish(b, 0, 1, 1);
    hvi_board_publish(b, 2, 1, 1);
    poll_once(b);
    cr_assert(hvi_board_missing(b, 0, 1, 1, &m));
    cr_assert_not(hvi_board_mask_has(&m, 0));
    cr_assert(hvi_board_mask_has(&m, 1));
    cr_assert_not(hvi_board_mask_has(&m, 2));
    cr_assert(hvi_board_mask_has(&m, 3));
    free(b);
}

/* A rank that does not read fills its log; sealing goes on once it reads. */
Test(board, a_full_log_waits_and_loses_nothing, .timeout = 30)
{
    struct hvi_board *b = new_board(2, 0);
    static struct hvi_board_group g;
    int published = 0;
    int read = 0;
    int polls = 0;

    define(b, 1, 1, 2, HVD_BROADCAST, 8);
    while (!hvi_board_backlog(b)) {
        cr_assert_lt(published, 100000, "the log never fills");
        hvi_board_publish(b, 0, 1, 1);
        hvi_board_publish(b, 1, 1, 1);
        published++;
        poll_once(b);
        while (hvi_board_read(b, 0, &g))
            ;
    }
    while (read < published) {
        cr_assert_lt(polls++, 1000000, "read %d of %d groups", read, published);
        if (hvi_board_read(b, 1, &g))
            read++;
        else
            poll_once(b);
    }
    cr_assert_not(hvi_board_backlog(b));
    free(b);
}

Test(board, what_completes_while_a_member_lags_is_one_group, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1000);
    static struct hvi_board_group g;

    for (uint32_t id = 0; id < 8; id++)
        define(b, id, 1, 2, HVD_ALLREDUCE, 100);
    for (uint32_t id = 0; id < 8; id++) {
        hvi_board_publish(b, 0, id, 1);
        hvi_board_publish(b, 1, id, 1);
        cr_assert_eq(poll_once(b), id == 0, "id %u", id);
    }
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_eq(g.nids, 1);
    cr_assert(hvi_board_backlog(b));
    cr_assert_not(poll_once(b), "rank 1 has not read yet");
    cr_assert(hvi_board_read(b, 1, &g));
    cr_assert(poll_once(b));
    for (int r = 0; r < 2; r++) {
        cr_assert(hvi_board_read(b, r, &g));
        cr_assert_eq(g.nids, 7);
        cr_assert_not(hvi_board_read(b, r, &g));
    }
    cr_assert_not(hvi_board_backlog(b));
    free(b);
}

Test(board, nobody_waits_for_a_reader_once_a_group_is_full, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1000);

    for (uint32_t id = 0; id < 12; id++)
        define(b, id, 1, 2, HVD_ALLREDUCE, 200);
    for (uint32_t id = 0; id < 12; id++) {
        hvi_board_publish(b, 0, id, 1);
        hvi_board_publish(b, 1, id, 1);
        cr_assert_eq(poll_once(b), id == 0 || id == 5 || id == 10, "id %u", id);
    }
    free(b);
}

/* What was complete before a rank joined or left is in the log, as if sealed at once. */
Test(board, joining_and_leaving_seal_first, .timeout = 10)
{
    for (int leaves = 0; leaves < 2; leaves++) {
        struct hvi_board *b = new_board(2, 1000);
        static struct hvi_board_group g;

        define(b, 0, 1, 2, HVD_BROADCAST, 8);
        define(b, 1, 1, 2, HVD_BROADCAST, 8);
        for (uint32_t id = 0; id < 2; id++) {
            hvi_board_publish(b, 0, id, 1);
            hvi_board_publish(b, 1, id, 1);
            poll_once(b);
        }
        cr_assert(hvi_board_backlog(b));
        if (leaves)
            hvi_board_leave(b, 1);
        else
            hvi_board_join(b, 1, 0);
        cr_assert(poll_once(b));
        for (uint32_t id = 0; id < 2; id++) {
            cr_assert(hvi_board_read(b, 0, &g));
            cr_assert(g.nids == 1 && g.ids[0].id == id && !g.joined_bad);
        }
        free(b);
    }
}

Test(board, what_another_call_has_counted_the_next_poll_wakes, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);
    static struct hvi_board_group g;

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    hvi_board_publish(b, 0, 1, 1);
    hvi_board_publish(b, 1, 1, 1);
    define(b, 2, 1, 2, HVD_ALLREDUCE, 8); /* drains the rings */
    cr_assert(poll_once(b), "nothing new was published since, but an id is complete");
    cr_assert(hvi_board_read(b, 0, &g));
    free(b);
}

Test(board, a_broadcast_that_the_joined_rank_has_brought_runs, .timeout = 10)
{
    struct hvi_board *b = new_board(2, 1 << 20);
    static struct hvi_board_group g;

    define(b, 1, 1, 2, HVD_BROADCAST, 8);
    hvi_board_publish(b, 1, 1, 1);
    hvi_board_join(b, 1, 0);
    cr_assert_not(poll_once(b));
    hvi_board_publish(b, 0, 1, 1);
    cr_assert(poll_once(b));
    cr_assert(hvi_board_read(b, 0, &g));
    cr_assert_not(g.joined_bad);
    free(b);
}

/* ---- one of several hosts -------------------------------------------------------- */

static struct hvi_board *new_forwarding(int nlocal)
{
    struct hvi_board *b = new_board(nlocal, 1 << 20);

    hvi_board_set_forwarding(b);
    return b;
}

static bool order(struct hvi_board *b, uint64_t seq, uint32_t id,
                  struct hvi_board_mask *wake)
{
    memset(wake, 0, sizeof *wake);
    return hvi_board_order(b, seq, false, &id, 1, wake);
}

Test(board, one_rank_is_told_to_take_what_is_complete, .timeout = 10)
{
    struct hvi_board *b = new_forwarding(2);
    struct hvi_board_ready ready[4];
    bool more;

    define(b, 1, 3, 2, HVD_ALLREDUCE, 8);
    define(b, 2, 1, 2, HVD_ALLREDUCE, 8);
    define(b, 3, 1, 2, HVD_ALLREDUCE, 8);
    for (uint32_t id = 1; id <= 3; id++)
        hvi_board_publish(b, 0, id, id == 1 ? 3 : 1);
    cr_assert_not(poll_once(b), "rank 1 is missing");
    hvi_board_publish(b, 1, 1, 3);
    cr_assert(poll_once(b));
    hvi_board_publish(b, 1, 2, 1);
    cr_assert_not(poll_once(b), "somebody has been told already");
    hvi_board_publish(b, 1, 3, 1);
    cr_assert_eq(hvi_board_take(b, ready, 2, &more), 2);
    cr_assert(more);
    cr_assert_eq(ready[0].id, 1);
    cr_assert_eq(ready[0].generation, 3);
    cr_assert_eq(ready[1].id, 2);
    cr_assert_eq(hvi_board_take(b, ready, 4, &more), 1);
    cr_assert_not(more);
    cr_assert_eq(hvi_board_take(b, ready, 4, &more), 0, "each id once");
    cr_assert_not(hvi_board_unread(b, 0), "nothing is in the order yet");
    hvi_board_publish(b, 0, 2, 1);
    hvi_board_publish(b, 1, 2, 1);
    cr_assert(poll_once(b), "the next round of an id");
    free(b);
}

Test(board, a_complete_id_that_gets_another_meaning_is_not_taken, .timeout = 10)
{
    struct hvi_board *b = new_forwarding(2);
    struct hvi_board_ready ready[4];
    bool more;

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    for (int r = 0; r < 2; r++)
        hvi_board_publish(b, r, 1, 1);
    define(b, 1, 2, 2, HVD_ALLREDUCE, 16);
    cr_assert_eq(hvi_board_take(b, ready, 4, &more), 0);
    for (int r = 0; r < 2; r++) {
        cr_assert(hvi_board_evict(b, r, 1, 1), "it is to be announced again");
        hvi_board_publish(b, r, 1, 2);
    }
    cr_assert_eq(hvi_board_take(b, ready, 4, &more), 1);
    cr_assert_eq(ready[0].generation, 2);
    free(b);
}

Test(board, a_group_that_two_ranks_bring_is_there_once, .timeout = 10)
{
    struct hvi_board *b = new_forwarding(2);
    static struct hvi_board_group g;
    struct hvi_board_mask wake;

    define(b, 1, 1, 2, HVD_ALLREDUCE, 8);
    cr_assert(order(b, 5, 1, &wake));
    cr_assert(order(b, 7, 1, &wake));
    cr_assert(order(b, 5, 1, &wake));
    cr_assert_not(hvi_board_mask_any(&wake));
    cr_assert(order(b, 9, 1, &wake));
    for (uint64_t seq = 5; seq <= 9; seq += 2) {
        cr_assert(hvi_board_read(b, 1, &g));
        cr_assert_eq(g.seq, seq);
    }
    cr_assert_not(hvi_board_unread(b, 1));
    free(b);
}

Test(board, the_order_comes_from_outside_and_reaches_members, .timeout = 10)
{
    struct hvi_board *b = new_forwarding(3);
    struct hvi_board_mask wake;
    static struct hvi_board_group g;

    define(b, 1, 5, 2, HVD_ALLREDUCE, 8);
    cr_assert_eq(hvi_board_ordered(b), 0);
    cr_assert(order(b, 7, 1, &wake));
    cr_assert_eq(hvi_board_ordered(b), 8);
    cr_assert(hvi_board_mask_has(&wake, 0) && hvi_board_mask_has(&wake, 1));
    cr_assert_not(hvi_board_mask_has(&wake, 2));
    cr_assert_not(hvi_board_unread(b, 2), "rank 2 is no member");
    for (int r = 0; r < 2; r++) {
        cr_assert(hvi_board_read(b, r, &g));
        cr_assert_eq(g.seq, 7);
        cr_assert_eq(g.nids, 1);
        cr_assert_eq(g.ids[0].id, 1);
        cr_assert_eq(g.ids[0].generation, 5);
    }
    free(b);
}

Test(board, says_when_a_member_here_has_joined_without_it, .timeout = 10)
{
    struct hvi_board *b = new_forwarding(2);
    struct hvi_board_ready ready[4];
    bool more;

    define(b, 1, 1, 2, HVD_BROADCAST, 8);
    define(b, 2, 1, 2, HVD_BROADCAST, 8);
    hvi_board_publish(b, 1, 1, 1);
    hvi_board_join(b, 1, 0);
    hvi_board_publish(b, 0, 1, 1);
    hvi_board_publish(b, 0, 2, 1);
    cr_assert(poll_once(b));
    cr_assert_eq(hvi_board_take(b, ready, 4, &more), 2);
    cr_assert_eq(ready[0].id, 1);
    cr_assert_not(ready[0].joined, "it had brought this one");
    cr_assert(ready[1].joined);
    free(b);
}

Test(board, what_is_evicted_or_lacks_a_rank_that_left_is_not_taken, .timeout = 10)
{
    struct hvi_board *b = new_forwarding(2);
    struct hvi_board_ready ready[4];
    bool more;

    for (uint32_t id = 1; id <= 3; id++) {
        define(b, id, 1, id == 3 ? 1 : 2, HVD_ALLREDUCE, 8);
        hvi_board_publish(b, 0, id, 1);
        if (id < 3)
            hvi_board_publish(b, 1, id, 1);
    }
    cr_assert(poll_once(b));
    cr_assert(hvi_board_evict(b, 0, 1, 1));
    hvi_board_leave(b, 1);
    cr_assert_eq(hvi_board_take(b, ready, 4, &more), 1);
    cr_assert_eq(ready[0].id, 3, "its only member is still there");
    free(b);
}

Test(board, the_order_waits_while_a_log_is_full, .timeout = 30)
{
    struct hvi_board *b = new_forwarding(1);
    struct hvi_board_mask wake;
    static struct hvi_board_group g;
    uint64_t seq = 0;

    define(b, 1, 1, 1, HVD_ALLREDUCE, 8);
    while (order(b, seq, 1, &wake)) {
        seq++;
        cr_assert_lt(seq, 1 << 20, "the log has no end");
    }
    cr_assert_eq(hvi_board_ordered(b), seq, "what did not fit is not ordered");
    for (uint64_t i = 0; i < seq; i++) {
        cr_assert(hvi_board_read(b, 0, &g));
        cr_assert_eq(g.seq, i);
    }
    cr_assert(order(b, seq, 1, &wake));
    free(b);
}

/* ---- many threads ---------------------------------------------------------------- */

#define RANKS 4
#define IDS 16
#define ROUNDS 2000

struct player {
    struct hvi_board *b;
    int rank;
    uint64_t order_hash, last_seq;
    int groups, ops;
    struct decider *decider; /* NULL: the board orders */
};

/* Stands for the coordinator and the forwarder: orders what was taken, at once. */
struct decider {
    pthread_mutex_t lock;
    uint64_t seq;
    uint32_t waiting[IDS];
    int nwaiting; /* a log was full */
};

static void decide(struct player *p, bool told)
{
    struct decider *d = p->decider;
    struct hvi_board_ready ready[IDS];
    struct hvi_board_mask wake;
    bool more = told;

    pthread_mutex_lock(&d->lock);
    if (told) {
        uint32_t n = hvi_board_take(p->b, ready, IDS, &more);

        for (uint32_t i = 0; i < n; i++) {
            cr_assert_lt(d->nwaiting, IDS, "an id was taken again before its order");
            d->waiting[d->nwaiting++] = ready[i].id;
        }
    }
    while (d->nwaiting > 0 && order(p->b, d->seq, d->waiting[0], &wake)) {
        d->seq++;
        d->nwaiting--;
        memmove(d->waiting, d->waiting + 1, (size_t)d->nwaiting * sizeof(uint32_t));
    }
    pthread_mutex_unlock(&d->lock);
    cr_assert_not(more);
    if (poll_once(p->b)) /* the board's lock was held */
        decide(p, true);
}

static void read_all(struct player *p, struct hvi_board_group *g, int *busy)
{
    while (hvi_board_read(p->b, p->rank, g)) {
        cr_assert(g->seq > p->last_seq || p->groups == 0, "seq must grow");
        p->last_seq = g->seq;
        p->groups++;
        for (uint32_t i = 0; i < g->nids; i++) {
            p->order_hash = p->order_hash * 1099511628211u + g->ids[i].id + g->seq;
            busy[g->ids[i].id] = 0;
            p->ops++;
        }
    }
}

static void *play(void *arg)
{
    struct player *p = arg;
    struct hvi_board_group *g = malloc(sizeof *g);
    int left[IDS];
    int busy[IDS] = {0};
    uint64_t random = (uint64_t)p->rank + 1;
    int64_t deadline = hvi_now_ms() + 60000;

    cr_assert_not_null(g);
    for (int i = 0; i < IDS; i++)
        left[i] = ROUNDS;
    while (p->ops < IDS * ROUNDS) {
        uint32_t id;

        random = random * 6364136223846793005u + 1442695040888963407u;
        id = (uint32_t)(random >> 33) % IDS;
        if (!busy[id] && left[id] > 0) {
            left[id]--;
            busy[id] = 1;
            hvi_board_publish(p->b, p->rank, id, 1);
            if (poll_once(p->b) && p->decider != NULL)
                decide(p, true);
        } else if (hvi_board_unread(p->b, p->rank)) {
            read_all(p, g, busy);
            if (hvi_board_backlog(p->b))
                poll_once(p->b);
            if (p->decider != NULL)
                decide(p, false);
        } else {
            sched_yield();
        }
        cr_assert_gt(hvi_ms_left(deadline), 0, "rank %d has seen %d of %d operations",
                     p->rank, p->ops, IDS * ROUNDS);
    }
    free(g);
    return NULL;
}

static void play_all(struct hvi_board *b, struct decider *decider)
{
    struct player players[RANKS];
    pthread_t threads[RANKS];

    for (uint32_t id = 0; id < IDS; id++)
        define(b, id, 1, RANKS, id % 3 == 0 ? HVD_BROADCAST : HVD_ALLREDUCE, 8 + id);
    for (int r = 0; r < RANKS; r++) {
        players[r] = (struct player){.b = b, .rank = r, .decider = decider};
        cr_assert_eq(pthread_create(&threads[r], NULL, play, &players[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(threads[r], NULL);
    for (int r = 1; r < RANKS; r++) {
        cr_assert_eq(players[r].order_hash, players[0].order_hash, "rank %d differs",
                     r);
        cr_assert_eq(players[r].groups, players[0].groups);
    }
    free(b);
}

Test(board, all_ranks_see_one_order_under_load, .timeout = 60)
{
    play_all(new_board(RANKS, 64), NULL);
}

Test(board, all_ranks_of_a_host_see_the_coordinators_order_under_load, .timeout = 60)
{
    struct decider d = {.lock = PTHREAD_MUTEX_INITIALIZER};

    play_all(new_forwarding(RANKS), &d);
    cr_assert_eq(d.nwaiting, 0);
    cr_assert_eq(d.seq, IDS * ROUNDS);
}
