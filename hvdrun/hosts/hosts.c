#include "hvdrun/hosts/hosts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hvdrun/hosts/hostlist.h"
#include "proto/base/env.h"

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

struct hvi_host *hvi_hosts_find(struct hvi_hosts *h, const char *name, const char *user)
{
    /* lists with a line a slot name one host many times in a row */
    for (size_t i = h->n; i-- > 0;)
        if (strcmp(h->list[i].name, name) == 0 && same_text(h->list[i].user, user))
            return &h->list[i];
    return NULL;
}

static bool valid_name(const char *name)
{
    if (*name == '\0' || *name == '-')
        return false;
    for (; *name != '\0'; name++)
        if (!isalnum((unsigned char)*name) && strchr("._-:%", *name) == NULL)
            return false;
    return true;
}

static const char *name_fault(const char *name)
{
    return strlen(name) > HVI_HOST_NAME_MAX ? "too long"
           : !valid_name(name)              ? "bad host name"
                                            : NULL;
}

enum hvd_status hvi_hosts_add(struct hvi_hosts *h, const char *name, const char *user,
                              int slots, struct hvi_err *err)
{
    struct hvi_host *host = hvi_hosts_find(h, name, user);
    struct hvi_host made = {.slots = slots};
    const char *why = name_fault(name);

    if (why != NULL)
        return hvi_fail(err, HVD_EINVAL, "%s", why);
    if (host != NULL) { /* each mention without a number counts one */
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
    char *copy; /* borrowed */
    char *user, *name;
    bool literal;    /* was in brackets: an IPv6 address */
    const char *why; /* it is no host, */
    size_t at;       /* and where that shows */
    int slots;
    struct hvi_err room;
};

static enum hvd_status refuse(struct entry *e, const char *where, const char *why)
{
    e->at = (size_t)(where - e->copy);
    e->why = why;
    return HVD_EINVAL;
}

static enum hvd_status take_slots(struct entry *e, const char *digits,
                                  struct hvi_err *err)
{
    int64_t n;
    enum hvd_status rc =
        hvi_parse_int("number of slots", digits, 1, HVD_RANKS_MAX, &n, err);

    if (rc == HVD_OK)
        e->slots = (int)n;
    else
        e->at = (size_t)(digits - e->copy);
    return rc;
}

/* The name, which may be a bracketed address, and its slots. */
static enum hvd_status split_name(struct entry *e, struct hvi_err *err)
{
    char *close = e->name[0] == '[' ? strchr(e->name, ']') : NULL;
    char *colon;

    if (e->name[0] == '[' && close == NULL)
        return refuse(e, e->name, "']' is missing");
    if (close != NULL && memchr(e->name, ':', (size_t)(close - e->name)) != NULL) {
        *close = '\0';
        e->name++;
        e->literal = true;
        colon = close + 1;
        if (*colon != '\0' && *colon != ':')
            return refuse(e, colon, "':SLOTS' or nothing may follow ']'");
        return *colon == ':' ? take_slots(e, colon + 1, err) : HVD_OK;
    }
    colon = strrchr(e->name, ':');
    if (colon == NULL)
        return HVD_OK;
    if (memchr(e->name, ':', (size_t)(colon - e->name)) != NULL)
        return refuse(e, e->name, "write an IPv6 address in brackets: [ADDRESS]:SLOTS");
    *colon = '\0';
    return take_slots(e, colon + 1, err);
}

/* "[user@]name[:slots]"; name may hold ranges in brackets. */
static enum hvd_status split(struct entry *e, struct hvi_err *err)
{
    char *at = strchr(e->copy, '@');

    e->name = e->copy;
    if (e->copy[0] == '\0')
        return refuse(e, e->copy, "empty entry");
    if (at != NULL) {
        *at = '\0';
        e->user = e->copy;
        e->name = at + 1;
        if (name_fault(e->user) != NULL)
            return refuse(e, e->copy, "bad user name");
    }
    return split_name(e, err);
}

struct adding {
    struct hvi_hosts *hosts;
    const struct entry *entry;
};

static enum hvd_status add_one(void *data, const char *name, struct hvi_err *err)
{
    struct adding *a = data;

    return hvi_hosts_add(a->hosts, name, a->entry->user, a->entry->slots, err);
}

static enum hvd_status add_names(struct hvi_hosts *h, struct entry *e,
                                 struct hvi_err *err)
{
    struct adding a = {.hosts = h, .entry = e};
    size_t at = 0;
    enum hvd_status rc = e->literal
                             ? add_one(&a, e->name, &e->room)
                             : hvi_hostlist_expand(e->name, add_one, &a, &at, &e->room);

    if (rc == HVD_EINVAL)
        return refuse(e, e->name + at, e->room.text);
    return rc == HVD_OK ? rc : hvi_fail(err, rc, "%s", e->room.text);
}

static enum hvd_status add_entry(struct hvi_hosts *h, const char *text, size_t bytes,
                                 size_t *at, struct hvi_err *err)
{
    char *copy = strndup(text, bytes);
    struct entry e = {.copy = copy};
    char shown[128];
    enum hvd_status rc;

    if (copy == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = split(&e, err);
    if (rc == HVD_OK)
        rc = add_names(h, &e, err);
    if (e.why != NULL)
        rc = hvi_fail(err, HVD_EINVAL, "'%s' is not a host: %s",
                      hvi_escape(shown, sizeof shown, text, bytes), e.why);
    *at = e.at;
    free(copy);
    return rc;
}

enum hvd_status hvi_hosts_parse_at(struct hvi_hosts *h, const char *text, size_t *at,
                                   struct hvi_err *err)
{
    const char *start = text;
    int depth = 0;

    for (const char *p = text;; p++) {
        enum hvd_status rc;

        depth += *p == '[' ? 1 : *p == ']' ? -1 : 0;
        if (*p != '\0' && (*p != ',' || depth > 0))
            continue;
        rc = add_entry(h, start, (size_t)(p - start), at, err);
        *at += (size_t)(start - text);
        if (rc != HVD_OK || *p == '\0')
            return rc;
        start = p + 1;
    }
}

enum hvd_status hvi_hosts_parse(struct hvi_hosts *h, const char *text,
                                struct hvi_err *err)
{
    struct hvi_err why = {""};
    char shown[64];
    size_t at = 0;
    enum hvd_status rc = hvi_hosts_parse_at(h, text, &at, &why);

    if (rc == HVD_OK || why.text[0] == '\'') /* it names the entry itself */
        return rc == HVD_OK ? rc : hvi_fail(err, rc, "%s", why.text);
    return hvi_fail(err, rc, "'%s': %s",
                    hvi_escape(shown, sizeof shown, text, strlen(text)), why.text);
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
