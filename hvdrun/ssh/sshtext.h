/** What went wrong with an ssh, for the person at the terminal. Pure. */
#ifndef HVI_HVDRUN_SSHTEXT_H
#define HVI_HVDRUN_SSHTEXT_H

#include <stdbool.h>
#include <stddef.h>

#define HVI_SSHTEXT_MAX 2048

/** An ssh that has ended, or an agent behind it. */
struct hvi_ssh_failure {
    const char *host;    /* as in the plan */
    const char *dest;    /* as given to ssh: with the user, if one was named */
    const char *shell;   /* NULL: ssh; else the command that stands for it */
    const char *agent;   /* the path that was started there */
    bool agent_named;    /* by --agent-path: PATH was not searched */
    const char *said;    /* the last that ssh, or the shell there, wrote to stderr */
    const char *printed; /* the last that came on stdout before any frame, or NULL */
    int port;            /* of -p; 0: not given */
    int wait_status;
    bool no_port;  /* this host has no local port left (ports.h) */
    bool lingered; /* its output had ended, it had not: it was killed for that */
    bool up;       /* the agent had answered: the job was running there */
};

/** The ssh server there had too many connections at once: worth another try. */
bool hvi_sshtext_busy(const struct hvi_ssh_failure *f);

/**
 * One or two lines without a last newline: the host, what happened, and what to do.
 * What the other side wrote is shown with control characters escaped. Returns out.
 */
char *hvi_sshtext(const struct hvi_ssh_failure *f, char out[HVI_SSHTEXT_MAX]);

#endif
