#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "hvdrun/sshargv.h"

static const struct hvi_host plain = {.name = (char *)"host1", .remote = true};
static const struct hvi_host with_user = {
    .name = (char *)"fe80::1", .user = (char *)"me", .remote = true};

/* All words, with a blank behind each. */
static void joined(char **argv, char *out, size_t cap)
{
    out[0] = '\0';
    for (size_t i = 0; argv[i] != NULL; i++) {
        cr_assert_lt(strlen(out) + strlen(argv[i]) + 2, cap);
        strcat(strcat(out, argv[i]), " ");
    }
    hvi_sshargv_free(argv);
}

#define SETTINGS                                                                       \
    "-T -x -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "            \
    "-o ServerAliveCountMax=2 -o ClearAllForwardings=yes -o ControlMaster=no "         \
    "-o RemoteCommand=none "

Test(sshargv, starts_the_agent_and_never_asks, .timeout = 5)
{
    struct hvi_opts opts = {0};
    char text[1024];
    char **argv = hvi_sshargv_make(&plain, &opts, "/opt/hvd/bin/hvd-agent");

    cr_assert_not_null(argv);
    joined(argv, text, sizeof text);
    cr_assert_str_eq(text,
                     "ssh " SETTINGS "host1 exec '/opt/hvd/bin/hvd-agent' --stdin ");
}

Test(sshargv, what_the_user_says_comes_first, .timeout = 5)
{
    static char *args[] = {(char *)"-oUser=you", (char *)"-4"};
    struct hvi_opts opts = {.ssh_port = 2222,
                            .ssh_identity = (char *)"/my key",
                            .ssh_args = args,
                            .nssh_args = 2};
    char text[1024];
    char **argv = hvi_sshargv_make(&with_user, &opts, "/a/hvd-agent");

    cr_assert_not_null(argv);
    cr_assert_str_eq(argv[6], "/my key");
    joined(argv, text, sizeof text);
    cr_assert_str_eq(text, "ssh -oUser=you -4 -p 2222 -i /my key " SETTINGS
                           "me@fe80::1 exec '/a/hvd-agent' --stdin ");
}

Test(sshargv, without_a_program_it_asks_for_the_settings, .timeout = 5)
{
    struct hvi_opts opts = {.ssh_port = 7};
    char text[256];
    char **argv = hvi_sshargv_make(&plain, &opts, NULL);

    cr_assert_not_null(argv);
    joined(argv, text, sizeof text);
    cr_assert_str_eq(text, "ssh -p 7 -G host1 ");
}

Test(sshargv, many_words_of_the_user_fit, .timeout = 5)
{
    char *args[200];
    struct hvi_opts opts = {.ssh_args = args, .nssh_args = 200};
    size_t n = 0;
    char **argv;

    for (size_t i = 0; i < 200; i++)
        args[i] = (char *)"-v";
    argv = hvi_sshargv_make(&plain, &opts, "/a");
    cr_assert_not_null(argv);
    while (argv[n] != NULL)
        n++;
    cr_assert_str_eq(argv[n - 1], "exec '/a' --stdin");
    cr_assert_str_eq(argv[200], "-v");
    hvi_sshargv_free(argv);
}

Test(sshargv, a_path_reaches_the_shell_there_unchanged, .timeout = 5)
{
    static const struct {
        const char *word, *quoted;
    } t[] = {{"/a/b", "'/a/b'"},
             {"", "''"},
             {"/with space/$HOME`x`\"", "'/with space/$HOME`x`\"'"},
             {"/it's", "'/it'\\''s'"},
             {"'''", "''\\'''\\'''\\'''"}};

    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        char *q = hvi_sshargv_quote(t[i].word);

        cr_assert_str_eq(q, t[i].quoted);
        free(q);
    }
}

Test(sshargv, finds_the_name_behind_an_alias, .timeout = 5)
{
    static const char text[] = "user me\nhostname 10.0.0.2\nport 22\nhostnamealias x\n";
    char out[16] = "before";

    cr_assert(hvi_sshargv_setting(text, "hostname", out, sizeof out));
    cr_assert_str_eq(out, "10.0.0.2");
    cr_assert(hvi_sshargv_setting("a 1\nport 22", "port", out, sizeof out));
    cr_assert_str_eq(out, "22");
    cr_assert_not(hvi_sshargv_setting(text, "host", out, sizeof out));
    cr_assert_not(hvi_sshargv_setting("", "hostname", out, sizeof out));
    cr_assert_not(hvi_sshargv_setting("hostname\n", "hostname", out, sizeof out));
    cr_assert_not(hvi_sshargv_setting("hostname 0123456789abcdef\n", "hostname", out,
                                      sizeof out));
    cr_assert_str_eq(out, "22"); /* written only on success */
}
