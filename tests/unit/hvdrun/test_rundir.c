#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hvdrun/job/rundir.h"
#include "proto/sec/handshake.h"

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static void touch(const char *dir, const char *name)
{
    char path[256];
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    cr_assert_geq(fd, 0, "%s", path);
    close(fd);
}

Test(rundir, is_private_and_goes_with_all_in_it, .timeout = 5)
{
    char dir[HVI_RUNDIR_MAX], sub[128];
    struct hvi_err err;
    struct stat st;

    cr_assert_eq(hvi_rundir_make(dir, &err), HVD_OK);
    cr_assert_eq(stat(dir, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700u);
    touch(dir, "file");
    snprintf(sub, sizeof sub, "%s/sub", dir);
    cr_assert_eq(mkdir(sub, 0700), 0);
    touch(sub, "deep");
    hvi_rundir_remove(dir);
    cr_assert_not(exists(dir));
    hvi_rundir_remove(dir); /* again: nothing to do */
}

Test(rundir, follows_no_link_out, .timeout = 5)
{
    char dir[HVI_RUNDIR_MAX], link[128];
    char outside[] = "/tmp/keep-XXXXXX";
    struct hvi_err err;

    cr_assert_not_null(mkdtemp(outside));
    touch(outside, "precious");
    cr_assert_eq(hvi_rundir_make(dir, &err), HVD_OK);
    snprintf(link, sizeof link, "%s/link", dir);
    cr_assert_eq(symlink(outside, link), 0);
    hvi_rundir_remove(dir);
    cr_assert_not(exists(dir));
    snprintf(link, sizeof link, "%s/precious", outside);
    cr_assert(exists(link));
    unlink(link);
    rmdir(outside);
}

Test(rundir, refuses_what_it_did_not_make, .timeout = 5)
{
    char other[] = "/tmp/else-XXXXXX";
    char open_dir[] = "/tmp/hvd-XXXXXX";

    cr_assert_not_null(mkdtemp(other));
    hvi_rundir_remove(other);
    cr_assert(exists(other));
    rmdir(other);
    cr_assert_not_null(mkdtemp(open_dir));
    chmod(open_dir, 0755);
    hvi_rundir_remove(open_dir);
    cr_assert(exists(open_dir));
    rmdir(open_dir);
    hvi_rundir_remove("nonsense");
    hvi_rundir_remove("");
}

Test(rundir, uses_xdg_and_falls_back_when_it_is_no_good, .timeout = 5)
{
    char base[] = "/tmp/xdg-XXXXXX", dir[HVI_RUNDIR_MAX], want[64];
    struct hvi_err err;

    cr_assert_not_null(mkdtemp(base));
    setenv("XDG_RUNTIME_DIR", base, 1);
    snprintf(want, sizeof want, "%s/hvd-", base);
    cr_assert_eq(hvi_rundir_make(dir, &err), HVD_OK);
    cr_assert_eq(strncmp(dir, want, strlen(want)), 0, "%s", dir);
    hvi_rundir_remove(dir);
    rmdir(base); /* now missing */
    cr_assert_eq(hvi_rundir_make(dir, &err), HVD_OK);
    cr_assert_eq(strncmp(dir, "/tmp/hvd-", 9), 0, "%s", dir);
    hvi_rundir_remove(dir);
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    cr_assert_eq(hvi_rundir_make(dir, &err), HVD_OK);
    hvi_rundir_remove(dir);
}

Test(rundir, the_key_file_can_be_loaded_and_is_written_once, .timeout = 5)
{
    char dir[HVI_RUNDIR_MAX], path[128];
    uint8_t key[HVI_KEY_BYTES], back[HVI_KEY_BYTES];
    struct hvi_err err;
    struct stat st;

    for (size_t i = 0; i < sizeof key; i++)
        key[i] = (uint8_t)(i * 9);
    cr_assert_eq(hvi_rundir_make(dir, &err), HVD_OK);
    cr_assert_eq(hvi_rundir_put_key(dir, key, path, sizeof path, &err), HVD_OK);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600u);
    cr_assert_eq(hvi_key_load(path, back, &err), HVD_OK, "%s", err.text);
    cr_assert_arr_eq(key, back, sizeof key);
    cr_assert_eq(hvi_rundir_put_key(dir, key, path, sizeof path, &err), HVD_EIO);
    hvi_rundir_remove(dir);
}
