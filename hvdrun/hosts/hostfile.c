/**
 * Host files. A line is cut into words; the first is the host, as -H takes it, the
 * others are settings: KEY=VALUE (blanks may stand around the '='), or a bare number of
 * slots. The first error ends it, worded with file, line and column.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hvdrun/cli/optnear.h"
#include "hvdrun/cli/textfile.h"
#include "hvdrun/hosts/hosts.h"
#include "proto/base/env.h"

#define BLANKS " \t\r\v\f"

/* One line. Words are cut out of it by zeros. */
struct line {
    struct hvi_hosts *hosts; /* of the whole file */
    const char *file;
    int number;
    char *text;
    const char *at; /* where an error is */
    char *user;     /* borrowed from text; NULL: not said here */
    int slots, max; /* 0: not said here */
};

/* Cuts the next word out; NULL: the line is over. A word ends before a '='. */
static char *take_word(char **p, bool *assigns)
{
    char *word = *p + strspn(*p, BLANKS);
    char *end = word + strcspn(word, BLANKS "=");
    char *after = end + strspn(end, BLANKS);

    *assigns = *after == '=';
    if (*word == '\0')
        return NULL;
    *p = *assigns ? after + 1 : *end == '\0' ? end : end + 1;
    *end = '\0';
    return word;
}

static char *take_value(char **p)
{
    char *value = *p + strspn(*p, BLANKS);
    char *end = value + strcspn(value, BLANKS);

    *p = *end == '\0' ? end : end + 1;
    *end = '\0';
    return value;
}

static bool one_of(const char *word, const char *const *list)
{
    while (*list != NULL && strcmp(*list, word) != 0)
        list++;
    return *list != NULL;
}

static enum hvd_status number(const char *what, const char *text, int *out,
                              struct hvi_err *err)
{
    int64_t n;
    enum hvd_status rc = hvi_parse_int(what, text, 1, HVD_RANKS_MAX, &n, err);

    if (rc == HVD_OK)
        *out = (int)n;
    return rc;
}

static void ignore(struct line *l, const char *key, const char *value)
{
    char shown[96], full[96];

    snprintf(full, sizeof full, "%s=%s", key, value);
    if (l->hosts->nignored++ == 0)
        snprintf(l->hosts->ignored, sizeof l->hosts->ignored, "%.60s:%d:%d: '%s'",
                 l->file, l->number, (int)(key - l->text) + 1,
                 hvi_escape(shown, sizeof shown, full, strlen(full)));
}

/* "slot=4", "Slots=4": not to be ignored. */
static bool meant_for(const char *key, const char *word)
{
    return strcasecmp(key, word) == 0 ||
           hvi_opt_farness(key, strlen(key), word) < HVI_OPT_FAR;
}

/* KEY=VALUE; p: behind the '='. */
static enum hvd_status setting(struct line *l, char *key, char **p, struct hvi_err *err)
{
    static const char *const slots[] = {"slots", "cpus", "cpu", "count", NULL};
    static const char *const most[] = {"max_slots", "max-slots", NULL};
    static const char *const user[] = {"user", "username", "user_name", NULL};
    char *value = take_value(p);
    char shown[64];

    l->at = value;
    if (one_of(key, slots))
        return number("number of slots", value, &l->slots, err);
    if (one_of(key, most))
        return number("max_slots", value, &l->max, err);
    if (*key == '\0' || *value == '\0') {
        l->at = key;
        return hvi_fail(err, HVD_EINVAL, "a setting is KEY=VALUE, as slots=4");
    }
    if (one_of(key, user)) {
        l->user = value;
    } else if (meant_for(key, slots[0]) || meant_for(key, most[0])) {
        l->at = key;
        return hvi_fail(err, HVD_EINVAL, "'%s=' is not known; did you mean %s=?",
                        hvi_escape(shown, sizeof shown, key, strlen(key)),
                        meant_for(key, slots[0]) ? slots[0] : most[0]);
    } else {
        ignore(l, key, value);
    }
    return HVD_OK;
}

static enum hvd_status settings(struct line *l, char *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    char shown[64];
    bool assigns;
    char *word;

    while (rc == HVD_OK && (word = take_word(&p, &assigns)) != NULL) {
        l->at = word;
        if (assigns)
            rc = setting(l, word, &p, err);
        else if (isdigit((unsigned char)*word))
            rc = number("number of slots", word, &l->slots, err);
        else
            rc = hvi_fail(err, HVD_EINVAL, "'%s' is not 'slots=N'",
                          hvi_escape(shown, sizeof shown, word, strlen(word)));
    }
    if (rc == HVD_OK && l->max > 0 && l->slots > l->max)
        rc = hvi_fail(err, HVD_EINVAL, "slots=%d is more than max_slots=%d", l->slots,
                      l->max);
    return rc;
}

static enum hvd_status add(struct line *l, const struct hvi_host *found,
                           struct hvi_err *err)
{
    const char *user = found->user != NULL ? found->user : l->user;
    int slots = l->slots > 0 ? l->slots : found->slots > 0 ? found->slots : l->max;
    size_t before = l->hosts->n;
    struct hvi_host *host;
    enum hvd_status rc = hvi_hosts_add(l->hosts, found->name, user, slots, err);

    if (rc != HVD_OK)
        return rc;
    host = hvi_hosts_find(l->hosts, found->name, user);
    /* lines without a limit leave a host without one */
    host->max =
        l->max > 0 && (before < l->hosts->n || host->max > 0) ? host->max + l->max : 0;
    return HVD_OK;
}

static enum hvd_status take_line(struct line *l, struct hvi_err *err)
{
    struct hvi_hosts found = {0};
    char *host = l->text + strspn(l->text, BLANKS);
    char *end = host + strcspn(host, BLANKS);
    char *p = *end == '\0' ? end : end + 1;
    size_t at = 0;
    enum hvd_status rc;

    *end = '\0';
    l->at = host;
    if (*host == '\0')
        return HVD_OK;
    rc = hvi_hosts_parse_at(&found, host, &at, err);
    if (rc == HVD_OK)
        rc = settings(l, p, err);
    else
        l->at = host + at;
    for (size_t i = 0; i < found.n && rc == HVD_OK; i++)
        rc = add(l, &found.list[i], err);
    hvi_hosts_fini(&found);
    return rc;
}

enum hvd_status hvi_hosts_parse_file(struct hvi_hosts *h, const char *name,
                                     const char *text, size_t size_bytes,
                                     struct hvi_err *err)
{
    size_t mark = size_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    struct line l = {.hosts = h, .file = name};
    enum hvd_status rc = HVD_OK;
    char *copy = malloc(size_bytes + 1);

    if (copy == NULL)
        return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", name);
    if (size_bytes > 0)
        memcpy(copy, text, size_bytes);
    copy[size_bytes] = '\0';
    for (char *p = copy + mark, *end; p < copy + size_bytes && rc == HVD_OK;
         p = end + 1) {
        struct hvi_err why = {""};

        end = p + strcspn(p, "\n");
        l = (struct line){
            .hosts = h, .file = name, .number = l.number + 1, .text = p, .at = end};
        if (*end == '\0' && end < copy + size_bytes)
            rc = hvi_fail(&why, HVD_EINVAL, "a zero byte: this is no text file");
        *end = '\0';
        p[strcspn(p, "#")] = '\0';
        if (rc == HVD_OK)
            rc = take_line(&l, &why);
        if (rc != HVD_OK)
            rc = hvi_fail(err, rc, "%s:%d:%d: %.900s", name, l.number,
                          (int)(l.at - l.text) + 1, why.text);
    }
    free(copy);
    return rc;
}

enum hvd_status hvi_hosts_load(struct hvi_hosts *h, const char *path,
                               struct hvi_err *err)
{
    char *text = NULL;
    char shown[256];
    size_t n = 0;
    enum hvd_status rc = hvi_textfile_read("host file", path, &text, &n, err);

    hvi_escape(shown, sizeof shown, path, strlen(path));
    if (rc == HVD_OK)
        rc = hvi_hosts_parse_file(h, shown, text, n, err);
    if (rc == HVD_OK && h->n == 0)
        rc = hvi_fail(err, HVD_EINVAL, "host file %s: names no host", shown);
    free(text);
    return rc;
}
