#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/cli/config.h"

static struct hvi_opts opts;
static struct hvi_err err;

static void begin(const char *a, const char *b)
{
    char *argv[] = {(char *)"hvdrun", (char *)a, (char *)b, (char *)"x", NULL};
    char *bare[] = {(char *)"hvdrun", (char *)"x", NULL};

    cr_assert_eq(a != NULL ? hvi_opts_parse(4, argv, &opts, &err)
                           : hvi_opts_parse(2, bare, &opts, &err),
                 HVD_OK);
}

static enum hvd_status use(const char *text)
{
    return hvi_config_parse("f", text, strlen(text), &opts, &err);
}

static const char *env_of(const char *name)
{
    for (size_t i = 0; i < opts.nenv; i++)
        if (strcmp(opts.env[i].name, name) == 0)
            return opts.env[i].value;
    return "(unset)";
}

Test(config, every_key_of_horovods_file_sets_its_variable, .timeout = 5)
{
    begin(NULL, NULL);
    cr_assert_eq(use("controller: mpi\n"
                     "params:\n"
                     "  fusion_threshold_mb: 8\n"
                     "  cycle_time_ms: 2.5\n"
                     "  cache_capacity: 100\n"
                     "  hierarchical_allreduce: true\n"
                     "  hierarchical_allgather: yes\n"
                     "  torus_allreduce: false\n"
                     "autotune:\n"
                     "  enabled: true\n"
                     "  log_file: log.csv\n"
                     "  warmup_samples: 1\n"
                     "  steps_per_sample: 2\n"
                     "  bayes_opt_max_samples: 3\n"
                     "  gaussian_process_noise: 0.25\n"
                     "timeline:\n"
                     "  filename: t.json\n"
                     "  mark_cycles: on\n"
                     "stall_check:\n"
                     "  enabled: false\n"
                     "  warning_time_seconds: 4\n"
                     "  shutdown_time_seconds: 40\n"
                     "library_options:\n"
                     "  mpi_threads_disable: true\n"
                     "  num_nccl_streams: 2\n"
                     "  thread_affinity: 1\n"
                     "  gloo_timeout_seconds: 60\n"
                     "logging:\n"
                     "  level: DEBUG\n"
                     "  with_timestamp: true\n"),
                 HVD_OK, "%s", err.text);
    static const char *const want[][2] = {{"FUSION_THRESHOLD", "8388608"},
                                          {"CYCLE_TIME", "2.5"},
                                          {"CACHE_CAPACITY", "100"},
                                          {"HIERARCHICAL_ALLREDUCE", "1"},
                                          {"HIERARCHICAL_ALLGATHER", "1"},
                                          {"TORUS_ALLREDUCE", "0"},
                                          {"AUTOTUNE", "1"},
                                          {"AUTOTUNE_LOG", "log.csv"},
                                          {"AUTOTUNE_WARMUP_SAMPLES", "1"},
                                          {"AUTOTUNE_STEPS_PER_SAMPLE", "2"},
                                          {"AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "3"},
                                          {"AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "0.25"},
                                          {"TIMELINE", "t.json"},
                                          {"TIMELINE_MARK_CYCLES", "1"},
                                          {"STALL_CHECK_DISABLE", "1"},
                                          {"STALL_CHECK_TIME_SECONDS", "4"},
                                          {"STALL_SHUTDOWN_TIME_SECONDS", "40"},
                                          {"MPI_THREADS_DISABLE", "1"},
                                          {"NUM_NCCL_STREAMS", "2"},
                                          {"THREAD_AFFINITY", "1"},
                                          {"GLOO_TIMEOUT_SECONDS", "60"},
                                          {"LOG_LEVEL", "DEBUG"},
                                          {"LOG_HIDE_TIME", "0"}};

    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        char name[96];

        snprintf(name, sizeof name, "HOROVOD_%s", want[i][0]);
        cr_assert_str_eq(env_of(name), want[i][1], "%s is %s", name, env_of(name));
    }
    hvi_opts_fini(&opts);
}

Test(config, the_command_line_wins, .timeout = 5)
{
    begin("--cache-capacity", "7");
    cr_assert_eq(use("params:\n  cache_capacity: 9\n  fusion_threshold_mb: 1\n"),
                 HVD_OK);
    cr_assert_str_eq(env_of("HVD_CACHE_CAPACITY"), "7");
    cr_assert_str_eq(env_of("HVD_FUSION_THRESHOLD"), "1048576");
    hvi_opts_fini(&opts);
}

Test(config, the_opposite_option_on_the_line_wins_too, .timeout = 5)
{
    char *argv[] = {(char *)"hvdrun", (char *)"--stall-check",
                    (char *)"--log-without-timestamp", (char *)"x", NULL};

    cr_assert_eq(hvi_opts_parse(4, argv, &opts, &err), HVD_OK);
    cr_assert_eq(
        use("stall_check:\n  enabled: false\nlogging:\n  with_timestamp: true\n"),
        HVD_OK);
    cr_assert_str_eq(env_of("HVD_STALL_CHECK_DISABLE"), "0");
    cr_assert_str_eq(env_of("HVD_LOG_HIDE_TIME"), "1");
    hvi_opts_fini(&opts);
}

Test(config, empty_files_and_sections_are_fine, .timeout = 5)
{
    static const char *const files[] = {"", "# nothing\n", "params:\n", "params: {}\n",
                                        "---\n...\n"};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        begin(NULL, NULL);
        cr_assert_eq(use(files[i]), HVD_OK, "%s: %s", files[i], err.text);
        cr_assert_eq(opts.nenv, 0u);
        hvi_opts_fini(&opts);
    }
}

Test(config, a_key_without_a_value_leaves_everything_as_it_is, .timeout = 5)
{
    static const char *const words[] = {"", "~", "null", "NULL"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char text[200];

        snprintf(text, sizeof text,
                 "controller: %s\ntimeline:\n  filename: %s\n  mark_cycles: %s\n"
                 "params: %s\nlogging:\n  level: %s\n",
                 words[i], words[i], words[i], words[i], words[i]);
        begin(NULL, NULL);
        cr_assert_eq(use(text), HVD_OK, "%s: %s", words[i], err.text);
        cr_assert_eq(opts.nenv, 0u);
        hvi_opts_fini(&opts);
    }
    begin(NULL, NULL);
    cr_assert_eq(use("timeline:\n  filename: \"null\"\n"), HVD_OK);
    cr_assert_str_eq(env_of("HVD_TIMELINE"), "null");
    hvi_opts_fini(&opts);
}

Test(config, a_false_sets_its_variable_as_the_no_option_does, .timeout = 5)
{
    static const char *const want[][2] = {
        {"HIERARCHICAL_ALLREDUCE", "0"}, {"HIERARCHICAL_ALLGATHER", "0"},
        {"TORUS_ALLREDUCE", "0"},        {"AUTOTUNE", "0"},
        {"TIMELINE_MARK_CYCLES", "0"},   {"STALL_CHECK_DISABLE", "0"},
        {"MPI_THREADS_DISABLE", "0"},    {"LOG_HIDE_TIME", "1"}};

    begin(NULL, NULL);
    cr_assert_eq(use("params:\n"
                     "  hierarchical_allreduce: false\n"
                     "  hierarchical_allgather: no\n"
                     "  torus_allreduce: off\n"
                     "autotune:\n"
                     "  enabled: false\n"
                     "timeline:\n"
                     "  mark_cycles: false\n"
                     "stall_check:\n"
                     "  enabled: true\n"
                     "library_options:\n"
                     "  mpi_threads_disable: false\n"
                     "logging:\n"
                     "  with_timestamp: false\n"),
                 HVD_OK, "%s", err.text);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        char name[96];

        snprintf(name, sizeof name, "HOROVOD_%s", want[i][0]);
        cr_assert_str_eq(env_of(name), want[i][1], "%s is %s", name, env_of(name));
    }
    hvi_opts_fini(&opts);
}

Test(config, the_choice_of_a_controller_says_that_it_does_nothing, .timeout = 5)
{
    static const char *const words[] = {"gloo", "mpi"};

    for (size_t i = 0; i < 2; i++) {
        char text[64];

        snprintf(text, sizeof text, "controller: %s\n", words[i]);
        begin(NULL, NULL);
        cr_assert_eq(use(text), HVD_OK, "%s", err.text);
        cr_assert_eq(opts.nnotes, 1u);
        cr_assert(strstr(opts.notes[0], words[i]) != NULL, "%s", opts.notes[0]);
        hvi_opts_fini(&opts);
    }
}

Test(config, mistakes_have_a_line, .timeout = 5)
{
    static const char *const rows[][2] = {
        {"params:\n  cache_capacity: x\n",
         "f:2: --cache-capacity: 'x' is not a whole number"},
        {"params:\n  cache: 1\n", "f:2: unknown key 'params.cache'"},
        {"np: 4\n", "f:1: unknown key 'np'"},
        {"np:\n", "f:1: unknown key 'np'"},
        {"params: 3\n", "f:1: 'params' is a section"},
        {"parms:\n  cache_capacity: 1\n",
         "f:2: unknown key 'parms'; did you mean params?"},
        {"params:\n  fusion_threshold: 1\n",
         "'params.fusion_threshold'; did you mean params.fusion_threshold_mb?"},
        {"cycle_time_ms: 1\n", "'cycle_time_ms'; did you mean params.cycle_time_ms?"},
        {"controller: nccl\n", "f:1: controller: 'nccl' is neither gloo nor mpi"},
        {"controller:\n  a: 1\n", "f:2: 'controller' has one value"},
        {"? {a: b}\n: 1\n", "f:1: a mapping is not a key"},
        {"params:\n  \"a\\nb\": 1\n", "f:2: unknown key 'params.a\\x0ab'"},
        {"timeline:\n  mark_cycles: \"a\\nb\"\n", "f:2: 'a\\x0ab' is neither"},
        {"timeline:\n  mark_cycles: perhaps\n",
         "f:2: 'perhaps' is neither true nor false"},
        {"params: [1]\n", "f:1: a list is not expected"},
        {"params:\n  cache_capacity:\n    deep: 1\n",
         "f:3: 'cache_capacity' has one value"},
        {"text\n", "f:1: 'text' is not 'section:'"},
        {"params: &a\n  cache_capacity: 1\n", "anchors are not allowed"},
        {"params:\n  cache_capacity: *a\n", "aliases are not allowed"},
        {"a: [\n", "f:"},
        {"\tx: 1\n", "f:1: "},
        {"\xff\xfe\xfd", "f:"}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(NULL, NULL);
        cr_assert_eq(use(rows[i][0]), HVD_EINVAL, "%s was accepted", rows[i][0]);
        cr_assert(strstr(err.text, rows[i][1]) != NULL, "%s: %s", rows[i][0], err.text);
        hvi_opts_fini(&opts);
    }
}

Test(config, survives_any_bytes, .timeout = 30)
{
    static const char *const bits[] = {
        "params", ":",  " ",   "\n",      "  ", "cache_capacity",
        "1",      "{",  "}",   "[",       "]",  "-",
        "&a",     "*a", "!",   "#",       "'",  "\"",
        "|",      "\t", "---", "timeline"};
    unsigned seed = 3;

    for (int round = 0; round < 3000; round++) {
        char text[256] = "";
        int n = rand_r(&seed) % 20;

        for (int i = 0; i < n; i++)
            strcat(text, bits[(size_t)rand_r(&seed) % (sizeof bits / sizeof bits[0])]);
        begin(NULL, NULL);
        (void)use(text);
        hvi_opts_fini(&opts);
    }
}
