#include "hvdrun/cli/optnear.h"

#include <stdio.h>
#include <string.h>

#include "hvdrun/cli/opttab.h"

#define WORD_MAX 48 /* longer than every option; a longer word is near none */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance with neighbors exchanged as one step; three rows of the table. */
static int distance(const char *a, size_t na, const char *b, size_t nb)
{
    int rows[3][WORD_MAX + 1];
    int *before = rows[0];
    int *last = rows[1];
    int *now = rows[2];

    for (size_t j = 0; j <= nb; j++)
        last[j] = before[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *spare = before;

        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            now[j] = least(last[j - 1] + (a[i - 1] != b[j - 1]),
                           least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
        before = last;
        last = now;
        now = spare;
    }
    return last[nb];
}

int hvi_opt_farness(const char *word, size_t n, const char *name)
{
    size_t size = strlen(name);
    int far;

    if (size > WORD_MAX || n > WORD_MAX || n < 2)
        return 100;
    far = 100 * distance(word, n, name, size) / (int)(n > size ? n : size);
    if (n >= 3 && n < size && strncmp(word, name, n) == 0)
        return least(far, 30);
    return far;
}

const char *hvi_opt_near(const char *word, char *out, size_t cap)
{
    size_t dashes = strspn(word, "-");
    const char *text = word + dashes;
    size_t n = strcspn(text, "=");
    int best = HVI_OPT_FAR;
    const char *found = NULL;
    bool single = false;

    if (n < 2 || n > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < hvi_opt_count; i++) {
        const struct hvi_opt *o = &hvi_opt_table[i];
        const char *names[3] = {o->name, o->also, o->single};

        for (int k = 0; k < 3; k++) {
            int far = names[k] != NULL ? hvi_opt_farness(text, n, names[k]) : 100;

            /* of two that are equally near, the one in the texts */
            if (far < best || (far == best && found == NULL)) {
                best = far;
                found = names[k];
                single = k == 2;
            }
        }
    }
    if (found == NULL)
        return NULL;
    snprintf(out, cap, "%s%s", single ? "-" : "--", found);
    return out;
}
