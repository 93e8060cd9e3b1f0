#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/log.h"

static void setup(const char *hvd, const char *horovod)
{
    unsetenv("HVD_LOG");
    unsetenv("HOROVOD_LOG_LEVEL");
    if (hvd != NULL)
        setenv("HVD_LOG", hvd, 1);
    if (horovod != NULL)
        setenv("HOROVOD_LOG_LEVEL", horovod, 1);
    hvi_log_setup("unit", HVI_LOG_WARN);
}

/* What `write_it` puts on stderr. */
static const char *captured(void (*write_it)(void))
{
    static char out[8192];
    int fds[2];
    int saved = dup(STDERR_FILENO);
    ssize_t n;

    cr_assert_eq(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    write_it();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fds[1]);
    n = read(fds[0], out, sizeof out - 1);
    close(fds[0]);
    out[n > 0 ? n : 0] = '\0';
    return out;
}

static void one_line(void)
{
    hvi_log_warn("peer", "rank=%d cause=%s", 3, "lost");
    hvi_log_debug("peer", "not shown");
}

static void long_line(void)
{
    char big[5000];

    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    hvi_log_error("peer", "%s", big);
}

Test(log, one_event_is_one_line, .timeout = 10)
{
    setup(NULL, NULL);
    hvi_log_set_rank(-1);
    cr_assert_str_eq(captured(one_line), "unit: warn peer: rank=3 cause=lost\n");
    hvi_log_set_rank(5);
    cr_assert_str_eq(captured(one_line), "unit: warn peer: rank=5 rank=3 cause=lost\n");
    hvi_log_set_rank(-1);
}

Test(log, the_time_stands_before_the_line_when_it_is_asked_for, .timeout = 10)
{
    const char *text;
    int fields, y, mo, d, h, mi, s, us;
    char rest[64];

    hvi_log_set_rank(-1);
    setenv("HOROVOD_LOG_HIDE_TIME", "0", 1);
    setup(NULL, NULL);
    text = captured(one_line);
    fields = sscanf(text, "%d-%d-%d %d:%d:%d.%6d %63[^\n]", &y, &mo, &d, &h, &mi, &s,
                    &us, rest);
    cr_assert_eq(fields, 8, "%s", text);
    cr_assert_str_eq(rest, "unit: warn peer: rank=3 cause=lost");
    setenv("HVD_LOG_HIDE_TIME", "1", 1);
    setup(NULL, NULL);
    cr_assert_str_eq(captured(one_line), "unit: warn peer: rank=3 cause=lost\n");
    unsetenv("HVD_LOG_HIDE_TIME");
    unsetenv("HOROVOD_LOG_HIDE_TIME");
}

Test(log, a_long_line_is_cut_and_still_ends, .timeout = 10)
{
    const char *text;

    setup(NULL, NULL);
    text = captured(long_line);
    cr_assert_leq(strlen(text), 2048);
    cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1);
}

Test(log, levels_come_from_the_environment, .timeout = 10)
{
    setup(NULL, NULL);
    cr_assert(hvi_log_wants(HVI_LOG_WARN, "a"));
    cr_assert_not(hvi_log_wants(HVI_LOG_INFO, "a"));
    setup("info,peer:debug,quiet:off", NULL);
    cr_assert(hvi_log_wants(HVI_LOG_INFO, "a"));
    cr_assert_not(hvi_log_wants(HVI_LOG_DEBUG, "a"));
    cr_assert(hvi_log_wants(HVI_LOG_DEBUG, "peer"));
    cr_assert_not(hvi_log_wants(HVI_LOG_ERROR, "quiet"));
    setup(NULL, "warning");
    cr_assert_not(hvi_log_wants(HVI_LOG_INFO, "a"));
    setup(NULL, "DEBUG");
    cr_assert(hvi_log_wants(HVI_LOG_DEBUG, "a"));
    setup("error", "debug");
    cr_assert_not(hvi_log_wants(HVI_LOG_WARN, "a"), "HVD_LOG wins");
}

Test(log, nonsense_in_the_environment_changes_nothing, .timeout = 10)
{
    char many[2000] = "";

    setup("loud,peer:very,:,,x:", NULL);
    cr_assert(hvi_log_wants(HVI_LOG_WARN, "peer"));
    cr_assert_not(hvi_log_wants(HVI_LOG_INFO, "peer"));
    setup("a_name_of_a_subsystem_that_is_too_long:debug", NULL);
    cr_assert_not(
        hvi_log_wants(HVI_LOG_INFO, "a_name_of_a_subsystem_that_is_too_long"));
    for (int i = 0; i < 100; i++)
        strcat(many, "s:debug,");
    setup(many, NULL);
    cr_assert(hvi_log_wants(HVI_LOG_DEBUG, "s"));
    setup(NULL, NULL);
}
