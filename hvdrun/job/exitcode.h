/** From a wait status to the job's exit status and to words. Pure. */
#ifndef HVI_HVDRUN_EXITCODE_H
#define HVI_HVDRUN_EXITCODE_H

#include <stddef.h>

/** hvdrun's own statuses; a failed rank's status is passed on otherwise. */
enum hvi_exit {
    HVI_EXIT_OK = 0,
    HVI_EXIT_NO_BYE = 1,     /* a rank left with status 0 while others needed it */
    HVI_EXIT_USAGE = 2,      /* the command line, hosts, configuration */
    HVI_EXIT_TIMEOUT = 124,  /* --timeout ran out */
    HVI_EXIT_LAUNCHER = 125, /* hvdrun, agent, coordinator, start timeout, lost host */
    HVI_EXIT_NOT_EXECUTABLE = 126,
    HVI_EXIT_NOT_FOUND = 127,
    HVI_EXIT_SIGNAL = 128 /* + signal number */
};

/** What a shell would report: the exit status, or 128 + signal. */
int hvi_exit_code(int wait_status);

/** "SIGSEGV"; "signal 99" when it has no name. Valid until the next call. */
const char *hvi_signal_name(int signo);

/** "exited with status 7", "was killed by signal 11 (SIGSEGV), core dumped". Returns
 * out. */
char *hvi_exit_words(int wait_status, char *out, size_t cap);

#endif
