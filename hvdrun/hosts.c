#include "hvdrun/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/base/env.h"

#define FILE_MAX_BYTES (1024 * 1024)
#define RANGE_DIGITS_MAX 9

void hvi_hosts_fini(struct hvi_hosts *h)
{
    for (size_t i = 0; i < h->n; i++) {
        free(h->list[i].name);
        free(h->list[i].user);
    }
    free(h->list);
    memset(h, 0, sizeof *h);
}

static bool same_text(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static struct hvi_host *find(struct hvi_hosts *h, const char *name, const char *user)
{
    for (size_t i = 0; i < h->n; i++)
        if (strcmp(h->list[i].name, name) == 0 && same_text(h->list[i].user, user))
            return &h->list[i];
    return NULL;
}

/* slots 0: not said; a second mention without a number counts one more. */
static enum hvd_status add(struct hvi_hosts *h, const char *name, const char *user,
                           int slots, struct hvi_err *err)
{
    struct hvi_host *host = find(h, name, user);
    struct hvi_host made = {.slots = slots};

    if (host != NULL) {
        host->slots = (host->slots > 0 ? host->slots : 1) + (slots > 0 ? slots : 1);
        return HVD_OK;
    }
    if (h->n >= HVI_HOSTS_MAX)
        return hvi_fail(err, HVD_ELIMIT, "more than %d hosts", HVI_HOSTS_MAX);
    if (h->n == h->cap) {
        size_t cap = h->cap > 0 ? 2 * h->cap : 16;
        struct hvi_host *list = realloc(h->list, cap * sizeof *list);

        if (list == NULL)
            return hvi_fail(err, HVD_ENOMEM, "out of memory");
        h->list = list;
        h->cap = cap;
    }
    made.name = strdup(name);
    made.user = user != NULL ? strdup(user) : NULL;
    if (made.name == NULL || (user != NULL && made.user == NULL)) {
        free(made.name);
        free(made.user);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    h->list[h->n++] = made;
    return HVD_OK;
}

/* One entry of a list, taken apart. Texts are cut out of a copy. */
struct entry {
    char copy[HVI_HOST_NAME_MAX + 128];
    char *user, *name;
    bool literal; /* was in brackets: an IPv6 address */
    int slots;
};

static bool valid_name(const char *name)
{
    if (*name == '\0' || *name == '-' || strlen(name) > HVI_HOST_NAME_MAX)
        return false;
    for (; *name != '\0'; name++)
        if (!isalnum((unsigned char)*name) && strchr("._-:%", *name) == NULL)
            return false;
    return true;
}

static enum hvd_status bad(struct hvi_err *err, const char *text, size_t bytes,
                           const char *why)
{
    char shown[128];

    return hvi_fail(err, HVD_EINVAL, "'%s' is not a host: %s",
                    hvi_escape(shown, sizeof shown, text, bytes), why);
}

static enum hvd_status take_slots(const char *digits, int *out, struct hvi_err *err)
{
    int64_t n;
    enum hvd_status rc =
        hvi_parse_int("number of slots", digits, 1, HVD_RANKS_MAX, &n, err);

    if (rc == HVD_OK)
        *out = (int)n;
    return rc;
}

/* "[user@]name[:slots]"; name may hold a range in brackets, or be a bracketed address. */
static enum hvd_status split(const char *text, size_t bytes, struct entry *e,
                             struct hvi_err *err)
{
    char *at, *colon, *close;

    if (bytes == 0)
        return bad(err, text, bytes, "empty entry");
    if (bytes >= sizeof e->copy || memchr(text, '\0', bytes) != NULL)
        return bad(err, text, bytes < 64 ? bytes : 64, "too long");
    memcpy(e->copy, text, bytes);
    e->copy[bytes] = '\0';
    e->name = e->copy;
    e->user = NULL;
    e->slots = 0;
    e->literal = false;
    at = strchr(e->copy, '@');
    if (at != NULL) {
        *at = '\0';
        e->user = e->copy;
        e->name = at + 1;
        if (!valid_name(e->user))
            return bad(err, text, bytes, "bad user name");
    }
    if (e->name[0] == '[') {
        close = strchr(e->name, ']');
        if (close == NULL)
            return bad(err, text, bytes, "']' is missing");
        if (memchr(e->name, ':', (size_t)(close - e->name)) != NULL) {
            *close = '\0';
            e->name++;
            e->literal = true;
            colon = close + 1;
            if (*colon != '\0' && *colon != ':')
                return bad(err, text, bytes, "':SLOTS' or nothing may follow ']'");
            return *colon == ':' ? take_slots(colon + 1, &e->slots, err) : HVD_OK;
        }
    }
    colon = strrchr(e->name, ':');
    if (colon == NULL)
        return HVD_OK;
    if (memchr(e->name, ':', (size_t)(colon - e->name)) != NULL)
        return bad(err, text, bytes,
                   "write an IPv6 address in brackets: [ADDRESS]:SLOTS");
    *colon = '\0';
    return take_slots(colon + 1, &e->slots, err);
}

static enum hvd_status add_range(struct hvi_hosts *h, const struct entry *e,
                                 const char *range, const char *tail,
                                 struct hvi_err *err)
{
    size_t head = strcspn(e->name, "[");
    size_t width = strspn(range, "0123456789");
    char *end;
    unsigned long from, to;

    if (width == 0 || width > RANGE_DIGITS_MAX)
        return bad(err, e->name, strlen(e->name), "a range is FROM-TO or a number");
    from = to = strtoul(range, &end, 10);
    if (*end == '-') {
        size_t digits = strspn(end + 1, "0123456789");

        if (digits == 0 || digits > RANGE_DIGITS_MAX)
            return bad(err, e->name, strlen(e->name), "a range is FROM-TO or a number");
        to = strtoul(end + 1, &end, 10);
    }
    if (*end != '\0' || to < from || to - from >= HVI_HOSTS_MAX)
        return bad(err, e->name, strlen(e->name), "bad range");
    for (unsigned long i = from; i <= to; i++) {
        char name[sizeof e->copy + 16];
        enum hvd_status rc;

        snprintf(name, sizeof name, "%.*s%0*lu%s", (int)head, e->name, (int)width, i,
                 tail);
        if (!valid_name(name))
            return bad(err, name, strlen(name), "bad host name");
        rc = add(h, name, e->user, e->slots, err);
        if (rc != HVD_OK)
            return rc;
    }
    return HVD_OK;
}

static enum hvd_status add_entry(struct hvi_hosts *h, const char *text, size_t bytes,
                                 struct hvi_err *err)
{
    struct entry e;
    char ranges[sizeof e.copy];
    char *open, *close, *save = NULL;
    enum hvd_status rc = split(text, bytes, &e, err);

    if (rc != HVD_OK)
        return rc;
    open = e.literal ? NULL : strchr(e.name, '[');
    if (open == NULL) {
        if (!valid_name(e.name))
            return bad(err, text, bytes, "bad host name");
        return add(h, e.name, e.user, e.slots, err);
    }
    close = strchr(open, ']');
    if (close == NULL || close == open + 1 || strchr(close + 1, '[') != NULL)
        return bad(err, text, bytes,
                   "one range in brackets is allowed, as node[01-16]");
    memcpy(ranges, open + 1, (size_t)(close - open - 1));
    ranges[close - open - 1] = '\0';
    for (char *r = strtok_r(ranges, ",", &save); r != NULL && rc == HVD_OK;
         r = strtok_r(NULL, ",", &save))
        rc = add_range(h, &e, r, close + 1, err);
    return rc;
}

enum hvd_status hvi_hosts_parse(struct hvi_hosts *h, const char *text,
                                struct hvi_err *err)
{
    const char *start = text;
    int depth = 0;

    for (const char *p = text;; p++) {
        enum hvd_status rc;

        depth += *p == '[' ? 1 : *p == ']' ? -1 : 0;
        if (*p != '\0' && (*p != ',' || depth > 0))
            continue;
        rc = add_entry(h, start, (size_t)(p - start), err);
        if (rc != HVD_OK)
            return rc;
        if (*p == '\0')
            return HVD_OK;
        start = p + 1;
    }
}

/* The words after the host's name. */
static enum hvd_status line_slots(char *save, int *slots, struct hvi_err *err)
{
    for (char *w = strtok_r(NULL, " \t\r", &save); w != NULL;
         w = strtok_r(NULL, " \t\r", &save)) {
        enum hvd_status rc = HVD_OK;
        char shown[64];

        if (strncmp(w, "slots=", 6) == 0)
            rc = take_slots(w + 6, slots, err);
        else if (isdigit((unsigned char)*w))
            rc = take_slots(w, slots, err);
        else if (strchr(w, '=') == NULL)
            rc = hvi_fail(err, HVD_EINVAL, "'%s' is not 'slots=N'",
                          hvi_escape(shown, sizeof shown, w, strlen(w)));
        if (rc != HVD_OK)
            return rc;
    }
    return HVD_OK;
}

static enum hvd_status add_line(struct hvi_hosts *h, char *line, struct hvi_err *err)
{
    struct hvi_hosts found = {0};
    char *save = NULL;
    char *word;
    int slots = 0;
    enum hvd_status rc;

    line[strcspn(line, "#")] = '\0';
    word = strtok_r(line, " \t\r", &save);
    if (word == NULL)
        return HVD_OK;
    rc = hvi_hosts_parse(&found, word, err);
    if (rc == HVD_OK)
        rc = line_slots(save, &slots, err);
    for (size_t i = 0; i < found.n && rc == HVD_OK; i++)
        rc = add(h, found.list[i].name, found.list[i].user,
                 slots > 0 ? slots : found.list[i].slots, err);
    hvi_hosts_fini(&found);
    return rc;
}

enum hvd_status hvi_hosts_parse_file(struct hvi_hosts *h, const char *name,
                                     const char *text, size_t size_bytes,
                                     struct hvi_err *err)
{
    char *copy = malloc(size_bytes + 1);
    enum hvd_status rc = HVD_OK;
    int number = 0;

    if (copy == NULL)
        return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", name);
    memcpy(copy, text, size_bytes);
    copy[size_bytes] = '\0';
    for (char *line = copy, *next; line != NULL && rc == HVD_OK; line = next) {
        struct hvi_err why = {""};

        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        number++;
        rc = add_line(h, line, &why);
        if (rc != HVD_OK)
            rc = hvi_fail(err, rc, "%s:%d: %.900s", name, number, why.text);
    }
    free(copy);
    return rc;
}

enum hvd_status hvi_hosts_load(struct hvi_hosts *h, const char *path,
                               struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    char *text = NULL;
    size_t n = 0;
    FILE *f = fopen(path, "re");

    if (f == NULL) {
        rc = hvi_fail(err, HVD_EINVAL, "host file %s: %s", path, strerror(errno));
        goto done;
    }
    text = malloc(FILE_MAX_BYTES);
    if (text == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "host file %s: out of memory", path);
        goto done;
    }
    n = fread(text, 1, FILE_MAX_BYTES, f);
    if (ferror(f)) {
        rc = hvi_fail(err, HVD_EINVAL, "host file %s: %s", path, strerror(errno));
        goto done;
    }
    if (n == FILE_MAX_BYTES) {
        rc = hvi_fail(err, HVD_EINVAL, "host file %s: larger than 1 MiB", path);
        goto done;
    }
    rc = hvi_hosts_parse_file(h, path, text, n, err);
    if (rc == HVD_OK && h->n == 0)
        rc = hvi_fail(err, HVD_EINVAL, "host file %s: names no host", path);
done:
    free(text);
    if (f != NULL)
        fclose(f);
    return rc;
}

bool hvi_host_is_local(const char *name, const char *own_name)
{
    size_t own_short = strcspn(own_name, ".");

    if (strcasecmp(name, "localhost") == 0 || strncmp(name, "127.", 4) == 0 ||
        strcmp(name, "::1") == 0)
        return true;
    if (own_short == 0)
        return false;
    return strcasecmp(name, own_name) == 0 ||
           (strncasecmp(name, own_name, own_short) == 0 && name[own_short] == '\0');
}
