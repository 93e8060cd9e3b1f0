/** The option that was probably meant. Pure. */
#ifndef HVI_HVDRUN_OPTNEAR_H
#define HVI_HVDRUN_OPTNEAR_H

#include <stddef.h>

#define HVI_OPT_FAR 41 /* two letters of five may be wrong */

/**
 * How far the word's n letters are from a name, of a hundred: fewest letters inserted,
 * left out, changed or exchanged with a neighbor; a name whose beginning was written is
 * near. From HVI_OPT_FAR on a guess is not worth it.
 */
int hvi_opt_farness(const char *word, size_t n, const char *name);

/**
 * Finds the spelling in the option table that is nearest to a word of the command line
 * (with its dashes; what follows a '=' does not count).
 *
 * Returns  out, "--hostfile"; NULL: nothing is near enough to be worth a guess.
 */
const char *hvi_opt_near(const char *word, char *out, size_t cap);

#endif
