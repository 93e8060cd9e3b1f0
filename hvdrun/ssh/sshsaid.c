#include "hvdrun/ssh/sshsaid.h"

#include <string.h>

#include "proto/base/err.h"

#define SHOWN_BYTES 200

struct part {
    const char *text;
    enum hvi_said_kind kind;
};

/* Parts of OpenSSH's own texts. The first that is found counts: a changed key also says
 * that verification failed, and a server that closes may say why before. */
static const struct part of_ssh[] = {
    {"Bad owner or permissions on ", HVI_SAID_CONFIG},
    {"ad configuration option", HVI_SAID_CONFIG},
    {"Could not resolve hostname", HVI_SAID_UNKNOWN_HOST},
    {"IDENTIFICATION HAS CHANGED", HVI_SAID_KEY_CHANGED},
    {"Host key verification failed", HVI_SAID_KEY_UNKNOWN},
    {"Unable to negotiate with ", HVI_SAID_NO_COMMON_METHOD},
    {"Too many authentication failures", HVI_SAID_TOO_MANY_KEYS},
    {"Permission denied (", HVI_SAID_DENIED},
    {"stdio forwarding failed", HVI_SAID_NOT_FORWARDED},
    {"open failed: ", HVI_SAID_NO_SESSION},
    {"Cannot assign requested address", HVI_SAID_NO_PORT},
    {"Connection refused", HVI_SAID_REFUSED},
    {"timed out", HVI_SAID_TIMED_OUT},
    {"No route to host", HVI_SAID_UNREACHABLE},
    {"Network is unreachable", HVI_SAID_UNREACHABLE},
    {"kex_exchange_identification", HVI_SAID_BUSY},
    {"Connection reset by", HVI_SAID_BUSY},
    {"Connection closed by", HVI_SAID_BUSY},
};

/* Said before it connects: the reason only of a denial. */
static const struct part of_keys[] = {
    {"UNPROTECTED PRIVATE KEY FILE", HVI_SAID_KEY_OPEN},
    {" not accessible: ", HVI_SAID_KEY_MISSING},
};

/* ... and of shells and the dynamic linker. */
static const struct part of_shell[] = {
    {"version `GLIBC_", HVI_SAID_LIBC},
    {"error while loading shared libraries", HVI_SAID_LIBRARY},
    {"xec format error", HVI_SAID_FOREIGN},
    {"cannot execute binary file", HVI_SAID_FOREIGN},
};

static enum hvi_said_kind find(const char *said, const struct part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(said, parts[i].text) != NULL)
            return parts[i].kind;
    return HVI_SAID_UNSET;
}

static bool says_missing(const char *said)
{
    return strstr(said, "not found") != NULL || strstr(said, "No such file") != NULL;
}

enum hvi_said_kind hvi_said_kind(const char *said, int status, bool by_ssh)
{
    enum hvi_said_kind key = HVI_SAID_UNSET;
    enum hvi_said_kind kind;

    if (status == 255 && by_ssh) {
        kind = find(said, of_ssh, sizeof of_ssh / sizeof of_ssh[0]);
        /* behind a ProxyCommand there is no address to name */
        if ((kind == HVI_SAID_BUSY || kind == HVI_SAID_UNSET) &&
            strstr(said, " UNKNOWN port ") != NULL && says_missing(said))
            return HVI_SAID_PROXY;
        if (kind == HVI_SAID_DENIED)
            key = find(said, of_keys, sizeof of_keys / sizeof of_keys[0]);
        return key != HVI_SAID_UNSET ? key : kind;
    }
    kind = find(said, of_shell, sizeof of_shell / sizeof of_shell[0]);
    if (kind != HVI_SAID_UNSET)
        return kind;
    if (status == 127 || (status > 0 && says_missing(said)))
        return HVI_SAID_MISSING;
    if (status == 126)
        return HVI_SAID_NOT_EXECUTABLE;
    return strstr(said, "hvd-agent: ") != NULL ||
                   strstr(said, "usage: hvd-agent") != NULL
               ? HVI_SAID_BY_AGENT
               : HVI_SAID_UNSET;
}

static char *shown(const char *text, size_t n, char out[HVI_SAID_MAX])
{
    while (n > 0 && strchr("\r\n ", text[n - 1]) != NULL)
        n--;
    hvi_escape(out, HVI_SAID_MAX, text, n < SHOWN_BYTES ? n : SHOWN_BYTES);
    return out;
}

char *hvi_said_line(const char *said, const char *part, char out[HVI_SAID_MAX])
{
    const char *at = part != NULL ? strstr(said, part) : NULL;
    size_t end = strlen(said);
    size_t start;

    if (part != NULL && at == NULL)
        end = 0;
    else if (at != NULL)
        end = (size_t)(at - said) + strcspn(at, "\n");
    while (end > 0 && strchr("\r\n ", said[end - 1]) != NULL)
        end--;
    start = end;
    while (start > 0 && said[start - 1] != '\n')
        start--;
    return shown(said + start, end - start, out);
}

bool hvi_said_between(const char *said, const char *before, const char *after,
                      char out[HVI_SAID_MAX])
{
    const char *at = strstr(said, before);
    size_t n;

    out[0] = '\0';
    if (at == NULL)
        return false;
    at += strlen(before);
    n = strcspn(at, "\r\n");
    if (after[0] != '\0') {
        const char *end = memmem(at, n, after, strlen(after));

        if (end == NULL)
            return false;
        n = (size_t)(end - at);
    }
    shown(at, n, out);
    return out[0] != '\0';
}

char *hvi_said_denied(const char *said, char out[HVI_SAID_MAX])
{
    const char *end = strstr(said, ": Permission denied (");
    const char *start = end;

    out[0] = '\0';
    if (end == NULL)
        return out;
    while (start > said && start[-1] != '\n')
        start--;
    return shown(start, (size_t)(end - start), out);
}
