/** What ssh, and the shell there, wrote before hvd-agent answered: which failure it is,
 * and the names in it. Pure. */
#ifndef HVI_HVDRUN_SSHSAID_H
#define HVI_HVDRUN_SSHSAID_H

#include <stdbool.h>
#include <stddef.h>

#define HVI_SAID_MAX 256 /* a name or a line, escaped */

enum hvi_said_kind {
    HVI_SAID_UNSET = 0, /* nothing that is known */
    /* of ssh */
    HVI_SAID_CONFIG,
    HVI_SAID_UNKNOWN_HOST,
    HVI_SAID_KEY_CHANGED,
    HVI_SAID_KEY_UNKNOWN,
    HVI_SAID_NO_COMMON_METHOD,
    HVI_SAID_TOO_MANY_KEYS,
    HVI_SAID_KEY_OPEN,
    HVI_SAID_KEY_MISSING,
    HVI_SAID_DENIED,
    HVI_SAID_NOT_FORWARDED,
    HVI_SAID_NO_SESSION,
    HVI_SAID_NO_PORT,
    HVI_SAID_REFUSED,
    HVI_SAID_TIMED_OUT,
    HVI_SAID_UNREACHABLE,
    HVI_SAID_PROXY,
    HVI_SAID_BUSY,
    /* of the shell there */
    HVI_SAID_LIBC,
    HVI_SAID_LIBRARY,
    HVI_SAID_FOREIGN,
    HVI_SAID_MISSING,
    HVI_SAID_NOT_EXECUTABLE,
    HVI_SAID_BY_AGENT
};

/** The failure. status: the exit status, -1 after a signal; by_ssh: of ssh itself, not
 * of another remote shell. */
enum hvi_said_kind hvi_said_kind(const char *said, int status, bool by_ssh);
/** The first line with this part, or, part NULL, the last that is not empty; escaped, ""
 * when there is none. Returns out. */
char *hvi_said_line(const char *said, const char *part, char out[HVI_SAID_MAX]);
/** What stands between the first `before` and the next `after`, in one line, escaped.
 * after "": all to the end of the line. Returns false, and "" in out, when there is no
 * such thing. */
bool hvi_said_between(const char *said, const char *before, const char *after,
                      char out[HVI_SAID_MAX]);
/** "user@host" of ssh's "user@host: Permission denied (...)", escaped, or "". Returns
 * out. */
char *hvi_said_denied(const char *said, char out[HVI_SAID_MAX]);

#endif
