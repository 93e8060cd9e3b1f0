#include "test.h"

#include <limits.h>

#include "proto/base/clock.h"

Test(clock, units_agree_and_time_never_goes_back, .timeout = 10)
{
    int64_t ns = hvi_now_ns();
    int64_t us = hvi_now_us();
    int64_t ms = hvi_now_ms();

    cr_assert_leq(ns / 1000, us);
    cr_assert_leq(us / 1000, ms);
    cr_assert_lt(ms - ns / 1000000, 5000);
    for (int i = 0; i < 10000; i++) {
        int64_t now = hvi_now_ns();

        cr_assert_geq(now, ns);
        ns = now;
    }
}

Test(clock, ms_left_is_what_poll_wants, .timeout = 10)
{
    int left;

    cr_assert_eq(hvi_ms_left(-1), -1, "for ever");
    cr_assert_eq(hvi_ms_left(0), 0, "passed");
    cr_assert_eq(hvi_ms_left(hvi_now_ms() - 1), 0);
    left = hvi_ms_left(hvi_now_ms() + 100000);
    cr_assert(left > 90000 && left <= 100000);
    cr_assert_eq(hvi_ms_left(INT64_MAX), INT_MAX);
}
