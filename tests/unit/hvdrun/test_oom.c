#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "hvdrun/agent/jobenv.h"
#include "hvdrun/cli/config.h"
#include "hvdrun/hosts/hosts.h"
#include "hvdrun/io/outmux.h"
#include "hvdrun/hosts/plan.h"
#include "hvdrun/job/report.h"
#include "hvdrun/job/spec.h"
#include "hvdrun/job/verdict.h"

/* Every module, with the k-th allocation failing for each k: HVD_ENOMEM and no leak. */

static void each(enum hvd_status (*thing)(void))
{
    for (long k = 0; hvi_fault_available(); k++) {
        long blocks = hvi_fault_live_blocks();
        enum hvd_status rc;

        hvi_fault_malloc_after(k);
        rc = thing();
        if (!hvi_fault_malloc_off()) {
            cr_assert_eq(rc, HVD_OK);
            return;
        }
        cr_assert_eq(rc, HVD_ENOMEM, "allocation %ld: %d", k, (int)rc);
        cr_assert_eq(hvi_fault_live_blocks(), blocks, "allocation %ld: a leak", k);
        cr_assert_lt(k, 10000);
    }
}

static enum hvd_status parse_hosts(void)
{
    struct hvi_hosts h = {0};
    struct hvi_err err;
    enum hvd_status rc = hvi_hosts_parse(&h, "me@a:2,n[1-40]:3,b", &err);

    hvi_hosts_fini(&h);
    return rc;
}

static enum hvd_status parse_host_file(void)
{
    static const char text[] = "a slots=2\nb:3\nme@c\n";
    struct hvi_hosts h = {0};
    struct hvi_err err;
    enum hvd_status rc = hvi_hosts_parse_file(&h, "f", text, sizeof text - 1, &err);

    hvi_hosts_fini(&h);
    return rc;
}

static struct hvi_hosts hosts;

static enum hvd_status make_plan(void)
{
    struct hvi_plan_wish wish = {.np = 5};
    struct hvi_plan p = {0};
    struct hvi_err err;
    enum hvd_status rc = hvi_plan_make(&hosts, &wish, &p, &err);

    hvi_plan_fini(&p);
    return rc;
}

static struct hvi_plan plan;

static enum hvd_status make_specs(void)
{
    static char *command[] = {(char *)"x", (char *)"y", NULL};
    static char *environment[] = {(char *)"A=1", (char *)"B=2", NULL};
    static uint8_t key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    struct hvi_opts opts = {.command = command, .ncommand = 2};
    struct hvi_spec s = {.opts = &opts,
                         .plan = &plan,
                         .key = key,
                         .job_id = job_id,
                         .endpoint = "unix:/x",
                         .cwd = "/",
                         .environ = environment,
                         .master_port = 1};
    struct hvi_buf out = {0};
    struct hvi_err err;
    enum hvd_status rc = hvi_spec_agent(&s, 0, &out, &err);

    if (rc == HVD_OK)
        rc = hvi_spec_coord(&s, &out, &err);
    hvi_buf_fini(&out);
    return rc;
}

static enum hvd_status join_output(void)
{
    struct hvi_outmux m = {0};
    enum hvd_status rc = hvi_outmux_init(&m, 2, HVI_PREFIX_HOROVOD, false);

    if (rc == HVD_OK)
        rc = hvi_outmux_feed(&m, 0, 1, "a\nb", 3, 0);
    if (rc == HVD_OK)
        rc = hvi_outmux_feed(&m, 1, 2, "half", 4, 0);
    if (rc == HVD_OK)
        rc = hvi_outmux_end(&m, 1, 2);
    if (rc == HVD_OK)
        rc = hvi_outmux_say(&m, "note");
    hvi_outmux_fini(&m);
    return rc;
}

static enum hvd_status judge(void)
{
    struct hvi_verdict v = {0};
    enum hvd_status rc = hvi_verdict_init(&v, 3);

    hvi_verdict_fini(&v);
    return rc;
}

static enum hvd_status build_env(void)
{
    struct hvi_jobenv a = {0}, b = {0};
    enum hvd_status rc = HVD_OK;
    char name[16], **all = NULL;

    for (int i = 0; i < 70 && rc == HVD_OK; i++) {
        snprintf(name, sizeof name, "N%d", i);
        rc = hvi_jobenv_set(&a, name, "v");
    }
    if (rc == HVD_OK)
        all = hvi_jobenv_merge(&a, &b);
    if (rc == HVD_OK && all == NULL)
        rc = HVD_ENOMEM;
    free(all);
    hvi_jobenv_fini(&a);
    hvi_jobenv_fini(&b);
    return rc;
}

static enum hvd_status read_config(void)
{
    static const char text[] = "params:\n  cache_capacity: 4\n  cycle_time_ms: 1\n"
                               "timeline:\n  filename: f\n";
    struct hvi_opts o = {0};
    struct hvi_err err = {""};
    enum hvd_status rc = HVD_ENOMEM;

    o.given = calloc(hvi_opt_count, sizeof *o.given);
    if (o.given != NULL)
        rc = hvi_config_parse("f", text, sizeof text - 1, &o, &err);
    hvi_opts_fini(&o);
    return rc;
}

Test(oom, hosts, .timeout = 30)
{
    each(parse_hosts);
    each(parse_host_file);
}

Test(oom, plan_and_specifications, .timeout = 30)
{
    struct hvi_plan_wish wish = {.np = 5};
    struct hvi_err err;

    cr_assert_eq(hvi_hosts_parse(&hosts, "a:2,b:3", &err), HVD_OK);
    cr_assert_eq(hvi_plan_make(&hosts, &wish, &plan, &err), HVD_OK);
    each(make_plan);
    each(make_specs);
    hvi_plan_fini(&plan);
    hvi_hosts_fini(&hosts);
}

Test(oom, output_and_verdict, .timeout = 30)
{
    each(join_output);
    each(judge);
}

Test(oom, environment, .timeout = 30)
{
    each(build_env);
}

Test(oom, configuration, .timeout = 30)
{
    each(read_config);
}

Test(oom, a_report_without_memory_keeps_nothing_and_says_so, .timeout = 30)
{
    struct hvi_report r = {0};
    struct hvi_failure f = {.rank = 0, .host = "h", .exited = true, .wait_status = 256};
    struct hvi_buf out = {0};

    cr_assert_eq(hvi_report_init(&r, 1), HVD_OK);
    hvi_fault_malloc_after(0);
    hvi_report_stderr(&r, 0, "lost", 4);
    (void)hvi_fault_malloc_off();
    cr_assert_eq(hvi_report_failure(&r, &f, &out), HVD_OK);
    cr_assert_gt(hvi_buf_size(&out), 10u);
    hvi_buf_fini(&out);
    hvi_report_fini(&r);
}
