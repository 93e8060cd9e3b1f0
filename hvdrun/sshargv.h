/** The command line of ssh, and how a command travels through it. Pure. */
#ifndef HVI_HVDRUN_SSHARGV_H
#define HVI_HVDRUN_SSHARGV_H

#include "hvdrun/hosts.h"
#include "hvdrun/opts.h"

#define HVI_SSH_CONNECT_S 10 /* until TCP is there and the server has said a word */
/* A connection that no longer carries anything ends after two unanswered questions:
 * the same 15 s that the coordinator gives an agent (DESIGN.md section 5). */
#define HVI_SSH_ALIVE_S 5
#define HVI_SSH_ALIVE_COUNT 2

/**
 * The words that start a program on a host: the user's own ssh, never asking anything
 * (BatchMode), without a terminal, forwardings or a master connection of its own. Host
 * keys, users, jump hosts and the like stay a matter of the user's configuration. What
 * --ssh-arg says comes first: ssh takes the first value of an option.
 *
 * @param program  absolute path there; NULL: `ssh -G`, which only prints the settings
 *
 * Returns  heap, NULL terminated, for hvi_sshargv_free(); NULL: out of memory.
 */
char **hvi_sshargv_make(const struct hvi_host *host, const struct hvi_opts *opts,
                        const char *program);
void hvi_sshargv_free(char **argv);

/** "user@name" or "name": as ssh takes it and texts show it. Returns out. */
char *hvi_sshargv_destination(const struct hvi_host *host, char *out, size_t cap);

/** word in single quotes for the login shell there (sh, csh, fish). Heap, or NULL. */
char *hvi_sshargv_quote(const char *word);

/** The value of a setting in what `ssh -G` prints ("hostname 10.0.0.2"). false: not
 * there, or longer than cap. */
bool hvi_sshargv_setting(const char *text, const char *name, char *out, size_t cap);

#endif
