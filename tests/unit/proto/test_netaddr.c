#include "proto/base/netaddr.h"

#include <arpa/inet.h>
#include <string.h>

#include "test.h"

static const struct sockaddr *of(const char *text)
{
    static struct sockaddr_in v4;
    static struct sockaddr_in6 v6;

    v4 = (struct sockaddr_in){.sin_family = AF_INET};
    v6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return (const struct sockaddr *)&v4;
    cr_assert_eq(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return (const struct sockaddr *)&v6;
}

Test(netaddr, knows_what_others_cannot_use, .timeout = 5)
{
    static const char *const near[] = {"127.0.0.1", "127.9.9.9", "169.254.1.1", "::1",
                                       "fe80::1"};
    static const char *const far[] = {"10.0.0.1", "169.253.1.1", "192.168.254.1",
                                      "fd00::1", "2001:db8::1"};
    char text[HVI_ADDR_MAX];

    for (size_t i = 0; i < 5; i++) {
        cr_assert(hvi_netaddr_near_only(of(near[i])), "%s", near[i]);
        cr_assert(!hvi_netaddr_near_only(of(far[i])), "%s", far[i]);
        cr_assert(hvi_netaddr_text(of(far[i]), text));
        cr_assert_str_eq(text, far[i]);
    }
    cr_assert(hvi_netaddr_scoped(of("fe80::1")));
    cr_assert(!hvi_netaddr_scoped(of("169.254.1.1")));
    cr_assert(!hvi_netaddr_text(&(struct sockaddr){.sa_family = AF_UNIX}, text));
}

Test(netaddr, takes_names_whole, .timeout = 5)
{
    cr_assert(hvi_netaddr_listed(NULL, "eth0"));
    cr_assert(hvi_netaddr_listed("ib0,eth0", "eth0"));
    cr_assert(!hvi_netaddr_listed("ib0,eth01", "eth0"));
    cr_assert(!hvi_netaddr_listed("ib0,eth", "eth0"));
    cr_assert(!hvi_netaddr_listed("", "eth0"));
}

Test(netaddr, far_ones_are_own_ones, .timeout = 5)
{
    char far[16][HVI_ADDR_MAX];
    struct hvi_netaddrs own;
    size_t n = hvi_netaddr_far(NULL, far, 16);

    hvi_netaddrs_own(&own);
    cr_assert(hvi_netaddrs_have(&own, "127.0.0.1"));
    for (size_t i = 0; i < n; i++)
        cr_assert(hvi_netaddrs_have(&own, far[i]), "%s", far[i]);
    cr_assert_eq(hvi_netaddr_far("no-such", far, 16), 0);
    cr_assert_leq(hvi_netaddr_far(NULL, far, 1), 1);
    hvi_netaddrs_fini(&own);
}

Test(netaddr, interfaces_by_name, .timeout = 10)
{
    char all[4][HVI_ADDR_MAX];
    size_t n = hvi_netaddr_named("nope0,lo", all, 4);

    cr_assert_geq(n, 1);
    for (size_t i = 0; i < n; i++) {
        cr_assert(hvi_netaddr_loopback(all[i]), "%s", all[i]);
        cr_assert(hvi_netaddr_of("lo", all[i]));
        cr_assert(!hvi_netaddr_of("nope0,l", all[i]));
    }
    cr_assert_eq(hvi_netaddr_named("nope0,l", all, 4), 0);
    cr_assert_eq(hvi_netaddr_named("", all, 4), 0);
    cr_assert_eq(hvi_netaddr_far("lo", all, 4), 0);
}
