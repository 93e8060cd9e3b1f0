/** The end of a text that may be long: what somebody said last. Pure. */
#ifndef HVI_HVDRUN_TAIL_H
#define HVI_HVDRUN_TAIL_H

#include <stddef.h>

/**
 * Appends to a text of *n characters in text[cap], NUL terminated; what no longer fits is
 * dropped from its beginning. A NUL among the bytes becomes '?'.
 *
 * Returns  how many characters were dropped of those that were there.
 */
size_t hvi_tail_add(char *text, size_t cap, size_t *n, const void *bytes,
                    size_t nbytes);

#endif
