#include "test.h"

#include "coordinator/core/elect.h"

Test(elect, wishes_win_then_hosts_in_order_of_arrival, .timeout = 10)
{
    static const struct hvi_candidate c[] = {
        {.want = -1, .last_rank = -1, .host = "b"},
        {.want = 1, .last_rank = -1, .host = "a"},
        {.want = -1, .last_rank = -1, .host = "a"},
        {.want = -1, .last_rank = -1, .host = "b"},
    };
    int32_t ranks[4];

    hvi_elect_ranks(c, 4, NULL, ranks);
    cr_assert_eq(ranks[0], 0);
    cr_assert_eq(ranks[1], 1);
    cr_assert_eq(ranks[3], 2); /* beside the first of its host */
    cr_assert_eq(ranks[2], 3);
}

Test(elect, the_longest_serving_is_rank_0, .timeout = 10)
{
    static const struct hvi_candidate c[] = {
        {.want = -1, .last_rank = -1, .host = "a"},
        {.want = -1, .last_rank = 3, .first_epoch = 2, .host = "a"},
        {.want = -1, .last_rank = 2, .first_epoch = 1, .host = "b"},
    };
    int32_t ranks[3];

    hvi_elect_ranks(c, 3, NULL, ranks);
    cr_assert_eq(ranks[2], 0);
    cr_assert_eq(ranks[1], 1);
    cr_assert_eq(ranks[0], 2);
}

Test(elect, a_newcomer_prefers_a_slot_of_its_host, .timeout = 10)
{
    static const char *const hosts[] = {"a", "b", "a"};
    static const struct hvi_candidate c[] = {
        {.want = -1, .last_rank = -1, .host = "b"},
        {.want = -1, .last_rank = -1, .host = "a"},
        {.want = -1, .last_rank = -1, .host = "a"},
    };
    int32_t ranks[3];

    hvi_elect_ranks(c, 3, hosts, ranks);
    cr_assert_eq(ranks[0], 1);
    cr_assert_eq(ranks[1], 0);
    cr_assert_eq(ranks[2], 2);
}

Test(elect, every_rank_is_given_once_whatever_the_wishes, .timeout = 20)
{
    static const char *const names[] = {"a", "b", "c"};
    unsigned seed = 1;

    for (int round = 0; round < 300; round++) {
        struct hvi_candidate c[17];
        int32_t ranks[17], n = 1 + round % 17;
        bool seen[17] = {false};

        for (int32_t i = 0; i < n; i++) {
            seed = seed * 1103515245u + 12345u;
            c[i] = (struct hvi_candidate){
                .want = seed >> 16 & 1 ? i : -1,
                .last_rank = seed >> 17 & 1 ? (int32_t)(seed >> 20 & 31) : -1,
                .first_epoch = seed >> 18 & 3,
                .host = names[(seed >> 24) % 3]};
        }
        hvi_elect_ranks(c, n, NULL, ranks);
        for (int32_t i = 0; i < n; i++) {
            cr_assert(ranks[i] >= 0 && ranks[i] < n && !seen[ranks[i]], "round %d",
                      round);
            cr_assert(c[i].want < 0 || ranks[i] == c[i].want);
            seen[ranks[i]] = true;
        }
    }
}

Test(elect, local_and_cross_ranks, .timeout = 10)
{
    static const char *const host[] = {"a", "a", "b", "a", "b"};
    struct hvi_place p[5];

    cr_assert_not(hvi_elect_places(host, 5, p));
    cr_assert_eq(p[3].local_rank, 2);
    cr_assert_eq(p[3].local_size, 3);
    cr_assert_eq(p[3].cross_rank, 0);
    cr_assert_eq(p[3].cross_size, 1);
    cr_assert_eq(p[4].local_rank, 1);
    cr_assert_eq(p[4].cross_rank, 1);
    cr_assert_eq(p[4].cross_size, 2);
    cr_assert_eq(p[4].host_index, 1);
    cr_assert(hvi_elect_places(host + 1, 2, p)); /* one rank on each of two hosts */
}
