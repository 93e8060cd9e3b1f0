#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/ssh/sshsaid.h"
#include "hvdrun/ssh/sshtext.h"

#define EXITED(n) ((n) << 8)

static void check(int wait_status, int port, bool up, const char *said,
                  const char *expected)
{
    struct hvi_ssh_failure f = {.host = "h1",
                                .dest = "me@h1",
                                .agent = "/opt/hvd-agent",
                                .said = said,
                                .port = port,
                                .wait_status = wait_status,
                                .up = up};
    char text[HVI_SSHTEXT_MAX];
    const char *line;

    hvi_sshtext(&f, text);
    cr_assert_str_eq(text, expected, "%s\n  not\n%s", text, expected);
    line = strchr(text, '\n');
    cr_assert(line == NULL || strchr(line + 1, '\n') == NULL, "three lines: %s", text);
}

/* Said for want of a port, and of an IPv6 address where this host has no IPv6. */
Test(sshtext, no_port_is_said_only_where_this_host_has_none, .timeout = 5)
{
    struct hvi_ssh_failure f = {.host = "h1",
                                .dest = "h1",
                                .said = "ssh: connect to host h1 port 22: Cannot "
                                        "assign requested address\r\n",
                                .wait_status = EXITED(255)};
    char text[HVI_SSHTEXT_MAX];

    cr_assert_str_eq(hvi_sshtext(&f, text),
                     "h1: ssh exited with status 255 before hvd-agent answered: ssh: "
                     "connect to host h1 port 22: Cannot assign requested address; "
                     "try: ssh h1 true");
    f.no_port = true;
    cr_assert_str_eq(hvi_sshtext(&f, text),
                     "h1: ssh has no local port here to connect from: all of "
                     "net.ipv4.ip_local_port_range are in use;\n  end what holds "
                     "them, or widen the range with sysctl");
}

/* What OpenSSH 9.2 says, and what we make of it. */
Test(sshtext, known_failures_name_the_host_and_the_fix, .timeout = 5)
{
    check(EXITED(255), 0, false,
          "ssh: Could not resolve hostname h1: Name or service not known\r\n",
          "unknown host h1: no address is known for that name (Name or service not "
          "known);\n  correct the list of hosts, or name it in ~/.ssh/config or "
          "/etc/hosts");
    check(EXITED(255), 0, false,
          "ssh: connect to host h1 port 22: Connection refused\r\n",
          "h1: connection refused: no ssh server listens on port 22 there; start one, "
          "or give its port with -p");
    check(EXITED(255), 2222, false,
          "ssh: connect to host h1 port 2222: Connection refused\r\n",
          "h1: connection refused: no ssh server listens on port 2222 there; start "
          "one, or give its port with -p");
    check(EXITED(255), 2222, false,
          "ssh: connect to host h1 port 2222: Connection timed out\r\n",
          "h1: no answer from the ssh server there within 10 s; is it up, and does a "
          "firewall let ssh through?\n  Try: ssh -p 2222 me@h1 true");
    check(EXITED(255), 0, false, "Connection timed out during banner exchange\r\n",
          "h1: no answer from the ssh server there within 10 s; is it up, and does a "
          "firewall let ssh through?\n  Try: ssh me@h1 true");
    check(
        EXITED(255), 0, false, "ssh: connect to host h1 port 22: No route to host\r\n",
        "h1 cannot be reached (ssh: connect to host h1 port 22: No route to host);\n  "
        "is it up and in this network?");
    check(
        EXITED(255), 0, false,
        "A banner\r\nme@h1: Permission denied (publickey,password).\r\n",
        "h1: permission denied for me@h1 (it accepts: publickey,password); 'ssh me@h1 "
        "true' must work without a question:\n  ssh-copy-id me@h1, or name the key "
        "with -i; one with a passphrase: ssh-add it first");
    check(EXITED(255), 0, false,
          "@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
          "Host key verification failed.\r\n",
          "h1: its host key has changed since the last login; if that is right, forget "
          "the old one:\n  ssh-keygen -R h1");
    check(EXITED(255), 0, false, "Host key verification failed.\r\n",
          "h1: its host key is not known here; log in once by hand and accept it:\n  "
          "ssh me@h1");
    check(EXITED(255), 0, false,
          "Received disconnect from 10.0.0.1 port 22:2: Too many authentication "
          "failures\r\nDisconnected from 10.0.0.1 port 22\r\n",
          "h1: ssh offered too many keys before the right one; name it with -i FILE");
    check(EXITED(255), 0, false,
          "kex_exchange_identification: Connection closed by remote host\r\n",
          "h1: its ssh server closed the connection before the login; it may have too "
          "many at once (MaxStartups)\n  (ssh: kex_exchange_identification: Connection "
          "closed by remote host)");
}

/* What is not on the host itself. */
Test(sshtext, names_come_from_what_ssh_said, .timeout = 5)
{
    check(EXITED(255), 0, false,
          "ssh: Could not resolve hostname jump: Name or service not known\r\n"
          "kex_exchange_identification: Connection closed by remote host\r\n",
          "h1: unknown host jump, which the ssh configuration here names for it: no "
          "address is known (Name or service not known);\n  correct its HostName or "
          "ProxyJump: ssh -G me@h1");
    check(EXITED(255), 0, false,
          "ssh: connect to host 10.0.0.7 port 2200: Connection refused\r\n",
          "h1: connection refused: no ssh server listens on port 2200 of 10.0.0.7; "
          "start one, or give its port with -p");
    check(EXITED(255), 0, false,
          "@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
          "Add correct host key in /x/known to get rid of this message.\r\n"
          "Offending ED25519 key in /x/my known:3\r\n"
          "Host key for [h1]:22 has changed and you have requested strict checking.\r\n"
          "Host key verification failed.\r\n",
          "h1: its host key has changed since the last login; if that is right, forget "
          "the old one:\n  ssh-keygen -f '/x/my known' -R '[h1]:22'");
    cr_assert(
        hvi_said_kind("Warning: Identity file /x/k not accessible: No such file.\n"
                      "ssh: connect to host h1 port 22: Connection refused\r\n",
                      255, true) == HVI_SAID_REFUSED);
    check(EXITED(255), 0, false,
          "Warning: Identity file /x/k not accessible: No such file or directory.\n"
          "me@h1: Permission denied (publickey).\r\n",
          "h1: no login: ssh cannot read the key /x/k (No such file or directory); "
          "correct -i or IdentityFile");
    check(
        EXITED(255), 0, false,
        "sh: 1: exec: proxy: not found\r\nConnection closed by UNKNOWN port 65535\r\n",
        "h1: the command that leads to it (ProxyCommand or ProxyJump of the ssh "
        "configuration here) does not work:\n  (sh: 1: exec: proxy: not found)");
    check(EXITED(255), 0, false, "Could not resolve hostname",
          "unknown host h1: no address is known for that name (no answer);\n  correct "
          "the list of hosts, or name it in ~/.ssh/config or /etc/hosts");
}

Test(sshtext, an_agent_that_cannot_run_is_told_apart, .timeout = 5)
{
    check(EXITED(127), 0, false, "sh: 1: exec: /opt/hvd-agent: not found\n",
          "h1: there is no /opt/hvd-agent there, nor hvd-agent on PATH;\n  install hvd "
          "on it, the same version, or say where with --agent-path");
    check(EXITED(1), 0, false, "/opt/hvd-agent: Command not found.\n", /* csh */
          "h1: there is no /opt/hvd-agent there, nor hvd-agent on PATH;\n  install hvd "
          "on it, the same version, or say where with --agent-path");
    check(EXITED(1), 0, false,
          "/opt/hvd-agent: /lib/libc.so.6: version `GLIBC_2.38' not found (required by "
          "/opt/hvd-agent)\n",
          "h1: hvd-agent was built for a newer C library than that host has; build hvd "
          "there, or on the oldest host\n  (/opt/hvd-agent: /lib/libc.so.6: version "
          "`GLIBC_2.38' not found (required by /opt/hvd-agent))");
    check(EXITED(126), 0, false, "sh: 1: exec: /opt/hvd-agent: Exec format error\n",
          "h1: /opt/hvd-agent is a program for another kind of machine; build hvd for "
          "that host, and say where it is with --agent-path");
    check(
        EXITED(126), 0, false, "bash: /opt/hvd-agent: Permission denied\n",
        "h1: /opt/hvd-agent may not be executed there; make it executable (chmod +x), "
        "and its file system not noexec");
    check(EXITED(127), 0, false,
          "/opt/hvd-agent: error while loading shared libraries: libuv.so.1: cannot "
          "open shared object file: No such file or directory\n",
          "h1: hvd-agent lacks a library there; install it on that host too\n  "
          "(/opt/hvd-agent: error while loading shared libraries: libuv.so.1: cannot "
          "open shared object file: No such file or directory)");
}

Test(sshtext, the_rest_says_what_ssh_said_last, .timeout = 5)
{
    check(EXITED(255), 0, false, "first\r\nsome\033[1m news\r\n\r\n",
          "h1: ssh exited with status 255 before hvd-agent answered: some\\x1b[1m "
          "news; try: ssh me@h1 true");
    check(
        EXITED(0), 0, false, "",
        "h1: the login exited with status 0 before hvd-agent answered (its last words: "
        "none);\n  may this user log in there, and does .bashrc or the like not exit? "
        "Try: ssh me@h1 true");
    check(SIGKILL, 0, false, "",
          "h1: ssh was killed by signal 9 (SIGKILL) before hvd-agent answered; try: "
          "ssh me@h1 true");
}

Test(sshtext, later_it_is_the_connection_that_was_lost, .timeout = 5)
{
    check(EXITED(255), 0, true, "Timeout, server h1 not responding.\r\n",
          "lost the connection to h1: Timeout, server h1 not responding.; the job "
          "ends");
    check(EXITED(255), 0, true, "",
          "the agent on h1 was killed, or the connection to it closed without a word; "
          "the job ends");
    check(SIGTERM, 0, true, "",
          "the ssh to h1 was killed by signal 15 (SIGTERM); the job ends");
    check(EXITED(1), 0, true, "", "the agent on h1 exited with status 1; the job ends");
}

Test(sshtext, long_words_do_not_overflow, .timeout = 5)
{
    char said[4000];
    struct hvi_ssh_failure f = {
        .host = "h1", .dest = "h1", .agent = "/a", .said = said, .wait_status = 0xff00};
    char text[HVI_SSHTEXT_MAX];

    memset(said, '\001', sizeof said - 1);
    said[sizeof said - 1] = '\0';
    hvi_sshtext(&f, text);
    cr_assert_lt(strlen(text), sizeof text);
    f.up = true;
    hvi_sshtext(&f, text);
    cr_assert_lt(strlen(text), sizeof text);
}
