#include "test.h"

#include <stdio.h>
#include <string.h>

#include "hvdrun/doctor/facts.h"

#define M HVI_FACTS_MARK

static struct hvi_checks checks;

static bool judge(const char *text)
{
    memset(&checks, 0, sizeof checks);
    return hvi_facts_judge(text, 1000.0, 0.3, &checks);
}

static const struct hvi_check *named(const char *name)
{
    for (size_t i = 0; i < checks.n; i++)
        if (strcmp(checks.list[i].name, name) == 0)
            return &checks.list[i];
    cr_assert_fail("no check named %s", name);
    return &checks.list[0];
}

Test(facts, good_host_is_ok, .timeout = 5)
{
    cr_assert(judge("Welcome!\r\n" M "version " HVI_VERSION "\n" M "time 999.9\r\n" M
                    "nofile 1024 4096 0\n" M "memlock 65536 65536 0\n" M
                    "shm 1073741824 1073741824\n" M "rundir ok /tmp\n" M
                    "nic eth0 10.0.0.2\n" M "nic ib0 10.1.0.2\n" M
                    "back 10.0.0.9 failed Connection refused\n" M
                    "back 10.0.0.1 ok 1\n" M "end\n"));
    cr_assert_eq(hvi_checks_worst(&checks), HVI_CHECK_OK);
    cr_assert_str_eq(named("networks")->detail, "eth0 10.0.0.2, ib0 10.1.0.2");
    cr_assert_str_eq(named("call back")->detail, "10.0.0.1 answers 1 ms");
}

Test(facts, what_hurts_has_a_fix, .timeout = 5)
{
    static const struct {
        const char *line, *check;
        enum hvi_check_result want;
    } rows[] = {
        {M "version 0.0.9\n", "version", HVI_CHECK_FAILED},
        {M "time 990.0\n", "clock", HVI_CHECK_WARNING},
        {M "time 1010.0\n", "clock", HVI_CHECK_WARNING},
        {M "time 999.7\n", "clock", HVI_CHECK_OK},
        {M "nofile 256 256 0\n", "open files", HVI_CHECK_WARNING},
        {M "nofile 256 4096 0\n", "open files", HVI_CHECK_OK},
        {M "nofile -1 -1 0\n", "open files", HVI_CHECK_OK},
        {M "memlock 65536 65536 2\n", "locked memory", HVI_CHECK_WARNING},
        {M "shm 67108864 67108864\n", "/dev/shm", HVI_CHECK_WARNING},
        {M "shm 1073741824 1000\n", "/dev/shm", HVI_CHECK_WARNING},
        {M "shm No such file or directory\n", "/dev/shm", HVI_CHECK_WARNING},
        {M "rundir failed /tmp: Read-only\n", "runtime directory", HVI_CHECK_FAILED},
        {M "wdir failed /x: No such file\n", "working directory", HVI_CHECK_FAILED},
        {M "program failed ./x: No such file\n", "program", HVI_CHECK_FAILED},
        {M "nccl failed not found\n", "NCCL", HVI_CHECK_WARNING},
        {M "back 10.0.0.1 failed no answer\n", "call back", HVI_CHECK_FAILED},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cr_assert_not(judge(rows[i].line), "%s has no end", rows[i].line);
        cr_assert_eq(checks.n, 1u, "%s", rows[i].line);
        cr_assert_eq(named(rows[i].check)->result, rows[i].want, "%s", rows[i].line);
        cr_assert_eq(checks.list[0].fix[0] != '\0', rows[i].want != HVI_CHECK_OK, "%s",
                     rows[i].line);
    }
}

Test(facts, nonsense_is_survived, .timeout = 5)
{
    static const char *const texts[] = {"",         "\n",         M,
                                        M "\n",     M "back\n",   M "back x\n",
                                        M "time\n", M "nofile\n", M "\033[1m x\n"};
    char big[70000];

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        cr_assert_not(judge(texts[i]));
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    memcpy(big, M "version ", strlen(M "version "));
    cr_assert_not(judge(big));
    memset(&checks, 0, sizeof checks);
    for (int i = 0; i < 2 * HVI_CHECKS_MAX; i++)
        hvi_checks_add(&checks, "x", HVI_CHECK_OK, "\033[31m", "");
    cr_assert_eq(checks.n, (size_t)HVI_CHECKS_MAX);
    cr_assert_null(strchr(checks.list[0].detail, '\033'));
}
