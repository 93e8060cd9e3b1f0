#include "proto/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void hvi_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "hvd: internal error: %s (%s:%d); please report it\n", what, file,
            line);
    abort();
}
