#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "proto/sec/handshake.h"

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

static char dir[64];
static char path[128];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/hvd-test-key-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/key", dir);
}

static void remove_dir(void)
{
    unlink(path);
    cr_assert_eq(rmdir(dir), 0, "%s: %s", dir, strerror(errno));
}

static void put_file(const void *data, size_t size_bytes, mode_t mode)
{
    int fd;

    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
    cr_assert_eq(write(fd, data, size_bytes), (ssize_t)size_bytes);
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

/* The key must not be written on failure. */
static enum hvd_status load(uint8_t key[HVI_KEY_BYTES], struct hvi_err *err)
{
    enum hvd_status rc;

    memset(key, 0x5a, HVI_KEY_BYTES);
    err->text[0] = '\0';
    rc = hvi_key_load(path, key, err);
    for (int i = 0; rc != HVD_OK && i < HVI_KEY_BYTES; i++)
        cr_assert_eq(key[i], 0x5a);
    cr_assert(rc == HVD_OK || strstr(err->text, "key") != NULL, "'%s'", err->text);
    return rc;
}

Test(key, a_created_file_is_0600_and_loads_as_the_same_key, .timeout = 10,
     .init = make_dir, .fini = remove_dir)
{
    uint8_t key[HVI_KEY_BYTES] = {0};
    uint8_t back[HVI_KEY_BYTES];
    uint8_t second[HVI_KEY_BYTES];
    struct hvi_err err;
    struct stat st;
    mode_t old = umask(0);

    cr_assert_eq(hvi_key_create(path, key, &err), HVD_OK, "%s", err.text);
    umask(0777); /* neither the laxest nor the strictest umask matters */
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600);
    cr_assert_eq(st.st_size, 65);
    cr_assert_eq(load(back, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(memcmp(key, back, sizeof key), 0);
    unlink(path);
    cr_assert_eq(hvi_key_create(path, second, &err), HVD_OK);
    umask(old);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600);
    cr_assert_neq(memcmp(key, second, sizeof key), 0, "each key is fresh");
}

Test(key, creating_never_touches_what_is_there, .timeout = 10, .init = make_dir,
     .fini = remove_dir)
{
    uint8_t key[HVI_KEY_BYTES] = {0};
    static const uint8_t zeros[HVI_KEY_BYTES];
    struct hvi_err err;
    struct stat st;

    put_file("old", 3, 0644);
    cr_assert_eq(hvi_key_create(path, key, &err), HVD_EINVAL);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_size, 3);
    unlink(path);
    cr_assert_eq(symlink("elsewhere", path), 0);
    cr_assert_eq(hvi_key_create(path, key, &err), HVD_EINVAL, "a link to nowhere");
    cr_assert_eq(memcmp(key, zeros, sizeof key), 0);
    cr_assert_eq(hvi_key_create("/nonexistent/dir/key", key, &err), HVD_EIO);
    cr_assert_not_null(strstr(err.text, "/nonexistent/dir/key"), "%s", err.text);
}

Test(key, raw_and_hex_files_load, .timeout = 10, .init = make_dir, .fini = remove_dir)
{
    static const mode_t modes[] = {0600, 0400, 0700};
    uint8_t raw[HVI_KEY_BYTES];
    uint8_t key[HVI_KEY_BYTES];
    struct hvi_err err;

    for (uint8_t i = 0; i < HVI_KEY_BYTES; i++)
        raw[i] = i;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put_file(raw, sizeof raw, modes[i]);
        cr_assert_eq(load(key, &err), HVD_OK, "%s", err.text);
        cr_assert_eq(memcmp(key, raw, sizeof raw), 0);
        put_file(HEX, 64, modes[i]);
        cr_assert_eq(load(key, &err), HVD_OK, "%s", err.text);
        cr_assert_eq(memcmp(key, raw, sizeof raw), 0);
        put_file(HEX "\n", 65, modes[i]);
        cr_assert_eq(load(key, &err), HVD_OK, "%s", err.text);
        cr_assert_eq(memcmp(key, raw, sizeof raw), 0);
    }
}

Test(key, files_that_others_may_use_are_refused_with_the_remedy, .timeout = 10,
     .init = make_dir, .fini = remove_dir)
{
    static const mode_t modes[] = {0640, 0604, 0660, 0666, 0644,
                                   0610, 0601, 0777, 0620};
    uint8_t key[HVI_KEY_BYTES];
    struct hvi_err err;

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        put_file(HEX "\n", 65, modes[i]);
        cr_assert_eq(load(key, &err), HVD_EAUTH, "mode %04o", (unsigned)modes[i]);
        cr_assert_not_null(strstr(err.text, "chmod 600"), "%s", err.text);
    }
}

Test(key, wrong_sizes_and_digits_are_refused_and_not_shown, .timeout = 10,
     .init = make_dir, .fini = remove_dir)
{
    static char text[4096];
    char words[64];
    uint8_t key[HVI_KEY_BYTES];
    struct hvi_err err;

    memset(text, 'a', sizeof text);
    for (size_t n = 0; n < 200; n++) {
        if (n == HVI_KEY_BYTES || n == 2 * HVI_KEY_BYTES)
            continue;
        put_file(text, n, 0600);
        cr_assert_eq(load(key, &err), HVD_EINVAL, "%zu bytes", n);
        cr_assert_null(strstr(err.text, "aaaa"), "a secret in a message: %s", err.text);
    }
    put_file(text, sizeof text, 0600);
    cr_assert_eq(load(key, &err), HVD_EINVAL);
    put_file(HEX "\n\n", 66, 0600);
    cr_assert_eq(load(key, &err), HVD_EINVAL);
    put_file(HEX " ", 65, 0600);
    cr_assert_eq(load(key, &err), HVD_EINVAL);
    for (int i = 0; i < 64; i++) {
        char bad[65] = HEX;

        bad[i] = "g/:@G`"[i % 6];
        put_file(bad, 64, 0600);
        cr_assert_eq(load(key, &err), HVD_EINVAL, "digit %d", i);
        snprintf(words, sizeof words, "byte %d is not a hex digit", i + 1);
        cr_assert_not_null(strstr(err.text, words), "%s", err.text);
    }
}

Test(key, links_and_other_kinds_of_files_are_refused_without_waiting, .timeout = 10,
     .init = make_dir, .fini = remove_dir)
{
    char target[160];
    uint8_t key[HVI_KEY_BYTES];
    struct hvi_err err;

    put_file(HEX "\n", 65, 0600);
    snprintf(target, sizeof target, "%s-target", path);
    cr_assert_eq(rename(path, target), 0);
    cr_assert_eq(symlink(target, path), 0);
    cr_assert_eq(load(key, &err), HVD_EAUTH, "a link");
    cr_assert_not_null(strstr(err.text, "link"), "%s", err.text);
    unlink(path);
    unlink(target);
    cr_assert_eq(load(key, &err), HVD_EIO, "nothing there");
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(load(key, &err), HVD_EAUTH, "a pipe that nobody writes to");
    unlink(path);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(load(key, &err), HVD_EAUTH, "a directory");
    rmdir(path);
}

/* The lowest free descriptor is the same before and after. */
static int lowest_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

Test(key, no_descriptor_stays_open, .timeout = 10, .init = make_dir, .fini = remove_dir)
{
    uint8_t key[HVI_KEY_BYTES];
    struct hvi_err err;
    int before = lowest_fd();

    cr_assert_eq(hvi_key_create(path, key, &err), HVD_OK);
    cr_assert_eq(lowest_fd(), before, "create");
    cr_assert_eq(load(key, &err), HVD_OK);
    cr_assert_eq(lowest_fd(), before, "load");
    put_file("short", 5, 0600);
    cr_assert_eq(load(key, &err), HVD_EINVAL);
    put_file(HEX, 64, 0666);
    cr_assert_eq(load(key, &err), HVD_EAUTH);
    cr_assert_eq(lowest_fd(), before, "failed load");
    unlink(path);
    hvi_fault_write_after(0, EIO);
    (void)hvi_key_create(path, key, &err);
    cr_assert(hvi_fault_write_off());
    cr_assert_eq(lowest_fd(), before, "failed create");
}

Test(key, files_of_another_user_are_refused, .timeout = 10, .init = make_dir,
     .fini = remove_dir)
{
    uint8_t key[HVI_KEY_BYTES];
    struct hvi_err err;

    if (geteuid() != 0)
        cr_skip_test("only root can make a file of another user");
    put_file(HEX "\n", 65, 0600);
    cr_assert_eq(chown(path, 65534, 65534), 0);
    cr_assert_eq(load(key, &err), HVD_EAUTH);
    cr_assert_not_null(strstr(err.text, "65534"), "%s", err.text);
}

Test(key, a_failed_write_leaves_no_file_and_a_short_one_is_finished, .timeout = 10,
     .init = make_dir, .fini = remove_dir)
{
    static const uint8_t zeros[HVI_KEY_BYTES];
    uint8_t key[HVI_KEY_BYTES] = {0};
    uint8_t back[HVI_KEY_BYTES];
    struct hvi_err err;
    enum hvd_status rc;

    hvi_fault_write_after(0, ENOSPC);
    rc = hvi_key_create(path, key, &err);
    cr_assert(hvi_fault_write_off());
    cr_assert_eq(rc, HVD_EIO);
    cr_assert_not_null(strstr(err.text, strerror(ENOSPC)), "%s", err.text);
    cr_assert_eq(access(path, F_OK), -1, "half a key file stayed");
    cr_assert_eq(memcmp(key, zeros, sizeof key), 0);

    hvi_fault_write_after(0, EINTR);
    rc = hvi_key_create(path, key, &err);
    cr_assert(hvi_fault_write_off());
    cr_assert_eq(rc, HVD_OK);
    unlink(path);
    hvi_fault_write_after(0, 0); /* one byte of it */
    rc = hvi_key_create(path, key, &err);
    cr_assert(hvi_fault_write_off());
    cr_assert_eq(rc, HVD_OK);
    cr_assert_eq(load(back, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(memcmp(key, back, sizeof key), 0);
}

Test(key, without_random_bytes_no_file_is_made, .timeout = 10, .init = make_dir,
     .fini = remove_dir)
{
    uint8_t key[HVI_KEY_BYTES] = {0};
    struct hvi_err err;
    enum hvd_status rc;

    cr_assert_eq(hvi_random(key, sizeof key), HVD_OK); /* the library has started */
    hvi_fault_random(true);
    rc = hvi_key_create(path, key, &err);
    hvi_fault_random(false);
    cr_assert_eq(rc, HVD_EINTERNAL);
    cr_assert_eq(access(path, F_OK), -1);
    cr_assert_eq(hvi_key_create(path, key, &err), HVD_OK);
}
