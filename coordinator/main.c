/*
 * hvd-coordinator. Under hvdrun (--stdio): COORD_CONFIG on stdin, notes on stdout, the
 * end of stdin ends the job. On its own (--np, --listen): a key file, one line on
 * stdout that says where it listens, notes as lines on stderr.
 *
 * Exit status: 0 all ranks left well; 1 a rank was lost; 2 usage; 125 it could not
 * start or the job could not (start timeout, settings that differ); 128+n ended by
 * signal n.
 */
#include <inttypes.h>
#include <popt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "coordinator/net/parent.h"
#include "coordinator/net/server.h"
#include "proto/base/env.h"
#include "proto/base/limits.h"
#include "proto/base/log.h"

#define EXIT_USAGE 2
#define EXIT_JOB 125
#define FDS_OF_OUR_OWN 32
#define FDS_OF_THE_LOOP 12
#define MEMORY_OF_OUR_OWN ((size_t)4 << 20)

struct options {
    int stdio, version;
    char *listen, *key_file, *np_text, *cache_text;
    int64_t np, cache_capacity;
    double start_timeout_s, stall_warn_s, stall_shutdown_s, linger_s;
    double fusion_mb;
};

struct program {
    uv_loop_t loop;
    uv_signal_t sigterm, sigint;
    struct hvi_parent parent;
    bool stdio;
    struct hvi_server *server;
    struct hvi_core_config core;
    uint8_t key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    int status;
    bool over, fatal;
    int by_signal;
};

/* ---- ending */

static void finished(struct program *p, int status)
{
    if (p->over)
        return;
    p->over = true;
    p->status = p->by_signal != 0 ? 128 + p->by_signal : p->fatal ? EXIT_JOB : status;
    uv_stop(&p->loop);
}

static void say(struct program *p, enum hvi_note_kind kind, int32_t rank,
                const char *text)
{
    Hvi__CoordNote note = HVI__COORD_NOTE__INIT;

    if (!p->stdio) {
        fprintf(stderr, "hvd-coordinator: %s\n", text);
        return;
    }
    note.kind = kind;
    note.rank = rank;
    note.text = (char *)(uintptr_t)text;
    hvi_parent_send(&p->parent, HVI_MSG_COORD_NOTE, &note);
}

/* Before there is a server: words and status. */
static void give_up(struct program *p, const char *text)
{
    say(p, HVI_NOTE_FATAL, -1, text);
    p->fatal = true;
    finished(p, EXIT_JOB);
}

static void on_note(void *data, enum hvi_note_kind kind, int32_t rank, const char *text)
{
    struct program *p = data;

    if ((kind == HVI_NOTE_LEFT || kind == HVI_NOTE_BYE) && !p->stdio)
        return; /* LOST says it too */
    say(p, kind, rank, text);
    if (kind != HVI_NOTE_FATAL)
        return;
    p->fatal = true;
    if (!p->stdio) /* nobody else will end the job */
        hvi_server_stop(p->server, text);
}

static void on_finished(void *data, int status)
{
    finished(data, status);
}

static const struct hvi_server_ops server_ops = {on_note, on_finished};

static void signal_cb(uv_signal_t *s, int signo)
{
    struct program *p = s->data;
    char cause[80];

    p->by_signal = signo;
    snprintf(cause, sizeof cause, "the coordinator was stopped (SIG%s)",
             sigabbrev_np(signo));
    if (p->server != NULL)
        hvi_server_stop(p->server, cause);
    else
        finished(p, 0);
}

/* ---- starting */

static enum hvd_status check_fds(const struct program *p, struct hvi_err *err)
{
    char whom[48];

    snprintf(whom, sizeof whom, "%u rank%s", p->core.np, p->core.np == 1 ? "" : "s");
    return hvi_limits_fds((size_t)p->core.np + FDS_OF_OUR_OWN, whom, err);
}

static enum hvd_status set_lease(struct program *p, struct hvi_err *err)
{
    int64_t seconds;
    enum hvd_status rc = hvi_env_int("LEASE_SECONDS", HVI_LEASE_DEFAULT_S,
                                     HVI_LEASE_MIN_S, HVI_LEASE_MAX_S, &seconds, err);

    if (rc == HVD_OK)
        p->core.lease_ms = (uint32_t)seconds * 1000;
    return rc;
}

static enum hvd_status start_server(struct program *p, const char *where,
                                    struct hvi_err *err)
{
    enum hvd_status rc = check_fds(p, err);

    if (rc == HVD_OK)
        rc = set_lease(p, err);
    if (rc == HVD_OK)
        rc = hvi_server_new(&p->loop, &p->core, p->key, p->job_id, &server_ops, p,
                            &p->server, err);
    hvi_wipe(p->key, sizeof p->key);
    if (rc == HVD_OK)
        rc = hvi_server_listen(p->server, where, err);
    return rc;
}

/* ---- under hvdrun */

static void on_config(void *data, const Hvi__CoordConfig *m)
{
    struct program *p = data;
    const char **hosts = NULL;
    Hvi__CoordUp up = HVI__COORD_UP__INIT;
    struct hvi_err err = {""};
    enum hvd_status rc = HVD_OK;

    if (m->version[0] != '\0' && strcmp(m->version, HVI_VERSION) != 0) {
        char text[200], safe[64];

        snprintf(text, sizeof text,
                 "version mismatch: hvdrun %s, hvd-coordinator %s; use one version",
                 hvi_escape(safe, sizeof safe, m->version, strlen(m->version)),
                 HVI_VERSION);
        give_up(p, text);
        return;
    }
    if (m->key.len != HVI_KEY_BYTES || m->job_id.len != HVI_JOB_ID_BYTES || m->np < 1 ||
        m->np > HVD_RANKS_MAX || (m->n_slots != 0 && m->n_slots != m->np)) {
        give_up(p, "hvdrun sent a configuration that is damaged");
        return;
    }
    memcpy(p->key, m->key.data, sizeof p->key);
    memcpy(p->job_id, m->job_id.data, sizeof p->job_id);
    p->core.np = m->np;
    p->core.start_timeout_ms = m->start_timeout_ms;
    p->core.fusion_bytes = m->fusion_bytes;
    p->core.cache_capacity = m->cache_capacity;
    p->core.stall_warn_ms = m->stall_warn_ms;
    p->core.stall_shutdown_ms = m->stall_shutdown_ms;
    p->core.linger_ms = -1;
    if (m->n_slots > 0) {
        hosts = calloc(m->n_slots, sizeof *hosts);
        for (size_t i = 0; hosts != NULL && i < m->n_slots; i++)
            hosts[i] = m->slots[i]->host;
        if (hosts == NULL)
            rc = hvi_fail(&err, HVD_ENOMEM, "out of memory");
        p->core.hosts = hosts;
    }
    if (rc == HVD_OK)
        rc = start_server(p, m->listen, &err);
    p->core.hosts = NULL;
    free(hosts);
    if (rc != HVD_OK) {
        give_up(p, err.text);
        return;
    }
    up.endpoint = (char *)(uintptr_t)hvi_server_endpoint(p->server);
    up.version = (char *)(uintptr_t)HVI_VERSION;
    hvi_parent_send(&p->parent, HVI_MSG_COORD_UP, &up);
}

static void on_parent_end(void *data, const char *why)
{
    struct program *p = data;

    if (why != NULL)
        hvi_log_error("stdio", "hvdrun: %s", why);
    if (p->server != NULL)
        hvi_server_stop(p->server, why != NULL ? why : "hvdrun has ended");
    else
        finished(p, EXIT_JOB);
}

static const struct hvi_parent_ops parent_ops = {on_config, on_parent_end};

/* ---- on its own */

static enum hvd_status load_key(struct program *p, const char *path,
                                struct hvi_err *err)
{
    struct stat st;
    enum hvd_status rc;

    if (lstat(path, &st) == 0)
        rc = hvi_key_load(path, p->key, err);
    else
        rc = hvi_key_create(path, p->key, err);
    if (rc == HVD_OK)
        hvi_key_job_id(p->key, p->job_id);
    return rc;
}

static uint32_t to_ms(double seconds)
{
    return seconds <= 0 ? 0 : (uint32_t)(seconds * 1000 + 0.5);
}

static void start_alone(struct program *p, const struct options *o)
{
    struct hvi_err err = {""};
    enum hvd_status rc;

    p->core.np = (uint32_t)o->np;
    p->core.start_timeout_ms = to_ms(o->start_timeout_s);
    p->core.fusion_bytes = (uint64_t)(o->fusion_mb * 1024 * 1024);
    p->core.cache_capacity = (uint32_t)o->cache_capacity;
    p->core.stall_warn_ms = to_ms(o->stall_warn_s);
    p->core.stall_shutdown_ms = to_ms(o->stall_shutdown_s);
    p->core.linger_ms = o->linger_s < 0 ? -1 : (int32_t)to_ms(o->linger_s);
    rc = load_key(p, o->key_file, &err);
    if (rc == HVD_OK)
        rc = start_server(p, o->listen, &err);
    if (rc != HVD_OK) {
        give_up(p, err.text);
        return;
    }
    printf("hvd-coordinator %s: %d ranks, HVD_COORDINATOR=%s HVD_KEY_FILE=%s\n",
           HVI_VERSION, (int)o->np, hvi_server_endpoint(p->server), o->key_file);
    fflush(stdout);
}

/* ---- the command line */

static int usage(poptContext ctx, const char *what, const char *detail)
{
    char safe[400];

    fprintf(stderr, "hvd-coordinator: %s%s; see hvd-coordinator --help\n", what,
            hvi_escape(safe, sizeof safe, detail, strlen(detail)));
    poptFreeContext(ctx);
    return EXIT_USAGE;
}

static const char *check(struct options *o)
{
    static struct hvi_err err;

    if (o->stdio)
        return NULL;
    if (o->np_text == NULL)
        return "--np N is missing";
    if (hvi_parse_int("--np", o->np_text, 1, HVD_RANKS_MAX, &o->np, &err) != HVD_OK)
        return err.text;
    if (o->cache_text != NULL &&
        hvi_parse_int("--cache-capacity", o->cache_text, 1, 4096, &o->cache_capacity,
                      &err) != HVD_OK)
        return err.text;
    if (o->listen == NULL)
        return "--listen ADDRESS:PORT or --listen unix:PATH is missing";
    if (o->key_file == NULL)
        return "--key-file FILE (or HVD_KEY_FILE) is missing";
    if (!(o->start_timeout_s > 0 && o->start_timeout_s <= 4e6))
        return "--start-timeout must be more than 0 and at most 4000000 s";
    if (!(o->stall_warn_s >= 0 && o->stall_warn_s <= 4e6 && o->stall_shutdown_s >= 0 &&
          o->stall_shutdown_s <= 4e6))
        return "--stall-warning and --stall-shutdown must be 0 (off) to 4000000 s";
    if (!(o->linger_s <= 2e6))
        return "--linger must be at most 2000000 s";
    if (!(o->fusion_mb > 0 && o->fusion_mb <= 1e6))
        return "--fusion-threshold-mb must be more than 0 and at most 1000000";
    return NULL;
}

/* -1: go on; else the exit status. */
static int parse(int argc, const char **argv, struct options *o)
{
    struct poptOption table[] = {
        {"np", 'n', POPT_ARG_STRING, &o->np_text, 0, "ranks of the job; all must come",
         "N"},
        {"listen", 'l', POPT_ARG_STRING, &o->listen, 0,
         "where workers connect: ADDRESS[,ADDRESS...]:PORT, :PORT (every address) or "
         "unix:PATH; port 0: any",
         "WHERE"},
        {"key-file", 'k', POPT_ARG_STRING, &o->key_file, 0,
         "the job's key; made (0600) when absent. Workers need a copy [HVD_KEY_FILE]",
         "FILE"},
        {"start-timeout", 0, POPT_ARG_DOUBLE | POPT_ARGFLAG_SHOW_DEFAULT,
         &o->start_timeout_s, 0, "how long the first rank waits for the last",
         "SECONDS"},
        {"linger", 0, POPT_ARG_DOUBLE | POPT_ARGFLAG_SHOW_DEFAULT, &o->linger_s, 0,
         "exit so long after all ranks have left; negative: stay", "SECONDS"},
        {"stall-warning", 0, POPT_ARG_DOUBLE | POPT_ARGFLAG_SHOW_DEFAULT,
         &o->stall_warn_s, 0,
         "report operations that some ranks have not submitted; 0: off", "SECONDS"},
        {"stall-shutdown", 0, POPT_ARG_DOUBLE | POPT_ARGFLAG_SHOW_DEFAULT,
         &o->stall_shutdown_s, 0, "end the job after such a wait; 0: never", "SECONDS"},
        {"fusion-threshold-mb", 0, POPT_ARG_DOUBLE | POPT_ARGFLAG_SHOW_DEFAULT,
         &o->fusion_mb, 0, "largest fused group", "MB"},
        {"cache-capacity", 0, POPT_ARG_STRING, &o->cache_text, 0,
         "names that keep an id, 1 to 4096 (the default)", "N"},
        {"stdio", 0, POPT_ARG_NONE, &o->stdio, 0,
         "serve hvdrun: configuration on stdin, notes on stdout", NULL},
        {"version", 'V', POPT_ARG_NONE, &o->version, 0, "print the version", NULL},
        POPT_AUTOHELP POPT_TABLEEND};
    poptContext ctx = poptGetContext("hvd-coordinator", argc, argv, table, 0);
    int rc = poptGetNextOpt(ctx);
    const char *wrong;

    if (rc < -1) {
        char text[200];

        snprintf(text, sizeof text, "%.100s: %s",
                 poptBadOption(ctx, POPT_BADOPTION_NOALIAS), poptStrerror(rc));
        return usage(ctx, "", text);
    }
    if (o->version) {
        printf("hvd-coordinator %s\n", HVI_VERSION);
        poptFreeContext(ctx);
        return 0;
    }
    if (poptPeekArg(ctx) != NULL)
        return usage(ctx, "unexpected argument ", poptPeekArg(ctx));
    if (o->key_file == NULL && hvi_env("KEY_FILE") != NULL)
        o->key_file = strdup(hvi_env("KEY_FILE"));
    wrong = check(o);
    if (wrong != NULL)
        return usage(ctx, wrong, "");
    poptFreeContext(ctx);
    return -1;
}

static int open_signals(struct program *p)
{
    int rc;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    rc = uv_signal_init(&p->loop, &p->sigterm);
    if (rc == 0)
        rc = uv_signal_init(&p->loop, &p->sigint);
    if (rc != 0)
        return rc;
    p->sigterm.data = p->sigint.data = p;
    uv_signal_start(&p->sigterm, signal_cb, SIGTERM);
    if (p->stdio)
        signal(SIGINT, SIG_IGN); /* hvdrun hears it and decides */
    else
        uv_signal_start(&p->sigint, signal_cb, SIGINT);
    return 0;
}

/* What libuv would abort for is looked at before. */
static enum hvd_status open_loop(struct program *p, struct hvi_err *err)
{
    enum hvd_status rc;
    int uv;

    hvi_limits_raise_fds();
    rc = hvi_limits_fds(FDS_OF_THE_LOOP, "hvd-coordinator", err);
    if (rc == HVD_OK)
        rc = hvi_limits_memory(MEMORY_OF_OUR_OWN, err);
    if (rc != HVD_OK)
        return rc;
    uv = uv_loop_init(&p->loop);
    if (uv == 0)
        uv = open_signals(p);
    return uv == 0 ? HVD_OK
                   : hvi_fail(err, HVD_EIO, "the event loop: %s", uv_strerror(uv));
}

static int serve(struct program *p, const struct options *o)
{
    struct hvi_err err = {""};

    if (open_loop(p, &err) != HVD_OK) {
        fprintf(stderr, "hvd-coordinator: %s\n", err.text);
        return EXIT_JOB;
    }
    if (!p->stdio) {
        start_alone(p, o);
    } else if (hvi_parent_open(&p->parent, &p->loop, STDIN_FILENO, STDOUT_FILENO,
                               &parent_ops, p, &err) != HVD_OK) {
        fprintf(stderr, "hvd-coordinator: %s\n", err.text);
        p->over = true;
        p->status = EXIT_USAGE;
    }
    while (!p->over)
        uv_run(&p->loop, UV_RUN_DEFAULT);
    if (p->server != NULL)
        hvi_server_close(p->server);
    if (p->stdio)
        hvi_parent_close(&p->parent);
    uv_close((uv_handle_t *)&p->sigterm, NULL);
    uv_close((uv_handle_t *)&p->sigint, NULL);
    while (uv_run(&p->loop, UV_RUN_DEFAULT) != 0) /* uv_stop() may still count */
        continue;
    uv_loop_close(&p->loop);
    hvi_server_free(p->server);
    hvi_parent_fini(&p->parent);
    hvi_wipe(p->key, sizeof p->key);
    return p->status;
}

int main(int argc, const char **argv)
{
    struct options o = {.start_timeout_s = 30,
                        .stall_warn_s = 10,
                        .linger_s = 30,
                        .cache_capacity = 4096,
                        .fusion_mb = 64};
    struct program p = {.core = {.version = HVI_VERSION}};
    const struct rlimit no_core = {0, 0};
    struct hvi_err log_err = {""};
    int status;

    hvi_log_setup("hvd-coordinator", HVI_LOG_WARN);
    (void)setrlimit(RLIMIT_CORE, &no_core); /* it would hold the key */
    prctl(PR_SET_DUMPABLE, 0);              /* a core that is piped heeds no limit */
    status = parse(argc, argv, &o);
    if (status < 0) {
        p.stdio = o.stdio != 0;
        if (!p.stdio && hvi_log_check(&log_err) != HVD_OK) /* else hvdrun says so */
            fprintf(stderr, "hvd-coordinator: %s\n", log_err.text);
        status = serve(&p, &o);
    }
    free(o.np_text);
    free(o.cache_text);
    free(o.listen);
    free(o.key_file);
    return status;
}
