#include "test.h"

#include <string.h>

#include "worker/core/pulse.h"

/* `ticks` looks, one a tick; the last verdict. *asked counts. */
static enum hvi_pulse_is wait_ticks(struct hvi_pulse *p, int64_t *now, int ticks,
                                    int *asked)
{
    enum hvi_pulse_is is = HVI_PULSE_FINE;

    for (int i = 0; i < ticks && is != HVI_PULSE_GONE; i++) {
        int timeout_ms = -1;

        *now += HVI_PULSE_TICK_MS;
        is = hvi_pulse_look(p, *now, &timeout_ms);
        *asked += is == HVI_PULSE_ASK;
    }
    return is;
}

static int64_t start(struct hvi_pulse *p, int lease_s)
{
    int timeout_ms = -1;

    hvi_pulse_init(p, "node1:4000", -1, lease_s);
    cr_assert_eq(hvi_pulse_look(p, 1, &timeout_ms), HVI_PULSE_FINE);
    cr_assert_eq(timeout_ms, lease_s > 0 ? HVI_PULSE_TICK_MS : -1);
    return 1;
}

Test(pulse, who_is_silent_is_asked_and_given_up_after_the_lease, .timeout = 5)
{
    struct hvi_pulse p;
    struct hvi_err err = {{0}};
    int asked = 0;
    int64_t now = start(&p, 15);

    cr_assert_eq(wait_ticks(&p, &now, 4, &asked), HVI_PULSE_FINE);
    cr_assert_eq(asked, 0);
    cr_assert_neq(wait_ticks(&p, &now, 11, &asked), HVI_PULSE_GONE);
    cr_assert_eq(asked, 3);
    cr_assert_eq(wait_ticks(&p, &now, 1, &asked), HVI_PULSE_GONE);
    cr_assert_eq(hvi_pulse_gone(&p, &err), HVD_EPEER);
    cr_assert_not_null(
        strstr(err.text, "the coordinator at node1:4000 has not answered for 16 s"),
        "%s", err.text);
}

Test(pulse, an_answer_begins_the_lease_anew, .timeout = 5)
{
    struct hvi_pulse p;
    int asked = 0;
    int64_t now = start(&p, 3);

    for (int i = 0; i < 10; i++) {
        cr_assert_neq(wait_ticks(&p, &now, 3, &asked), HVI_PULSE_GONE);
        hvi_pulse_heard(&p);
        cr_assert_eq(wait_ticks(&p, &now, 1, &asked), HVI_PULSE_FINE);
    }
    cr_assert_eq(asked, 30);
}

Test(pulse, a_rank_that_was_stopped_itself_listens_first, .timeout = 5)
{
    struct hvi_pulse p;
    int asked = 0;
    int64_t now = start(&p, 15);

    cr_assert_neq(wait_ticks(&p, &now, 14, &asked), HVI_PULSE_GONE);
    now += 3600 * 1000;
    cr_assert_neq(wait_ticks(&p, &now, 1, &asked), HVI_PULSE_GONE);
    hvi_pulse_heard(&p); /* what had come meanwhile */
    cr_assert_eq(wait_ticks(&p, &now, 1, &asked), HVI_PULSE_FINE);
}

Test(pulse, nobody_looks_where_an_agent_does, .timeout = 5)
{
    struct hvi_pulse p;
    int asked = 0;
    int64_t now = start(&p, 0);

    cr_assert_eq(wait_ticks(&p, &now, 1000, &asked), HVI_PULSE_FINE);
    cr_assert_eq(asked, 0);
}
