#include "worker/plane/cpu/stores.h"

#include "proto/base/clock.h"
#include "worker/plane/reduce/reduce.h"

/* Less is believed at once; more by and by, since a copy that was interrupted says
 * nothing. */
static int64_t blend(int64_t old, int64_t now)
{
    if (old == 0 || now < old)
        return now;
    return old + (now - old < old ? now - old : old) / 4;
}

void hvi_stores_took(struct hvi_stores *s, bool past, size_t size_bytes, int64_t ns)
{
    int64_t now = ns * 1000 / (int64_t)size_bytes;

    s->cost[past] = blend(s->cost[past], now > 0 ? now : 1);
    /* what went past the caches its reader has to fetch from memory */
    s->past = s->cost[true] > 0 && s->cost[true] * 2 < s->cost[false];
}

static void timed(struct hvi_stores *s, void *out, const void *in, size_t size_bytes,
                  bool past)
{
    int64_t begun = hvi_now_ns();

    hvi_reduce_copy(out, in, size_bytes, past);
    hvi_stores_took(s, past, size_bytes, hvi_now_ns() - begun);
}

void hvi_stores_copy(struct hvi_stores *s, void *out, const void *in, size_t size_bytes)
{
    bool past = s->past;
    size_t other = 0;

    if (size_bytes < HVI_STORES_LEAST_BYTES) {
        hvi_reduce_copy(out, in, size_bytes, past);
        return;
    }
    if (s->copies++ % HVI_STORES_PROBE_EVERY == 0) {
        other = HVI_STORES_PROBE_BYTES;
        timed(s, out, in, other, !past);
    }
    timed(s, (char *)out + other, (const char *)in + other, size_bytes - other, past);
}
