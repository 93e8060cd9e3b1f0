/** hvdrun's words, made ready for popt: what popt cannot do by itself. Pure. */
#ifndef HVI_HVDRUN_OPTLINE_H
#define HVI_HVDRUN_OPTLINE_H

#include <stdbool.h>

#include "proto/base/err.h"

struct hvi_optline {
    const char **words; /* [n] + NULL; borrowed from argv, or static, or pair */
    int n;
    char pair[64];
    bool dashes; /* "--" stands before the program */
};

/**
 * Up to the program:
 *   --debug, --wait-for-debugger without ranks   get "=all": popt would take the program
 *   --debug[=RANKS] gdb [--args]                 becomes --debug=RANKS --debugger gdb
 *   --blacklist-cooldown-range MIN MAX           becomes one argument
 *
 * Returns  HVD_OK; HVD_EINVAL: --debug with a word that may be meant either way;
 *          HVD_ENOMEM. Free with hvi_optline_fini(), also after a failure.
 */
enum hvd_status hvi_optline_make(int argc, char **argv, struct hvi_optline *out,
                                 struct hvi_err *err);
void hvi_optline_fini(struct hvi_optline *l);

#endif
