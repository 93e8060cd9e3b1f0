/*
 * Doorbells: sleep and wake through a futex word per rank, in shared memory.
 *
 * Sleeper: read the word, set the own bit, fence, ask `ready` once more, FUTEX_WAIT on
 * the value read. Ringer: (change stored), fence, look at the bits; for a set bit:
 * clear it, add one to the word, FUTEX_WAKE. Of the two fences one comes first: either
 * the sleeper sees the change, or the ringer sees the bit, and then the word has
 * changed or the sleeper is asleep on it. So no wake is lost, and nobody pays for a
 * system call while all are awake.
 */
#include "worker/plane/cpu/cpu.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "worker/plane/cpu/spin.h"

static void fence(struct hvi_bells *b)
{
#ifdef __SANITIZE_THREAD__
    atomic_fetch_add(&b->sleepers[0], 0); /* TSan knows no fences */
#else
    (void)b;
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* true: a signal came. */
static bool futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec ts = {timeout_ns / 1000000000, timeout_ns % 1000000000};

    return syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &ts, NULL,
                   0) != 0 &&
           errno == EINTR;
}

void hvi_bell_force(struct hvi_bells *b, int r)
{
    atomic_fetch_and(&b->sleepers[r / 64], ~(UINT64_C(1) << (r % 64)));
    atomic_fetch_add(&b->bell[r].word, 1);
    futex_wake(&b->bell[r].word);
}

/* Only the one ringer that takes the bit away wakes. */
static void wake_sleeper(struct hvi_bells *b, int r)
{
    uint64_t bit = UINT64_C(1) << (r % 64);

    if ((atomic_fetch_and(&b->sleepers[r / 64], ~bit) & bit) == 0)
        return;
    atomic_fetch_add(&b->bell[r].word, 1);
    futex_wake(&b->bell[r].word);
}

void hvi_bell_ring(struct hvi_bells *b, int r)
{
    fence(b);
    if (atomic_load(&b->sleepers[r / 64]) & (UINT64_C(1) << (r % 64)))
        wake_sleeper(b, r);
}

void hvi_bell_ring_mask(struct hvi_bells *b, const uint64_t *mask)
{
    fence(b);
    for (int w = 0; w < HVI_SHM_MAX_RANKS / 64; w++) {
        uint64_t asleep;

        if (mask[w] == 0)
            continue;
        asleep = atomic_load_explicit(&b->sleepers[w], memory_order_relaxed) & mask[w];
        for (; asleep != 0; asleep &= asleep - 1)
            wake_sleeper(b, w * 64 + __builtin_ctzll(asleep));
    }
}

bool hvi_bell_sleep(struct hvi_bells *b, int r, bool (*ready)(void *arg), void *arg,
                    int spin_us, bool yield, int timeout_ms)
{
    uint64_t bit = UINT64_C(1) << (r % 64);
    int64_t timeout_ns = timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000000;
    bool interrupted = false;
    uint32_t seen;

    if (spin_us > 0 ? hvi_spin_for(spin_us, yield, false, ready, arg) != HVI_SPIN_VAIN
                    : ready(arg))
        return false;
    seen = atomic_load(&b->bell[r].word);
    atomic_fetch_or(&b->sleepers[r / 64], bit);
    fence(b);
    if (!ready(arg) && timeout_ms != 0)
        interrupted = futex_wait(&b->bell[r].word, seen, timeout_ns);
    atomic_fetch_and(&b->sleepers[r / 64], ~bit);
    return interrupted;
}
