#include "test.h"

#include <string.h>

#include "proto/base/err.h"
#include "proto/base/names.h"

static const char *escaped(const char *text, size_t size_bytes)
{
    static char out[256];

    return hvi_escape(out, sizeof out, text, size_bytes);
}

Test(err, fail_words_the_text_and_returns_the_status, .timeout = 10)
{
    struct hvi_err err = {{0}};

    cr_assert_eq(hvi_fail(&err, HVD_EPROTO, "rank %d: %s", 3, "bad"), HVD_EPROTO);
    cr_assert_str_eq(err.text, "rank 3: bad");
    cr_assert_eq(hvi_fail(NULL, HVD_EIO, "nobody listens"), HVD_EIO);
}

Test(err, too_long_texts_are_cut, .timeout = 10)
{
    struct hvi_err err;
    char big[3 * HVD_ERROR_TEXT_MAX];

    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    hvi_fail(&err, HVD_EIO, "%s", big);
    cr_assert_eq(strlen(err.text), HVD_ERROR_TEXT_MAX - 1);
}

Test(err, every_status_has_a_name_and_a_text, .timeout = 10)
{
    cr_assert_str_eq(hvi_status_name(HVD_EAUTH), "HVD_EAUTH");
    for (int s = HVD_EINTERNAL; s <= HVD_INPROGRESS; s++) {
        cr_assert_eq(strncmp(hvi_status_name((enum hvd_status)s), "HVD_", 4), 0);
        cr_assert_str_neq(hvi_status_text((enum hvd_status)s), "unknown status");
    }
    cr_assert_str_eq(hvi_status_name((enum hvd_status) - 999), "HVD_E?");
    cr_assert_str_eq(hvi_status_text((enum hvd_status) - 999), "unknown status");
}

Test(escape, keeps_text_and_shows_control_bytes, .timeout = 10)
{
    cr_assert_str_eq(escaped("plain text", 10), "plain text");
    cr_assert_str_eq(escaped("a\nb\x1b[2Jc\0d", 10), "a\\x0ab\\x1b[2Jc\\x00d");
    cr_assert_str_eq(escaped("\x7f", 1), "\\x7f");
}

Test(escape, keeps_good_utf8_and_shows_bad, .timeout = 10)
{
    cr_assert_str_eq(escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9),
                     "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    cr_assert_str_eq(escaped("\xff", 1), "\\xff");
    cr_assert_str_eq(escaped("\xc0\x80", 2), "\\xc0\\x80", "overlong");
    cr_assert_str_eq(escaped("\xc2\x9b", 2), "\\xc2\\x9b", "C1 control");
    cr_assert_str_eq(escaped("\xe2\x82", 2), "\\xe2\\x82", "cut short");
    cr_assert_str_eq(escaped("\xc3(", 2), "\\xc3(");
}

Test(escape, never_writes_beyond_its_room_nor_half_an_escape, .timeout = 10)
{
    for (size_t cap = 0; cap < 12; cap++) {
        char out[16];
        size_t n;

        memset(out, '#', sizeof out);
        hvi_escape(out, cap, "a\n\xc3\xa9z", 5);
        for (size_t i = cap; i < sizeof out; i++)
            cr_assert_eq(out[i], '#', "cap %zu", cap);
        if (cap == 0)
            continue;
        n = strlen(out);
        cr_assert_lt(n, cap);
        cr_assert(n == 0 || n == 1 || n == 5 || n == 7 || n == 8, "cap %zu gives %zu",
                  cap, n);
    }
}

Test(names, known_and_unknown, .timeout = 10)
{
    cr_assert_str_eq(hvi_dtype_name(HVD_BFLOAT16), "bfloat16");
    cr_assert_str_eq(hvi_dtype_name(0), "?");
    cr_assert_str_eq(hvi_dtype_name(99), "?");
    cr_assert_str_eq(hvi_kind_name(HVD_ALLTOALL), "alltoall");
    cr_assert_str_eq(hvi_kind_name(0), "?");
    cr_assert_str_eq(hvi_kind_name(UINT32_MAX), "?");
    cr_assert_str_eq(hvi_reduce_op_name(HVD_AVERAGE), "average");
    cr_assert_str_eq(hvi_reduce_op_name(77), "?");
    for (uint32_t d = 1; d < HVD_DTYPE_COUNT; d++)
        cr_assert(hvi_dtype_size(d) > 0 && hvi_dtype_size(d) <= 8);
    cr_assert_eq(hvi_dtype_size(0), 0);
    cr_assert_eq(hvi_dtype_size(HVD_DTYPE_COUNT), 0);
}
