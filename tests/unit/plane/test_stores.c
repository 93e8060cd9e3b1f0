/** Which stores a copy takes, by how long the last ones took. */
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include "worker/plane/cpu/stores.h"

enum { MIB = 1 << 20, TURNS = 40 };

/* Copies as a plane does them, ordinary ones and others at so many us a MiB. Number of
 * copies until the choice is `past` and stays; TURNS: it never does. */
static int turns_until(struct hvi_stores *s, bool past, int ordinary_us, int past_us)
{
    int since = 0;

    for (int i = 0; i < TURNS; i++) {
        int64_t ns[2] = {ordinary_us * 1000, past_us * 1000};

        if (i % HVI_STORES_PROBE_EVERY == 0)
            hvi_stores_took(s, !s->past, MIB, ns[!s->past]);
        hvi_stores_took(s, s->past, MIB, ns[s->past]);
        if (s->past != past)
            since = i + 1;
    }
    return since;
}

Test(stores, nothing_known_is_ordinary, .timeout = 5)
{
    struct hvi_stores s = {0};

    cr_assert_not(s.past);
    hvi_stores_took(&s, false, MIB, 5000000);
    cr_assert_not(s.past, "only one kind was timed");
}

Test(stores, follow_the_machine_both_ways, .timeout = 5)
{
    struct hvi_stores s = {0};

    cr_assert_eq(turns_until(&s, false, 60, 120), 0);
    cr_assert_leq(turns_until(&s, true, 400, 120), 8, "writer and reader went apart");
    cr_assert_leq(turns_until(&s, false, 60, 120), 8, "they came together");
}

Test(stores, one_interrupted_copy_changes_nothing, .timeout = 5)
{
    struct hvi_stores s = {0};

    turns_until(&s, false, 60, 60);
    hvi_stores_took(&s, false, MIB, 10000000);
    cr_assert_not(s.past);
    turns_until(&s, true, 400, 120);
    hvi_stores_took(&s, true, MIB, 10000000);
    cr_assert(s.past);
}

Test(stores, copy_what_they_are_told, .timeout = 5)
{
    struct hvi_stores s = {0};
    unsigned char *in = malloc(MIB + 1);
    unsigned char *out = malloc(MIB + 1);

    for (int i = 0; i <= MIB; i++)
        in[i] = (unsigned char)(i * 7 + i / 251);
    for (size_t size = 1; size < MIB; size = size * 3 + 1)
        for (int turn = 0; turn < 2 * HVI_STORES_PROBE_EVERY; turn++) {
            s.past = turn % 2;
            memset(out, 0xa5, MIB + 1);
            hvi_stores_copy(&s, out + 1, in, size);
            cr_assert_eq(memcmp(out + 1, in, size), 0);
            cr_assert_eq(out[0], 0xa5);
            cr_assert_eq(out[size + 1], 0xa5);
        }
    free(in);
    free(out);
}
