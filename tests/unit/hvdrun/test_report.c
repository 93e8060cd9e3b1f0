#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>

#include "hvdrun/job/report.h"

static struct hvi_report report;

static const char *text_of(const struct hvi_failure *f)
{
    static char text[40000];
    struct hvi_buf out = {0};

    cr_assert_eq(hvi_report_failure(&report, f, &out), HVD_OK);
    cr_assert_lt(hvi_buf_size(&out), sizeof text);
    memcpy(text, hvi_buf_peek(&out), hvi_buf_size(&out));
    text[hvi_buf_size(&out)] = '\0';
    hvi_buf_fini(&out);
    return text;
}

static void say(int rank, const char *text)
{
    hvi_report_stderr(&report, rank, text, strlen(text));
}

static const struct hvi_failure killed = {.rank = 2,
                                          .pid = 4711,
                                          .host = "host1",
                                          .wait_status = SIGKILL,
                                          .exited = true,
                                          .age_ms = 3210};

Test(report, says_when_memory_was_short, .timeout = 5)
{
    struct hvi_failure f = killed;

    cr_assert_eq(hvi_report_init(&report, 4), HVD_OK);
    cr_assert_null(strstr(text_of(&f), "memory"));
    f.out_of_memory = true;
    cr_assert_not_null(strstr(text_of(&f),
                              "\nhvdrun: the kernel of host1 killed a process "
                              "for want of memory meanwhile"));
    hvi_report_fini(&report);
}

Test(report, names_rank_host_pid_status_and_age, .timeout = 5)
{
    struct hvi_failure f = killed;

    hvi_report_init(&report, 4);
    cr_assert_str_eq(
        text_of(&f),
        "hvdrun: rank 2 on host1 (pid 4711) was killed by signal 9 (SIGKILL) "
        "after 3.2 s\n");
    f.stopped = 3;
    f.also_failed = 1;
    cr_assert(strstr(text_of(&f), "\nhvdrun: 1 other rank failed after it\n"
                                  "hvdrun: 3 other ranks are being stopped\n") != NULL);
    f.wait_status = 0;
    f.no_bye = true;
    cr_assert(strstr(text_of(&f), "ended (status 0) without hvd_shutdown()") != NULL);
    f.exited = false;
    cr_assert(strstr(text_of(&f), "rank 2 on host1 (pid 4711) was lost") != NULL);
    hvi_report_fini(&report);
}

Test(report, shows_the_last_lines_of_that_rank_only, .timeout = 5)
{
    hvi_report_init(&report, 4);
    say(1, "other rank\n");
    say(2, "Trace");
    say(2, "back:\r\n  \033[1mError\n\n");
    cr_assert(strstr(text_of(&killed), "hvdrun: the last lines of its stderr:\n"
                                       "  | Traceback:\n"
                                       "  |   \\x1b[1mError\n") != NULL,
              "%s", text_of(&killed));
    cr_assert_null(strstr(text_of(&killed), "other rank\n"));
    hvi_report_fini(&report);
}

Test(report, keeps_no_more_than_its_lines_and_bytes, .timeout = 5)
{
    char line[64];
    const char *text;
    int lines = 0;

    hvi_report_init(&report, 4);
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof line, "line %d of many\n", i);
        say(2, line);
    }
    text = text_of(&killed);
    for (const char *p = text; (p = strstr(p, "\n  | ")) != NULL; p++)
        lines++;
    cr_assert_eq(lines, HVI_REPORT_LINES);
    cr_assert(strstr(text, "  | line 4980 of many\n") != NULL);
    cr_assert(strstr(text, "  | line 4999 of many\n") != NULL);
    hvi_report_fini(&report);
}

Test(report, a_cut_first_line_is_left_out, .timeout = 5)
{
    static char big[3 * HVI_REPORT_TAIL_BYTES];

    hvi_report_init(&report, 4);
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    say(2, big);
    say(2, "\nend\n");
    cr_assert(strstr(text_of(&killed), "stderr:\n  | end\n") != NULL, "%s",
              text_of(&killed));
    say(2, big); /* one line longer than what is kept: its end is shown */
    cr_assert(strstr(text_of(&killed), "  | xxxx") != NULL);
    hvi_report_fini(&report);
}
