#include "test.h"

#include <string.h>

#include "hvdrun/doctor/reach.h"

Test(reach, the_way_to_loopback_is_loopback, .timeout = 10)
{
    char own[HVI_ADDR_MAX], peer[HVI_ADDR_MAX];

    cr_assert(hvi_reach_toward("127.0.0.1", own, peer));
    cr_assert_str_eq(own, "127.0.0.1");
    cr_assert_str_eq(peer, "127.0.0.1");
}

Test(reach, what_is_no_address_is_said_so, .timeout = 10)
{
    char own[HVI_ADDR_MAX], peer[HVI_ADDR_MAX];

    cr_assert_not(hvi_reach_toward("256.1.1.1.1 x", own, peer));
}

Test(reach, loopback_is_of_no_use_to_others, .timeout = 5)
{
    cr_assert(hvi_netaddr_loopback("127.0.1.1"));
    cr_assert(hvi_netaddr_loopback("::1"));
    cr_assert_not(hvi_netaddr_loopback("12.7.0.1"));
    cr_assert_not(hvi_netaddr_loopback("fd00::1"));
}

Test(reach, endpoints_put_brackets_where_needed, .timeout = 5)
{
    char text[64];

    hvi_reach_endpoint("10.0.0.1", 0, text, sizeof text);
    cr_assert_str_eq(text, "tcp:10.0.0.1:0");
    hvi_reach_endpoint("fd00::1", 80, text, sizeof text);
    cr_assert_str_eq(text, "tcp:[fd00::1]:80");
    hvi_reach_listen((const char *const[]){"10.0.0.1", "fd00::1"}, 2, 0, text,
                     sizeof text);
    cr_assert_str_eq(text, "tcp:10.0.0.1,[fd00::1]:0");
}
