#include "proto/base/err.h"

#include <stdarg.h>
#include <stdio.h>

enum hvd_status hvi_fail(struct hvi_err *err, enum hvd_status status, const char *fmt,
                         ...)
{
    va_list ap;

    if (err != NULL) {
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
    }
    return status;
}

const char *hvi_status_name(enum hvd_status status)
{
    switch (status) {
#define HVI_STATUS_NAME_(name, value, text)                                            \
    case name:                                                                         \
        return #name;
        HVD_STATUS_LIST(HVI_STATUS_NAME_)
#undef HVI_STATUS_NAME_
    }
    return "HVD_E?";
}

const char *hvi_status_text(enum hvd_status status)
{
    switch (status) {
#define HVI_STATUS_TEXT_(name, value, text)                                            \
    case name:                                                                         \
        return text;
        HVD_STATUS_LIST(HVI_STATUS_TEXT_)
#undef HVI_STATUS_TEXT_
    }
    return "unknown status";
}

/* Bytes of the well-formed UTF-8 sequence at p, or 0. */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
    size_t need;
    size_t i;

    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        need = 2;
    else if (p[0] >= 0xe0 && p[0] <= 0xef)
        need = 3;
    else if (p[0] >= 0xf0 && p[0] <= 0xf4)
        need = 4;
    else
        return 0;
    if (need > left)
        return 0;
    for (i = 1; i < need; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if (p[0] == 0xc2 && p[1] < 0xa0) /* C1 control characters */
        return 0;
    return need;
}

char *hvi_escape(char *out, size_t cap, const char *text, size_t size_bytes)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = (const unsigned char *)text;
    size_t used = 0;
    size_t i = 0;

    if (cap == 0)
        return out;
    while (i < size_bytes) {
        size_t n =
            p[i] >= 0x20 && p[i] < 0x7f ? 1 : utf8_sequence(p + i, size_bytes - i);
        size_t need = n > 0 ? n : 4;

        if (used + need >= cap)
            break;
        if (n > 0) {
            for (size_t k = 0; k < n; k++)
                out[used++] = text[i + k];
            i += n;
        } else {
            out[used++] = '\\';
            out[used++] = 'x';
            out[used++] = hex[p[i] >> 4];
            out[used++] = hex[p[i] & 15];
            i++;
        }
    }
    out[used] = '\0';
    return out;
}
