/** hvdrun: runs a program as the ranks of one job. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hvdrun/hosts/alloc.h"
#include "hvdrun/debug/attach.h"
#include "hvdrun/doctor/checkbuild.h"
#include "hvdrun/cli/config.h"
#include "hvdrun/debug/debugwords.h"
#include "hvdrun/doctor/doctor.h"
#include "hvdrun/job/exitcode.h"
#include "hvdrun/hosts/hosts.h"
#include "hvdrun/job/job.h"
#include "hvdrun/cli/optdoc.h"
#include "hvdrun/cli/opts.h"
#include "hvdrun/hosts/plan.h"
#include "hvdrun/hosts/planjson.h"
#include "hvdrun/hosts/planlayout.h"
#include "hvdrun/job/spec.h"
#include "hvdrun/ssh/sshargv.h"
#include "proto/base/env.h"
#include "proto/base/log.h"

static int complain(const struct hvi_err *err, enum hvd_status rc)
{
    fprintf(stderr, "hvdrun: %s\n", err->text);
    return rc == HVD_ENOMEM ? HVI_EXIT_LAUNCHER : HVI_EXIT_USAGE;
}

static enum hvd_status load_hosts(const struct hvi_opts *o, struct hvi_hosts *hosts,
                                  struct hvi_alloc *alloc, struct hvi_err *err)
{
    char own[HVI_HOST_NAME_MAX + 1] = "";
    enum hvd_status rc = HVD_OK;

    if (o->hosts != NULL && strcmp(o->hosts, "@") == 0)
        rc = hvi_fail(err, HVD_EINVAL, "-H @: the name of a host file goes behind it");
    else if (o->hosts != NULL && o->hosts[0] == '@')
        rc = hvi_hosts_load(hosts, o->hosts + 1, err);
    else if (o->hosts != NULL)
        rc = hvi_hosts_parse(hosts, o->hosts, err);
    else if (o->hostfile != NULL)
        rc = hvi_hosts_load(hosts, o->hostfile, err);
    else if (!o->no_allocation)
        rc = hvi_alloc_find(&hvi_alloc_here, hosts, alloc, err);
    (void)gethostname(own, sizeof own - 1);
    for (size_t i = 0; i < hosts->n && rc == HVD_OK; i++)
        hosts->list[i].remote =
            hosts->list[i].user != NULL ||
            !(alloc->key != NULL ? hvi_alloc_is_local(alloc, hosts->list[i].name, own)
                                 : hvi_host_is_local(hosts->list[i].name, own));
    return rc;
}

/* Where the hosts came from. */
struct source {
    const char *kind; /* a word */
    const char *from; /* option, file, variables */
    char text[512];
};

static void find_source(const struct hvi_opts *o, const struct hvi_alloc *a,
                        struct source *s)
{
    char shown[256];

    if (o->hosts != NULL && o->hosts[0] != '@') {
        s->kind = "command-line";
        s->from = "-H";
        snprintf(s->text, sizeof s->text, "from -H");
    } else if (o->hosts != NULL || o->hostfile != NULL) {
        s->kind = "host-file";
        s->from = o->hosts != NULL ? o->hosts + 1 : o->hostfile;
        snprintf(s->text, sizeof s->text, "from the host file %s",
                 hvi_escape(shown, sizeof shown, s->from, strlen(s->from)));
    } else if (a->key != NULL) {
        s->kind = a->key;
        s->from = a->from;
        snprintf(s->text, sizeof s->text, "allocated by %s: %s", a->title, a->from);
    } else {
        s->kind = "none";
        s->from = "";
        snprintf(s->text, sizeof s->text, "this host: no hosts were named");
    }
}

static void show_layout(const struct hvi_opts *o, const struct hvi_plan *p, size_t h,
                        FILE *out)
{
    static struct hvi_layout l;
    struct hvi_err err = {""};
    char words[1024];

    if (hvi_planlayout_make(o, p->host[h].slots, &l, &err) != HVD_OK) {
        fprintf(out, "    %s\n", err.text);
        return;
    }
    for (int i = 0; i < l.nranks; i++) {
        hvi_layout_words(&l, i, words, sizeof words);
        fprintf(out, "    rank %d: %s\n", p->first_rank[h] + i, words);
    }
    hvi_layout_fini(&l);
}

static void show_plan(const struct hvi_opts *o, const char *source,
                      const struct hvi_plan *p, FILE *out)
{
    bool placed = o->bind_to != HVI_BIND_AUTO || o->map_by != HVI_MAP_AUTO ||
                  o->cores_per_rank > 0 || o->gpus_per_rank > 0 || o->report_bindings;
    const struct hvi_rshell shell = hvi_rshell_choose(o);
    char way[256] = "ssh", dest[2 * HVI_HOST_NAME_MAX + 2];

    if (shell.kind == HVI_RSHELL_SRUN)
        snprintf(way, sizeof way, "srun");
    else if (shell.kind != HVI_RSHELL_SSH)
        hvi_escape(way, sizeof way, shell.command, strlen(shell.command));
    fprintf(out, "%d %s on %zu %s (%s):\n", p->np, p->np == 1 ? "rank" : "ranks",
            p->nhosts, p->nhosts == 1 ? "host" : "hosts", source);
    for (size_t h = 0; h < p->nhosts; h++) {
        int first = p->first_rank[h];

        fprintf(out, "  %s: rank",
                hvi_sshargv_destination(&p->host[h], dest, sizeof dest));
        if (p->host[h].slots == 1)
            fprintf(out, " %d", first);
        else
            fprintf(out, "s %d-%d", first, first + p->host[h].slots - 1);
        if (p->host[h].remote)
            fprintf(out, " (by %s)", way);
        fputc('\n', out);
        if (placed && !p->host[h].remote) /* others are looked at when the job begins */
            show_layout(o, p, h, out);
    }
    if (o->bind_to != HVI_BIND_AUTO)
        fprintf(out, "  bind to %s\n", hvi_bind_word(o->bind_to));
    if (o->map_by != HVI_MAP_AUTO)
        fprintf(out, "  map by %s\n", hvi_map_word(o->map_by));
    if (o->cores_per_rank > 0)
        fprintf(out, "  cores per rank %d\n", o->cores_per_rank);
    if (o->gpus_per_rank > 0)
        fprintf(out, "  GPUs per rank %d\n", o->gpus_per_rank);
    if (o->debug != NULL)
        fprintf(out, "  debug ranks %s under %s\n", o->debug,
                o->debugger != NULL ? o->debugger : HVI_DEBUGGER_DEFAULT);
    if (o->wait_debug != NULL)
        fprintf(out, "  wait for a debugger at ranks %s\n", o->wait_debug);
    for (size_t i = 0; i < o->nenv; i++)
        if (o->env[i].passed_on) /* may be a secret, and this a log */
            fprintf(out, "  env %s, as it is here\n", o->env[i].name);
        else
            fprintf(out, "  env %s=%s\n", o->env[i].name, o->env[i].value);
    if (o->ncommand > 0) {
        fputs("  command", out);
        for (int i = 0; i < o->ncommand; i++)
            fprintf(out, " %s", o->command[i]);
        fputc('\n', out);
    }
}

static enum hvd_status check_only_rank(const struct hvi_opts *o, int np,
                                       struct hvi_err *err)
{
    bool *unused = calloc((size_t)np, sizeof *unused);
    enum hvd_status rc = HVD_OK;

    if (unused == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    if (o->only_rank != NULL)
        rc = hvi_opts_ranks("--only-rank", o->only_rank, np, unused, err);
    free(unused);
    return rc;
}

static enum hvd_status check_debug(const struct hvi_opts *o, int np,
                                   struct hvi_err *err)
{
    bool *under = calloc((size_t)np, sizeof *under);
    bool *wait = calloc((size_t)np, sizeof *wait);
    char **words = NULL;
    size_t n;
    enum hvd_status rc;

    if (under == NULL || wait == NULL) {
        free(under);
        free(wait);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    rc = hvi_debugwords_ranks("--debug", o->debug, np, under, err);
    if (rc == HVD_OK)
        rc = hvi_debugwords_ranks("--wait-for-debugger", o->wait_debug, np, wait, err);
    for (int r = 0; r < np && rc == HVD_OK; r++)
        if (under[r] && wait[r])
            rc = hvi_fail(err, HVD_EINVAL,
                          "rank %d is in both --debug and --wait-for-debugger; name "
                          "the ranks (--debug=0 --wait-for-debugger=1)",
                          r);
    if (rc == HVD_OK && o->debugger != NULL)
        rc = hvi_debugwords_split(o->debugger, &words, &n, err);
    hvi_debugwords_free(words);
    free(under);
    free(wait);
    return rc;
}

/* Bad settings are found before anything is started. */
static enum hvd_status check_settings(const struct hvi_opts *o, int np,
                                      struct hvi_err *err)
{
    Hvi__CoordConfig unused = HVI__COORD_CONFIG__INIT;
    int64_t lease_s;
    enum hvd_status rc = hvi_spec_settings(o, &unused, err);

    if (rc == HVD_OK)
        rc = check_only_rank(o, np, err);
    if (rc == HVD_OK)
        rc = check_debug(o, np, err);
    if (rc != HVD_OK)
        return rc;
    return hvi_env_int("LEASE_SECONDS", HVI_LEASE_DEFAULT_S, HVI_LEASE_MIN_S,
                       HVI_LEASE_MAX_S, &lease_s, err);
}

/* As Horovod does with a list that is too short. */
static void say_affinity(const struct hvi_opts *o, const struct hvi_plan *p)
{
    const char *cores = hvi_opts_env(o, "THREAD_AFFINITY");
    struct hvi_err unused;
    int most = 0;
    int n = 0;

    if (cores == NULL ||
        hvi_opts_cores("--thread-affinity", cores, &n, &unused) != HVD_OK)
        return;
    for (size_t h = 0; h < p->nhosts; h++)
        most = p->host[h].slots > most ? p->host[h].slots : most;
    if (n < most)
        fprintf(stderr,
                "hvdrun: --thread-affinity names %d %s and is ignored on hosts with "
                "more ranks; one has %d\n",
                n, n == 1 ? "core" : "cores", most);
}

static int run(const struct hvi_opts *o)
{
    struct hvi_err err = {""};
    struct hvi_hosts hosts = {0};
    struct hvi_plan plan = {0};
    struct hvi_plan_wish wish = {.np = o->np, .oversubscribe = o->oversubscribe};
    struct hvi_alloc alloc = {0};
    struct source source;
    char from[256];
    enum hvd_status rc = load_hosts(o, &hosts, &alloc, &err);
    int status;

    if (alloc.key != NULL) {
        snprintf(from, sizeof from, "the allocation by %s (%s) has", alloc.title,
                 alloc.from);
        wish.from = from;
    }
    if (o->np == 0 && hosts.n == 0)
        wish.cores = hvi_topo_cores();
    if (rc == HVD_OK)
        rc = hvi_plan_make(&hosts, &wish, &plan, &err);
    if (rc == HVD_OK)
        rc = check_settings(o, plan.np, &err);
    if (rc != HVD_OK) {
        status = complain(&err, rc);
        goto done;
    }
    for (size_t i = 0; i < o->nnotes; i++)
        fprintf(stderr, "hvdrun: %s\n", o->notes[i]);
    if (hosts.nignored > 0)
        fprintf(stderr, "hvdrun: %s has no meaning here and is ignored%s\n",
                hosts.ignored, hosts.nignored > 1 ? ", and so are others" : "");
    say_affinity(o, &plan);
    find_source(o, &alloc, &source);
    if (o->verbose)
        show_plan(o, source.text, &plan, stderr);
    if (o->mode == HVI_MODE_DRY_RUN && o->json) {
        rc = hvi_planjson_write(o, source.kind, source.from, &plan, stdout, &err);
        status = rc == HVD_OK ? HVI_EXIT_OK : complain(&err, HVD_ENOMEM);
    } else if (o->mode == HVI_MODE_DRY_RUN) {
        show_plan(o, source.text, &plan, stdout);
        status = HVI_EXIT_OK;
    } else {
        status = hvi_job_run(o, &plan);
    }
done:
    hvi_plan_fini(&plan);
    hvi_hosts_fini(&hosts);
    return status;
}

static int doctor(const struct hvi_opts *o)
{
    struct hvi_err err = {""};
    struct hvi_hosts hosts = {0};
    struct hvi_alloc alloc = {0};
    enum hvd_status rc = load_hosts(o, &hosts, &alloc, &err);
    int status = rc == HVD_OK ? hvi_doctor_run(o, &hosts) : complain(&err, rc);

    hvi_hosts_fini(&hosts);
    return status;
}

static int perform(const struct hvi_opts *o)
{
    switch (o->mode) {
    case HVI_MODE_HELP:
        hvi_optdoc_help(stdout);
        return HVI_EXIT_OK;
    case HVI_MODE_VERSION:
        puts("hvdrun " HVI_VERSION);
        return HVI_EXIT_OK;
    case HVI_MODE_CHECK_BUILD:
        return hvi_check_build(stdout);
    case HVI_MODE_MAN:
        hvi_optdoc_man(stdout);
        return HVI_EXIT_OK;
    case HVI_MODE_COMPLETION:
        hvi_optdoc_completion(stdout);
        return HVI_EXIT_OK;
    case HVI_MODE_DOCTOR:
        return doctor(o);
    case HVI_MODE_RUN:
    case HVI_MODE_DRY_RUN:
    case HVI_MODE_UNSET:
    default:
        return run(o);
    }
}

/* A pipe that became 0, 1 or 2 would be taken for the user's. */
static void fill_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= 2);
    if (fd >= 0)
        close(fd);
}

/* What started us may have blocked signals for itself, or left it to the system to reap its
 * children; we wait for both, and what asks us to end must get through. */
static void hear_signals(void)
{
    sigset_t none;

    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(int argc, char **argv)
{
    struct hvi_err err = {""};
    struct hvi_opts opts = {0};
    enum hvd_status rc;
    int status;

    struct hvi_err log_err = {""};

    hear_signals();
    if (argc > 1 && strcmp(argv[1], "attach") == 0) {
        fill_standard_fds();
        return hvi_attach_main(argc - 1, argv + 1);
    }
    rc = hvi_opts_parse(argc, argv, &opts, &err);
    fill_standard_fds();
    hvi_log_setup("hvdrun", HVI_LOG_WARN);
    if (hvi_log_check(&log_err) != HVD_OK)
        fprintf(stderr, "hvdrun: %s\n", log_err.text);
    if (rc == HVD_OK && opts.config_file != NULL)
        rc = hvi_config_load(opts.config_file, &opts, &err);
    status = rc == HVD_OK ? perform(&opts) : complain(&err, rc);
    hvi_opts_fini(&opts);
    if (fflush(stdout) != 0 && status == HVI_EXIT_OK)
        status = HVI_EXIT_NO_BYE;
    return status;
}
