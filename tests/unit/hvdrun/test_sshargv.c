#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "hvdrun/ssh/sshargv.h"

static const struct hvi_rshell ssh = {.kind = HVI_RSHELL_SSH, .command = "ssh"};
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

#define SESSION "-o StdinNull=no -o SessionType=default -o ForkAfterAuthentication=no "
#define SETTINGS OLD_SETTINGS SESSION
#define OLD_SETTINGS                                                                   \
    "-T -x -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "            \
    "-o ServerAliveCountMax=2 -o ClearAllForwardings=yes -o ControlMaster=no "         \
    "-o RemoteCommand=none "

#define LOOK                                                                           \
    "p=$0; [ -x \"$p\" ] || p=$(command -v hvd-agent) || p=$0; exec \"$p\" --stdin"

Test(sshargv, starts_the_agent_and_never_asks, .timeout = 5)
{
    struct hvi_opts opts = {0};
    char text[1024];
    char **argv = hvi_sshargv_make(&ssh, &plain, &opts, "/opt/hvd/bin/hvd-agent");

    cr_assert_not_null(argv);
    joined(argv, text, sizeof text);
    cr_assert_str_eq(text, "ssh " SETTINGS "host1 exec sh -c '" LOOK
                           "' '/opt/hvd/bin/hvd-agent' ");
}

Test(sshargv, an_old_ssh_is_spared_what_it_does_not_know, .timeout = 5)
{
    struct hvi_rshell old = ssh;
    struct hvi_opts opts = {0};
    char text[1024];

    old.old = true;
    joined(hvi_sshargv_make(&old, &plain, &opts, "/a/hvd-agent"), text, sizeof text);
    cr_assert_str_eq(text,
                     "ssh " OLD_SETTINGS "host1 exec sh -c '" LOOK "' '/a/hvd-agent' ");
    joined(hvi_sshargv_make(&old, &plain, &opts, NULL), text, sizeof text);
    cr_assert_str_eq(text, "ssh -G host1 ");
}

Test(sshargv, what_the_user_says_comes_first, .timeout = 5)
{
    static char *args[] = {(char *)"-oUser=you", (char *)"-4"};
    struct hvi_opts opts = {.ssh_port = 2222,
                            .ssh_identity = (char *)"/my key",
                            .ssh_args = args,
                            .nssh_args = 2};
    char text[1024];
    char **argv = hvi_sshargv_make(&ssh, &with_user, &opts, "/a/hvd-agent");

    cr_assert_not_null(argv);
    cr_assert_str_eq(argv[6], "/my key");
    joined(argv, text, sizeof text);
    cr_assert_str_eq(text, "ssh -oUser=you -4 -p 2222 -i /my key " SETTINGS
                           "me@fe80::1 exec sh -c '" LOOK "' '/a/hvd-agent' ");
}

Test(sshargv, without_a_program_it_asks_for_the_settings, .timeout = 5)
{
    struct hvi_opts opts = {.ssh_port = 7};
    char text[256];
    char **argv = hvi_sshargv_make(&ssh, &plain, &opts, NULL);

    cr_assert_not_null(argv);
    joined(argv, text, sizeof text);
    cr_assert_str_eq(text, "ssh -p 7 -G " SESSION "host1 ");
}

Test(sshargv, a_path_of_the_user_is_not_looked_for_elsewhere, .timeout = 5)
{
    struct hvi_opts opts = {.agent_path = (char *)"/my/agent"};
    char text[1024];

    joined(hvi_sshargv_make(&ssh, &plain, &opts, opts.agent_path), text, sizeof text);
    cr_assert_str_eq(text, "ssh " SETTINGS
                           "host1 exec sh -c 'exec \"$0\" --stdin' '/my/agent' ");
}

/* What leads there, by --rsh. */
static void words_of(const char *rsh, const struct hvi_host *host, char *out,
                     size_t cap)
{
    struct hvi_opts opts = {.rsh = (char *)(uintptr_t)rsh,
                            .agent_path = (char *)"/a b/agent"};
    struct hvi_rshell shell = hvi_rshell_choose(&opts);

    joined(hvi_sshargv_make(&shell, host, &opts, opts.agent_path), out, cap);
}

Test(sshargv, other_commands_can_stand_for_ssh, .timeout = 5)
{
    char text[1024];

    words_of("/opt/bin/ssh", &plain, text, sizeof text);
    cr_assert_str_eq(text, "/opt/bin/ssh " SETTINGS
                           "host1 exec sh -c 'exec \"$0\" --stdin' '/a b/agent' ");
    words_of("  kubexec.sh  -v ", &plain, text, sizeof text);
    cr_assert_str_eq(text, "kubexec.sh -v host1 exec sh -c 'exec \"$0\" --stdin' "
                           "'/a b/agent' ");
    words_of("docker exec -u %u -i c-%h 100%%", &with_user, text, sizeof text);
    cr_assert_str_eq(text, "docker exec -u me -i c-fe80::1 100% sh -c exec \"$0\" "
                           "--stdin /a b/agent ");
    words_of("srun --reservation=x", &plain, text, sizeof text);
    cr_assert_str_eq(text, "srun --reservation=x --overlap --nodes=1 --ntasks=1 "
                           "--mpi=none --cpu-bind=none --kill-on-bad-exit=0 --quiet "
                           "--nodelist=host1 sh -c exec \"$0\" --stdin /a b/agent ");
}

Test(sshargv, the_environment_chooses_when_no_option_does, .timeout = 5)
{
    struct hvi_opts opts = {0};
    struct hvi_opts with_port = {.ssh_port = 2222};

    unsetenv("HVD_RSH");
    unsetenv("SLURM_JOB_ID");
    cr_assert_str_eq(hvi_rshell_choose(&opts).command, "ssh");
    setenv("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh", 1);
    cr_assert_eq(hvi_rshell_choose(&opts).kind, HVI_RSHELL_RSH);
    cr_assert_str_eq(hvi_rshell_choose(&with_port).command, "ssh");
    unsetenv("OMPI_MCA_plm_rsh_agent");
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("PATH", "/nonexistent", 1);
    cr_assert_str_eq(hvi_rshell_choose(&opts).command, "ssh", "there is no srun");
    setenv("HVD_RSH", "srun -v", 1);
    cr_assert_eq(hvi_rshell_choose(&opts).kind, HVI_RSHELL_SRUN);
    opts.rsh = (char *)(uintptr_t) "ssh";
    cr_assert_eq(hvi_rshell_choose(&opts).kind, HVI_RSHELL_SSH);
}

Test(sshargv, many_words_of_the_user_fit, .timeout = 5)
{
    char *args[200];
    struct hvi_opts opts = {.ssh_args = args, .nssh_args = 200};
    size_t n = 0;
    char **argv;

    for (size_t i = 0; i < 200; i++)
        args[i] = (char *)"-v";
    argv = hvi_sshargv_make(&ssh, &plain, &opts, "/a");
    cr_assert_not_null(argv);
    while (argv[n] != NULL)
        n++;
    cr_assert_str_eq(argv[n - 1], "exec sh -c '" LOOK "' '/a'");
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
