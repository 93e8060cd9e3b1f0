/** Doorbells: no wake is lost, nobody sleeps past what it waits for. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/clock.h"
#include "test.h"
#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/spin.h"

enum { ROUNDS = 3000, DEADLINE_MS = 20000 };

struct turn {
    struct hvi_bells *bells;
    _Atomic uint64_t count; /* odd: rank 1's turn */
    uint64_t want[2];       /* [rank] */
    bool mask;
};

struct side {
    struct turn *t;
    int me;
    bool late;
};

static struct hvi_bells *new_bells(void)
{
    struct hvi_bells *b = aligned_alloc(64, sizeof(*b));

    cr_assert_not_null(b);
    memset(b, 0, sizeof(*b));
    return b;
}

static bool my_turn(void *arg)
{
    struct side *s = arg;

    return atomic_load_explicit(&s->t->count, memory_order_acquire) >=
           s->t->want[s->me];
}

/* Sleeps without spinning; a lost wake would take the whole timeout. */
static void *take_turns(void *arg)
{
    struct side *s = arg;
    uint64_t mask[HVI_SHM_MAX_RANKS / 64] = {0};
    int other = s->me == 0 ? 70 : 0; /* in different words of the mask */
    int mine = s->me == 0 ? 0 : 70;

    mask[other / 64] |= UINT64_C(1) << (other % 64);
    for (int i = 0; i < ROUNDS && !s->late; i++) {
        int64_t deadline_ms = hvi_now_ms() + DEADLINE_MS / 2;

        s->t->want[s->me] = (uint64_t)(2 * i + s->me);
        while (!my_turn(s)) {
            hvi_bell_sleep(s->t->bells, mine, my_turn, s, 0, false, DEADLINE_MS);
            s->late = s->late || hvi_now_ms() > deadline_ms;
        }
        atomic_store_explicit(&s->t->count, (uint64_t)(2 * i + s->me + 1),
                              memory_order_release);
        if (i % 2 == 0)
            hvi_bell_ring(s->t->bells, other);
        else
            hvi_bell_ring_mask(s->t->bells, mask);
    }
    return NULL;
}

Test(bell, no_ring_is_lost, .timeout = 60)
{
    struct turn t = {.bells = new_bells()};
    struct side sides[2] = {{&t, 0, false}, {&t, 1, false}};
    pthread_t threads[2];

    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, take_turns, &sides[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_not(sides[0].late || sides[1].late, "a wake came only with the timeout");
    cr_assert_eq(atomic_load(&t.count), 2 * ROUNDS);
    for (int w = 0; w < HVI_SHM_MAX_RANKS / 64; w++)
        cr_assert_eq(atomic_load(&t.bells->sleepers[w]), 0, "somebody still sleeps");
    free(t.bells);
}

static bool flag_is_set(void *arg)
{
    return atomic_load((_Atomic int *)arg) != 0;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

Test(bell, sleep_does_not_begin_when_all_is_ready, .timeout = 10)
{
    struct hvi_bells *b = new_bells();
    _Atomic int flag = 1;
    int64_t began_ms = hvi_now_ms();

    cr_assert_not(hvi_bell_sleep(b, 3, flag_is_set, &flag, 0, false, 5000));
    cr_assert_not(hvi_bell_sleep(b, 3, flag_is_set, &flag, 100, true, 5000));
    cr_assert_lt(hvi_now_ms() - began_ms, 4000);
    cr_assert_eq(atomic_load(&b->bell[3].word), 0, "nobody rang");
    free(b);
}

Test(bell, sleep_ends_at_its_timeout, .timeout = 10)
{
    struct hvi_bells *b = new_bells();
    int64_t began_ms = hvi_now_ms();

    cr_assert_not(hvi_bell_sleep(b, 0, never, NULL, 0, false, 0));
    cr_assert_not(hvi_bell_sleep(b, 0, never, NULL, 0, false, 30));
    cr_assert_geq(hvi_now_ms() - began_ms, 29);
    cr_assert_lt(hvi_now_ms() - began_ms, 5000);
    cr_assert_eq(atomic_load(&b->sleepers[0]), 0);
    free(b);
}

/* What another rank does between two steps of a sleeper. */
struct meanwhile {
    struct hvi_bells *bells;
    int ring_at; /* the question, counted from 1, during which it rings */
    int ready_at;
    int asked;
};

static bool ring_meanwhile(void *arg)
{
    struct meanwhile *m = arg;

    m->asked++;
    if (m->asked == m->ring_at)
        hvi_bell_ring(m->bells, 9);
    return m->asked >= m->ready_at;
}

static int64_t slept_ms(struct meanwhile m)
{
    int64_t began_ms = hvi_now_ms();

    hvi_bell_sleep(m.bells, 9, ring_meanwhile, &m, 0, false, 6000);
    return hvi_now_ms() - began_ms;
}

Test(bell, a_change_before_the_sleeper_is_seen_to_sleep_is_noticed, .timeout = 20)
{
    struct hvi_bells *b = new_bells();

    cr_assert_lt(slept_ms((struct meanwhile){b, 1, 2, 0}), 3000);
    free(b);
}

Test(bell, a_ring_just_before_the_sleep_ends_it, .timeout = 20)
{
    struct hvi_bells *b = new_bells();

    cr_assert_lt(slept_ms((struct meanwhile){b, 2, 100, 0}), 3000);
    cr_assert_eq(atomic_load(&b->bell[9].word), 1);
    free(b);
}

struct forced {
    struct hvi_bells *bells;
    _Atomic int awake;
};

static void *sleep_long(void *arg)
{
    struct forced *f = arg;

    hvi_bell_sleep(f->bells, 200, never, NULL, 0, false, DEADLINE_MS);
    atomic_store(&f->awake, 1);
    return NULL;
}

Test(bell, force_wakes_a_sleeper_that_is_not_ready, .timeout = 30)
{
    struct forced f = {.bells = new_bells()};
    int64_t deadline_ms = hvi_now_ms() + DEADLINE_MS / 2;
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, sleep_long, &f), 0);
    while (!atomic_load(&f.awake) && hvi_now_ms() < deadline_ms) {
        hvi_bell_force(f.bells, 200);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    cr_assert(atomic_load(&f.awake), "still asleep");
    pthread_join(thread, NULL);
    free(f.bells);
}

Test(bell, spins_in_vain_become_short_and_long_again, .timeout = 10)
{
    struct hvi_spin s;
    _Atomic int flag = 1;

    hvi_spin_init(&s, 1);
    cr_assert_eq(s.us, HVI_SPIN_MAX_US);
    for (int i = 0; i < 8; i++)
        cr_assert_not(hvi_spin(&s, false, never, NULL));
    cr_assert_eq(s.us, HVI_SPIN_MIN_US);
    for (int i = 0; i < 8; i++)
        cr_assert(hvi_spin(&s, false, flag_is_set, &flag));
    cr_assert_eq(s.us, HVI_SPIN_MAX_US);
    cr_assert_not(s.crowded);
}
