#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/env.h"

static void clear(void)
{
    unsetenv("HVD_TEST_X");
    unsetenv("HOROVOD_TEST_X");
}

Test(env, hvd_wins_over_horovod_and_empty_is_unset, .timeout = 10)
{
    clear();
    cr_assert_null(hvi_env("TEST_X"));
    setenv("HOROVOD_TEST_X", "old", 1);
    cr_assert_str_eq(hvi_env("TEST_X"), "old");
    setenv("HVD_TEST_X", "new", 1);
    cr_assert_str_eq(hvi_env("TEST_X"), "new");
    setenv("HVD_TEST_X", "", 1);
    cr_assert_str_eq(hvi_env("TEST_X"), "old");
    clear();
}

Test(env, int_reads_whole_numbers_in_range, .timeout = 10)
{
    int64_t v = -1;

    clear();
    cr_assert_eq(hvi_env_int("TEST_X", 7, 0, 10, &v, NULL), HVD_OK);
    cr_assert_eq(v, 7);
    setenv("HVD_TEST_X", "10", 1);
    cr_assert_eq(hvi_env_int("TEST_X", 7, 0, 10, &v, NULL), HVD_OK);
    cr_assert_eq(v, 10);
    clear();
}

Test(env, int_refuses_and_names_the_variable_that_was_set, .timeout = 10)
{
    static const char *const bad[] = {"11",
                                      "-1",
                                      "1x",
                                      "x",
                                      "1.5",
                                      "0x5",
                                      "1 ",
                                      "99999999999999999999",
                                      "-99999999999999999999"};
    struct hvi_err err;
    int64_t v = -5;

    clear();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("HOROVOD_TEST_X", bad[i], 1);
        cr_assert_eq(hvi_env_int("TEST_X", 7, 0, 10, &v, &err), HVD_EINVAL, "%s",
                     bad[i]);
        cr_assert_not_null(strstr(err.text, "HOROVOD_TEST_X"), "%s", err.text);
        cr_assert_eq(v, -5, "written only on success");
    }
    clear();
}

Test(env, bool_knows_its_words, .timeout = 10)
{
    static const char *const no[] = {"0", "false", "NO", "off"};
    static const char *const yes[] = {"1", "True", "yes", "ON"};
    struct hvi_err err;
    int v = 9;

    clear();
    cr_assert_eq(hvi_env_bool("TEST_X", 1, &v, NULL), HVD_OK);
    cr_assert_eq(v, 1);
    for (int i = 0; i < 4; i++) {
        setenv("HVD_TEST_X", no[i], 1);
        cr_assert_eq(hvi_env_bool("TEST_X", 1, &v, NULL), HVD_OK);
        cr_assert_eq(v, 0, "%s", no[i]);
        setenv("HVD_TEST_X", yes[i], 1);
        cr_assert_eq(hvi_env_bool("TEST_X", 0, &v, NULL), HVD_OK);
        cr_assert_eq(v, 1, "%s", yes[i]);
    }
    setenv("HVD_TEST_X", "maybe", 1);
    cr_assert_eq(hvi_env_bool("TEST_X", 0, &v, &err), HVD_EINVAL);
    cr_assert_not_null(strstr(err.text, "HVD_TEST_X"));
    clear();
}

Test(env, parse_int_shows_hostile_text_escaped, .timeout = 10)
{
    struct hvi_err err;
    int64_t v;

    cr_assert_eq(hvi_parse_int("--np", "4\n\x1b[2J", 1, 8, &v, &err), HVD_EINVAL);
    cr_assert_not_null(strstr(err.text, "--np"));
    cr_assert_not_null(strstr(err.text, "\\x1b"));
    cr_assert_null(strchr(err.text, '\n'));
}
