#include "proto/base/spinrule.h"

#include "test.h"

Test(spinrule, halves_in_vain_and_doubles_when_it_paid, .timeout = 5)
{
    int us = HVI_SPIN_MAX_US;

    for (int i = 0; i < 10; i++)
        us = hvi_spin_next_us(us, false, HVI_SPIN_MAX_US);
    cr_assert_eq(us, HVI_SPIN_MIN_US);
    cr_assert_eq(hvi_spin_next_us(us, true, HVI_SPIN_MAX_US), 2 * HVI_SPIN_MIN_US);
    cr_assert_eq(hvi_spin_next_us(80, true, HVI_SPIN_MAX_US), HVI_SPIN_MAX_US);
    cr_assert_eq(hvi_spin_next_us(0, true, 0), 0, "HVD_SPIN_US=0 stays without a spin");
}

Test(spinrule, is_tried_in_full_now_and_then, .timeout = 5)
{
    uint32_t waits = 0;
    int full = 0;

    cr_assert(hvi_spin_in_full(&waits), "the first");
    for (int i = 0; i < HVI_SPIN_TRY_EVERY; i++)
        full += hvi_spin_in_full(&waits);
    cr_assert_eq(full, 1);
}
