#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/tmpdir.h"

static char base[64];

/* Last changed an hour ago. */
static void age(const char *path)
{
    struct timespec t[2];

    clock_gettime(CLOCK_REALTIME, &t[0]);
    t[0].tv_sec -= 3600;
    t[1] = t[0];
    cr_assert_eq(utimensat(AT_FDCWD, path, t, 0), 0);
}

static char *make(char out[96], const char *name)
{
    snprintf(out, 96, "%s/%s", base, name);
    cr_assert_eq(mkdir(out, 0700), 0);
    return out;
}

static void put_file(const char *dir, const char *name)
{
    char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
}

static int put_socket(const char *dir)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/w1-0", dir);
    cr_assert_eq(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    cr_assert_eq(listen(fd, 4), 0);
    return fd;
}

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static void begin(void)
{
    snprintf(base, sizeof base, "/tmp/sweep-XXXXXX");
    cr_assert_not_null(mkdtemp(base));
}

static void end(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", base);
    cr_assert_eq(system(command), 0);
}

Test(tmpdir, a_sweep_takes_what_the_dead_left, .timeout = 10)
{
    char locked[96], sockets[96], empty[96];

    begin();
    close(hvi_tmpdir_lock(make(locked, "hvd-aaaaaa"))); /* its holder ended */
    put_file(locked, "key");
    close(put_socket(make(sockets, "hvd-bbbbbb")));
    make(empty, "hvd-cccccc");
    hvi_tmpdir_sweep(base);
    cr_assert(exists(locked) && exists(sockets) && exists(empty), "they are too new");
    age(locked);
    age(sockets);
    age(empty);
    hvi_tmpdir_sweep(base);
    cr_assert_not(exists(locked));
    cr_assert_not(exists(sockets));
    cr_assert_not(exists(empty));
    end();
}

Test(tmpdir, a_sweep_leaves_what_is_used_or_not_ours, .timeout = 10)
{
    static const char *const names[] = {"hvd-aaaaaa", "hvd-bbbbbb", "hvd-cccccc",
                                        "hvd-dddddd", "hvd-eeeeee", "hvd-ffffff0",
                                        "hvd-../../", "other"};
    char dir[8][96], target[96];
    int lock, server;

    begin();
    lock = hvi_tmpdir_lock(make(dir[0], names[0]));
    cr_assert_geq(lock, 0);
    server = put_socket(make(dir[1], names[1]));
    put_file(make(dir[2], names[2]), "key"); /* no lock, and not a socket */
    cr_assert_eq(chmod(make(dir[3], names[3]), 0755), 0);
    make(target, "target");
    snprintf(dir[4], sizeof dir[4], "%s/%s", base, names[4]);
    cr_assert_eq(symlink(target, dir[4]), 0);
    make(dir[5], names[5]);
    make(dir[7], names[7]);
    for (int i = 0; i < 8; i++)
        if (i != 4 && i != 6)
            age(dir[i]);
    hvi_tmpdir_sweep(base);
    for (int i = 0; i < 8; i++)
        cr_assert(i == 6 || exists(dir[i]), "%s", names[i]);
    cr_assert(exists(target));
    cr_assert_eq(hvi_tmpdir_lock(dir[0]), -1, "two holders");
    hvi_tmpdir_sweep(base);
    cr_assert(exists(dir[0]));
    close(lock);
    close(server);
    end();
}
