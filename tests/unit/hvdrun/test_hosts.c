#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts.h"

/* "name:slots name:slots", users before an @ */
static const char *list(const struct hvi_hosts *h)
{
    static char text[1024];
    int n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < h->n; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%s%s%s:%d",
                      i > 0 ? " " : "", h->list[i].user != NULL ? h->list[i].user : "",
                      h->list[i].user != NULL ? "@" : "", h->list[i].name,
                      h->list[i].slots);
    return text;
}

static const char *parsed(const char *text)
{
    struct hvi_hosts h = {0};
    struct hvi_err err = {""};
    static char out[1024];

    if (hvi_hosts_parse(&h, text, &err) == HVD_OK)
        snprintf(out, sizeof out, "%s", list(&h));
    else
        snprintf(out, sizeof out, "%s", err.text);
    hvi_hosts_fini(&h);
    return out;
}

Test(hosts, reads_what_users_write, .timeout = 5)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"localhost", "localhost:0"},
        {"localhost:4", "localhost:4"},
        {"a:4,b", "a:4 b:0"},
        {"a,b,a", "a:2 b:0"},
        {"a:2,b:1,a:3", "a:5 b:1"},
        {"me@a:2,a:1,you@a", "me@a:2 a:1 you@a:0"},
        {"10.0.0.1:8", "10.0.0.1:8"},
        {"host-1.example.org:2", "host-1.example.org:2"},
        {"n[01-03]:2", "n01:2 n02:2 n03:2"},
        {"n[1,3,7-8]x", "n1x:0 n3x:0 n7x:0 n8x:0"},
        {"n[9-11]:1,b", "n9:1 n10:1 n11:1 b:0"},
        {"[::1]:2", "::1:2"},
        {"[fe80::1%eth0]", "fe80::1%eth0:0"},
        {"me@[::1]:3", "me@::1:3"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_str_eq(parsed(rows[i].text), rows[i].want, "%s gave %s", rows[i].text,
                         parsed(rows[i].text));
}

Test(hosts, says_what_is_wrong, .timeout = 5)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "empty entry"},
        {"a,,b", "empty entry"},
        {"a:", "number of slots: ''"},
        {"a:0", "out of range"},
        {"a:-1", "out of range"},
        {"a:x", "'x' is not a whole number"},
        {"a:99999999999999999999", "out of range"},
        {"a b", "bad host name"},
        {"-oProxyCommand=x", "bad host name"},
        {"a;rm", "bad host name"},
        {"@a", "bad user name"},
        {"-x@a", "bad user name"},
        {"fe80::1:2", "in brackets"},
        {"[::1", "']' is missing"},
        {"[::1]2", "may follow"},
        {"n[1-2][3-4]", "one range"},
        {"n[]", "one range"},
        {"n[x]", "a range is"},
        {"n[1-]", "a range is"},
        {"n[3-1]", "bad range"},
        {"n[1-99999]", "bad range"},
        {"n[1-99999999999999]", "a range is"},
        {"n[1", "one range"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert(strstr(parsed(rows[i].text), rows[i].part) != NULL, "%s gave: %s",
                  rows[i].text, parsed(rows[i].text));
}

Test(hosts, refuses_a_name_without_end, .timeout = 5)
{
    char text[2000];

    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    cr_assert(strstr(parsed(text), "too long") != NULL);
    text[300] = '\0';
    cr_assert(strstr(parsed(text), "bad host name") != NULL);
}

Test(hosts, refuses_more_than_it_can_hold, .timeout = 5)
{
    struct hvi_hosts h = {0};
    struct hvi_err err;

    cr_assert_eq(hvi_hosts_parse(&h, "a[1-4000],b[1-96]", &err), HVD_OK);
    cr_assert_eq(hvi_hosts_parse(&h, "c", &err), HVD_ELIMIT);
    cr_assert_eq(h.n, HVI_HOSTS_MAX);
    hvi_hosts_fini(&h);
}

static const char *file(const char *text, size_t n)
{
    struct hvi_hosts h = {0};
    struct hvi_err err = {""};
    static char out[1024];

    if (hvi_hosts_parse_file(&h, "hosts", text, n, &err) == HVD_OK)
        snprintf(out, sizeof out, "%s", list(&h));
    else
        snprintf(out, sizeof out, "%s", err.text);
    hvi_hosts_fini(&h);
    return out;
}

Test(hosts, reads_all_four_kinds_of_host_file, .timeout = 5)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"a slots=4 max_slots=8\nb slots=2\n", "a:4 b:2"},
        {"a:4\nb:2\n", "a:4 b:2"},
        {"a 4\nb 2", "a:4 b:2"},
        {"a\na\na\nb\n", "a:3 b:0"},
        {"# all\n\n  a slots=1 # one\r\n\t\n", "a:1"},
        {"n[1-2] slots=3\n", "n1:3 n2:3"},
        {"", ""},
        {"a slots=x\n", "hosts:1: number of slots: 'x' is not a whole number"},
        {"a\n\nb four\n", "hosts:3: 'four' is not 'slots=N'"},
        {"a\nb:\n", "hosts:2: number of slots: '' is not a whole number"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_str_eq(file(rows[i].text, strlen(rows[i].text)), rows[i].want,
                         "%s gave %s", rows[i].text,
                         file(rows[i].text, strlen(rows[i].text)));
}

Test(hosts, survives_any_bytes_in_a_file, .timeout = 20)
{
    unsigned seed = 1;
    char text[64];

    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t)(rand_r(&seed) % (int)sizeof text);

        for (size_t i = 0; i < n; i++)
            text[i] = "a1:[]-,@# \n=\0x"[rand_r(&seed) % 14];
        cr_assert_not_null(file(text, n));
    }
}

Test(hosts, knows_this_machine, .timeout = 5)
{
    cr_assert(hvi_host_is_local("localhost", ""));
    cr_assert(hvi_host_is_local("LOCALHOST", "x"));
    cr_assert(hvi_host_is_local("127.0.0.1", "x"));
    cr_assert(hvi_host_is_local("::1", "x"));
    cr_assert(hvi_host_is_local("node7", "node7.example.org"));
    cr_assert(hvi_host_is_local("node7.example.org", "node7.example.org"));
    cr_assert_not(hvi_host_is_local("node", "node7"));
    cr_assert_not(hvi_host_is_local("node70", "node7"));
    cr_assert_not(hvi_host_is_local("other", ""));
    cr_assert_not(hvi_host_is_local("", ""));
}
