#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/hosts.h"

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
        {"n[01-03,7],gpu-[a]-[1-2]x", "n01:0 n02:0 n03:0 n7:0 gpu-a-1x:0 gpu-a-2x:0"},
        {"r[1-2]n[1-2]:4", "r1n1:4 r1n2:4 r2n1:4 r2n2:4"},
        {"me@n[08-10].x.org:2", "me@n08.x.org:2 me@n09.x.org:2 me@n10.x.org:2"},
        {"[1-2]", "1:0 2:0"},
        {"n[1,1],n1:4", "n1:6"},
        {"[::1]:2,[::1]", "::1:3"},
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
        {"a:", "'a:': number of slots: ''"},
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
        {"n[1,]", "nothing stands"},
        {"n[1-2]]", "bad host name"},
        {"n[1[2]]", "a range is"},
        {"n[]", "nothing stands"},
        {"n[-1]", "a range is"},
        {"n[1-b]", "a range is"},
        {"n[a-c]", "a range is"},
        {"n[1-]", "a range is"},
        {"n[3-1]", "bad range"},
        {"n[1-99999]", "bad range"},
        {"n[1-99999999999999]", "a range is"},
        {"n[1", "']' is missing"},
        {"n[1-4000]x[1-4000]", "more than 4096 hosts"},
        {"n[1,1,1,1,1,1,1,1][1,1,1,1,1,1,1,1][1,1,1,1,1,1,1,1][1,1,1,1,1,1,1,1][1,1]",
         "more than 4096 hosts"},
        {"[1][1][1][1][1][1][1][1][1]", "too many brackets"},
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
    text[HVI_HOST_NAME_MAX + 1] = '\0';
    cr_assert(strstr(parsed(text), "too long") != NULL);
    memcpy(text, "u@", 2);
    cr_assert(strstr(parsed(text), "too long") == NULL);
    memset(text, 'a', 300);
    text[HVI_HOST_NAME_MAX - 2] = '\0';
    strcat(text, "[998-1001]");
    cr_assert(strstr(parsed(text), "too long") != NULL);
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
        {"\xef\xbb\xbf"
         "a slots=2",
         "a:2"},
        {"a slots = 4\nb slots =2\nc slots= 3 # x", "a:4 b:2 c:3"},
        {"a\tslots=4\tmax-slots=8\r\nb:2\r\n", "a:4 b:2"},
        {"a max_slots=8\n", "a:8"},
        {"a:4 binding=user:0,1\n", "a:4"},
        {"a cpus=4\nb count=2\n", "a:4 b:2"},
        {"a slots=2 user=me\nyou@a slots=1\n", "me@a:2 you@a:1"},
        {"a slots=2#four\n#b\n", "a:2"},
        {"[::1]:2\nme@[fe80::1] slots=3\n", "::1:2 me@fe80::1:3"},
        {"a,b slots=2\n", "a:2 b:2"},
        {"a slots=2\nb\na slots=3\n", "a:5 b:0"},
        {"a slots=x\n", "hosts:1:9: number of slots: 'x' is not a whole number"},
        {"a slots = x\n", "hosts:1:11: number of slots: 'x' is not a whole number"},
        {"a slots=\n", "hosts:1:9: number of slots: '' is not a whole number"},
        {"a =4\n", "hosts:1:3: a setting is KEY=VALUE, as slots=4"},
        {"a slots=8 max_slots=4\n", "hosts:1:21: slots=8 is more than max_slots=4"},
        {"a\n\n  b four\n", "hosts:3:5: 'four' is not 'slots=N'"},
        {"a\n  b:\n", "hosts:2:5: number of slots: '' is not a whole number"},
        {"a\n b,c;d\n", "hosts:2:4: 'c;d' is not a host: bad host name"},
        {"a\n n[1-x]\n",
         "hosts:2:5: 'n[1-x]' is not a host: a range is FROM-TO or a number"},
        {"slots=4\n", "hosts:1:1: 'slots=4' is not a host: bad host name"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_str_eq(file(rows[i].text, strlen(rows[i].text)), rows[i].want,
                         "%s gave %s", rows[i].text,
                         file(rows[i].text, strlen(rows[i].text)));
}

Test(hosts, notes_settings_that_mean_nothing_here, .timeout = 5)
{
    static const char text[] = "a:4\nb:2  binding=user:0,1 if=eth0\nc x=\033\n";
    struct hvi_hosts h = {0};
    struct hvi_err err = {""};

    cr_assert_eq(hvi_hosts_parse_file(&h, "hosts", text, sizeof text - 1, &err),
                 HVD_OK);
    cr_assert_str_eq(h.ignored, "hosts:2:6: 'binding=user:0,1'");
    cr_assert_eq(h.nignored, 3u);
    hvi_hosts_fini(&h);
}

Test(hosts, a_file_with_zero_bytes_is_refused, .timeout = 5)
{
    cr_assert_str_eq(file("a\nb\0c\n", 6),
                     "hosts:2:2: a zero byte: this is no text file");
}

Test(hosts, limits_of_a_host_are_added_when_all_lines_have_one, .timeout = 5)
{
    static const char text[] = "a slots=1 max_slots=2\na slots=1 max_slots=3\n"
                               "b slots=1\nb slots=1 max_slots=3\n"
                               "c slots=1 max_slots=3\nc slots=1\n";
    struct hvi_hosts h = {0};
    struct hvi_err err = {""};

    cr_assert_eq(hvi_hosts_parse_file(&h, "hosts", text, sizeof text - 1, &err),
                 HVD_OK);
    cr_assert_eq(h.list[0].max, 5);
    cr_assert_eq(h.list[1].max, 0);
    cr_assert_eq(h.list[2].max, 0);
    hvi_hosts_fini(&h);
}

Test(hosts, says_where_in_a_list_the_error_is, .timeout = 5)
{
    static const struct {
        const char *text;
        size_t at;
    } rows[] = {{"a:4,b:x", 6}, {"a,,b", 2},     {"a,n[1-3,x-]", 8}, {"a,me@n[1-", 6},
                {"ab,c d", 3},  {"a,[::1]x", 7}, {"n[1],n[3-2]", 7}, {"a,-x@c", 2}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hvi_hosts h = {0};
        struct hvi_err err = {""};
        size_t at = 0;

        cr_assert_eq(hvi_hosts_parse_at(&h, rows[i].text, &at, &err), HVD_EINVAL);
        cr_assert_eq(at, rows[i].at, "%s: at %zu: %s", rows[i].text, at, err.text);
        hvi_hosts_fini(&h);
    }
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
