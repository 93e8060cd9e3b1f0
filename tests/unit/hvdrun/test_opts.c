#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/cli/optnear.h"
#include "hvdrun/cli/opts.h"

#define ARGC_MAX 32

struct line {
    char text[512];
    char *argv[ARGC_MAX];
    int argc;
    struct hvi_opts opts;
    struct hvi_err err;
    enum hvd_status rc;
};

/* Splits at blanks; '_' inside a word stands for one. */
static void parse(struct line *l, const char *text)
{
    memset(l, 0, sizeof *l);
    snprintf(l->text, sizeof l->text, "hvdrun %s", text);
    for (char *w = strtok(l->text, " "); w != NULL && l->argc < ARGC_MAX - 1;
         w = strtok(NULL, " "))
        l->argv[l->argc++] = w;
    l->rc = hvi_opts_parse(l->argc, l->argv, &l->opts, &l->err);
}

static void good(struct line *l, const char *text)
{
    parse(l, text);
    cr_assert_eq(l->rc, HVD_OK, "%s: %s", text, l->err.text);
}

static void bad(const char *text, const char *part)
{
    struct line l;

    parse(&l, text);
    cr_assert_eq(l.rc, HVD_EINVAL, "%s was accepted", text);
    cr_assert(strstr(l.err.text, part) != NULL, "%s: %s", text, l.err.text);
    cr_assert_null(strchr(l.err.text, '\n'));
    cr_assert_null(l.opts.given);
}

static const char *env_of(const struct hvi_opts *o, const char *name)
{
    for (size_t i = 0; i < o->nenv; i++)
        if (strcmp(o->env[i].name, name) == 0)
            return o->env[i].value;
    return "(unset)";
}

Test(opts, all_spellings_of_a_number_of_ranks, .timeout = 5)
{
    static const char *const lines[] = {"-np 8 x",        "-n 8 x",
                                        "-n8 x",          "--num-proc 8 x",
                                        "--num-proc=8 x", "-np 2 -np 8 x"};
    struct line l;

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        good(&l, lines[i]);
        cr_assert_eq(l.opts.np, 8, "%s gave %d", lines[i], l.opts.np);
        cr_assert_eq(l.opts.ncommand, 1);
        hvi_opts_fini(&l.opts);
    }
}

Test(opts, parsing_stops_at_the_program, .timeout = 5)
{
    struct line l;

    good(&l, "-np 2 ./train --np 3 --help -x a --");
    cr_assert_eq(l.opts.np, 2);
    cr_assert_eq(l.opts.ncommand, 7);
    cr_assert_str_eq(l.opts.command[0], "./train");
    cr_assert_str_eq(l.opts.command[6], "--");
    cr_assert_null(l.opts.command[7]);
    cr_assert_eq((int)l.opts.mode, (int)HVI_MODE_RUN);
    hvi_opts_fini(&l.opts);
    good(&l, "-np 2 -- --strange-name y");
    cr_assert_eq(l.opts.ncommand, 2);
    cr_assert_str_eq(l.opts.command[0], "--strange-name");
    hvi_opts_fini(&l.opts);
}

Test(opts, defaults, .timeout = 5)
{
    struct line l;

    good(&l, "x");
    cr_assert_eq(l.opts.np, 0);
    cr_assert_eq(l.opts.stdin_rank, 0);
    cr_assert_eq(l.opts.grace_ms, HVI_GRACE_DEFAULT_MS);
    cr_assert_eq(l.opts.timeout_ms, 0);
    cr_assert_eq(l.opts.start_timeout_ms, 0);
    cr_assert_eq((int)l.opts.prefix, (int)HVI_PREFIX_HOROVOD);
    cr_assert_eq(l.opts.nenv, 0u);
    cr_assert_eq(l.opts.nnotes, 0u);
    hvi_opts_fini(&l.opts);
}

Test(opts, tuning_flags_become_both_variables, .timeout = 5)
{
    struct line l;

    good(&l, "--fusion-threshold-mb 2 --cycle-time-ms 0.5 --no-stall-check "
             "--timeline-filename t x");
    cr_assert_str_eq(env_of(&l.opts, "HVD_FUSION_THRESHOLD"), "2097152");
    cr_assert_str_eq(env_of(&l.opts, "HOROVOD_FUSION_THRESHOLD"), "2097152");
    cr_assert_str_eq(env_of(&l.opts, "HOROVOD_CYCLE_TIME"), "0.5");
    cr_assert_str_eq(env_of(&l.opts, "HOROVOD_STALL_CHECK_DISABLE"), "1");
    cr_assert_str_eq(env_of(&l.opts, "HVD_TIMELINE"), "t");
    cr_assert_str_eq(hvi_opts_env(&l.opts, "FUSION_THRESHOLD"), "2097152");
    cr_assert_eq(l.opts.nnotes, 1u); /* the cycle */
    hvi_opts_fini(&l.opts);
}

Test(opts, a_later_variable_wins, .timeout = 5)
{
    struct line l;

    good(&l, "-x A=1 -x A=2=3 --cache-capacity 4 --cache-capacity 5 -x "
             "HVD_CACHE_CAPACITY=6 x");
    cr_assert_str_eq(env_of(&l.opts, "A"), "2=3");
    cr_assert_str_eq(env_of(&l.opts, "HVD_CACHE_CAPACITY"), "6");
    cr_assert_str_eq(env_of(&l.opts, "HOROVOD_CACHE_CAPACITY"), "5");
    hvi_opts_fini(&l.opts);
}

Test(opts, the_environment_counts_where_no_option_does, .timeout = 5)
{
    struct line l;

    setenv("HOROVOD_CACHE_CAPACITY", "11", 1);
    unsetenv("HVD_CACHE_CAPACITY");
    good(&l, "x");
    cr_assert_str_eq(hvi_opts_env(&l.opts, "CACHE_CAPACITY"), "11");
    hvi_opts_fini(&l.opts);
    good(&l, "--cache-capacity 12 x");
    cr_assert_str_eq(hvi_opts_env(&l.opts, "CACHE_CAPACITY"), "12");
    hvi_opts_fini(&l.opts);
    good(&l, "-x HOROVOD_CACHE_CAPACITY=13 x");
    cr_assert_str_eq(hvi_opts_env(&l.opts, "CACHE_CAPACITY"), "13");
    hvi_opts_fini(&l.opts);
    unsetenv("HOROVOD_CACHE_CAPACITY");
}

Test(opts, x_passes_a_set_variable_and_notes_an_unset_one, .timeout = 5)
{
    struct line l;

    setenv("HVI_TEST_X", "v", 1);
    unsetenv("HVI_TEST_Y");
    good(&l, "-x HVI_TEST_X -x HVI_TEST_Y -x NCCL_* x");
    cr_assert_str_eq(env_of(&l.opts, "HVI_TEST_X"), "v");
    cr_assert_eq(l.opts.nnotes, 1u);
    cr_assert(strstr(l.opts.notes[0], "HVI_TEST_Y") != NULL);
    hvi_opts_fini(&l.opts);
}

Test(opts, ranks_are_listed_one_by_one_or_in_runs, .timeout = 5)
{
    static const char *const wrong[] = {"",     ",",     "x",   "1,", "-1",  "3-1",
                                        "1--2", "1-2-3", "0x1", "5",  "1-5", "1 "};
    bool out[5] = {false};
    struct hvi_err err;

    cr_assert_eq(hvi_opts_ranks("--only-rank", "0,2-3", 5, out, &err), HVD_OK);
    cr_assert(out[0] && !out[1] && out[2] && out[3] && !out[4]);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert_eq(hvi_opts_ranks("--only-rank", wrong[i], 5, out, &err), HVD_EINVAL,
                     "'%s'", wrong[i]);
        cr_assert_not_null(strstr(err.text, "--only-rank"), "%s", err.text);
    }
}

Test(opts, what_is_for_ssh, .timeout = 5)
{
    struct line l;

    good(&l, "-p 2222 -i /k --ssh-arg -v --ssh-arg=-oUser=me --ssh-arg -J_x x");
    cr_assert_eq(l.opts.ssh_port, 2222);
    cr_assert_str_eq(l.opts.ssh_identity, "/k");
    cr_assert_eq(l.opts.nssh_args, 3u);
    cr_assert_str_eq(l.opts.ssh_args[0], "-v");
    cr_assert_str_eq(l.opts.ssh_args[1], "-oUser=me");
    cr_assert_eq(l.opts.ncommand, 1);
    hvi_opts_fini(&l.opts);
    good(&l, "--ssh-port 1 --ssh-identity-file /k x");
    cr_assert_eq(l.opts.ssh_port, 1);
    hvi_opts_fini(&l.opts);
    bad("-p 0 x", "ssh-port: 0 is out of range");
    bad("-p 65536 x", "ssh-port: 65536 is out of range");
    bad("--ssh-arg", "needs an argument");
}

Test(opts, interfaces_add_up, .timeout = 5)
{
    struct line l;

    good(&l, "--network-interface a,b --network-interfaces c x");
    cr_assert_str_eq(l.opts.interfaces, "a,b,c");
    cr_assert_str_eq(env_of(&l.opts, "HOROVOD_GLOO_IFACE"), "a");
    cr_assert_str_eq(env_of(&l.opts, "NCCL_SOCKET_IFNAME"), "a,b,c");
    hvi_opts_fini(&l.opts);
}

Test(opts, times_have_units, .timeout = 5)
{
    static const struct {
        const char *text;
        int64_t ms;
    } rows[] = {{"90", 90000},   {"90s", 90000}, {"1.5m", 90000},
                {"2h", 7200000}, {"250ms", 250}, {"0", 0}};
    struct hvi_err err;
    int64_t ms;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_assert_eq(hvi_opts_parse_time("t", rows[i].text, &ms, &err), HVD_OK);
        cr_assert_eq(ms, rows[i].ms, "%s", rows[i].text);
    }
    for (const char *const *p = (const char *const[]){"", "x", "-1", "1d", "1 s", "nan",
                                                      "inf", "1e99", "s", "0x2", NULL};
         *p != NULL; p++)
        cr_assert_eq(hvi_opts_parse_time("t", *p, &ms, &err), HVD_EINVAL, "'%s'", *p);
}

Test(opts, modes, .timeout = 5)
{
    static const struct {
        const char *line;
        enum hvi_mode mode;
    } rows[] = {{"--help", HVI_MODE_HELP},
                {"-h", HVI_MODE_HELP},
                {"--version", HVI_MODE_VERSION},
                {"-v", HVI_MODE_VERSION},
                {"-v --help", HVI_MODE_HELP},
                {"-cb", HVI_MODE_CHECK_BUILD},
                {"--check-build", HVI_MODE_CHECK_BUILD},
                {"--dry-run -np 2 x", HVI_MODE_DRY_RUN},
                {"--generate-man", HVI_MODE_MAN},
                {"--generate-completion", HVI_MODE_COMPLETION}};
    struct line l;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        good(&l, rows[i].line);
        cr_assert_eq((int)l.opts.mode, (int)rows[i].mode, "%s", rows[i].line);
        hvi_opts_fini(&l.opts);
    }
}

Test(opts, mistakes_are_named, .timeout = 5)
{
    bad("", "no program to run");
    bad("-np 2", "no program to run");
    bad("--wrong x", "unknown option '--wrong'");
    bad("-Q x", "unknown option '-Q'");
    bad("-np", "option '-np' needs an argument");
    bad("--verbose=3 x", "takes no argument");
    bad("-np 0 x", "-np: 0 is out of range (1 to 1024)");
    bad("-np 3x x", "-np: '3x' is not a whole number");
    bad("--cache-capacity -1 x", "--cache-capacity: -1 is out of range");
    bad("--cycle-time-ms x x", "--cycle-time-ms: 'x' is not a number");
    bad("--autotune-gaussian-process-noise 1.5 x", "out of range (0 to 1)");
    bad("--prefix loud x", "--prefix: 'loud' is not one of: horovod rank none");
    bad("--stdin 1 x", "is not one of");
    bad("--grace forever x", "is not a time");
    bad("--grace nan x", "is not a time");
    bad("--grace 1e10 x", "--grace: '1e10' is out of range (0 to 1000000000 s)");
    bad("--grace 1e7h x", "--grace: '1e7h' is out of range (0 to 1000000000 s)");
    bad("--grace -1 x", "--grace: '-1' is out of range (0 to 1000000000 s)");
    bad("-x =3 x", "no name before the '='");
    bad("-H a --hostfile b x", "exclude each other");
    bad("-np 2 --json x", "--json needs --dry-run");
    bad("--timeline-filename= x", "the argument is empty");
}

Test(opts, elastic_wishes_are_refused_in_one_line, .timeout = 5)
{
    bad("--host-discovery-script d x", "--host-discovery-script: not yet: elastic");
    bad("-np 2 --min-np 2 --max-np 2 x", "--min-np: not yet: elastic");
    bad("--min-num-proc 2 x", "--min-np: not yet");
    bad("--max-np 4 x", "--max-np: not yet");
    bad("--slots-per-host 4 x", "--slots-per-host: not yet");
    bad("--elastic-timeout 4 x", "--elastic-timeout: not yet");
    bad("--reset-limit 4 x", "--reset-limit: not yet");
    bad("--blacklist-cooldown-range 1 10 x", "--blacklist-cooldown-range: not yet");
    bad("--min-np many x", "--min-np: 'many' is not a whole number");
}

Test(opts, a_wrong_option_is_answered_with_the_nearest, .timeout = 5)
{
    static const struct {
        const char *word, *want;
    } rows[] = {
        {"--hostsfile", "--hostfile"},
        {"--host-file", "--hostfile"},
        {"--hostfiel", "--hostfile"},
        {"--host", "--hosts"},
        {"--hots=a:4", "--hosts"},
        {"-hosts", "--hosts"},
        {"--num-procs", "--num-proc"},
        {"--timeot", "--timeout"},
        {"--timeline", "--timeline-filename"},
        {"--output-filenames", "--output-filename"},
        {"--dryrun", "--dry-run"},
        {"--over-subscribe", "--oversubscribe"},
        {"--network-iface", "--network-interface"},
        {"--cycle-time", "--cycle-time-ms"},
        {"--np", "-np"},
    };
    static const char *const none[] = {
        "--zzzzzzzz",
        "-Q",
        "--",
        "",
        "--qwertyuiop=hosts",
        "--ggggggggggggggggggggggggggggggggggggggggggggggg"
        "gggggggggggggggggggggggggggggggggggggggggggg"};
    char room[64];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *got = hvi_opt_near(rows[i].word, room, sizeof room);

        cr_assert(got != NULL && strcmp(got, rows[i].want) == 0, "%s gave %s",
                  rows[i].word, got != NULL ? got : "nothing");
    }
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        cr_assert_null(hvi_opt_near(none[i], room, sizeof room), "'%s' gave %s",
                       none[i], room);
    bad("--hostsfile x", "unknown option '--hostsfile'; did you mean --hostfile?");
    bad("-hosts a:4 x", "did you mean --hosts?");
}

Test(opts, every_row_can_be_used_and_told_apart, .timeout = 10)
{
    for (size_t i = 0; i < hvi_opt_count; i++) {
        const struct hvi_opt *a = &hvi_opt_table[i];

        cr_assert(a->help != NULL && a->help[0] != '\0', "--%s", a->name);
        cr_assert_neq(a->help[strlen(a->help) - 1], '.', "--%s: full stop", a->name);
        cr_assert_gt((int)a->section, 0, "--%s", a->name);
        cr_assert_not((a->arg == HVI_ARG_WORD) != (a->words != NULL), "--%s", a->name);
        cr_assert_not(a->env != NULL && a->arg == HVI_ARG_NONE && a->env_value == NULL,
                      "--%s", a->name);
        cr_assert_not((a->arg == HVI_ARG_INT || a->arg == HVI_ARG_REAL) &&
                          a->max <= a->min,
                      "--%s", a->name);
        for (size_t k = i + 1; k < hvi_opt_count; k++) {
            const struct hvi_opt *b = &hvi_opt_table[k];

            cr_assert_str_neq(a->name, b->name);
            cr_assert_not(a->letter != '\0' && a->letter == b->letter, "--%s and --%s",
                          a->name, b->name);
            cr_assert_not(a->also != NULL && strcmp(a->also, b->name) == 0, "--%s",
                          b->name);
        }
    }
}
