/* Host lists, host files, schedulers' variables. First byte: '0' a list, '1' a file, else
 * NAME=VALUE texts with a zero behind each; files and answers of programs are among them. */
#include "hvdrun/hosts/alloc.h"
#include "tests/fuzz/fuzz.h"

struct world {
    const char *text; /* ends with two zeros */
    size_t size;
};

static const char *value_of(const struct world *w, const char *name)
{
    size_t n = strlen(name);

    for (size_t at = 0; at < w->size; at += strlen(w->text + at) + 1)
        if (strncmp(w->text + at, name, n) == 0 && w->text[at + n] == '=')
            return w->text + at + n + 1;
    return NULL;
}

static const char *get(void *data, const char *name)
{
    return value_of(data, name);
}

static enum hvd_status copy_of(const char *text, char **out, struct hvi_err *err)
{
    if (text == NULL)
        return hvi_fail(err, HVD_EINVAL, "not there");
    *out = strdup(text);
    return *out != NULL ? HVD_OK : hvi_fail(err, HVD_ENOMEM, "out of memory");
}

static enum hvd_status read_file(void *data, const char *path, char **text,
                                 size_t *size_bytes, struct hvi_err *err)
{
    enum hvd_status rc = copy_of(value_of(data, path), text, err);

    (void)path;
    if (rc == HVD_OK)
        *size_bytes = strlen(*text);
    return rc;
}

static enum hvd_status ask(void *data, char *const argv[], char **text,
                           struct hvi_err *err)
{
    return copy_of(value_of(data, argv[2]), text, err);
}

static void check(const struct hvi_hosts *h)
{
    FUZZ_CHECK(h->n <= HVI_HOSTS_MAX);
    for (size_t i = 0; i < h->n; i++) {
        const struct hvi_host *host = &h->list[i];

        FUZZ_CHECK(host->slots >= 0 && host->max >= 0, "%d %d", host->slots, host->max);
        FUZZ_CHECK(host->name[0] != '\0' && host->name[0] != '-' &&
                       strlen(host->name) <= HVI_HOST_NAME_MAX,
                   "'%s'", host->name);
        FUZZ_CHECK(strpbrk(host->name, " \t\r\n;'\"$[],=#@/") == NULL, "'%s'",
                   host->name);
    }
    if (h->nignored > 0)
        fuzz_check_text(h->ignored, sizeof h->ignored);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = calloc(1, size + 2);
    struct world w = {text, size > 0 ? size - 1 : 0};
    struct hvi_alloc_sys sys = {get, read_file, ask, &w};
    struct hvi_hosts h = {0};
    struct hvi_alloc a = {0};
    struct hvi_err err = {""};
    enum hvd_status rc;
    size_t at = 0;

    if (text == NULL || size == 0) {
        free(text);
        return 0;
    }
    memcpy(text, data + 1, size - 1);
    if (data[0] == '0')
        rc = hvi_hosts_parse_at(&h, text, &at, &err);
    else if (data[0] == '1')
        rc = hvi_hosts_parse_file(&h, "file", text, size - 1, &err);
    else
        rc = hvi_alloc_find(&sys, &h, &a, &err);
    FUZZ_CHECK(at <= size);
    if (rc != HVD_OK)
        fuzz_check_text(err.text, sizeof err.text);
    else
        check(&h);
    FUZZ_CHECK(strnlen(a.from, sizeof a.from) < sizeof a.from);
    hvi_hosts_fini(&h);
    free(text);
    return 0;
}
