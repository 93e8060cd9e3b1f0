#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/jobenv.h"
#include "hvdrun/io/procstat.h"

Test(jobenv, a_later_setting_replaces_an_earlier, .timeout = 5)
{
    struct hvi_jobenv e = {0}, own = {0};
    char **all;

    cr_assert_eq(hvi_jobenv_set(&e, "A", "1"), HVD_OK);
    cr_assert_eq(hvi_jobenv_set(&e, "AB", "2"), HVD_OK);
    cr_assert_eq(hvi_jobenv_set(&e, "A", ""), HVD_OK);
    cr_assert_eq(e.n, 2u);
    cr_assert_str_eq(hvi_jobenv_get(&e, "A"), "");
    cr_assert_str_eq(hvi_jobenv_get(&e, "AB"), "2");
    cr_assert_null(hvi_jobenv_get(&e, "B"));
    cr_assert_null(e.vars[2]);
    cr_assert_eq(hvi_jobenv_set(&own, "C", "3"), HVD_OK);
    cr_assert_eq(hvi_jobenv_set(&own, "AB", "4"), HVD_OK);
    all = hvi_jobenv_merge(&e, &own);
    cr_assert_not_null(all);
    cr_assert_str_eq(all[0], "A=");
    cr_assert_str_eq(all[1], "AB=4");
    cr_assert_str_eq(all[2], "C=3");
    cr_assert_null(all[3]);
    cr_assert_str_eq(hvi_jobenv_get(&e, "AB"), "2");
    free(all);
    hvi_jobenv_fini(&e);
    all = hvi_jobenv_merge(&e, &e);
    cr_assert_null(all[0]);
    free(all);
    hvi_jobenv_fini(&own);
}

Test(jobenv, holds_many, .timeout = 5)
{
    struct hvi_jobenv e = {0};
    char name[16];

    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "N%d", i);
        cr_assert_eq(hvi_jobenv_set(&e, name, name), HVD_OK);
    }
    cr_assert_eq(e.n, 1000u);
    cr_assert_str_eq(hvi_jobenv_get(&e, "N999"), "N999");
    cr_assert_null(e.vars[1000]);
    hvi_jobenv_fini(&e);
}

Test(jobenv, refuses_what_no_environment_can_hold, .timeout = 5)
{
    struct hvi_jobenv e = {0};

    cr_assert_eq(hvi_jobenv_put(&e, "", 0, "x", 1), HVD_EINVAL);
    cr_assert_eq(hvi_jobenv_put(&e, "a=b", 3, "x", 1), HVD_EINVAL);
    cr_assert_eq(hvi_jobenv_put(&e, "a\0b", 3, "x", 1), HVD_EINVAL);
    cr_assert_eq(hvi_jobenv_put(&e, "a", 1, "x\0y", 3), HVD_EINVAL);
    cr_assert_eq(hvi_jobenv_put(&e, "a", 1, NULL, 0), HVD_OK);
    cr_assert_str_eq(hvi_jobenv_get(&e, "a"), "");
    hvi_jobenv_fini(&e);
}

Test(procstat, words_for_states_and_for_damage, .timeout = 5)
{
    cr_assert_str_eq(hvi_procstat_parse("12 (a) R 1"), "running");
    cr_assert_str_eq(hvi_procstat_parse("12 (a) b) S 1"), "sleeping");
    cr_assert_str_eq(hvi_procstat_parse("12 ((R) T) D 1"), "waiting for disk");
    cr_assert_str_eq(hvi_procstat_parse("12 (a) T 1"), "stopped");
    cr_assert_str_eq(hvi_procstat_parse("12 (a) t 1"), "traced");
    cr_assert_str_eq(hvi_procstat_parse("12 (a) Z 1"), "zombie");
    cr_assert_str_eq(hvi_procstat_parse("12 (a)"), "unknown");
    cr_assert_str_eq(hvi_procstat_parse(""), "unknown");
    cr_assert_str_eq(hvi_procstat_parse("12 (a) ? 1"), "unknown");
    cr_assert_str_eq(hvi_procstat(1 << 30), "gone");
}

Test(procstat, names_who_traces_a_process, .timeout = 5)
{
    char text[HVI_PROCSTAT_WORDS_MAX], want[HVI_PROCSTAT_WORDS_MAX], self[32];
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSTOPPED(status));
    cr_assert_eq(prctl(PR_GET_NAME, self), 0);
    snprintf(want, sizeof want, "traced by %s (pid %d)", self, (int)getpid());
    cr_assert_eq(hvi_procstat_tracer(pid), getpid());
    cr_assert_str_eq(hvi_procstat_words(pid, text), want);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    cr_assert_eq(hvi_procstat_tracer(INT32_MAX), 0);
    cr_assert_str_eq(hvi_procstat_words(INT32_MAX, text), "gone");
}

Test(procstat, the_group_of_a_process, .timeout = 5)
{
    cr_assert_eq(hvi_procstat_group(getpid()), getpgrp());
    cr_assert_eq(hvi_procstat_group(INT32_MAX), 0);
}
