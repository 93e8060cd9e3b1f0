/** Include this instead of criterion.h: the same tests then also run without Criterion
 *  (SAN=thread). */
#ifndef HVI_TEST_H
#define HVI_TEST_H

#ifdef HVI_PLAIN_TESTS
#include "plain.h"
#else
#include <criterion/criterion.h>
#endif

#endif
