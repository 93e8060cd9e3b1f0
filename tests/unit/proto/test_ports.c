#include "proto/base/ports.h"

#include <errno.h>

#include "test.h"

/* That all are in use is shown in a network of its own, t1028. */
Test(ports, other_reasons_are_not_taken_for_it, .timeout = 5)
{
    char text[HVI_PORTS_TEXT];

    cr_assert_null(hvi_ports_gone(ECONNREFUSED, text));
    cr_assert_null(hvi_ports_gone(EADDRINUSE, text)); /* there are others */
    cr_assert_null(hvi_ports_gone(EADDRNOTAVAIL, text));
}
