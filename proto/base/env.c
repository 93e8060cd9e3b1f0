#include "proto/base/env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Which variable is set: fills full with its name. */
static const char *find(const char *name, char full[96])
{
    static const char *const prefixes[] = {"HVD_", "HOROVOD_"};

    for (size_t i = 0; i < 2; i++) {
        const char *value;

        snprintf(full, 96, "%s%s", prefixes[i], name);
        value = getenv(full);
        if (value != NULL && value[0] != '\0')
            return value;
    }
    return NULL;
}

const char *hvi_env(const char *name)
{
    char full[96];

    return find(name, full);
}

enum hvd_status hvi_parse_int(const char *what, const char *text, int64_t min,
                              int64_t max, int64_t *out, struct hvi_err *err)
{
    char shown[64];
    char *end;
    long long v;

    hvi_escape(shown, sizeof shown, text, strlen(text));
    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end != '\0')
        return hvi_fail(err, HVD_EINVAL, "%s: '%s' is not a whole number", what, shown);
    if (errno == ERANGE || v < min || v > max)
        return hvi_fail(err, HVD_EINVAL,
                        "%s: %s is out of range (%" PRId64 " to %" PRId64 ")", what,
                        shown, min, max);
    *out = v;
    return HVD_OK;
}

enum hvd_status hvi_env_int(const char *name, int64_t fallback, int64_t min,
                            int64_t max, int64_t *out, struct hvi_err *err)
{
    char full[96];
    const char *value = find(name, full);

    if (value == NULL) {
        *out = fallback;
        return HVD_OK;
    }
    return hvi_parse_int(full, value, min, max, out, err);
}

enum hvd_status hvi_parse_bool(const char *what, const char *text, int *out,
                               struct hvi_err *err)
{
    static const char *const words[] = {"0",  "1",   "false", "true",
                                        "no", "yes", "off",   "on"};

    for (int i = 0; i < 8; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *out = i % 2;
            return HVD_OK;
        }
    }
    return hvi_fail(err, HVD_EINVAL, "%s: '%.40s' is not 0 or 1", what, text);
}

enum hvd_status hvi_env_bool(const char *name, int fallback, int *out,
                             struct hvi_err *err)
{
    char full[96];
    const char *value = find(name, full);

    if (value == NULL) {
        *out = fallback;
        return HVD_OK;
    }
    return hvi_parse_bool(full, value, out, err);
}
