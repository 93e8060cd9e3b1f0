#include "hvdrun/agent/jobenv.h"

#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned through an array inside a struct */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

static char **find(const struct hvi_jobenv *e, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < e->n; i++)
        if (strncmp(e->vars[i], name, name_bytes) == 0 && e->vars[i][name_bytes] == '=')
            return &e->vars[i];
    return NULL;
}

static enum hvd_status grow(struct hvi_jobenv *e)
{
    size_t cap = e->cap > 0 ? e->cap * 2 : 64;
    char **vars;

    if (e->n + 2 <= e->cap)
        return HVD_OK;
    vars = realloc(e->vars, cap * sizeof *vars);
    if (vars == NULL)
        return HVD_ENOMEM;
    e->vars = vars;
    e->cap = cap;
    return HVD_OK;
}

enum hvd_status hvi_jobenv_put(struct hvi_jobenv *e, const void *name,
                               size_t name_bytes, const void *value, size_t value_bytes)
{
    char **old;
    char *text;

    if (name_bytes == 0 || memchr(name, '=', name_bytes) != NULL ||
        memchr(name, '\0', name_bytes) != NULL ||
        (value_bytes > 0 && memchr(value, '\0', value_bytes) != NULL))
        return HVD_EINVAL;
    if (grow(e) != HVD_OK)
        return HVD_ENOMEM;
    text = malloc(name_bytes + value_bytes + 2);
    if (text == NULL)
        return HVD_ENOMEM;
    memcpy(text, name, name_bytes);
    text[name_bytes] = '=';
    if (value_bytes > 0)
        memcpy(text + name_bytes + 1, value, value_bytes);
    text[name_bytes + 1 + value_bytes] = '\0';
    old = find(e, text, name_bytes);
    if (old != NULL) {
        free(*old);
        *old = text;
    } else {
        e->vars[e->n++] = text;
        e->vars[e->n] = NULL;
    }
    return HVD_OK;
}

enum hvd_status hvi_jobenv_set(struct hvi_jobenv *e, const char *name,
                               const char *value)
{
    return hvi_jobenv_put(e, name, strlen(name), value, strlen(value));
}

const char *hvi_jobenv_get(const struct hvi_jobenv *e, const char *name)
{
    char **var = find(e, name, strlen(name));

    return var != NULL ? *var + strlen(name) + 1 : NULL;
}

char **hvi_jobenv_merge(const struct hvi_jobenv *base, const struct hvi_jobenv *own)
{
    struct hvi_jobenv all = {.vars = calloc(base->n + own->n + 1, sizeof *all.vars),
                             .n = base->n};

    if (all.vars == NULL)
        return NULL;
    if (base->n > 0)
        memcpy(all.vars, base->vars, base->n * sizeof *all.vars);
    for (size_t i = 0; i < own->n; i++) {
        size_t name_bytes = strcspn(own->vars[i], "=");
        char **old = find(&all, own->vars[i], name_bytes);

        if (old != NULL)
            *old = own->vars[i];
        else
            all.vars[all.n++] = own->vars[i];
    }
    return all.vars;
}

void hvi_jobenv_fini(struct hvi_jobenv *e)
{
    for (size_t i = 0; i < e->n; i++)
        free(e->vars[i]);
    free(e->vars);
    memset(e, 0, sizeof *e);
}
