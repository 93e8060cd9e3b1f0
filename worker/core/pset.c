/* The table of process sets of a membership. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/core/ctx.h"

struct hvi_pset *hvi_pset_find(struct hvi_ctx *c, int32_t id)
{
    for (int32_t i = 0; i < c->npsets; i++)
        if (c->psets[i]->id == id && !c->psets[i]->removed)
            return c->psets[i];
    return NULL;
}

static int compare_ranks(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

enum hvd_status hvi_pset_insert(struct hvi_ctx *c, int32_t id, const int32_t *ranks,
                                int32_t n)
{
    struct hvi_pset *set = calloc(1, sizeof *set);
    struct hvi_pset **psets =
        realloc(c->psets, ((size_t)c->npsets + 1) * sizeof *psets);

    if (psets != NULL)
        c->psets = psets;
    if (set != NULL)
        set->ranks = malloc((size_t)n * sizeof *ranks);
    if (set == NULL || psets == NULL || set->ranks == NULL) {
        free(set != NULL ? set->ranks : NULL);
        free(set);
        return HVD_ENOMEM;
    }
    memcpy(set->ranks, ranks, (size_t)n * sizeof *ranks);
    qsort(set->ranks, (size_t)n, sizeof *ranks, compare_ranks);
    set->id = id;
    set->size = n;
    set->me = -1;
    for (int32_t i = 0; i < n; i++)
        if (set->ranks[i] == c->rank)
            set->me = i;
    c->psets[c->npsets++] = set;
    return HVD_OK;
}
