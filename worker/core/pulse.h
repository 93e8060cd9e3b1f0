/**
 * Is the coordinator still there? An agent tells hvdrun when it is not, and ends its
 * ranks; a rank without an agent has to see for itself: a process that is stopped keeps
 * its connections, and its kernel acknowledges what comes. Pure but for the names.
 *
 * Silence is counted in ticks of this rank, of which each counts once however long it
 * took: a rank that was stopped itself has to listen before it may judge.
 */
#ifndef HVI_CORE_PULSE_H
#define HVI_CORE_PULSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

#define HVI_PULSE_TICK_MS 1000

struct hvi_pulse {
    int limit_ticks; /* 0: nobody looks */
    int silent_ticks;
    int64_t tick_at_ms;
    int64_t heard_s;    /* wall clock, for people */
    _Atomic bool heard; /* since the last look; set by whoever reads */
    char where[320];
};

enum hvi_pulse_is { HVI_PULSE_FINE = 1, HVI_PULSE_ASK, HVI_PULSE_GONE };

/** endpoint: as dialled; fd: its connection. lease_s 0: nobody looks. */
void hvi_pulse_init(struct hvi_pulse *p, const char *endpoint, int fd, int lease_s);
static inline void hvi_pulse_heard(struct hvi_pulse *p)
{
    atomic_store_explicit(&p->heard, true, memory_order_relaxed);
}
/**
 * One look; shortens *timeout_ms (-1: for ever) to the next one. One thread at a time.
 *
 * Returns  ASK after every third of the lease without a word: send HEARTBEAT, which the
 *          coordinator answers. GONE: a lease has passed without a word.
 */
enum hvi_pulse_is hvi_pulse_look(struct hvi_pulse *p, int64_t now_ms, int *timeout_ms);
/** Words GONE; always HVD_EPEER. */
enum hvd_status hvi_pulse_gone(const struct hvi_pulse *p, struct hvi_err *err);

#endif
