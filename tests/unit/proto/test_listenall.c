#include "proto/base/listenall.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"

static int connects(const char *address, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int why;

    cr_assert(fd >= 0);
    a.sin_addr.s_addr = htonl(strcmp(address, "127.0.0.1") == 0   ? 0x7f000001
                              : strcmp(address, "127.0.0.2") == 0 ? 0x7f000002
                                                                  : 0x7f000003);
    why = connect(fd, (struct sockaddr *)&a, sizeof a) == 0 ? 0 : errno;
    close(fd);
    return why;
}

Test(listenall, listens_on_these_addresses_and_no_other, .timeout = 10)
{
    static const char *const two[] = {"127.0.0.2", "127.0.0.3"};
    int fds[2], port = 0;

    cr_assert(hvi_listen_all(two, 2, 0, 0, fds, &port), "%s", strerror(errno));
    cr_assert_gt(port, 0);
    cr_assert_eq(connects("127.0.0.2", port), 0);
    cr_assert_eq(connects("127.0.0.3", port), 0);
    cr_assert_eq(connects("127.0.0.1", port), ECONNREFUSED);
    close(fds[0]);
    close(fds[1]);
}

Test(listenall, of_a_range_the_first_port_that_is_free_on_all, .timeout = 10)
{
    static const char *const second[] = {"127.0.0.3"};
    static const char *const two[] = {"127.0.0.2", "127.0.0.3"};
    int taken, fds[2], port = 0, got = 0;

    cr_assert(hvi_listen_all(second, 1, 0, 0, &taken, &port));
    if (port < 65535) {
        cr_assert(hvi_listen_all(two, 2, port, port + 1, fds, &got) ||
                  errno == EADDRINUSE);
        if (got != 0) { /* else somebody else's */
            cr_assert_eq(got, port + 1);
            close(fds[0]);
            close(fds[1]);
        }
    }
    cr_assert_not(hvi_listen_all(two, 2, port, port, fds, &got));
    cr_assert_eq(errno, EADDRINUSE);
    cr_assert_eq(connects("127.0.0.2", port), ECONNREFUSED, "what was open is closed");
    close(taken);
}

Test(listenall, leaves_out_what_has_gone_but_never_the_first, .timeout = 10)
{
    static const char *const gone[] = {"127.0.0.2", "192.0.2.77", "127.0.0.3"};
    int fds[3], port = 0;

    cr_assert(hvi_listen_all(gone, 3, 0, 0, fds, &port));
    cr_assert(fds[0] >= 0 && fds[2] >= 0);
    cr_assert_eq(fds[1], -1);
    close(fds[0]);
    close(fds[2]);
    cr_assert_not(hvi_listen_all(gone + 1, 2, 0, 0, fds, &port));
    cr_assert_eq(errno, EADDRNOTAVAIL);
}
