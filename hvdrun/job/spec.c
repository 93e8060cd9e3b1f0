#include "hvdrun/job/spec.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/debug/debugwords.h"
#include "proto/base/env.h"

#define CACHE_MAX 4096 /* what the coordinator keeps at most; more is the same */

/* Variables under construction. */
struct vars {
    Hvi__EnvVar *room; /* [cap] */
    Hvi__EnvVar **list;
    char (*text)[32]; /* [cap] numbers */
    size_t n, cap;
};

static void vars_fini(struct vars *v)
{
    free(v->room);
    free(v->list);
    free(v->text);
    memset(v, 0, sizeof *v);
}

static enum hvd_status vars_init(struct vars *v, size_t cap)
{
    v->room = calloc(cap, sizeof *v->room);
    v->list = calloc(cap, sizeof(Hvi__EnvVar *));
    v->text = calloc(cap, sizeof *v->text);
    v->n = 0;
    v->cap = cap;
    return v->room != NULL && v->list != NULL && v->text != NULL ? HVD_OK : HVD_ENOMEM;
}

static void put_bytes(struct vars *v, const char *name, size_t name_bytes,
                      const char *value)
{
    static const Hvi__EnvVar none = HVI__ENV_VAR__INIT;
    Hvi__EnvVar *e;

    if (v->n == v->cap)
        return;
    e = &v->room[v->n];
    *e = none;
    e->name.data = (uint8_t *)(uintptr_t)name;
    e->name.len = name_bytes;
    e->value.data = (uint8_t *)(uintptr_t)value;
    e->value.len = strlen(value);
    v->list[v->n++] = e;
}

static void put(struct vars *v, const char *name, const char *value)
{
    put_bytes(v, name, strlen(name), value);
}

static void put_int(struct vars *v, const char *name, int value)
{
    if (v->n == v->cap)
        return;
    snprintf(v->text[v->n], sizeof v->text[0], "%d", value);
    put(v, name, v->text[v->n]);
}

static bool listed(const char *const *list, size_t n, const char *name,
                   size_t name_bytes)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(list[i]) == name_bytes && memcmp(list[i], name, name_bytes) == 0)
            return true;
    return false;
}

bool hvi_spec_forwards(const char *name, size_t name_bytes, bool remote)
{
    static const char *const of_this_host[] = {"HOME",
                                               "USER",
                                               "LOGNAME",
                                               "SHELL",
                                               "HOSTNAME",
                                               "DISPLAY",
                                               "TMUX",
                                               "SSH_AUTH_SOCK",
                                               "SSH_CLIENT",
                                               "SSH_CONNECTION",
                                               "SSH_TTY",
                                               "XDG_RUNTIME_DIR",
                                               "XAUTHORITY",
                                               "XDG_SESSION_ID",
                                               "WAYLAND_DISPLAY",
                                               "DBUS_SESSION_BUS_ADDRESS"};

    static const char *const denied[] = {"OLDPWD",
                                         "_",
                                         "_HOROVOD_SECRET_KEY",
                                         "HVD_KEY_FILE",
                                         "HVD_COORDINATOR",
                                         "HVD_RUNTIME_DIR",
                                         "HVD_BIND_TO",
                                         "HVD_MAP_BY",
                                         "HVD_CORES_PER_RANK",
                                         "HVD_GPUS_PER_RANK",
                                         "HVD_OVERSUBSCRIBE_GPU",
                                         "HVD_REPORT_BINDINGS"};
    static const char mask[] = "CUDA_VISIBLE_DEVICES";

    if (listed(denied, sizeof denied / sizeof denied[0], name, name_bytes) ||
        (remote && listed(of_this_host, sizeof of_this_host / sizeof of_this_host[0],
                          name, name_bytes)))
        return false;
    if (name_bytes >= 10 && memcmp(name, "BASH_FUNC_", 10) == 0)
        return false;
    /* the host's own mask counts; the agent sees it */
    return name_bytes < sizeof mask - 1 ||
           memcmp(name + name_bytes - (sizeof mask - 1), mask, sizeof mask - 1) != 0;
}

/* Asked for with -x 'NAME*'. */
static bool wanted(const struct hvi_opts *o, const char *name, size_t name_bytes)
{
    char text[256];

    if (name_bytes >= sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)name_bytes, name);
    for (size_t i = 0; i < o->nenv_globs; i++)
        if (fnmatch(o->env_globs[i], text, 0) == 0)
            return true;
    return false;
}

static void put_environ(struct vars *v, const struct hvi_spec *s, bool remote)
{
    static const char *const needed[] = {"PATH", HVI_LEASE_ENV};

    for (char **e = s->environ; *e != NULL; e++) {
        const char *eq = strchr(*e, '=');
        size_t n = eq != NULL ? (size_t)(eq - *e) : 0;
        bool always = listed(needed, sizeof needed / sizeof needed[0], *e, n);

        if (n > 0 && (wanted(s->opts, *e, n) || ((always || !s->opts->no_env) &&
                                                 hvi_spec_forwards(*e, n, remote))))
            put_bytes(v, *e, n, eq + 1);
    }
}

static bool in_environ(char **environ_list, const char *name)
{
    size_t n = strlen(name);

    for (char **e = environ_list; *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return true;
    return false;
}

static bool debugging(const struct hvi_opts *o)
{
    return o->debug != NULL || o->wait_debug != NULL;
}

/* A rank may sit in its debugger for days; without --start-timeout, which was meant. */
static int64_t start_timeout_ms(const struct hvi_opts *o)
{
    return o->start_timeout_ms == 0 && debugging(o) ? HVI_DEBUG_START_S * INT64_C(1000)
                                                    : o->start_timeout_ms;
}

static void put_debugging(const struct hvi_spec *s, struct vars *v)
{
    const char *term = getenv("TERM");

    if (!debugging(s->opts))
        return;
    put(v, "HVD_NCCL_TIMEOUT_SECONDS", "0");
    if (s->opts->no_env && term != NULL) /* the debugger's terminal is this one */
        put(v, "TERM", term);
}

/* What all ranks of a host share. Later settings of a name win in the agent. */
static void put_common(const struct hvi_spec *s, size_t host, struct vars *v)
{
    const struct hvi_host *h = &s->plan->host[host];

    put(v, "PYTHONUNBUFFERED", "1");
    put_environ(v, s, h->remote);
    put_int(v, "HVD_SIZE", s->plan->np);
    put_int(v, "HOROVOD_SIZE", s->plan->np);
    put_int(v, "WORLD_SIZE", s->plan->np);
    put_int(v, "HVD_LOCAL_SIZE", h->slots);
    put_int(v, "HOROVOD_LOCAL_SIZE", h->slots);
    put_int(v, "LOCAL_WORLD_SIZE", h->slots);
    put(v, "HVD_HOSTNAME", h->name);
    put(v, "HOROVOD_HOSTNAME", h->name);
    if (s->opts->no_env || !in_environ(s->environ, "MASTER_ADDR"))
        put(v, "MASTER_ADDR", s->master_addr != NULL ? s->master_addr : "127.0.0.1");
    if ((s->opts->no_env || !in_environ(s->environ, "MASTER_PORT")) &&
        s->master_port > 0)
        put_int(v, "MASTER_PORT", s->master_port);
    if (start_timeout_ms(s->opts) > 0) {
        put_int(v, "HVD_START_TIMEOUT",
                (int)((start_timeout_ms(s->opts) + 999) / 1000));
        put_int(v, "HOROVOD_START_TIMEOUT",
                (int)((start_timeout_ms(s->opts) + 999) / 1000));
    }
    put_debugging(s, v);
    if (s->opts->interfaces != NULL)
        put(v, "HVD_NETWORK_INTERFACES", s->opts->interfaces);
    if (s->tty)
        put(v, "HVD_TTY", "1"); /* a rank's own stdout is a pipe in any case */
    for (size_t i = 0; i < s->opts->nenv; i++)
        put(v, s->opts->env[i].name, s->opts->env[i].value);
}

static void put_rank(const struct hvi_spec *s, int rank, struct vars *v)
{
    const struct hvi_place *p = &s->plan->place[rank];

    put_int(v, "HVD_RANK", rank);
    put_int(v, "HOROVOD_RANK", rank);
    put_int(v, "RANK", rank);
    put_int(v, "HVD_LOCAL_RANK", p->local_rank);
    put_int(v, "HOROVOD_LOCAL_RANK", p->local_rank);
    put_int(v, "LOCAL_RANK", p->local_rank);
    put_int(v, "HVD_CROSS_RANK", p->cross_rank);
    put_int(v, "HOROVOD_CROSS_RANK", p->cross_rank);
    put_int(v, "HVD_CROSS_SIZE", p->cross_size);
    put_int(v, "HOROVOD_CROSS_SIZE", p->cross_size);
}
#define RANK_VARS 10
#define COMMON_VARS 20

static size_t count(char **list)
{
    size_t n = 0;

    while (list[n] != NULL)
        n++;
    return n;
}

/* Ranks of one host, with their variables. */
struct ranks {
    Hvi__RankSpec *room;
    Hvi__RankSpec **list;
    struct vars vars;
    bool *marked; /* [np] */
    size_t n;
};

static void ranks_fini(struct ranks *r)
{
    free(r->room);
    free(r->list);
    free(r->marked);
    vars_fini(&r->vars);
}

/* RankSpec.debug of those that a list names. */
static enum hvd_status mark(struct ranks *r, const struct hvi_spec *s, const char *what,
                            const char *list, uint32_t kind, struct hvi_err *err)
{
    enum hvd_status rc = hvi_debugwords_ranks(what, list, s->plan->np, r->marked, err);

    for (size_t i = 0; i < r->n && rc == HVD_OK; i++)
        if (r->marked[r->room[i].rank])
            r->room[i].debug = kind;
    return rc;
}

static enum hvd_status mark_debugged(struct ranks *r, const struct hvi_spec *s,
                                     struct hvi_err *err)
{
    enum hvd_status rc = mark(r, s, "--debug", s->opts->debug, 1, err);

    if (rc == HVD_OK)
        rc = mark(r, s, "--wait-for-debugger", s->opts->wait_debug, 2, err);
    return rc;
}

static enum hvd_status ranks_init(struct ranks *r, const struct hvi_spec *s,
                                  size_t host)
{
    static const Hvi__RankSpec none = HVI__RANK_SPEC__INIT;
    int first = s->plan->first_rank[host];

    r->n = (size_t)s->plan->host[host].slots;
    r->room = calloc(r->n, sizeof *r->room);
    r->list = calloc(r->n, sizeof(Hvi__RankSpec *));
    r->marked = calloc((size_t)s->plan->np, sizeof *r->marked);
    if (r->room == NULL || r->list == NULL || r->marked == NULL ||
        vars_init(&r->vars, r->n * RANK_VARS) != HVD_OK)
        return HVD_ENOMEM;
    for (size_t i = 0; i < r->n; i++) {
        size_t before = r->vars.n;

        r->room[i] = none;
        r->room[i].rank = first + (int)i;
        r->room[i].local_rank = (int)i;
        put_rank(s, first + (int)i, &r->vars);
        r->room[i].env = r->vars.list + before;
        r->room[i].n_env = r->vars.n - before;
        r->list[i] = &r->room[i];
    }
    return HVD_OK;
}

/* The words of --debugger. */
struct debugger {
    char **words;
    ProtobufCBinaryData *list;
    size_t n;
};

static void debugger_fini(struct debugger *d)
{
    hvi_debugwords_free(d->words);
    free(d->list);
}

static enum hvd_status debugger_init(struct debugger *d, const char *command,
                                     struct hvi_err *err)
{
    enum hvd_status rc = hvi_debugwords_split(
        command != NULL ? command : HVI_DEBUGGER_DEFAULT, &d->words, &d->n, err);

    if (rc != HVD_OK)
        return rc;
    d->list = calloc(d->n, sizeof *d->list);
    if (d->list == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    for (size_t i = 0; i < d->n; i++) {
        d->list[i].data = (uint8_t *)d->words[i];
        d->list[i].len = strlen(d->words[i]);
    }
    return HVD_OK;
}

static void set_key(const struct hvi_spec *s, ProtobufCBinaryData *key,
                    ProtobufCBinaryData *job_id)
{
    key->data = (uint8_t *)(uintptr_t)s->key;
    key->len = HVI_KEY_BYTES;
    job_id->data = (uint8_t *)(uintptr_t)s->job_id;
    job_id->len = HVI_JOB_ID_BYTES;
}

static size_t bytes_of(const ProtobufCBinaryData *b, size_t n)
{
    size_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += b[i].len + 1;
    return sum;
}

/* Which limit of PROTOCOL.md section 7 it was. */
static enum hvd_status say_limit(const Hvi__JobSpec *m, struct hvi_err *err)
{
    size_t env_bytes = 0;

    if (m->n_argv > HVI_ARGV_MAX)
        return hvi_fail(err, HVD_ELIMIT,
                        "the command has %zu arguments; at most %d are possible",
                        m->n_argv, HVI_ARGV_MAX);
    if (m->n_env > HVI_ENV_MAX)
        return hvi_fail(err, HVD_ELIMIT,
                        "the environment has %zu variables; at most %d are possible",
                        m->n_env, HVI_ENV_MAX);
    for (size_t i = 0; i < m->n_env; i++)
        env_bytes += m->env[i]->name.len + m->env[i]->value.len + 2;
    return hvi_fail(err, HVD_ELIMIT,
                    "the command (%zu bytes) and the environment (%zu variables, %zu "
                    "bytes) do not fit into 1 MiB",
                    bytes_of(m->argv, m->n_argv), m->n_env, env_bytes);
}

enum hvd_status hvi_spec_agent(const struct hvi_spec *s, size_t host,
                               struct hvi_buf *out, struct hvi_err *err)
{
    Hvi__JobSpec msg = HVI__JOB_SPEC__INIT;
    struct vars vars = {0};
    struct ranks ranks = {0};
    ProtobufCBinaryData *argv = calloc((size_t)s->opts->ncommand, sizeof *argv);
    struct debugger debugger = {0};
    const char *cwd = s->opts->wdir != NULL ? s->opts->wdir : s->cwd;
    enum hvd_status rc = HVD_OK;

    if (argv == NULL ||
        vars_init(&vars, count(s->environ) + s->opts->nenv + COMMON_VARS) != HVD_OK ||
        ranks_init(&ranks, s, host) != HVD_OK) {
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
        goto done;
    }
    rc = mark_debugged(&ranks, s, err);
    if (rc == HVD_OK && s->opts->debug != NULL)
        rc = debugger_init(&debugger, s->opts->debugger, err);
    if (rc != HVD_OK)
        goto done;
    put_common(s, host, &vars);
    for (int i = 0; i < s->opts->ncommand; i++) {
        argv[i].data = (uint8_t *)s->opts->command[i];
        argv[i].len = strlen(s->opts->command[i]);
    }
    msg.version = (char *)HVI_VERSION;
    set_key(s, &msg.key, &msg.job_id);
    msg.coordinator = (char *)(uintptr_t)s->endpoint;
    msg.host = s->plan->host[host].name;
    msg.argv = argv;
    msg.n_argv = (size_t)s->opts->ncommand;
    msg.cwd.data = (uint8_t *)(uintptr_t)cwd;
    msg.cwd.len = strlen(cwd);
    msg.env = vars.list;
    msg.n_env = vars.n;
    msg.ranks = ranks.list;
    msg.n_ranks = ranks.n;
    msg.grace_ms = (uint32_t)s->opts->grace_ms;
    msg.stdin_rank = s->opts->stdin_rank;
    msg.tty_output = s->tty;
    msg.bind_to = (uint32_t)s->opts->bind_to;
    msg.report_bindings = s->opts->report_bindings;
    msg.map_by = (uint32_t)s->opts->map_by;
    msg.cores_per_rank = (uint32_t)s->opts->cores_per_rank;
    msg.gpus_per_rank = (uint32_t)s->opts->gpus_per_rank;
    msg.oversubscribe_gpu = s->opts->oversubscribe_gpu;
    msg.debugger = debugger.list;
    msg.n_debugger = debugger.n;
    if (s->plan->host[host].remote) {
        msg.other_endpoints = (char **)(uintptr_t)s->others;
        msg.n_other_endpoints = s->nothers;
        msg.try_ssh = s->try_ssh;
    }
    rc = hvi_msg_put(out, HVI_MSG_JOB_SPEC, &msg);
    if (rc == HVD_ELIMIT)
        rc = say_limit(&msg, err);
    else if (rc != HVD_OK)
        rc = hvi_fail(err, rc, "%s", hvi_status_text(rc));
done:
    free(argv);
    debugger_fini(&debugger);
    vars_fini(&vars);
    ranks_fini(&ranks);
    return rc;
}

/* ---- the coordinator */

static enum hvd_status setting(const struct hvi_opts *o, const char *name,
                               int64_t fallback, int64_t max, int64_t *out,
                               struct hvi_err *err)
{
    const char *value = hvi_opts_env(o, name);
    char what[96];

    *out = fallback;
    if (value == NULL)
        return HVD_OK;
    snprintf(what, sizeof what, "HVD_%s (or HOROVOD_%s)", name, name);
    return hvi_parse_int(what, value, 0, max, out, err);
}

enum hvd_status hvi_spec_settings(const struct hvi_opts *o, Hvi__CoordConfig *out,
                                  struct hvi_err *err)
{
    int64_t fusion, cache, off, warn_s, stop_s, start_s;
    enum hvd_status rc =
        setting(o, "FUSION_THRESHOLD", 64 << 20, INT64_MAX / 2, &fusion, err);

    if (rc == HVD_OK)
        rc = setting(o, "CACHE_CAPACITY", CACHE_MAX, INT64_MAX / 2, &cache, err);
    if (rc == HVD_OK)
        rc = setting(o, "STALL_CHECK_DISABLE", 0, 1, &off, err);
    if (rc == HVD_OK)
        rc = setting(o, "STALL_CHECK_TIME_SECONDS", HVI_STALL_WARN_DEFAULT_MS / 1000,
                     1000000, &warn_s, err);
    if (rc == HVD_OK)
        rc = setting(o, "STALL_SHUTDOWN_TIME_SECONDS", 0, 1000000, &stop_s, err);
    if (rc == HVD_OK)
        rc = setting(o, "START_TIMEOUT", HVI_START_TIMEOUT_DEFAULT_MS / 1000, 1000000,
                     &start_s, err);
    if (rc != HVD_OK)
        return rc;
    out->fusion_bytes = fusion > 0 ? (uint64_t)fusion : 1;
    out->cache_capacity = cache < 1           ? 1
                          : cache > CACHE_MAX ? CACHE_MAX
                                              : (uint32_t)cache;
    out->stall_warn_ms = off != 0 ? 0 : (uint32_t)(warn_s * 1000);
    out->stall_shutdown_ms = debugging(o) ? 0 : (uint32_t)(stop_s * 1000);
    out->start_timeout_ms = start_timeout_ms(o) > 0 ? (uint32_t)start_timeout_ms(o)
                                                    : (uint32_t)(start_s * 1000);
    if (debugging(o) && hvi_opts_env(o, "STALL_CHECK_TIME_SECONDS") == NULL)
        out->stall_warn_ms = 0; /* whoever waits knows for whom */
    return HVD_OK;
}

enum hvd_status hvi_spec_coord(const struct hvi_spec *s, struct hvi_buf *out,
                               struct hvi_err *err)
{
    static const Hvi__Slot none = HVI__SLOT__INIT;
    Hvi__CoordConfig msg = HVI__COORD_CONFIG__INIT;
    size_t np = (size_t)s->plan->np;
    Hvi__Slot *room = calloc(np, sizeof *room);
    Hvi__Slot **list = calloc(np, sizeof(Hvi__Slot *));
    enum hvd_status rc = HVD_OK;

    if (room == NULL || list == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
        goto done;
    }
    rc = hvi_spec_settings(s->opts, &msg, err);
    if (rc != HVD_OK)
        goto done;
    for (size_t i = 0; i < np; i++) {
        room[i] = none;
        room[i].host = s->plan->host[s->plan->place[i].host].name;
        room[i].slot = s->plan->place[i].local_rank;
        list[i] = &room[i];
    }
    msg.version = (char *)(uintptr_t)HVI_VERSION;
    set_key(s, &msg.key, &msg.job_id);
    msg.np = (uint32_t)np;
    msg.slots = list;
    msg.n_slots = np;
    msg.listen = (char *)(uintptr_t)(s->listen != NULL ? s->listen : s->endpoint);
    rc = hvi_msg_put(out, HVI_MSG_COORD_CONFIG, &msg);
    if (rc != HVD_OK)
        rc = hvi_fail(err, rc, "%s", hvi_status_text(rc));
done:
    free(room);
    free(list);
    return rc;
}
