/** For the programs of the tests: a condition that must hold, or the program says which one
 *  does not, with libhvd's last error, and ends with status 1. hvdrun names the rank. */
#ifndef HVI_E2E_CHECK_H
#define HVI_E2E_CHECK_H

#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>

#define IS(c)                                                                          \
    do {                                                                               \
        if (!(c)) {                                                                    \
            printf("line %d: not %s: %s\n", __LINE__, #c, hvd_last_error());           \
            fflush(stdout); /* hvdrun may end it inside exit() */                      \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#endif
