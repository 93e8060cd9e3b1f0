#include "hvdrun/ssh/sshtext.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>

#include "hvdrun/job/exitcode.h"
#include "hvdrun/ssh/sshargv.h"
#include "hvdrun/ssh/sshsaid.h"
#include "proto/base/err.h"

static enum hvi_said_kind kind_of(const struct hvi_ssh_failure *f)
{
    return hvi_said_kind(f->said,
                         WIFEXITED(f->wait_status) ? WEXITSTATUS(f->wait_status) : -1,
                         f->shell == NULL);
}

static void word(char *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void word(char *out, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(out, HVI_SSHTEXT_MAX, fmt, ap);
    va_end(ap);
}

/* " -p 2222", or "" */
static const char *port_option(const struct hvi_ssh_failure *f, char out[32])
{
    out[0] = '\0';
    if (f->port > 0)
        snprintf(out, 32, " -p %d", f->port);
    return out;
}

/* ---- the way there */

static void unknown_host(const struct hvi_ssh_failure *f, char *out)
{
    char name[HVI_SAID_MAX], why[HVI_SAID_MAX];
    const char *at = strstr(f->said, "Could not resolve hostname");

    if (!hvi_said_between(f->said, "Could not resolve hostname ", ": ", name))
        snprintf(name, sizeof name, "%s", f->host);
    if (at == NULL || !hvi_said_between(at, ": ", "", why))
        snprintf(why, sizeof why, "no answer");
    if (strcasecmp(name, f->host) == 0)
        word(out,
             "unknown host %s: no address is known for that name (%s);\n  correct the "
             "list of hosts, or name it in ~/.ssh/config or /etc/hosts",
             f->host, why);
    else
        word(out,
             "%s: unknown host %s, which the ssh configuration here names for it: no "
             "address is known (%s);\n  correct its HostName or ProxyJump: ssh -G %s",
             f->host, name, why, f->dest);
}

/* Which server did not take the connection: " of NAME" unless it is the host itself, and
 * its port. */
static int server_of(const struct hvi_ssh_failure *f, char of[HVI_SAID_MAX + 8])
{
    char name[HVI_SAID_MAX], port[HVI_SAID_MAX];
    const char *at = strstr(f->said, "connect to host ");

    of[0] = '\0';
    if (at == NULL || !hvi_said_between(at, "connect to host ", " port ", name) ||
        !hvi_said_between(at, " port ", ": ", port))
        return f->port > 0 ? f->port : 22;
    if (strcasecmp(name, f->host) != 0)
        snprintf(of, HVI_SAID_MAX + 8, " of %s", name);
    return atoi(port);
}

static void refused(const struct hvi_ssh_failure *f, char *out)
{
    char of[HVI_SAID_MAX + 8];
    int port = server_of(f, of);

    word(out,
         "%s: connection refused: no ssh server listens on port %d%s; start one, or "
         "give its port with -p",
         f->host, port, of[0] != '\0' ? of : " there");
}

static void timed_out(const struct hvi_ssh_failure *f, char *out)
{
    char of[HVI_SAID_MAX + 8], option[32];

    (void)server_of(f, of);
    word(out,
         "%s: no answer from the ssh server%s within %d s; is it up, and does a "
         "firewall let ssh through?\n  Try: ssh%s %s true",
         f->host, of[0] != '\0' ? of : " there", HVI_SSH_CONNECT_S,
         port_option(f, option), f->dest);
}

static void unreachable(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];
    const char *part = strstr(f->said, "No route") != NULL ? "No route" : "is unreach";

    word(out, "%s cannot be reached (%s);\n  is it up and in this network?", f->host,
         hvi_said_line(f->said, part, line));
}

static void no_port(const struct hvi_ssh_failure *f, char *out)
{
    word(
        out,
        "%s: ssh has no local port here to connect from: all of "
        "net.ipv4.ip_local_port_range are in use;\n  end what holds them, or widen the "
        "range with sysctl",
        f->host);
}

static void busy(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];

    word(out,
         "%s: its ssh server closed the connection before the login; it may have too "
         "many at once (MaxStartups)\n  (ssh: %s)",
         f->host, hvi_said_line(f->said, NULL, line));
}

static void proxy(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];
    const char *part = strstr(f->said, "not found") != NULL ? "not found" : "No such";

    word(out,
         "%s: the command that leads to it (ProxyCommand or ProxyJump of the ssh "
         "configuration here) does not work:\n  (%s)",
         f->host, hvi_said_line(f->said, part, line));
}

static void not_forwarded(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];

    word(out,
         "%s: the host on the way to it (ProxyJump of the ssh configuration here) does "
         "not reach it:\n  (ssh: %s)",
         f->host, hvi_said_line(f->said, "open failed", line));
}

static void no_session(const struct hvi_ssh_failure *f, char *out)
{
    word(out,
         "%s: its ssh server lets nobody run a command on this connection; raise "
         "MaxSessions in its sshd_config",
         f->host);
}

static void config(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];
    const char *part = strstr(f->said, "Bad owner") != NULL ? "Bad owner" : "ad conf";

    word(out, "%s: the ssh configuration here is wrong:\n  (%s)", f->host,
         hvi_said_line(f->said, part, line));
}

/* ---- keys */

/* 'word' when a shell would take it apart. */
static char *quoted(const char *text, char out[HVI_SAID_MAX])
{
    char *q = hvi_sshargv_quote(text);

    snprintf(out, HVI_SAID_MAX, "%s",
             q != NULL && strpbrk(text, " '\"[]*?$&|;<>()\\") != NULL ? q : text);
    free(q);
    return out;
}

static void key_changed(const struct hvi_ssh_failure *f, char *out)
{
    char name[HVI_SAID_MAX], file[HVI_SAID_MAX], option[HVI_SAID_MAX + 8] = "";
    char text[HVI_SAID_MAX];
    const char *where = strstr(f->said, "Offending ");

    if (!hvi_said_between(f->said, "ey for ", " has changed and", name))
        snprintf(name, sizeof name, "%s", f->host);
    if (where != NULL && hvi_said_between(where, " key in ", "", file) &&
        strrchr(file, ':') != NULL) {
        *strrchr(file, ':') = '\0'; /* the number of the line */
        snprintf(option, sizeof option, " -f %s", quoted(file, text));
    }
    word(out,
         "%s: its host key has changed since the last login; if that is right, forget "
         "the old one:\n  ssh-keygen%s -R %s",
         f->host, option, quoted(name, text));
}

static void key_unknown(const struct hvi_ssh_failure *f, char *out)
{
    char option[32];

    word(out,
         "%s: its host key is not known here; log in once by hand and accept it:\n  "
         "ssh%s %s",
         f->host, port_option(f, option), f->dest);
}

static void no_common_method(const struct hvi_ssh_failure *f, char *out)
{
    char what[HVI_SAID_MAX];

    if (!hvi_said_between(f->said, "no matching ", "", what))
        snprintf(what, sizeof what, "method found");
    word(out,
         "%s: ssh here and its server have no method in common: no matching %s;\n  "
         "update the older one, or allow such a method for that host in ~/.ssh/config",
         f->host, what);
}

static void too_many_keys(const struct hvi_ssh_failure *f, char *out)
{
    word(out,
         "%s: ssh offered too many keys before the right one; name it with -i FILE",
         f->host);
}

static void key_open(const struct hvi_ssh_failure *f, char *out)
{
    char file[HVI_SAID_MAX], text[HVI_SAID_MAX];

    if (!hvi_said_between(f->said, " for '", "' are too open", file))
        snprintf(file, sizeof file, "FILE");
    word(out,
         "%s: ssh does not use the key %s, because others may read it; keep it to "
         "yourself:\n  chmod 600 %s",
         f->host, file, quoted(file, text));
}

static void key_missing(const struct hvi_ssh_failure *f, char *out)
{
    char file[HVI_SAID_MAX], why[HVI_SAID_MAX];

    if (!hvi_said_between(f->said, "dentity file ", " not accessible: ", file))
        snprintf(file, sizeof file, "FILE");
    hvi_said_between(f->said, " not accessible: ", ".", why);
    word(out,
         "%s: no login: ssh cannot read the key %s (%s); correct -i or "
         "IdentityFile",
         f->host, file, why);
}

static void denied(const struct hvi_ssh_failure *f, char *out)
{
    char methods[HVI_SAID_MAX], who[HVI_SAID_MAX], option[32];

    (void)hvi_said_between(f->said, "Permission denied (", ")", methods);
    (void)hvi_said_denied(f->said, who);
    (void)port_option(f, option);
    word(
        out,
        "%s: permission denied%s%s (it accepts: %s); 'ssh%s %s true' must work without "
        "a question:\n  ssh-copy-id%s %s, or name the key with -i; one with a "
        "passphrase: ssh-add it first",
        f->host, who[0] != '\0' ? " for " : "", who, methods, option, f->dest, option,
        f->dest);
}

/* ---- the agent there */

static void libc(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];

    word(out,
         "%s: hvd-agent was built for a newer C library than that host has; build hvd "
         "there, or on the oldest host\n  (%s)",
         f->host, hvi_said_line(f->said, "GLIBC_", line));
}

static void library(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];

    word(out,
         "%s: hvd-agent lacks a library there; install it on that host too\n  (%s)",
         f->host, hvi_said_line(f->said, "error while loading", line));
}

static void foreign(const struct hvi_ssh_failure *f, char *out)
{
    word(out,
         "%s: %s is a program for another kind of machine; build hvd for that host%s",
         f->host, f->agent,
         f->agent_named ? "" : ", and say where it is with --agent-path");
}

static void missing(const struct hvi_ssh_failure *f, char *out)
{
    word(out, "%s: there is no %s there%s", f->host, f->agent,
         f->agent_named ? " (--agent-path)"
                        : ", nor hvd-agent on PATH;\n  install hvd on it, the same "
                          "version, or say where with --agent-path");
}

static void not_executable(const struct hvi_ssh_failure *f, char *out)
{
    word(out,
         "%s: %s may not be executed there; make it executable (chmod +x), and its "
         "file system not noexec",
         f->host, f->agent);
}

static void by_agent(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX];
    bool asks = strstr(f->said, "usage: hvd-agent") != NULL;

    word(out, "%s: hvd-agent cannot work there%s:\n  (%s)", f->host,
         asks ? "; is it of another version?" : "",
         hvi_said_line(f->said, asks ? "usage: " : "hvd-agent: ", line));
}

static void (*const words_of[])(const struct hvi_ssh_failure *f, char *out) = {
    [HVI_SAID_CONFIG] = config,
    [HVI_SAID_UNKNOWN_HOST] = unknown_host,
    [HVI_SAID_KEY_CHANGED] = key_changed,
    [HVI_SAID_KEY_UNKNOWN] = key_unknown,
    [HVI_SAID_NO_COMMON_METHOD] = no_common_method,
    [HVI_SAID_TOO_MANY_KEYS] = too_many_keys,
    [HVI_SAID_KEY_OPEN] = key_open,
    [HVI_SAID_KEY_MISSING] = key_missing,
    [HVI_SAID_DENIED] = denied,
    [HVI_SAID_NOT_FORWARDED] = not_forwarded,
    [HVI_SAID_NO_SESSION] = no_session,
    [HVI_SAID_NO_PORT] = no_port,
    [HVI_SAID_REFUSED] = refused,
    [HVI_SAID_TIMED_OUT] = timed_out,
    [HVI_SAID_UNREACHABLE] = unreachable,
    [HVI_SAID_PROXY] = proxy,
    [HVI_SAID_BUSY] = busy,
    [HVI_SAID_LIBC] = libc,
    [HVI_SAID_LIBRARY] = library,
    [HVI_SAID_FOREIGN] = foreign,
    [HVI_SAID_MISSING] = missing,
    [HVI_SAID_NOT_EXECUTABLE] = not_executable,
    [HVI_SAID_BY_AGENT] = by_agent,
};

/* ---- what is not known */

static char *word_end(const struct hvi_ssh_failure *f, char *out, size_t cap)
{
    if (f->lingered)
        snprintf(out, cap, "closed its output and did not end");
    else
        hvi_exit_words(f->wait_status, out, cap);
    return out;
}

static void other(const struct hvi_ssh_failure *f, char *out)
{
    char line[HVI_SAID_MAX], ends[128], option[32];
    bool of_login = WIFEXITED(f->wait_status) && WEXITSTATUS(f->wait_status) != 255;

    word_end(f, ends, sizeof ends);
    hvi_said_line(of_login && f->printed != NULL && f->printed[0] != '\0' ? f->printed
                                                                          : f->said,
                  NULL, line);
    if (f->shell != NULL)
        word(out, "%s: '%.100s' %s before hvd-agent answered%s%s", f->host, f->shell,
             ends, line[0] != '\0' ? ": " : "", line);
    else if (of_login)
        word(out,
             "%s: the login %s before hvd-agent answered (its last words: %s);\n  may "
             "this user log in there, and does .bashrc or the like not exit? Try: "
             "ssh%s %s true",
             f->host, ends, line[0] != '\0' ? line : "none", port_option(f, option),
             f->dest);
    else
        word(out, "%s: ssh %s before hvd-agent answered%s%s; try: ssh%s %s true",
             f->host, ends, line[0] != '\0' ? ": " : "", line, port_option(f, option),
             f->dest);
}

bool hvi_sshtext_busy(const struct hvi_ssh_failure *f)
{
    return !f->up && kind_of(f) == HVI_SAID_BUSY;
}

static char *before_up(const struct hvi_ssh_failure *f, char *out)
{
    enum hvi_said_kind kind = kind_of(f);

    if (kind == HVI_SAID_NO_PORT && !f->no_port)
        kind = HVI_SAID_UNSET; /* so says a host without IPv6 of an IPv6 address, too */
    if (kind == HVI_SAID_UNSET)
        other(f, out);
    else
        words_of[kind](f, out);
    return out;
}

char *hvi_sshtext(const struct hvi_ssh_failure *f, char out[HVI_SSHTEXT_MAX])
{
    char line[HVI_SAID_MAX], words[128];

    if (!f->up)
        return before_up(f, out);
    hvi_said_line(f->said, NULL, line);
    if (WIFEXITED(f->wait_status) && WEXITSTATUS(f->wait_status) == 255 &&
        line[0] == '\0') /* so ssh reports a command that a signal ended */
        snprintf(out, HVI_SSHTEXT_MAX,
                 "the agent on %s was killed, or the connection to it closed without a "
                 "word; the job ends",
                 f->host);
    else if (WIFEXITED(f->wait_status) && WEXITSTATUS(f->wait_status) == 255)
        snprintf(out, HVI_SSHTEXT_MAX, "lost the connection to %s: %s; the job ends",
                 f->host, line);
    else if (WIFSIGNALED(f->wait_status))
        snprintf(out, HVI_SSHTEXT_MAX, "the %.100s to %s %s; the job ends",
                 f->shell != NULL ? f->shell : "ssh", f->host,
                 word_end(f, words, sizeof words));
    else
        snprintf(out, HVI_SSHTEXT_MAX, "the agent on %s %s%s%s; the job ends", f->host,
                 hvi_exit_words(f->wait_status, words, sizeof words),
                 line[0] != '\0' ? ": " : "", line);
    return out;
}
