#include "hvdrun/sshtext.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "hvdrun/exitcode.h"
#include "hvdrun/sshargv.h"
#include "proto/base/err.h"
#include "proto/base/log.h"

#define SHOWN_BYTES 200

enum kind {
    KIND_UNSET = 0,
    KIND_UNKNOWN_HOST,
    KIND_REFUSED,
    KIND_TIMED_OUT,
    KIND_UNREACHABLE,
    KIND_KEY_CHANGED,
    KIND_KEY_UNKNOWN,
    KIND_TOO_MANY_KEYS,
    KIND_DENIED,
    KIND_BUSY,
    KIND_LIBRARY,
    KIND_MISSING,
    KIND_NOT_EXECUTABLE
};

/* Parts of OpenSSH's own texts. The first that is found counts: a changed key also
 * says that verification failed, and a server that closes may say why before. */
static const struct {
    const char *part;
    enum kind kind;
} parts[] = {
    {"Could not resolve hostname", KIND_UNKNOWN_HOST},
    {"IDENTIFICATION HAS CHANGED", KIND_KEY_CHANGED},
    {"Host key verification failed", KIND_KEY_UNKNOWN},
    {"Too many authentication failures", KIND_TOO_MANY_KEYS},
    {"Permission denied (", KIND_DENIED},
    {"Connection refused", KIND_REFUSED},
    {"timed out", KIND_TIMED_OUT},
    {"No route to host", KIND_UNREACHABLE},
    {"Network is unreachable", KIND_UNREACHABLE},
    {"kex_exchange_identification", KIND_BUSY},
    {"Connection reset by", KIND_BUSY},
    {"Connection closed by", KIND_BUSY},
};

static enum kind kind_of(const struct hvi_ssh_failure *f)
{
    int status = WIFEXITED(f->wait_status) ? WEXITSTATUS(f->wait_status) : -1;

    if (status == 255 && f->shell == NULL) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            if (strstr(f->said, parts[i].part) != NULL)
                return parts[i].kind;
        return KIND_UNSET;
    }
    if (strstr(f->said, "error while loading shared libraries") != NULL)
        return KIND_LIBRARY;
    if (status == 127 || (status > 0 && (strstr(f->said, "not found") != NULL ||
                                         strstr(f->said, "No such file") != NULL)))
        return KIND_MISSING;
    return status == 126 ? KIND_NOT_EXECUTABLE : KIND_UNSET;
}

/* The last line that is not empty, escaped. */
static const char *last_line(const char *said, char *out, size_t cap)
{
    size_t end = strlen(said);
    size_t start;

    while (end > 0 && strchr("\r\n ", said[end - 1]) != NULL)
        end--;
    start = end;
    while (start > 0 && said[start - 1] != '\n')
        start--;
    if (end - start > SHOWN_BYTES)
        end = start + SHOWN_BYTES;
    return hvi_escape(out, cap, said + start, end - start);
}

/* "publickey,password" of "Permission denied (publickey,password)." */
static const char *methods(const char *said, char *out, size_t cap)
{
    const char *open = strstr(said, "Permission denied (");
    size_t n;

    out[0] = '\0';
    if (open == NULL)
        return out;
    open += strlen("Permission denied (");
    n = strcspn(open, ")\n");
    return hvi_escape(out, cap, open, n < 64 ? n : 64);
}

static void before_up(const struct hvi_ssh_failure *f, char *out, size_t cap)
{
    char shown[2 * SHOWN_BYTES], words[128], port[32] = "";

    if (f->port > 0)
        snprintf(port, sizeof port, " -p %d", f->port);
    switch (kind_of(f)) {
    case KIND_UNKNOWN_HOST:
        snprintf(out, cap,
                 "unknown host %s: no address is known for that name; correct the list "
                 "of hosts,\n  or name it in ~/.ssh/config or /etc/hosts",
                 f->host);
        break;
    case KIND_REFUSED:
        snprintf(out, cap,
                 "%s: connection refused: no ssh server listens on port %d there; "
                 "start one, or give its port with -p",
                 f->host, f->port > 0 ? f->port : 22);
        break;
    case KIND_TIMED_OUT:
        snprintf(out, cap,
                 "%s: no answer from its ssh server within %d s; is it up, and does a "
                 "firewall let ssh through?\n  Try: ssh%s %s true",
                 f->host, HVI_SSH_CONNECT_S, port, f->dest);
        break;
    case KIND_UNREACHABLE:
        snprintf(out, cap, "%s cannot be reached: %s; is it up and in this network?",
                 f->host, last_line(f->said, shown, sizeof shown));
        break;
    case KIND_KEY_CHANGED:
        snprintf(out, cap,
                 "%s: its host key has changed since the last login; if that is right, "
                 "forget the old one:\n  ssh-keygen -R %s",
                 f->host, f->host);
        break;
    case KIND_KEY_UNKNOWN:
        snprintf(out, cap,
                 "%s: its host key is not known here; log in once by hand and accept "
                 "it:\n  ssh%s %s",
                 f->host, port, f->dest);
        break;
    case KIND_TOO_MANY_KEYS:
        snprintf(out, cap,
                 "%s: ssh offered too many keys before the right one; name it with -i "
                 "FILE",
                 f->host);
        break;
    case KIND_DENIED:
        snprintf(out, cap,
                 "%s: permission denied (it accepts: %s); 'ssh%s %s true' must work "
                 "without a question:\n  ssh-copy-id%s %s, or name the key with -i",
                 f->host, methods(f->said, words, sizeof words), port, f->dest, port,
                 f->dest);
        break;
    case KIND_BUSY:
        snprintf(out, cap,
                 "%s: its ssh server closed the connection before the login; it may "
                 "have too many at once (MaxStartups)\n  (ssh: %s)",
                 f->host, last_line(f->said, shown, sizeof shown));
        break;
    case KIND_LIBRARY:
        snprintf(out, cap,
                 "%s: hvd-agent lacks a library there; install it on that host too\n  "
                 "(%s)",
                 f->host, last_line(f->said, shown, sizeof shown));
        break;
    case KIND_MISSING:
        snprintf(out, cap, "%s: there is no %s there%s", f->host, f->agent,
                 f->agent_named
                     ? " (--agent-path)"
                     : ", nor hvd-agent on PATH; install hvd on it, the same "
                       "version, or say where with --agent-path");
        break;
    case KIND_NOT_EXECUTABLE:
        snprintf(out, cap,
                 "%s: %s cannot be executed there; is it made for that machine, and "
                 "is the file system mounted noexec?",
                 f->host, f->agent);
        break;
    case KIND_UNSET:
    default:
        last_line(f->said, shown, sizeof shown);
        if (f->shell != NULL) {
            snprintf(out, cap, "%s: '%.100s' %s before hvd-agent answered%s%s", f->host,
                     f->shell, hvi_exit_words(f->wait_status, words, sizeof words),
                     shown[0] != '\0' ? ": " : "", shown);
            break;
        }
        snprintf(out, cap,
                 "%s: ssh %s before hvd-agent answered%s%s; try: ssh%s %s true",
                 f->host, hvi_exit_words(f->wait_status, words, sizeof words),
                 shown[0] != '\0' ? ": " : "", shown, port, f->dest);
    }
}

bool hvi_sshtext_busy(const struct hvi_ssh_failure *f)
{
    return !f->up && kind_of(f) == KIND_BUSY;
}

char *hvi_sshtext(const struct hvi_ssh_failure *f, char out[HVI_SSHTEXT_MAX])
{
    char shown[2 * SHOWN_BYTES], words[128];

    if (!f->up) {
        before_up(f, out, HVI_SSHTEXT_MAX);
        return out;
    }
    last_line(f->said, shown, sizeof shown);
    if (WIFEXITED(f->wait_status) && WEXITSTATUS(f->wait_status) == 255)
        snprintf(out, HVI_SSHTEXT_MAX, "lost the connection to %s%s%s; the job ends",
                 f->host, shown[0] != '\0' ? ": " : "", shown);
    else if (WIFSIGNALED(f->wait_status))
        snprintf(out, HVI_SSHTEXT_MAX, "the %.100s to %s %s; the job ends",
                 f->shell != NULL ? f->shell : "ssh", f->host,
                 hvi_exit_words(f->wait_status, words, sizeof words));
    else
        snprintf(out, HVI_SSHTEXT_MAX, "the agent on %s %s%s%s; the job ends", f->host,
                 hvi_exit_words(f->wait_status, words, sizeof words),
                 shown[0] != '\0' ? ": " : "", shown);
    return out;
}
