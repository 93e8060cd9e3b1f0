/** The option that was probably meant. Pure. */
#ifndef HVI_HVDRUN_OPTNEAR_H
#define HVI_HVDRUN_OPTNEAR_H

#include <stddef.h>

/**
 * Finds the spelling in the option table that is nearest to a word of the command line
 * (with its dashes; what follows a '=' does not count): fewest letters inserted, left
 * out, changed or exchanged with a neighbor. A long option whose beginning was written
 * counts as near.
 *
 * Returns  out, "--hostfile"; NULL: nothing is near enough to be worth a guess.
 */
const char *hvi_opt_near(const char *word, char *out, size_t cap);

#endif
