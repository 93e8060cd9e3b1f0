/**
 * Spinning before a sleep, as long as that has paid off lately: a wake costs 25 us each
 * way (reference/performance.md), but where the awaited rank does not run, because
 * other programs have the cores, a spin only keeps it from running. spinrule.h says how
 * long.
 */
#ifndef HVI_PLANE_CPU_SPIN_H
#define HVI_PLANE_CPU_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"
#include "proto/base/spinrule.h"
#include "worker/plane/cpu/pause.h"

enum {
    HVI_SPIN_PURE_US = 10,    /* then yield as well */
    HVI_SPIN_CLOCK_EVERY = 32 /* looks between two looks at the clock */
};

enum hvi_spin_end {
    HVI_SPIN_VAIN = 0,
    HVI_SPIN_PURE,   /* what was awaited came while nothing was yielded */
    HVI_SPIN_YIELDED /* it came later */
};

struct hvi_spin {
    bool yield;   /* from the begin, always: more ranks than cores */
    bool crowded; /* lately it took a yield */
    int us, max;  /* now, at most */
    uint32_t waits;
};

/** nranks: of this host. HVD_SPIN_US sets the most microseconds, for measuring. */
void hvi_spin_init(struct hvi_spin *s, int nranks);

/** Until ready(arg), at most us. slow: a look at it costs more than one at the clock. */
static inline enum hvi_spin_end hvi_spin_for(int us, bool yield, bool slow,
                                             bool (*ready)(void *arg), void *arg)
{
    int64_t began = 0;

    for (uint32_t i = 1;; i++) {
        if (ready(arg))
            return yield ? HVI_SPIN_YIELDED : HVI_SPIN_PURE;
        if (yield || slow || i % HVI_SPIN_CLOCK_EVERY == 0) {
            int64_t now = hvi_now_us();

            began = began == 0 ? now : began;
            if (now - began >= us)
                return HVI_SPIN_VAIN;
            yield = yield || now - began >= HVI_SPIN_PURE_US;
        }
        if (yield)
            sched_yield();
        else
            hvi_pause();
    }
}

/** True: ready(arg) came true. */
static inline bool hvi_spin(struct hvi_spin *s, bool slow, bool (*ready)(void *arg),
                            void *arg)
{
    bool full = hvi_spin_in_full(&s->waits);
    enum hvi_spin_end end = hvi_spin_for(
        full ? s->max : s->us, s->yield || (s->crowded && !full), slow, ready, arg);

    s->us = hvi_spin_next_us(s->us, end != HVI_SPIN_VAIN, s->max);
    if (full)
        s->crowded = end == HVI_SPIN_YIELDED;
    return end != HVI_SPIN_VAIN;
}

#endif
