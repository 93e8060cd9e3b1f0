#include "hvdrun/hosts/hostlist.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/hosts.h"

#define DIGITS_MAX 9
#define BRACKETS_MAX 8

struct walk {
    const char *text;
    hvi_hostlist_fn fn;
    void *data;
    size_t *at;
    struct hvi_err *err;
    char name[HVI_HOST_NAME_MAX + 1];
    int made; /* names */
};

static enum hvd_status bad(struct walk *w, const char *where, const char *why)
{
    *w->at = (size_t)(where - w->text);
    return hvi_fail(w->err, HVD_EINVAL, "%s", why);
}

static enum hvd_status append(struct walk *w, size_t *used, const char *from, size_t n)
{
    if (n > HVI_HOST_NAME_MAX - *used)
        return bad(w, from, "too long");
    memcpy(w->name + *used, from, n);
    *used += n;
    return HVD_OK;
}

static enum hvd_status rest(struct walk *w, const char *p, size_t used, int depth);

/* A piece between commas: digits, digits-digits, or a word. */
static enum hvd_status piece(struct walk *w, const char *p, size_t n, const char *after,
                             size_t used, int depth)
{
    size_t width = strspn(p, "0123456789");
    size_t word = 0;
    unsigned long from;
    unsigned long to;
    char *end;
    enum hvd_status rc = HVD_OK;

    while (word < n && (isalnum((unsigned char)p[word]) || p[word] == '_'))
        word++;
    if (n == 0)
        return bad(w, p, "nothing stands between the brackets or commas");
    if (word == n && width < n) {
        rc = append(w, &used, p, n);
        return rc == HVD_OK ? rest(w, after, used, depth) : rc;
    }
    if (width == 0 || width > DIGITS_MAX)
        return bad(w, p, "a range is FROM-TO or a number");
    from = to = strtoul(p, &end, 10);
    if (*end == '-') {
        size_t digits = strspn(end + 1, "0123456789");

        if (digits == 0 || digits > DIGITS_MAX)
            return bad(w, end, "a range is FROM-TO or a number");
        to = strtoul(end + 1, &end, 10);
    }
    if (end != p + n)
        return bad(w, end, "a range is FROM-TO or a number");
    if (to < from)
        return bad(w, p, "bad range: it ends before it begins");
    if (to - from >= HVI_HOSTS_MAX)
        return bad(w, p, "bad range: too many hosts");
    for (unsigned long i = from; i <= to && rc == HVD_OK; i++) {
        char number[DIGITS_MAX + 12];
        size_t have = used;
        int size = snprintf(number, sizeof number, "%0*lu", (int)width, i);

        if (size > HVI_HOST_NAME_MAX - (int)used)
            return bad(w, p, "too long");
        memcpy(w->name + used, number, (size_t)size);
        have += (size_t)size;
        rc = rest(w, after, have, depth);
    }
    return rc;
}

static enum hvd_status bracket(struct walk *w, const char *open, size_t used, int depth)
{
    const char *close = open + strcspn(open, "]");
    enum hvd_status rc = HVD_OK;

    if (*close == '\0')
        return bad(w, open, "']' is missing");
    if (depth == BRACKETS_MAX)
        return bad(w, open, "too many brackets");
    for (const char *p = open + 1; rc == HVD_OK;) {
        size_t n = strcspn(p, ",]");

        rc = piece(w, p, n, close + 1, used, depth + 1);
        p += n;
        if (*p == ']')
            break;
        p++;
    }
    return rc;
}

/* From p on; the first `used` bytes of the name are there. As deep as there are
 * brackets. */
static enum hvd_status rest(struct walk *w, const char *p, size_t used, int depth)
{
    size_t n = strcspn(p, "[");
    enum hvd_status rc = append(w, &used, p, n);

    if (rc != HVD_OK)
        return rc;
    if (p[n] == '[')
        return bracket(w, p + n, used, depth);
    if (++w->made > HVI_HOSTS_MAX) {
        *w->at = 0;
        return hvi_fail(w->err, HVD_ELIMIT, "more than %d hosts", HVI_HOSTS_MAX);
    }
    w->name[used] = '\0';
    return w->fn(w->data, w->name, w->err);
}

enum hvd_status hvi_hostlist_expand(const char *text, hvi_hostlist_fn fn, void *data,
                                    size_t *at, struct hvi_err *err)
{
    struct walk w = {.text = text, .fn = fn, .data = data, .at = at, .err = err};

    return rest(&w, text, 0, 0);
}
