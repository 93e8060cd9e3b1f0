#include "proto/base/ports.h"

#include <errno.h>
#include <sys/resource.h>

#include "test.h"

/* That all are in use is shown in a network of its own, t1028. */
Test(ports, other_reasons_are_not_taken_for_it, .timeout = 5)
{
    char text[HVI_PORTS_TEXT];

    cr_assert_null(hvi_ports_gone(ECONNREFUSED, text));
    cr_assert_null(hvi_ports_gone(EADDRINUSE, text)); /* there are others */
    cr_assert_null(hvi_ports_gone(EADDRNOTAVAIL, text));
}

Test(ports, errno_stays, .timeout = 5)
{
    struct rlimit kept, none;
    char text[HVI_PORTS_TEXT];
    int after;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &kept), 0);
    none = kept;
    none.rlim_cur = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0); /* its own socket() fails */
    errno = EADDRINUSE;
    cr_assert_null(hvi_ports_gone(errno, text));
    after = errno;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &kept), 0);
    cr_assert_eq(after, EADDRINUSE);
}
