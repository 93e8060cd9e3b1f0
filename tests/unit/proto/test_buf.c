#include "test.h"

#include <string.h>

#include "fault.h"
#include "proto/base/buf.h"

Test(buf, keeps_bytes_in_order_over_growth_and_consumption, .timeout = 10)
{
    struct hvi_buf b = {0};
    uint8_t next_in = 0;
    uint8_t next_out = 0;

    for (int round = 0; round < 2000; round++) {
        uint8_t chunk[97];
        size_t n = (size_t)(round % 97);
        size_t eat;

        for (size_t i = 0; i < n; i++)
            chunk[i] = next_in++;
        cr_assert_eq(hvi_buf_append(&b, chunk, n), HVD_OK);
        eat = hvi_buf_size(&b) * (size_t)(round % 3) / 2;
        for (size_t i = 0; i < eat; i++)
            cr_assert_eq(hvi_buf_peek(&b)[i], next_out++, "round %d byte %zu", round,
                         i);
        hvi_buf_consume(&b, eat);
    }
    hvi_buf_fini(&b);
    cr_assert_eq(hvi_buf_size(&b), 0);
}

Test(buf, refuses_to_grow_beyond_its_maximum_and_stays_unchanged, .timeout = 10)
{
    struct hvi_buf b = {.max_bytes = 10};

    cr_assert_eq(hvi_buf_append(&b, "0123456789", 10), HVD_OK);
    cr_assert_eq(hvi_buf_append(&b, "x", 1), HVD_ELIMIT);
    cr_assert_eq(hvi_buf_size(&b), 10);
    hvi_buf_consume(&b, 4);
    cr_assert_eq(hvi_buf_append(&b, "abcd", 4), HVD_OK);
    cr_assert_eq(memcmp(hvi_buf_peek(&b), "456789abcd", 10), 0);
    hvi_buf_fini(&b);
}

Test(buf, reserve_of_an_impossible_size_fails, .timeout = 10)
{
    struct hvi_buf b = {0};

    cr_assert_eq(hvi_buf_append(&b, "abc", 3), HVD_OK);
    cr_assert_null(hvi_buf_reserve(&b, SIZE_MAX));
    cr_assert_null(hvi_buf_reserve(&b, SIZE_MAX - 8));
    cr_assert_eq(memcmp(hvi_buf_peek(&b), "abc", 3), 0);
    hvi_buf_fini(&b);
}

Test(buf, out_of_memory_leaves_it_unchanged, .timeout = 10)
{
    struct hvi_buf b = {0};
    static const uint8_t big[1000];
    enum hvd_status rc;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    cr_assert_eq(hvi_buf_append(&b, "abc", 3), HVD_OK);
    hvi_fault_malloc_after(0);
    rc = hvi_buf_append(&b, big, sizeof big);
    cr_assert(hvi_fault_malloc_off());
    cr_assert_eq(rc, HVD_ENOMEM);
    cr_assert_eq(hvi_buf_size(&b), 3);
    cr_assert_eq(memcmp(hvi_buf_peek(&b), "abc", 3), 0);
    hvi_buf_fini(&b);
}

Test(cursor, is_little_endian, .timeout = 10)
{
    static const uint8_t golden[15] = {0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f,
                                       0x0e, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08};
    uint8_t bytes[15];
    struct hvi_cursor c;

    hvi_cursor_init(&c, bytes, sizeof bytes);
    hvi_put_u8(&c, 0x01);
    hvi_put_u16(&c, 0x0203);
    hvi_put_u32(&c, 0x04050607);
    hvi_put_u64(&c, 0x08090a0b0c0d0e0f);
    cr_assert(!c.bad && c.left == 0);
    cr_assert_eq(memcmp(bytes, golden, sizeof golden), 0);
    hvi_cursor_init_ro(&c, bytes, sizeof bytes);
    cr_assert_eq(hvi_get_u8(&c), 0x01);
    cr_assert_eq(hvi_get_u16(&c), 0x0203);
    cr_assert_eq(hvi_get_u32(&c), 0x04050607);
    cr_assert_eq(hvi_get_u64(&c), 0x08090a0b0c0d0e0f);
    cr_assert_not(c.bad);
}

Test(cursor, turns_bad_at_the_end_and_stays_so, .timeout = 10)
{
    uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t out[4] = {9, 9, 9, 9};
    struct hvi_cursor c;

    hvi_cursor_init_ro(&c, bytes, 7);
    cr_assert_eq(hvi_get_u32(&c), 0x04030201);
    cr_assert_eq(hvi_get_u32(&c), 0);
    cr_assert(c.bad);
    cr_assert_eq(hvi_get_u8(&c), 0, "bad is sticky, though three bytes are left");
    hvi_get_bytes(&c, out, sizeof out);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(out[i], 0);
    hvi_cursor_init(&c, bytes, 3);
    hvi_put_u32(&c, 0xffffffff);
    cr_assert(c.bad);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(bytes[i], i + 1, "nothing is written where it does not fit");
}

Test(cursor, empty_is_allowed, .timeout = 10)
{
    struct hvi_cursor c;

    hvi_cursor_init_ro(&c, NULL, 0);
    hvi_get_bytes(&c, NULL, 0);
    hvi_put_bytes(&c, NULL, 0);
    cr_assert_not(c.bad);
    cr_assert_eq(hvi_get_u16(&c), 0);
    cr_assert(c.bad);
}

Test(buf, what_a_secret_one_has_held_is_in_no_block_it_frees, .timeout = 10)
{
    static const char key[] = "the key of this job, 32 bytes lo";
    static char more[5000];
    struct hvi_buf b = {.secret = true};

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    cr_assert_eq(hvi_buf_append(&b, key, sizeof key), HVD_OK);
    hvi_buf_consume(&b, sizeof key - 1); /* gone for readers, not from the memory */
    hvi_fault_look_for(key, sizeof key - 1);
    cr_assert_eq(hvi_buf_append(&b, more, sizeof more), HVD_OK); /* another block */
    memcpy(hvi_buf_reserve(&b, sizeof key), key, sizeof key);
    hvi_buf_commit(&b, sizeof key);
    hvi_buf_clear(&b);
    cr_assert_eq(hvi_buf_append(&b, "x", 1), HVD_OK);
    hvi_buf_fini(&b);
    cr_assert(b.secret);
    cr_assert_eq(hvi_fault_freed_with(), 0);
    cr_assert_eq(hvi_buf_append(&b, key, sizeof key), HVD_OK);
    b.secret = false;
    hvi_buf_fini(&b);
    cr_assert_eq(hvi_fault_freed_with(), 1, "the look itself finds nothing");
    hvi_fault_look_for(NULL, 0);
}
