#include "hvdrun/job/exitcode.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

int hvi_exit_code(int wait_status)
{
    if (WIFEXITED(wait_status))
        return WEXITSTATUS(wait_status);
    if (WIFSIGNALED(wait_status))
        return HVI_EXIT_SIGNAL + WTERMSIG(wait_status);
    return HVI_EXIT_LAUNCHER; /* stopped or continued: nobody asks for these */
}

const char *hvi_signal_name(int signo)
{
    static char text[32];
    const char *name = sigabbrev_np(signo);

    if (name != NULL)
        snprintf(text, sizeof text, "SIG%s", name);
    else
        snprintf(text, sizeof text, "signal %d", signo);
    return text;
}

char *hvi_exit_words(int wait_status, char *out, size_t cap)
{
    if (WIFEXITED(wait_status))
        snprintf(out, cap, "exited with status %d", WEXITSTATUS(wait_status));
    else if (WIFSIGNALED(wait_status))
        snprintf(out, cap, "was killed by signal %d (%s)%s", WTERMSIG(wait_status),
                 hvi_signal_name(WTERMSIG(wait_status)),
                 WCOREDUMP(wait_status) ? ", core dumped" : "");
    else
        snprintf(out, cap, "ended with wait status 0x%x", (unsigned)wait_status);
    return out;
}
