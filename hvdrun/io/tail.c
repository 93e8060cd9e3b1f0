#include "hvdrun/io/tail.h"

#include <string.h>

size_t hvi_tail_add(char *text, size_t cap, size_t *n, const void *bytes, size_t nbytes)
{
    const char *from = bytes;
    size_t room = cap - 1;
    size_t drop;

    if (nbytes > room) {
        from += nbytes - room;
        nbytes = room;
    }
    drop = *n + nbytes > room ? *n + nbytes - room : 0;
    memmove(text, text + drop, *n - drop);
    for (size_t i = 0; i < nbytes; i++)
        text[*n - drop + i] = from[i] != '\0' ? from[i] : '?';
    *n = *n - drop + nbytes;
    text[*n] = '\0';
    return drop;
}
