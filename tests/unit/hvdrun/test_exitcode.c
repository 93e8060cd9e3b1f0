#include "test.h"

#include <signal.h>

#include "hvdrun/job/exitcode.h"

#define EXITED(n) ((n) << 8)
#define DUMPED 0x80

Test(exitcode, is_what_a_shell_would_say, .timeout = 5)
{
    cr_assert_eq(hvi_exit_code(EXITED(0)), 0);
    cr_assert_eq(hvi_exit_code(EXITED(7)), 7);
    cr_assert_eq(hvi_exit_code(EXITED(255)), 255);
    cr_assert_eq(hvi_exit_code(SIGKILL), 137);
    cr_assert_eq(hvi_exit_code(SIGSEGV | DUMPED), 139);
}

Test(exitcode, words_name_status_signal_and_core, .timeout = 5)
{
    char text[128];

    cr_assert_str_eq(hvi_exit_words(EXITED(3), text, sizeof text),
                     "exited with status 3");
    cr_assert_str_eq(hvi_exit_words(SIGKILL, text, sizeof text),
                     "was killed by signal 9 (SIGKILL)");
    cr_assert_str_eq(hvi_exit_words(SIGSEGV | DUMPED, text, sizeof text),
                     "was killed by signal 11 (SIGSEGV), core dumped");
    cr_assert_str_eq(hvi_exit_words(SIGKILL, text, 8), "was kil");
}

Test(exitcode, signals_without_a_name_are_numbers, .timeout = 5)
{
    cr_assert_str_eq(hvi_signal_name(SIGUSR1), "SIGUSR1");
    cr_assert_str_eq(hvi_signal_name(63), "signal 63");
}
