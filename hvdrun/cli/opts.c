#include "hvdrun/cli/opts.h"

#include <arpa/inet.h>
#include <math.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/debug/debugwords.h"
#include "hvdrun/cli/optline.h"
#include "hvdrun/cli/optnear.h"
#include "hvdrun/cli/optplace.h"
#include "proto/base/env.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned through an array inside a struct */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#pragma GCC diagnostic ignored "-Wanalyzer-null-argument"
#endif

#define TIME_MAX_S 1e9

void hvi_opts_fini(struct hvi_opts *o)
{
    for (size_t i = 0; i < o->nenv; i++) {
        free(o->env[i].name);
        free(o->env[i].value);
    }
    for (size_t i = 0; i < o->nnotes; i++)
        free(o->notes[i]);
    free(o->env);
    free(o->notes);
    free(o->hosts);
    free(o->hostfile);
    free(o->wdir);
    free(o->output_dir);
    free(o->only_rank);
    for (size_t i = 0; i < o->nenv_globs; i++)
        free(o->env_globs[i]);
    free(o->env_globs);
    free(o->config_file);
    free(o->debug);
    free(o->wait_debug);
    free(o->debugger);
    free(o->interfaces);
    free(o->ssh_identity);
    free(o->json_events);
    free(o->advertise);
    free(o->rsh);
    free(o->agent_path);
    for (size_t i = 0; i < o->nssh_args; i++)
        free(o->ssh_args[i]);
    free(o->ssh_args);
    free(o->given);
    memset(o, 0, sizeof *o);
}

static enum hvd_status no_memory(struct hvi_err *err)
{
    return hvi_fail(err, HVD_ENOMEM, "out of memory");
}

static enum hvd_status set_text(char **where, const char *value, struct hvi_err *err)
{
    char *copy = strdup(value);

    if (copy == NULL)
        return no_memory(err);
    free(*where);
    *where = copy;
    return HVD_OK;
}

static enum hvd_status add_note(struct hvi_opts *o, struct hvi_err *err,
                                const char *fmt, const char *a, const char *b)
{
    char text[512];
    char **notes = realloc(o->notes, (o->nnotes + 1) * sizeof *notes);

    if (notes == NULL)
        return no_memory(err);
    o->notes = notes;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, fmt, a, b);
#pragma GCC diagnostic pop
    notes[o->nnotes] = strdup(text);
    if (notes[o->nnotes] == NULL)
        return no_memory(err);
    o->nnotes++;
    return HVD_OK;
}

enum hvd_status hvi_opts_setenv(struct hvi_opts *o, const char *name, const char *value,
                                struct hvi_err *err)
{
    struct hvi_optenv made = {.name = NULL};
    enum hvd_status rc;

    for (size_t i = 0; i < o->nenv; i++)
        if (strcmp(o->env[i].name, name) == 0) {
            o->env[i].passed_on = false;
            return set_text(&o->env[i].value, value, err);
        }
    if (o->nenv == o->env_cap) {
        size_t cap = o->env_cap > 0 ? 2 * o->env_cap : 16;
        struct hvi_optenv *env = realloc(o->env, cap * sizeof *env);

        if (env == NULL)
            return no_memory(err);
        o->env = env;
        o->env_cap = cap;
    }
    rc = set_text(&made.name, name, err);
    if (rc == HVD_OK)
        rc = set_text(&made.value, value, err);
    if (rc == HVD_OK)
        o->env[o->nenv++] = made;
    else
        free(made.name);
    return rc;
}

const char *hvi_opts_env(const struct hvi_opts *o, const char *name)
{
    for (size_t i = 0; i < o->nenv; i++)
        if (strncmp(o->env[i].name, "HVD_", 4) == 0 &&
            strcmp(o->env[i].name + 4, name) == 0)
            return o->env[i].value;
    for (size_t i = 0; i < o->nenv; i++)
        if (strncmp(o->env[i].name, "HOROVOD_", 8) == 0 &&
            strcmp(o->env[i].name + 8, name) == 0)
            return o->env[i].value;
    return hvi_env(name);
}

enum hvd_status hvi_opts_parse_time(const char *what, const char *text, int64_t *out_ms,
                                    struct hvi_err *err)
{
    char *end;
    char shown[64];
    double v = strtod(text, &end);
    double unit = 1;

    if (strpbrk(text, "xX") != NULL) /* strtod() reads 0x2 */
        unit = -1;
    else if (end != text && (strcmp(end, "ms") == 0))
        unit = 0.001;
    else if (end != text && strcmp(end, "m") == 0)
        unit = 60;
    else if (end != text && strcmp(end, "h") == 0)
        unit = 3600;
    else if (end == text || (*end != '\0' && strcmp(end, "s") != 0))
        unit = -1;
    if (unit > 0 && (v < 0 || v * unit > TIME_MAX_S))
        return hvi_fail(err, HVD_EINVAL, "%s: '%s' is out of range (0 to %.0f s)", what,
                        hvi_escape(shown, sizeof shown, text, strlen(text)),
                        TIME_MAX_S);
    if (unit < 0 || isnan(v))
        return hvi_fail(err, HVD_EINVAL,
                        "%s: '%s' is not a time (seconds, or with ms, s, m, h behind)",
                        what, hvi_escape(shown, sizeof shown, text, strlen(text)));
    *out_ms = (int64_t)(v * unit * 1000 + 0.5);
    return HVD_OK;
}

/* ---- values */

static enum hvd_status check_number(const struct hvi_opt *row, const char *what,
                                    const char *value, char *text, size_t cap,
                                    struct hvi_err *err)
{
    double scale = row->env_scale > 0 ? row->env_scale : 1;
    int64_t n;
    enum hvd_status rc =
        hvi_parse_int(what, value, (int64_t)row->min, (int64_t)row->max, &n, err);

    if (rc == HVD_OK)
        snprintf(text, cap, "%lld", (long long)((double)n * scale));
    return rc;
}

static enum hvd_status check_real(const struct hvi_opt *row, const char *what,
                                  const char *value, struct hvi_err *err)
{
    char shown[64], *end;
    double v = strtod(value, &end);

    hvi_escape(shown, sizeof shown, value, strlen(value));
    if (end == value || *end != '\0' || !isfinite(v))
        return hvi_fail(err, HVD_EINVAL, "%s: '%s' is not a number", what, shown);
    if (v < row->min || v > row->max)
        return hvi_fail(err, HVD_EINVAL, "%s: %s is out of range (%g to %g)", what,
                        shown, row->min, row->max);
    return HVD_OK;
}

static int word_index(const char *words, const char *value)
{
    size_t n = strlen(value);
    int index = 0;

    for (const char *w = words; *w != '\0'; index++) {
        size_t len = strcspn(w, " ");

        if (len == n && strncmp(w, value, n) == 0)
            return index;
        w += len + (w[len] == ' ');
    }
    return -1;
}

static enum hvd_status check_word(const struct hvi_opt *row, const char *what,
                                  const char *value, struct hvi_err *err)
{
    char shown[64];

    if (word_index(row->words, value) >= 0)
        return HVD_OK;
    if (row->id == HVI_OPT_MAP_BY || row->id == HVI_OPT_BIND_TO)
        return hvi_optplace_refuse(row->id == HVI_OPT_MAP_BY, what, value, row->words,
                                   err);
    return hvi_fail(err, HVD_EINVAL, "%s: '%s' is not one of: %s", what,
                    hvi_escape(shown, sizeof shown, value, strlen(value)), row->words);
}

/* text: the value as the workers get it. */
static enum hvd_status check_value(const struct hvi_opt *row, const char *what,
                                   const char *value, char *text, size_t cap,
                                   struct hvi_err *err)
{
    int64_t ms;

    text[0] = '\0';
    switch (row->arg) {
    case HVI_ARG_NONE:
        return HVD_OK;
    case HVI_ARG_INT:
        return check_number(row, what, value, text, cap, err);
    case HVI_ARG_REAL:
        return check_real(row, what, value, err);
    case HVI_ARG_TIME:
        return hvi_opts_parse_time(what, value, &ms, err);
    case HVI_ARG_WORD:
        return check_word(row, what, value, err);
    case HVI_ARG_TEXT:
    case HVI_ARG_FILE:
    case HVI_ARG_DIR:
    case HVI_ARG_HOSTS:
    default:
        if (row->id == HVI_OPT_NOTHING || value[0] != '\0')
            return HVD_OK;
        return hvi_fail(err, HVD_EINVAL, "%s: the argument is empty", what);
    }
}

static enum hvd_status set_both(struct hvi_opts *o, const char *name, const char *value,
                                struct hvi_err *err)
{
    char full[96];
    enum hvd_status rc;

    snprintf(full, sizeof full, "HVD_%s", name);
    rc = hvi_opts_setenv(o, full, value, err);
    if (rc != HVD_OK)
        return rc;
    snprintf(full, sizeof full, "HOROVOD_%s", name);
    return hvi_opts_setenv(o, full, value, err);
}

/* One more text for a list that is owned. */
static enum hvd_status add_text(char ***list, size_t *n, const char *value,
                                struct hvi_err *err)
{
    char **more = realloc(*list, (*n + 1) * sizeof *more);

    if (more == NULL)
        return no_memory(err);
    *list = more;
    more[*n] = NULL;
    if (set_text(&more[*n], value, err) != HVD_OK)
        return HVD_ENOMEM;
    (*n)++;
    return HVD_OK;
}

/* A run of ranks: "4" or "4-6". */
static bool rank_range(const char *text, size_t n, long *first, long *last)
{
    char one[32];
    char *end;

    if (n == 0 || n >= sizeof one)
        return false;
    snprintf(one, sizeof one, "%.*s", (int)n, text);
    if (strspn(one, "0123456789-") != n || one[0] == '-')
        return false;
    *first = *last = strtol(one, &end, 10);
    if (*end == '-' && end[1] != '-')
        *last = strtol(end + 1, &end, 10);
    return *end == '\0' && end[-1] != '-' && *last >= *first;
}

enum hvd_status hvi_opts_ranks(const char *what, const char *list, int np, bool *out,
                               struct hvi_err *err)
{
    char shown[64];

    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        long first;
        long last;

        hvi_escape(shown, sizeof shown, at, n);
        if (!rank_range(at, n, &first, &last))
            return hvi_fail(err, HVD_EINVAL,
                            "%s: '%s' is not a rank or a range of ranks (0,4-6)", what,
                            shown);
        if (last >= np)
            return hvi_fail(err, HVD_EINVAL, "%s: '%s': the job has ranks 0 to %d",
                            what, shown, np - 1);
        for (long r = first; r <= last; r++)
            out[r] = true;
        at += n;
        if (*at == '\0')
            return HVD_OK;
    }
}

/* -x NAME */
static enum hvd_status pass_on(struct hvi_opts *o, const char *name,
                               struct hvi_err *err)
{
    enum hvd_status rc = hvi_opts_setenv(o, name, getenv(name), err);

    for (size_t i = 0; rc == HVD_OK && i < o->nenv; i++)
        if (strcmp(o->env[i].name, name) == 0)
            o->env[i].passed_on = true;
    return rc;
}

/* -x NAME=VALUE, -x NAME, -x 'NAME*' */
static enum hvd_status take_x(struct hvi_opts *o, const char *value,
                              struct hvi_err *err)
{
    const char *eq = strchr(value, '=');
    size_t n = eq != NULL ? (size_t)(eq - value) : strlen(value);
    char shown[64];
    char *name;
    enum hvd_status rc = HVD_OK;

    if (n == 0)
        return hvi_fail(err, HVD_EINVAL, "-x: '%s' has no name before the '='",
                        hvi_escape(shown, sizeof shown, value, strlen(value)));
    name = strndup(value, n);
    if (name == NULL)
        return no_memory(err);
    if (eq != NULL)
        rc = hvi_opts_setenv(o, name, eq + 1, err);
    else if (strchr(name, '*') != NULL)
        rc = add_text(&o->env_globs, &o->nenv_globs, name, err);
    else if (getenv(name) == NULL)
        rc = add_note(o, err,
                      "-x %s: not set in this environment; nothing is passed on%s",
                      hvi_escape(shown, sizeof shown, name, n), "");
    else
        rc = pass_on(o, name, err);
    free(name);
    return rc;
}

static enum hvd_status take_interfaces(struct hvi_opts *o, const char *value,
                                       struct hvi_err *err)
{
    char first[64];
    size_t old = o->interfaces != NULL ? strlen(o->interfaces) : 0;
    char *all = malloc(old + strlen(value) + 2);
    enum hvd_status rc;

    if (all == NULL)
        return no_memory(err);
    sprintf(all, "%s%s%s", old > 0 ? o->interfaces : "", old > 0 ? "," : "", value);
    free(o->interfaces);
    o->interfaces = all;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(all, ","), all);
    rc = set_both(o, "GLOO_IFACE", first, err);
    return rc == HVD_OK ? hvi_opts_setenv(o, "NCCL_SOCKET_IFNAME", all, err) : rc;
}

static enum hvd_status take_address(struct hvi_opts *o, const char *value,
                                    struct hvi_err *err)
{
    char shown[64], bytes[sizeof(struct in6_addr)];

    if (inet_pton(AF_INET, value, bytes) != 1 && inet_pton(AF_INET6, value, bytes) != 1)
        return hvi_fail(err, HVD_EINVAL,
                        "--advertise-address: '%s' is not an address in numbers",
                        hvi_escape(shown, sizeof shown, value, strlen(value)));
    return set_text(&o->advertise, value, err);
}

/* "N" or "N-M" */
static enum hvd_status take_ports(const char *what, const char *value, int *first,
                                  int *last, struct hvi_err *err)
{
    char text[16];
    size_t n = strcspn(value, "-");
    int64_t from, to;
    enum hvd_status rc;

    snprintf(text, sizeof text, "%.*s", (int)(n < 12 ? n : 12), value);
    rc = hvi_parse_int(what, text, 1, 65535, &from, err);
    if (rc != HVD_OK)
        return rc;
    to = from;
    if (value[n] == '-')
        rc = hvi_parse_int(what, value + n + 1, from, 65535, &to, err);
    if (rc != HVD_OK)
        return rc;
    *first = (int)from;
    *last = (int)to;
    return HVD_OK;
}

static enum hvd_status take_port_range(struct hvi_opts *o, const char *what,
                                       const char *value, struct hvi_err *err)
{
    int first, last;
    enum hvd_status rc = take_ports(what, value, &first, &last, err);

    return rc == HVD_OK ? hvi_opts_setenv(o, "HVD_PORT_RANGE", value, err) : rc;
}

enum hvd_status hvi_opts_cores(const char *what, const char *list, int *out_n,
                               struct hvi_err *err)
{
    char shown[64];
    int n = 1;

    for (const char *at = list; *at != '\0'; at++) {
        size_t digits = strspn(at, "0123456789");

        if (digits == 0 || digits > 4 || (at[digits] != '\0' && at[digits] != ',') ||
            (at[digits] == ',' && at[digits + 1] == '\0'))
            return hvi_fail(err, HVD_EINVAL, "%s: '%s' is not a list of cores (0,2,4)",
                            what, hvi_escape(shown, sizeof shown, list, strlen(list)));
        at += digits;
        if (*at == '\0')
            break;
        n++;
    }
    if (out_n != NULL)
        *out_n = n;
    return HVD_OK;
}

static enum hvd_status take_debugger(struct hvi_opts *o, const char *value,
                                     struct hvi_err *err)
{
    if (o->debugger != NULL && strcmp(o->debugger, value) != 0)
        return hvi_fail(err, HVD_EINVAL,
                        "two debuggers are named, '%.40s' and '%.40s'; before a "
                        "program of such a name write '--'",
                        o->debugger, value);
    return set_text(&o->debugger, value, err);
}

static enum hvd_status set_mode(struct hvi_opts *o, enum hvi_mode mode)
{
    /* --help wins, then whichever came first */
    if (o->mode == HVI_MODE_RUN || o->mode == HVI_MODE_DOCTOR || mode == HVI_MODE_HELP)
        o->mode = mode;
    return HVD_OK;
}

static enum hvd_status act(struct hvi_opts *o, const struct hvi_opt *row,
                           const char *what, const char *value, struct hvi_err *err)
{
    switch (row->id) {
    case HVI_OPT_NP:
        o->np = atoi(value);
        return HVD_OK;
    case HVI_OPT_WDIR:
        return set_text(&o->wdir, value, err);
    case HVI_OPT_X:
        return take_x(o, value, err);
    case HVI_OPT_STDIN:
        o->stdin_rank = value[0] == '0' ? 0 : value[0] == 'n' ? -1 : -2;
        return HVD_OK;
    case HVI_OPT_BIND_TO:
        o->bind_to = (enum hvi_bind)word_index(row->words, value);
        return HVD_OK;
    case HVI_OPT_MAP_BY:
        o->map_by = (enum hvi_map)word_index(row->words, value);
        return HVD_OK;
    case HVI_OPT_CORES:
        o->cores_per_rank = atoi(value);
        return HVD_OK;
    case HVI_OPT_GPUS:
        o->gpus_per_rank = atoi(value);
        return HVD_OK;
    case HVI_OPT_CROWD_GPUS:
        o->oversubscribe_gpu = true;
        return HVD_OK;
    case HVI_OPT_REPORT_BINDINGS:
        o->report_bindings = true;
        return HVD_OK;
    case HVI_OPT_OVERSUBSCRIBE:
        o->oversubscribe = true;
        return HVD_OK;
    case HVI_OPT_HOST_LIST:
        return set_text(&o->hosts, value, err);
    case HVI_OPT_NO_ALLOCATION:
        o->no_allocation = true;
        return HVD_OK;
    case HVI_OPT_HOSTFILE:
        return set_text(&o->hostfile, value, err);
    case HVI_OPT_SSH_PORT:
        o->ssh_port = atoi(value); /* checked against the row's limits */
        return HVD_OK;
    case HVI_OPT_SSH_IDENTITY:
        return set_text(&o->ssh_identity, value, err);
    case HVI_OPT_SSH_ARG:
        return add_text(&o->ssh_args, &o->nssh_args, value, err);
    case HVI_OPT_RSH:
        return set_text(&o->rsh, value, err);
    case HVI_OPT_AGENT_PATH:
        return set_text(&o->agent_path, value, err);
    case HVI_OPT_FANOUT:
        o->fanout = atoi(value);
        return HVD_OK;
    case HVI_OPT_NETWORK:
        return take_interfaces(o, value, err);
    case HVI_OPT_NO_ENV:
        o->no_env = true;
        return HVD_OK;
    case HVI_OPT_ADVERTISE:
        return take_address(o, value, err);
    case HVI_OPT_PORT:
        return take_ports(what, value, &o->port, &o->port_last, err);
    case HVI_OPT_PORT_RANGE:
        return take_port_range(o, what, value, err);
    case HVI_OPT_OUTPUT_DIR:
    case HVI_OPT_FILES_ONLY:
        o->files_only = row->id == HVI_OPT_FILES_ONLY;
        return set_text(&o->output_dir, value, err);
    case HVI_OPT_TEE:
        o->tee = true;
        return HVD_OK;
    case HVI_OPT_MERGE:
        o->merge_stderr = true;
        return HVD_OK;
    case HVI_OPT_ONLY_RANK:
        return set_text(&o->only_rank, value, err);
    case HVI_OPT_COLOR:
        o->color = (enum hvi_color)word_index(row->words, value);
        return HVD_OK;
    case HVI_OPT_PREFIX:
        o->prefix = (enum hvi_prefix)word_index(row->words, value);
        return HVD_OK;
    case HVI_OPT_TIMESTAMP:
        o->timestamp = true;
        return HVD_OK;
    case HVI_OPT_VERBOSE:
        o->verbose = true;
        return HVD_OK;
    case HVI_OPT_EVENTS:
        return set_text(&o->json_events, value, err);
    case HVI_OPT_GRACE:
        return hvi_opts_parse_time(what, value, &o->grace_ms, err);
    case HVI_OPT_TIMEOUT:
        return hvi_opts_parse_time(what, value, &o->timeout_ms, err);
    case HVI_OPT_START_TIMEOUT:
        return hvi_opts_parse_time(what, value, &o->start_timeout_ms, err);
    case HVI_OPT_CONFIG:
        return set_text(&o->config_file, value, err);
    case HVI_OPT_DEBUG:
        return set_text(&o->debug, value, err);
    case HVI_OPT_DEBUGGER:
        return take_debugger(o, value, err);
    case HVI_OPT_WAIT_DEBUGGER:
        return set_text(&o->wait_debug, value, err);
    case HVI_OPT_NOT_YET:
        return hvi_fail(err, HVD_EINVAL,
                        "%s: not yet: elastic jobs are not supported in this version; "
                        "give a fixed size with -np, and hosts with -H",
                        what);
    case HVI_OPT_AFFINITY:
        return hvi_opts_cores(what, value, NULL, err);
    case HVI_OPT_TCP:
        return hvi_opts_setenv(o, "NCCL_IB_DISABLE", "1", err);
    case HVI_OPT_HELP:
        return set_mode(o, HVI_MODE_HELP);
    case HVI_OPT_VERSION:
        return set_mode(o, HVI_MODE_VERSION);
    case HVI_OPT_CHECK_BUILD:
        return set_mode(o, HVI_MODE_CHECK_BUILD);
    case HVI_OPT_DRY_RUN:
        return set_mode(o, HVI_MODE_DRY_RUN);
    case HVI_OPT_JSON:
        o->json = true;
        return HVD_OK;
    case HVI_OPT_MAN:
        return set_mode(o, HVI_MODE_MAN);
    case HVI_OPT_COMPLETION:
        return set_mode(o, HVI_MODE_COMPLETION);
    case HVI_OPT_ENV:
    case HVI_OPT_NO_STALL:
    case HVI_OPT_NOTHING:
    default:
        return HVD_OK;
    }
}

enum hvd_status hvi_opts_apply(struct hvi_opts *o, const struct hvi_opt *row,
                               const char *value, struct hvi_err *err)
{
    char what[64], text[64];
    enum hvd_status rc;

    if (row->single != NULL)
        snprintf(what, sizeof what, "-%s", row->single);
    else
        snprintf(what, sizeof what, "--%s", row->name);
    rc = check_value(row, what, value, text, sizeof text, err);
    if (rc == HVD_OK)
        rc = act(o, row, what, value, err);
    if (rc == HVD_OK && row->env != NULL)
        rc = set_both(o, row->env,
                      row->arg == HVI_ARG_NONE ? row->env_value
                      : text[0] != '\0'        ? text
                                               : value,
                      err);
    if (rc == HVD_OK && row->section == HVI_OPT_OBSOLETE)
        rc = add_note(o, err, "%s has no effect: %s", what, row->help);
    if (rc == HVD_OK && o->given != NULL)
        o->given[row - hvi_opt_table] = true;
    return rc;
}

/* ---- the line */

/* popt's table, made from ours; freed by the caller. Every spelling has the row's
 * number. */
static struct poptOption *make_popt(void)
{
    struct poptOption *table = calloc(3 * hvi_opt_count + 1, sizeof *table);
    size_t n = 0;

    for (size_t i = 0; table != NULL && i < hvi_opt_count; i++) {
        const struct hvi_opt *o = &hvi_opt_table[i];
        unsigned kind = o->arg == HVI_ARG_NONE ? POPT_ARG_NONE : POPT_ARG_STRING;
        bool same = o->single != NULL && strcmp(o->single, o->name) == 0;

        table[n++] = (struct poptOption){
            o->name, o->letter,  kind | (same ? POPT_ARGFLAG_ONEDASH : 0u),
            NULL,    (int)i + 1, NULL,
            NULL};
        if (o->also != NULL)
            table[n++] =
                (struct poptOption){o->also, '\0', kind, NULL, (int)i + 1, NULL, NULL};
        if (o->single != NULL && !same)
            table[n++] = (struct poptOption){
                o->single, '\0', kind | POPT_ARGFLAG_ONEDASH, NULL, (int)i + 1,
                NULL,      NULL};
    }
    return table;
}

static enum hvd_status refuse(poptContext ctx, int code, struct hvi_err *err)
{
    char shown[128], near[64];
    const char *word = poptBadOption(ctx, POPT_BADOPTION_NOALIAS);

    hvi_escape(shown, sizeof shown, word != NULL ? word : "?",
               word != NULL ? strlen(word) : 1);
    if (code == POPT_ERROR_BADOPT && word != NULL &&
        hvi_opt_near(word, near, sizeof near) != NULL)
        return hvi_fail(
            err, HVD_EINVAL,
            "unknown option '%s'; did you mean %s? ('hvdrun --help' lists all)", shown,
            near);
    if (code == POPT_ERROR_BADOPT)
        return hvi_fail(err, HVD_EINVAL,
                        "unknown option '%s'; 'hvdrun --help' lists all", shown);
    if (code == POPT_ERROR_NOARG)
        return hvi_fail(err, HVD_EINVAL, "option '%s' needs an argument", shown);
    if (code == POPT_ERROR_UNWANTEDARG)
        return hvi_fail(err, HVD_EINVAL, "option '%s' takes no argument", shown);
    return hvi_fail(err, HVD_EINVAL, "option '%s': %s", shown, poptStrerror(code));
}

/* What stands as the program may have been meant for --debug. */
static enum hvd_status check_debug(const struct hvi_opts *o, bool dashes,
                                   struct hvi_err *err)
{
    const char *program = o->ncommand > 0 ? o->command[0] : "";

    if (o->debugger != NULL && o->debug == NULL && o->wait_debug == NULL)
        return hvi_fail(err, HVD_EINVAL,
                        "--debugger needs --debug or --wait-for-debugger");
    if (o->debug == NULL || dashes || program[0] == '\0')
        return HVD_OK;
    if (hvi_debugwords_known(program))
        return hvi_fail(err, HVD_EINVAL,
                        "'%.40s' stands as the program; write it right behind --debug, "
                        "or '--' before it if it is what is to be debugged",
                        program);
    if (strspn(program, "0123456789,-") == strlen(program))
        return hvi_fail(err, HVD_EINVAL,
                        "'%.40s' stands as the program; ranks are given with '=': "
                        "--debug=%.40s",
                        program, program);
    return HVD_OK;
}

static enum hvd_status check_whole(const struct hvi_opts *o, struct hvi_err *err)
{
    if (o->hosts != NULL && o->hostfile != NULL)
        return hvi_fail(err, HVD_EINVAL, "-H and --hostfile exclude each other");
    if (o->tee && o->output_dir == NULL)
        return hvi_fail(err, HVD_EINVAL, "--tee needs --output-dir DIR");
    if (o->json && o->mode == HVI_MODE_RUN)
        return hvi_fail(err, HVD_EINVAL, "--json needs --dry-run or 'hvdrun doctor'");
    if (o->mode == HVI_MODE_RUN && o->ncommand == 0)
        return hvi_fail(
            err, HVD_EINVAL,
            "no program to run; usage: hvdrun -np N [options] PROGRAM [args]");
    return HVD_OK;
}

/* Options that are not given and have a variable of hvdrun's own. */
static enum hvd_status from_environment(struct hvi_opts *o, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    for (size_t i = 0; rc == HVD_OK && i < hvi_opt_count; i++) {
        char unused[64];
        const struct hvi_opt *row = &hvi_opt_table[i];
        const char *value = row->own_env != NULL ? getenv(row->own_env) : NULL;
        int on = 1;

        if (value == NULL || value[0] == '\0' || o->given[i])
            continue;
        if (row->arg == HVI_ARG_NONE)
            rc = hvi_parse_bool(row->own_env, value, &on, err);
        else
            rc = check_value(row, row->own_env, value, unused, sizeof unused, err);
        if (rc == HVD_OK && on)
            rc = act(o, row, row->own_env, value, err);
    }
    return rc;
}

/* The words after the options, as they stand in argv. */
static void take_command(struct hvi_opts *o, poptContext ctx, int argc, char **argv)
{
    const char **rest = poptGetArgs(ctx);

    while (rest != NULL && rest[o->ncommand] != NULL)
        o->ncommand++;
    if (o->ncommand > 0)
        o->command = argv + (argc - o->ncommand);
}

enum hvd_status hvi_opts_parse(int argc, char **argv, struct hvi_opts *out,
                               struct hvi_err *err)
{
    bool doctor = argc > 1 && strcmp(argv[1], "doctor") == 0;
    struct hvi_opts o = {.mode = doctor ? HVI_MODE_DOCTOR : HVI_MODE_RUN,
                         .grace_ms = HVI_GRACE_DEFAULT_MS,
                         .bind_to = HVI_BIND_AUTO,
                         .map_by = HVI_MAP_AUTO};
    struct hvi_optline line = {0};
    struct poptOption *table = make_popt();
    poptContext ctx = NULL;
    enum hvd_status rc = HVD_OK;
    int code = 0;

    o.given = calloc(hvi_opt_count, sizeof *o.given);
    if (table == NULL || o.given == NULL) {
        rc = no_memory(err);
        goto done;
    }
    rc = hvi_optline_make(argc - doctor, argv + doctor, &line, err);
    if (rc != HVD_OK)
        goto done;
    ctx =
        poptGetContext("hvdrun", line.n, line.words, table, POPT_CONTEXT_POSIXMEHARDER);
    if (ctx == NULL) {
        rc = no_memory(err);
        goto done;
    }
    while (rc == HVD_OK && (code = poptGetNextOpt(ctx)) > 0) {
        char *value = poptGetOptArg(ctx);

        rc = hvi_opts_apply(&o, &hvi_opt_table[code - 1], value, err);
        free(value);
    }
    if (rc == HVD_OK && code < -1)
        rc = refuse(ctx, code, err);
    if (rc == HVD_OK) {
        take_command(&o, ctx, argc - doctor, argv + doctor);
        rc = check_whole(&o, err);
        if (rc == HVD_OK)
            rc = check_debug(&o, line.dashes, err);
    }
    if (rc == HVD_OK && (o.mode == HVI_MODE_RUN || o.mode == HVI_MODE_DRY_RUN)) {
        rc = from_environment(&o, err);
    }
    if (rc != HVD_OK)
        goto done;
    *out = o;
    memset(&o, 0, sizeof o);
done:
    if (ctx != NULL)
        poptFreeContext(ctx);
    free(table);
    hvi_optline_fini(&line);
    hvi_opts_fini(&o);
    return rc;
}
