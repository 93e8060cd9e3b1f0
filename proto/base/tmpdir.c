#include "proto/base/tmpdir.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NAME "lock"
#define STALE_S 60       /* a new one is not locked yet */
#define NAMES_MAX 20000  /* looked at in one sweep */
#define ENTRIES_MAX 2048 /* of a directory that is worth a closer look */
#define NAME_BYTES 10    /* hvd-XXXXXX */

/* The content of an open directory, at most three levels deep. Takes fd. */
static void empty(int fd, int depth)
{
    DIR *d = fdopendir(fd);
    const struct dirent *e;

    if (d == NULL) {
        close(fd);
        return;
    }
    while ((e = readdir(d)) != NULL) {
        int sub;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) == 0 || errno == ENOENT || depth >= 3)
            continue;
        sub = openat(dirfd(d), e->d_name,
                     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (sub >= 0)
            empty(sub, depth + 1);
        unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR);
    }
    closedir(d);
}

/* A directory of ours, opened; -1: it is none. */
static int open_ours(const char *path, struct stat *st)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, st) == 0 && st->st_uid == geteuid() &&
        (st->st_mode & 077) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

void hvi_tmpdir_remove(const char *path)
{
    const char *name = strrchr(path, '/');
    struct stat st;

    if (name == NULL || strncmp(name, "/hvd-", 5) != 0)
        return;
    /* again when somebody added an entry between emptying and removing */
    for (int i = 0; i < 5; i++) {
        int fd = open_ours(path, &st);

        if (fd < 0)
            return;
        empty(fd, 0);
        if (rmdir(path) == 0)
            return;
    }
}

int hvi_tmpdir_lock(const char *path)
{
    char name[256];
    int fd;

    snprintf(name, sizeof name, "%s/" LOCK_NAME, path);
    fd = open(name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (fd >= 0 && errno != EWOULDBLOCK)
        unlink(name); /* a file system without locks: the name would mean a dead user */
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Somebody listens there, or it cannot be told. */
static bool served(const char *dir, const char *name)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd, n;
    bool refused;

    n = snprintf(sa.sun_path, sizeof sa.sun_path, "%s/%s", dir, name);
    if (n < 0 || n >= (int)sizeof sa.sun_path)
        return true;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true;
    refused = connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0 &&
              (errno == ECONNREFUSED || errno == ENOENT);
    close(fd);
    return !refused;
}

/* Without a lock: nothing in it but sockets of the dead. Takes fd. */
static bool only_dead_sockets(int fd, const char *path)
{
    DIR *d = fdopendir(fd);
    const struct dirent *e;
    struct stat st;
    bool dead = true;
    int left = ENTRIES_MAX;

    if (d == NULL) {
        close(fd);
        return false;
    }
    while (dead && (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        dead = --left > 0 &&
               fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
               S_ISSOCK(st.st_mode) && !served(path, e->d_name);
    }
    closedir(d);
    return dead;
}

static void sweep_one(const char *path)
{
    struct stat st;
    int fd = open_ours(path, &st);
    int lock;

    if (fd < 0)
        return;
    if (time(NULL) < st.st_mtime + STALE_S) {
        close(fd);
        return;
    }
    lock = openat(fd, LOCK_NAME, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (lock < 0 && errno == ENOENT) {
        if (only_dead_sockets(fd, path))
            hvi_tmpdir_remove(path);
        return;
    }
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0)
        hvi_tmpdir_remove(path);
    if (lock >= 0)
        close(lock);
    close(fd);
}

static bool is_ours_by_name(const char *name)
{
    if (strlen(name) != NAME_BYTES || strncmp(name, "hvd-", 4) != 0)
        return false;
    for (const char *p = name + 4; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p))
            return false;
    return true;
}

void hvi_tmpdir_sweep(const char *base)
{
    DIR *d = opendir(base);
    const struct dirent *e;
    char path[256];

    if (d == NULL)
        return;
    for (int i = 0; i < NAMES_MAX && (e = readdir(d)) != NULL; i++) {
        int n = is_ours_by_name(e->d_name)
                    ? snprintf(path, sizeof path, "%s/%s", base, e->d_name)
                    : -1;

        if (n > 0 && n < (int)sizeof path)
            sweep_one(path);
    }
    closedir(d);
}
