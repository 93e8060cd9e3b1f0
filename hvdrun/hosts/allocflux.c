/**
 * Flux keeps the hosts of an instance in the instance: `flux resource R` prints them
 * with their cores and GPUs (RFC 20), older versions have only `flux hostlist`. A host
 * has as many slots as GPUs where there are any, else as cores.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/alloc_impl.h"
#include "hvdrun/hosts/hostlist.h"

#define R_FROM "flux resource R"

struct rank {
    long rank; /* of the broker: the hosts are listed in this order */
    int slots;
};

struct ranks {
    struct rank *list; /* [n], room for HVI_HOSTS_MAX */
    size_t n;
};

static enum hvd_status bad_r(struct hvi_alloc_find *f, const char *what)
{
    return hvi_fail(f->err, HVD_EINVAL, "FLUX_URI: '" R_FROM "' gave no %s", what);
}

/* Calls fn for each number of "0-3,7"; false: it is no such list. */
static bool each_id(const char *text, bool (*fn)(void *data, long id), void *data)
{
    const char *p = text;

    while (p != NULL) {
        char *end;
        long from = strtol(p, &end, 10);
        long to = from;

        if (end == p || from < 0)
            return false;
        if (*end == '-') {
            p = end + 1;
            to = strtol(p, &end, 10);
            if (end == p)
                return false;
        }
        if ((*end != '\0' && *end != ',') || to < from || to - from > 1000000)
            return false;
        for (long id = from; id <= to; id++)
            if (!fn(data, id))
                return false;
        p = *end == ',' ? end + 1 : NULL;
    }
    return true;
}

static bool count_id(void *data, long id)
{
    (void)id;
    ++*(int *)data;
    return true;
}

static int count(const json_t *children, const char *kind)
{
    const char *ids = json_string_value(json_object_get(children, kind));
    int n = 0;

    return ids != NULL && each_id(ids, count_id, &n) ? n : 0;
}

struct same {
    struct ranks *ranks;
    int slots;
};

static bool add_rank(void *data, long id)
{
    struct same *s = data;

    if (s->ranks->n == HVI_HOSTS_MAX)
        return false;
    s->ranks->list[s->ranks->n++] = (struct rank){.rank = id, .slots = s->slots};
    return true;
}

static int by_rank(const void *a, const void *b)
{
    long x = ((const struct rank *)a)->rank;
    long y = ((const struct rank *)b)->rank;

    return (x > y) - (x < y);
}

static enum hvd_status take_ranks(struct hvi_alloc_find *f, const json_t *lite,
                                  struct ranks *r)
{
    for (size_t i = 0; i < json_array_size(lite); i++) {
        const json_t *entry = json_array_get(lite, i);
        const json_t *children = json_object_get(entry, "children");
        const char *ids = json_string_value(json_object_get(entry, "rank"));
        int gpus = count(children, "gpu");
        struct same s = {r, gpus > 0 ? gpus : count(children, "core")};

        if (ids == NULL || s.slots == 0 || !each_id(ids, add_rank, &s))
            return bad_r(f, "ranks with cores (execution.R_lite)");
    }
    if (r->n == 0)
        return bad_r(f, "ranks (execution.R_lite)");
    qsort(r->list, r->n, sizeof *r->list, by_rank);
    return HVD_OK;
}

struct naming {
    struct hvi_hosts *hosts;
    const struct ranks *ranks;
    size_t next;
};

static enum hvd_status name_rank(void *data, const char *name, struct hvi_err *err)
{
    struct naming *n = data;

    if (n->next == n->ranks->n)
        return hvi_fail(err, HVD_EINVAL, "more hosts than ranks");
    return hvi_hosts_add(n->hosts, name, NULL, n->ranks->list[n->next++].slots, err);
}

/* An element of execution.nodelist may itself be a list: "n[1-2],m3". */
static enum hvd_status name_list(const char *list, struct naming *n,
                                 struct hvi_err *err)
{
    char *copy = strdup(list);
    enum hvd_status rc = HVD_OK;
    int depth = 0;

    if (copy == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    for (char *p = copy, *start = copy; rc == HVD_OK; p++) {
        bool last = *p == '\0';
        size_t at;

        depth += *p == '[' ? 1 : *p == ']' ? -1 : 0;
        if (!last && (*p != ',' || depth > 0))
            continue;
        *p = '\0';
        rc = hvi_hostlist_expand(start, name_rank, n, &at, err);
        if (last)
            break;
        start = p + 1;
    }
    free(copy);
    return rc;
}

static enum hvd_status take_r(struct hvi_alloc_find *f, const char *text)
{
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const json_t *execution = json_object_get(root, "execution");
    const json_t *names = json_object_get(execution, "nodelist");
    struct ranks r = {.list = calloc(HVI_HOSTS_MAX, sizeof *r.list)};
    struct naming n = {.hosts = f->hosts, .ranks = &r};
    struct hvi_err why = {""};
    enum hvd_status rc = r.list == NULL ? hvi_fail(f->err, HVD_ENOMEM, "out of memory")
                         : root == NULL
                             ? bad_r(f, "JSON")
                             : take_ranks(f, json_object_get(execution, "R_lite"), &r);

    for (size_t i = 0; i < json_array_size(names) && rc == HVD_OK; i++) {
        const char *list = json_string_value(json_array_get(names, i));

        rc = list != NULL ? name_list(list, &n, &why) : bad_r(f, "names of hosts");
        if (why.text[0] != '\0')
            rc = hvi_fail(f->err, rc, "FLUX_URI: '" R_FROM "': execution.nodelist: %s",
                          why.text);
    }
    if (rc == HVD_OK && n.next != r.n)
        rc = bad_r(f, "host for each rank (execution.nodelist)");
    free(r.list);
    json_decref(root);
    return rc;
}

static enum hvd_status take_hostlist(struct hvi_alloc_find *f, char *text)
{
    struct hvi_err why = {""};
    enum hvd_status rc;

    text[strcspn(text, "\n")] = '\0';
    rc = hvi_hosts_parse(f->hosts, text, &why);
    return rc == HVD_OK
               ? rc
               : hvi_fail(f->err, rc, "FLUX_URI: 'flux hostlist local': %s", why.text);
}

enum hvd_status hvi_alloc_flux(struct hvi_alloc_find *f)
{
    static char flux[] = "flux", resource[] = "resource", r[] = "R";
    static char hostlist[] = "hostlist", local[] = "local";
    char *const ask_r[] = {flux, resource, r, NULL};
    char *const ask_hosts[] = {flux, hostlist, local, NULL};
    struct hvi_err why = {""};
    char *text = NULL;
    enum hvd_status rc;

    if (hvi_alloc_get(f, "FLUX_URI") == NULL)
        return HVD_OK;
    f->out->key = "flux";
    f->out->title = "Flux";
    hvi_alloc_used(f, "FLUX_URI");
    if (f->sys->ask(f->sys->data, ask_r, &text, &why) == HVD_OK)
        rc = take_r(f, text);
    else if (f->sys->ask(f->sys->data, ask_hosts, &text, &why) == HVD_OK)
        rc = take_hostlist(f, text);
    else
        rc =
            hvi_fail(f->err, HVD_EINVAL,
                     "FLUX_URI is set, but flux does not name the hosts: %s", why.text);
    free(text);
    return rc;
}
