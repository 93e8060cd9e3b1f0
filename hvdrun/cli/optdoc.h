/** --help, the man page and bash completion, all from the option table. Pure. */
#ifndef HVI_HVDRUN_OPTDOC_H
#define HVI_HVDRUN_OPTDOC_H

#include <stdio.h>

void hvi_optdoc_help(FILE *out);
void hvi_optdoc_man(FILE *out);        /* man(7) source, section 1 */
void hvi_optdoc_completion(FILE *out); /* to be sourced by bash */

#endif
