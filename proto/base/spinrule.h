/**
 * How long to spin before a sleep, as long as that has paid off lately: the time halves
 * whenever it was in vain, doubles when it was not, and is tried in full now and then.
 * Pure; who spins, a rank or the coordinator, keeps the numbers.
 */
#ifndef HVI_BASE_SPINRULE_H
#define HVI_BASE_SPINRULE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    HVI_SPIN_MAX_US = 100,
    HVI_SPIN_LIMIT_US = 100000, /* of HVD_SPIN_US */
    HVI_SPIN_MIN_US = 4,
    HVI_SPIN_TRY_EVERY = 16 /* waits */
};

/** The next time to spin, at most `max` us; paid: what was awaited came meanwhile. */
static inline int hvi_spin_next_us(int us, bool paid, int max)
{
    int next = paid ? us * 2 : us / 2;

    next = next < HVI_SPIN_MIN_US ? HVI_SPIN_MIN_US : next;
    return next > max ? max : next;
}

/** Counts a wait. True: this one is tried in full. */
static inline bool hvi_spin_in_full(uint32_t *waits)
{
    return (*waits)++ % HVI_SPIN_TRY_EVERY == 0;
}

#endif
