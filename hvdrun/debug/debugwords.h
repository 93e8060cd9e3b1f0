/** How a debugger is named on hvdrun's line, and what it is called with. Pure. */
#ifndef HVI_HVDRUN_DEBUGWORDS_H
#define HVI_HVDRUN_DEBUGWORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/err.h"

#define HVI_DEBUGGER_DEFAULT "gdb"
#define HVI_DEBUG_ALL "all" /* in place of a list of ranks */
/** How long a job under a debugger waits for its ranks; the most libhvd takes. */
#define HVI_DEBUG_START_S (7 * 86400)

/** gdb, cuda-gdb, rocgdb, gdb-multiarch or lldb, also with a path. */
bool hvi_debugwords_known(const char *word);
/** A tool whose place may be meant either way (valgrind, rr, pdb...). */
bool hvi_debugwords_doubtful(const char *word);

/**
 * The words of a debugger's command (separated by blanks), and what gdb and lldb want
 * before the program: --args, --.
 *
 * @param out  heap, NULL terminated; free with hvi_debugwords_free()
 * Returns     HVD_EINVAL: there is no word; HVD_ENOMEM.
 */
enum hvd_status hvi_debugwords_split(const char *command, char ***out, size_t *n,
                                     struct hvi_err *err);
void hvi_debugwords_free(char **words);

/** The ranks of --debug or --wait-for-debugger in out[np]; list NULL: none. As
 *  hvi_opts_ranks(), and "all". */
enum hvd_status hvi_debugwords_ranks(const char *what, const char *list, int np,
                                     bool *out, struct hvi_err *err);

#endif
