#include "hvdrun/hosts/planjson.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/debug/debugwords.h"
#include "hvdrun/hosts/planlayout.h"
#include "hvdrun/job/spec.h"

static json_t *text(const char *t)
{
    json_t *made;
    char *shown;
    size_t cap;

    if (t == NULL)
        return json_null();
    made = json_string(t);
    if (made != NULL)
        return made;
    cap = 4 * strlen(t) + 1; /* no UTF-8: each byte may become four */
    shown = malloc(cap);
    if (shown == NULL)
        return NULL;
    made = json_string(hvi_escape(shown, cap, t, strlen(t)));
    free(shown);
    return made;
}

static json_t *hosts(const struct hvi_plan *p)
{
    json_t *list = json_array();
    size_t used = 0;

    for (size_t i = 0; i < p->nall; i++) {
        const struct hvi_host *h = &p->all[i];
        bool has = used < p->nhosts && p->host[used].name == h->name;

        (void)json_array_append_new(
            list, json_pack("{so so si si so sb}", "name", text(h->name), "user",
                            text(h->user), "slots", h->slots, "ranks",
                            has ? p->host[used].slots : 0, "first_rank",
                            has ? json_integer(p->first_rank[used]) : json_null(),
                            "remote", h->remote));
        used += has;
    }
    return list;
}

/* Where host number `used` of the plan stands among all. */
static size_t index_of(const struct hvi_plan *p, size_t used)
{
    size_t i = 0;

    while (p->all[i].name != p->host[used].name)
        i++;
    return i;
}

static json_t *gpus(const struct hvi_layout *l, int i)
{
    json_t *list = json_array();

    for (int k = 0; l->gpu[i] >= 0 && k < l->per_rank; k++) {
        const struct hvi_gpu *g = &l->gpus.list[l->gpu[i] + k];

        (void)json_array_append_new(
            list, json_pack("{so so}", "name", text(g->name), "pci",
                            g->pci[0] != '\0' ? text(g->pci) : json_null()));
    }
    return list;
}

static json_t *placing_of(const struct hvi_layout *l, int i)
{
    bool bound = l->shares.kind != HVI_BIND_NONE;
    char cpus[4096];

    hvi_layout_cpus(l, i, cpus, sizeof cpus);
    return json_pack("{ss so si ss si so}", "bound_to", hvi_bind_word(l->shares.kind),
                     "why_not", bound ? json_null() : text(l->shares.why), "cores",
                     l->rank[i].ncores, "processors", cpus, "threads",
                     l->rank[i].threads, "gpus", gpus(l, i));
}

/* [slots] of a host of the plan; NULL: not known here. */
static json_t *placings(const struct hvi_opts *o, const struct hvi_host *h)
{
    static struct hvi_layout l;
    struct hvi_err err = {""};
    json_t *list;

    if (h->remote)
        return NULL;
    list = json_array();
    if (hvi_planlayout_make(o, h->slots, &l, &err) != HVD_OK) {
        for (int i = 0; i < h->slots; i++)
            (void)json_array_append_new(list,
                                        json_pack("{so}", "error", text(err.text)));
        return list;
    }
    for (int i = 0; i < l.nranks; i++)
        (void)json_array_append_new(list, placing_of(&l, i));
    hvi_layout_fini(&l);
    return list;
}

static json_t *ranks(const struct hvi_opts *o, const struct hvi_plan *p)
{
    json_t *list = json_array();
    json_t *placing = NULL;
    size_t index = 0;
    int host = -1;

    for (int r = 0; r < p->np; r++) {
        const struct hvi_place *at = &p->place[r];

        if (at->host != host) {
            index = index_of(p, (size_t)at->host);
            json_decref(placing);
            placing = placings(o, &p->host[at->host]);
        }
        host = at->host;
        (void)json_array_append_new(
            list,
            json_pack("{si so si si si si si sO?}", "rank", r, "host",
                      text(p->all[index].name), "host_index", (int)index, "local_rank",
                      at->local_rank, "local_size", at->local_size, "cross_rank",
                      at->cross_rank, "cross_size", at->cross_size, "placing",
                      json_array_get(placing, (size_t)at->local_rank)));
    }
    json_decref(placing);
    return list;
}

static json_t *command(const struct hvi_opts *o)
{
    json_t *list = json_array();

    for (int i = 0; i < o->ncommand; i++)
        (void)json_array_append_new(list, text(o->command[i]));
    return list;
}

/* null: passed on from the environment here, which may be a secret. */
static json_t *environment(const struct hvi_opts *o)
{
    json_t *all = json_object();

    for (size_t i = 0; i < o->nenv; i++) {
        json_t *name = text(o->env[i].name);
        const char *value = o->env[i].passed_on ? NULL : o->env[i].value;

        (void)json_object_set_new(all, json_string_value(name), text(value));
        json_decref(name);
    }
    return all;
}

static json_t *marked(const char *list, int np)
{
    bool *chosen = calloc((size_t)np, sizeof *chosen);
    json_t *all = json_array();

    if (chosen != NULL && hvi_debugwords_ranks("", list, np, chosen, NULL) == HVD_OK)
        for (int r = 0; r < np; r++)
            if (chosen[r])
                (void)json_array_append_new(all, json_integer(r));
    free(chosen);
    return all;
}

/* Only where it was asked for. */
static void put_debug(json_t *root, const struct hvi_opts *o, int np)
{
    json_t *words;
    char **list = NULL;
    size_t n = 0;

    if (o->wait_debug != NULL)
        (void)json_object_set_new(
            root, "wait_for_debugger",
            json_pack("{so}", "ranks", marked(o->wait_debug, np)));
    if (o->debug == NULL ||
        hvi_debugwords_split(o->debugger != NULL ? o->debugger : HVI_DEBUGGER_DEFAULT,
                             &list, &n, NULL) != HVD_OK)
        return;
    words = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(words, text(list[i]));
    hvi_debugwords_free(list);
    (void)json_object_set_new(
        root, "debug",
        json_pack("{so so}", "ranks", marked(o->debug, np), "debugger", words));
}

/* Lists leave out what there was no memory for. */
static bool whole(const json_t *root, const struct hvi_opts *o,
                  const struct hvi_plan *p)
{
    return json_array_size(json_object_get(root, "ranks")) == (size_t)p->np &&
           json_array_size(json_object_get(root, "hosts")) == p->nall &&
           json_array_size(json_object_get(root, "command")) == (size_t)o->ncommand;
}

enum hvd_status hvi_planjson_write(const struct hvi_opts *o, const char *kind,
                                   const char *from, const struct hvi_plan *p,
                                   FILE *out, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    json_t *root = json_pack(
        "{si s{ss so} si so so so so ss ss si si}", "version", HVI_PLANJSON_VERSION,
        "source", "kind", kind, "from", text(from), "np", p->np, "hosts", hosts(p),
        "ranks", ranks(o, p), "command", command(o), "environment", environment(o),
        "bind_to", hvi_bind_word(o->bind_to), "map_by", hvi_map_word(o->map_by),
        "cores_per_rank", o->cores_per_rank, "gpus_per_rank", o->gpus_per_rank);

    put_debug(root, o, p->np);
    if (!whole(root, o, p))
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
    else if (json_dumpf(root, out, JSON_INDENT(2)) != 0 || fputc('\n', out) == EOF)
        rc = hvi_fail(err, HVD_EIO, "the plan could not be written");
    json_decref(root);
    return rc;
}
