#include "hvdrun/hosts/planlayout.h"

#include <stdlib.h>
#include <string.h>

static const char *get_var(const void *opts, const char *name)
{
    const struct hvi_opts *o = opts;

    for (size_t i = 0; i < o->nenv; i++)
        if (strcmp(o->env[i].name, name) == 0)
            return o->env[i].value;
    return getenv(name);
}

enum hvd_status hvi_planlayout_make(const struct hvi_opts *o, int nranks,
                                    struct hvi_layout *out, struct hvi_err *err)
{
    struct hvi_layout_wish w = {
        .nranks = nranks,
        .bind_to = o->bind_to,
        .map_by = o->map_by,
        .cores = o->cores_per_rank,
        .gpus = o->gpus_per_rank,
        .crowd_gpus = o->oversubscribe_gpu,
        .visible = get_var(o, "CUDA_VISIBLE_DEVICES"),
        .self_bound =
            hvi_layout_self_bound(o->ncommand > 0 ? o->command[0] : NULL, get_var, o)};

    return hvi_layout_make(&w, out, err);
}
