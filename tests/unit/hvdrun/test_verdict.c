#include "test.h"

#include <signal.h>

#include "hvdrun/job/verdict.h"

#define EXITED(n) ((n) << 8)

static struct hvi_verdict v;

static void begin(void)
{
    cr_assert_eq(hvi_verdict_init(&v, 4), HVD_OK);
}

static int cause(bool want_settled)
{
    bool settled = !want_settled;
    int rank = hvi_verdict_cause(&v, &settled);

    cr_assert_eq(settled, want_settled);
    return rank;
}

Test(verdict, all_well_is_zero, .timeout = 5)
{
    begin();
    for (int r = 0; r < 4; r++)
        hvi_verdict_exited(&v, r, 0, false);
    cr_assert_not(hvi_verdict_bad(&v));
    cr_assert_eq(cause(true), -1);
    cr_assert_eq(hvi_verdict_status(&v), 0);
    hvi_verdict_fini(&v);
}

Test(verdict, the_first_failure_in_time_decides, .timeout = 5)
{
    begin();
    hvi_verdict_exited(&v, 3, EXITED(0), false);
    hvi_verdict_exited(&v, 2, EXITED(7), false);
    hvi_verdict_exited(&v, 0, EXITED(9), false);
    hvi_verdict_exited(&v, 1, SIGKILL, true);
    cr_assert_eq(cause(true), 2);
    cr_assert_eq(hvi_verdict_status(&v), 7);
    cr_assert_eq(v.failed, 2);
    cr_assert_eq(v.stopped, 1);
    hvi_verdict_fini(&v);
}

Test(verdict, what_we_killed_ourselves_is_no_failure, .timeout = 5)
{
    begin();
    hvi_verdict_exited(&v, 0, SIGTERM, true);
    cr_assert_not(hvi_verdict_bad(&v));
    cr_assert_eq(hvi_verdict_status(&v), 0);
    hvi_verdict_fini(&v);
}

Test(verdict, after_a_loss_other_failures_are_secondary, .timeout = 5)
{
    begin();
    hvi_verdict_lost(&v, 1);
    hvi_verdict_lost(&v, 2); /* only the first counts */
    hvi_verdict_exited(&v, 0, EXITED(4), false);
    cr_assert(hvi_verdict_bad(&v));
    cr_assert_eq(cause(false), 1); /* worth waiting for its own end */
    cr_assert_eq(hvi_verdict_status(&v), 4);
    hvi_verdict_exited(&v, 1, SIGKILL, false);
    cr_assert_eq(cause(true), 1);
    cr_assert_eq(hvi_verdict_status(&v), 137);
    hvi_verdict_fini(&v);
}

Test(verdict, a_lost_rank_that_we_had_to_kill_is_not_the_cause, .timeout = 5)
{
    begin();
    hvi_verdict_lost(&v, 1);
    hvi_verdict_exited(&v, 0, EXITED(4), false);
    hvi_verdict_exited(&v, 1, SIGKILL, true);
    cr_assert_eq(cause(true), 0);
    cr_assert_eq(hvi_verdict_status(&v), 4);
    hvi_verdict_fini(&v);
}

Test(verdict, leaving_without_a_word_is_one_whatever_the_order, .timeout = 5)
{
    begin();
    hvi_verdict_exited(&v, 2, 0, false);
    cr_assert_not(hvi_verdict_bad(&v));
    hvi_verdict_no_bye(&v, 2);
    cr_assert(hvi_verdict_bad(&v));
    cr_assert_eq(cause(true), 2);
    cr_assert_eq(hvi_verdict_status(&v), 1);
    hvi_verdict_fini(&v);
    begin();
    hvi_verdict_no_bye(&v, 2);
    cr_assert_not(hvi_verdict_bad(&v));
    hvi_verdict_exited(&v, 2, 0, false);
    cr_assert_eq(hvi_verdict_status(&v), 1);
    hvi_verdict_exited(&v, 0, EXITED(5), false); /* somebody's own status is better */
    hvi_verdict_lost(&v, 2);
    cr_assert_eq(cause(true), 2);
    cr_assert_eq(hvi_verdict_status(&v), 5);
    hvi_verdict_fini(&v);
}

Test(verdict, who_left_first_and_failed_is_the_cause, .timeout = 5)
{
    begin();
    hvi_verdict_bye(&v, 2); /* exit(7) says BYE for the program */
    cr_assert_not(hvi_verdict_bad(&v));
    hvi_verdict_exited(&v, 0, EXITED(66), false);
    cr_assert_eq(cause(false), 0);
    hvi_verdict_exited(&v, 2, EXITED(7), false);
    cr_assert_eq(cause(true), 2);
    cr_assert_eq(hvi_verdict_status(&v), 7);
    hvi_verdict_fini(&v);
    begin();
    hvi_verdict_bye(&v, 2); /* it was just ready first */
    hvi_verdict_exited(&v, 2, 0, false);
    hvi_verdict_exited(&v, 0, EXITED(66), false);
    cr_assert_eq(cause(true), 0);
    cr_assert_eq(hvi_verdict_status(&v), 66);
    hvi_verdict_fini(&v);
}

Test(verdict, strange_ranks_and_second_ends_are_ignored, .timeout = 5)
{
    begin();
    hvi_verdict_lost(&v, -1);
    hvi_verdict_lost(&v, 4);
    hvi_verdict_no_bye(&v, 4);
    hvi_verdict_exited(&v, 0, 0, false);
    hvi_verdict_exited(&v, 0, EXITED(3), false);
    cr_assert_not(hvi_verdict_bad(&v));
    cr_assert_eq(v.exited, 1);
    hvi_verdict_fini(&v);
}
