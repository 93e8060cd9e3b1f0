#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "hvdrun/job/spec.h"

static uint8_t key[HVI_KEY_BYTES] = {1, 2, 3}, job_id[HVI_JOB_ID_BYTES] = {9};
static char *command[] = {(char *)"./train", (char *)"a b", NULL};
static char *environment[] = {(char *)"PATH=/bin",
                              (char *)"OLDPWD=/x",
                              (char *)"BASH_FUNC_f%%=() { :; }",
                              (char *)"HVD_RANK=77",
                              (char *)"CUDA_VISIBLE_DEVICES=1",
                              (char *)"HVD_KEY_FILE=/k",
                              (char *)"STRANGE",
                              (char *)"MASTER_PORT=5",
                              NULL};

struct job {
    struct hvi_hosts hosts;
    struct hvi_plan plan;
    struct hvi_opts opts;
    struct hvi_spec spec;
};

static void begin(struct job *j, const char *hosts, int np)
{
    struct hvi_plan_wish wish = {.np = np};
    struct hvi_err err;

    memset(j, 0, sizeof *j);
    cr_assert_eq(hvi_hosts_parse(&j->hosts, hosts, &err), HVD_OK);
    cr_assert_eq(hvi_plan_make(&j->hosts, &wish, &j->plan, &err), HVD_OK);
    j->opts.command = command;
    j->opts.ncommand = 2;
    j->spec = (struct hvi_spec){.opts = &j->opts,
                                .plan = &j->plan,
                                .key = key,
                                .job_id = job_id,
                                .endpoint = "unix:/x/coord",
                                .cwd = "/here",
                                .environ = environment,
                                .master_port = 4711};
}

static void end(struct job *j)
{
    hvi_plan_fini(&j->plan);
    hvi_hosts_fini(&j->hosts);
}

/* Takes the one frame in b apart. */
static void *body_of(struct hvi_buf *b, struct hvi_msg *msg)
{
    uint32_t type;
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    struct hvi_err err;

    cr_assert_eq(hvi_frame_peek(hvi_buf_peek(b), hvi_buf_size(b), &type, &payload,
                                &payload_bytes, &frame_bytes, &err),
                 HVD_OK);
    cr_assert_eq(frame_bytes, hvi_buf_size(b));
    cr_assert_eq(hvi_msg_get(type, payload, payload_bytes, msg, &err), HVD_OK);
    return msg->body;
}

/* The last setting of a name, as the agent takes it; NULL: none. */
static const char *value(Hvi__EnvVar *const *list, size_t n, const char *name)
{
    static char text[64];
    const char *found = NULL;

    for (size_t i = 0; i < n; i++) {
        if (list[i]->name.len != strlen(name) ||
            memcmp(list[i]->name.data, name, strlen(name)) != 0)
            continue;
        memcpy(text, list[i]->value.data, list[i]->value.len);
        text[list[i]->value.len] = '\0';
        found = text;
    }
    return found;
}

Test(spec, a_host_gets_its_ranks_and_their_variables, .timeout = 5)
{
    struct job j;
    struct hvi_buf frame = {0};
    struct hvi_msg msg;
    struct hvi_err err = {""};
    Hvi__JobSpec *s;

    begin(&j, "a:2,b:1", 3);
    cr_assert_eq(hvi_spec_agent(&j.spec, 1, &frame, &err), HVD_OK, "%s", err.text);
    s = body_of(&frame, &msg);
    cr_assert_eq(s->n_ranks, 1u);
    cr_assert_eq(s->ranks[0]->rank, 2);
    cr_assert_eq(s->ranks[0]->local_rank, 0);
    cr_assert_eq(s->n_argv, 2u);
    cr_assert_eq(s->argv[1].len, 3u);
    cr_assert_eq(s->key.len, (size_t)HVI_KEY_BYTES);
    cr_assert_str_eq(s->host, "b");
    cr_assert_str_eq(value(s->ranks[0]->env, s->ranks[0]->n_env, "HVD_RANK"), "2");
    cr_assert_str_eq(value(s->ranks[0]->env, s->ranks[0]->n_env, "HOROVOD_CROSS_RANK"),
                     "1");
    cr_assert_str_eq(value(s->ranks[0]->env, s->ranks[0]->n_env, "HOROVOD_CROSS_SIZE"),
                     "2");
    cr_assert_str_eq(value(s->env, s->n_env, "HOROVOD_SIZE"), "3");
    cr_assert_str_eq(value(s->env, s->n_env, "HVD_LOCAL_SIZE"), "1");
    cr_assert_str_eq(value(s->env, s->n_env, "HOROVOD_HOSTNAME"), "b");
    cr_assert_str_eq(value(s->env, s->n_env, "PATH"), "/bin");
    cr_assert_str_eq(value(s->env, s->n_env, "MASTER_PORT"), "5"); /* the user's */
    cr_assert_str_eq(value(s->env, s->n_env, "MASTER_ADDR"), "127.0.0.1");
    cr_assert_null(value(s->env, s->n_env, "OLDPWD"));
    cr_assert_null(value(s->env, s->n_env, "CUDA_VISIBLE_DEVICES"));
    cr_assert_null(value(s->env, s->n_env, "HVD_KEY_FILE"));
    cr_assert_null(value(s->env, s->n_env, "BASH_FUNC_f%%"));
    hvi_msg_free(&msg);
    hvi_buf_fini(&frame);
    end(&j);
}

Test(spec, without_the_environment_only_what_was_asked_for_goes, .timeout = 5)
{
    char glob[] = "CUDA_*";
    char *globs[] = {glob};
    struct job j;
    struct hvi_buf b = {0};
    struct hvi_msg msg;
    struct hvi_err err;
    Hvi__JobSpec *m;

    begin(&j, "localhost:2", 2);
    j.opts.no_env = true;
    j.opts.env_globs = globs;
    j.opts.nenv_globs = 1;
    cr_assert_eq(hvi_spec_agent(&j.spec, 0, &b, &err), HVD_OK, "%s", err.text);
    m = body_of(&b, &msg);
    cr_assert_str_eq(value(m->env, m->n_env, "PATH"), "/bin");
    cr_assert_str_eq(value(m->env, m->n_env, "CUDA_VISIBLE_DEVICES"), "1");
    cr_assert_str_eq(value(m->env, m->n_env, "MASTER_PORT"), "4711");
    cr_assert_null(value(m->env, m->n_env, "HVD_RANK"));
    hvi_msg_free(&msg);
    hvi_buf_fini(&b);
    end(&j);
}

Test(spec, a_remote_host_gets_nothing_of_this_login, .timeout = 5)
{
    static char *login[] = {(char *)"HOME=/home/me",
                            (char *)"SSH_AUTH_SOCK=/tmp/x",
                            (char *)"XDG_RUNTIME_DIR=/run/user/1",
                            (char *)"PATH=/bin",
                            (char *)"TERM=vt100",
                            NULL};
    struct job j;
    struct hvi_buf frame = {0};
    struct hvi_msg msg;
    struct hvi_err err = {""};
    Hvi__JobSpec *s;

    begin(&j, "a:1,b:1", 2);
    j.plan.host[1].remote = true;
    j.spec.environ = login;
    j.spec.master_addr = "10.0.0.1";
    for (size_t host = 0; host < 2; host++) {
        cr_assert_eq(hvi_spec_agent(&j.spec, host, &frame, &err), HVD_OK, "%s",
                     err.text);
        s = body_of(&frame, &msg);
        cr_assert_eq(value(s->env, s->n_env, "HOME") != NULL, host == 0);
        cr_assert_eq(value(s->env, s->n_env, "SSH_AUTH_SOCK") != NULL, host == 0);
        cr_assert_eq(value(s->env, s->n_env, "XDG_RUNTIME_DIR") != NULL, host == 0);
        cr_assert_str_eq(value(s->env, s->n_env, "PATH"), "/bin");
        cr_assert_str_eq(value(s->env, s->n_env, "TERM"), "vt100");
        cr_assert_str_eq(value(s->env, s->n_env, "MASTER_ADDR"), "10.0.0.1");
        hvi_msg_free(&msg);
        hvi_buf_clear(&frame);
    }
    hvi_buf_fini(&frame);
    end(&j);
}

Test(spec, the_largest_job_fits_one_message, .timeout = 10)
{
    struct job j;
    struct hvi_buf frame = {0};
    struct hvi_msg msg;
    struct hvi_err err = {""};

    begin(&j, "localhost:1024", 1024);
    cr_assert_eq(hvi_spec_agent(&j.spec, 0, &frame, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(((Hvi__JobSpec *)body_of(&frame, &msg))->n_ranks, 1024u);
    hvi_msg_free(&msg);
    hvi_buf_clear(&frame);
    cr_assert_eq(hvi_spec_coord(&j.spec, &frame, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(((Hvi__CoordConfig *)body_of(&frame, &msg))->n_slots, 1024u);
    hvi_msg_free(&msg);
    hvi_buf_fini(&frame);
    end(&j);
}

Test(spec, an_environment_that_does_not_fit_is_a_clear_error, .timeout = 5)
{
    static char big[3 * 1024 * 1024];
    char *env[] = {big, NULL};
    struct job j;
    struct hvi_buf frame = {0};
    struct hvi_err err = {""};

    memset(big, 'x', sizeof big - 1);
    memcpy(big, "BIG=", 4);
    begin(&j, "localhost:1", 1);
    j.spec.environ = env;
    cr_assert_eq(hvi_spec_agent(&j.spec, 0, &frame, &err), HVD_ELIMIT);
    cr_assert(strstr(err.text, "do not fit into 1 MiB") != NULL, "%s", err.text);
    cr_assert_eq(hvi_buf_size(&frame), 0u);
    hvi_buf_fini(&frame);
    end(&j);
}

static void clear_settings(void)
{
    static const char *const names[] = {"FUSION_THRESHOLD",
                                        "CACHE_CAPACITY",
                                        "STALL_CHECK_DISABLE",
                                        "STALL_CHECK_TIME_SECONDS",
                                        "STALL_SHUTDOWN_TIME_SECONDS",
                                        "START_TIMEOUT"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char full[64] = "HVD_";

        unsetenv(strcat(full, names[i]));
        strcpy(full, "HOROVOD_");
        unsetenv(strcat(full, names[i]));
    }
}

Test(spec, the_coordinators_settings_have_defaults_and_come_from_the_environment,
     .timeout = 5)
{
    struct hvi_opts opts = {0};
    Hvi__CoordConfig c = HVI__COORD_CONFIG__INIT;
    struct hvi_err err = {""};

    clear_settings();
    cr_assert_eq(hvi_spec_settings(&opts, &c, &err), HVD_OK);
    cr_assert_eq(c.start_timeout_ms, 30000u);
    cr_assert_eq(c.stall_warn_ms, 10000u);
    cr_assert_eq(c.stall_shutdown_ms, 0u);
    cr_assert_eq(c.fusion_bytes, 64u << 20);
    setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "3", 1);
    setenv("HVD_STALL_SHUTDOWN_TIME_SECONDS", "5", 1);
    setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "6", 1);
    setenv("HOROVOD_FUSION_THRESHOLD", "0", 1);
    setenv("HOROVOD_START_TIMEOUT", "7", 1);
    cr_assert_eq(hvi_spec_settings(&opts, &c, &err), HVD_OK);
    cr_assert_eq(c.stall_warn_ms, 3000u);
    cr_assert_eq(c.stall_shutdown_ms, 5000u);
    cr_assert_eq(c.fusion_bytes, 1u); /* no fusion */
    cr_assert_eq(c.start_timeout_ms, 7000u);
    opts.start_timeout_ms = 250;
    setenv("HVD_STALL_CHECK_DISABLE", "1", 1);
    cr_assert_eq(hvi_spec_settings(&opts, &c, &err), HVD_OK);
    cr_assert_eq(c.start_timeout_ms, 250u);
    cr_assert_eq(c.stall_warn_ms, 0u);
    setenv("HVD_CACHE_CAPACITY", "many", 1);
    cr_assert_eq(hvi_spec_settings(&opts, &c, &err), HVD_EINVAL);
    cr_assert(strstr(err.text, "HVD_CACHE_CAPACITY") != NULL, "%s", err.text);
    clear_settings();
}

Test(spec, nothing_hurries_a_job_under_a_debugger, .timeout = 5)
{
    Hvi__CoordConfig config = HVI__COORD_CONFIG__INIT;
    struct hvi_buf b = {0};
    struct hvi_msg msg;
    struct hvi_err err;
    const Hvi__JobSpec *m;
    struct job j;

    clear_settings();
    setenv("HVD_STALL_SHUTDOWN_TIME_SECONDS", "9", 1);
    begin(&j, "localhost:4", 4);
    j.opts.debug = (char *)"1,3";
    j.opts.wait_debug = (char *)"2";
    j.opts.debugger = (char *)"gdb -q";
    cr_assert_eq(hvi_spec_settings(&j.opts, &config, &err), HVD_OK);
    cr_assert_eq(config.start_timeout_ms, 7u * 86400 * 1000);
    cr_assert_eq(config.stall_shutdown_ms, 0);
    cr_assert_eq(config.stall_warn_ms, 0);
    cr_assert_eq(hvi_spec_agent(&j.spec, 0, &b, &err), HVD_OK);
    m = body_of(&b, &msg);
    cr_assert_eq(m->n_debugger, 3);
    cr_assert_eq(memcmp(m->debugger[2].data, "--args", 6), 0);
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(m->ranks[i]->debug, i == 2 ? 2 : i % 2);
    cr_assert_str_eq(value(m->env, m->n_env, "HVD_START_TIMEOUT"), "604800");
    cr_assert_str_eq(value(m->env, m->n_env, "HVD_NCCL_TIMEOUT_SECONDS"), "0");
    hvi_msg_free(&msg);
    hvi_buf_fini(&b);
    j.opts.start_timeout_ms = 5000; /* what was asked for counts */
    cr_assert_eq(hvi_spec_settings(&j.opts, &config, &err), HVD_OK);
    cr_assert_eq(config.start_timeout_ms, 5000);
    clear_settings();
    end(&j);
}
