#include "hvdrun/cli/textfile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define FILE_MAX_BYTES (1024 * 1024)

/* A pipe that has never had a writer reads as ended; a look at it waits for one. */
static int wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int64_t until = hvi_now_ms() + HVI_TEXTFILE_PATIENCE_MS;
    int n;

    do {
        int64_t left = until - hvi_now_ms();

        n = poll(&p, 1, left > 0 ? (int)left : 0);
    } while (n < 0 && errno == EINTR);
    if (n == 0)
        errno = ETIMEDOUT;
    return n > 0 ? 0 : -1;
}

/* Into text, which has room for FILE_MAX_BYTES + 1. -1 with errno. */
static ssize_t read_all(int fd, char *text)
{
    struct stat st;
    size_t n = 0;

    if (fstat(fd, &st) != 0)
        return -1;
    while (n < FILE_MAX_BYTES) {
        ssize_t got;

        if (S_ISFIFO(st.st_mode) && wait_readable(fd) != 0)
            return -1;
        got = read(fd, text + n, FILE_MAX_BYTES - n);
        if (got == 0)
            break;
        if (got > 0)
            n += (size_t)got;
        else if (errno != EINTR && !(errno == EAGAIN && S_ISFIFO(st.st_mode)))
            return -1;
    }
    return (ssize_t)n;
}

enum hvd_status hvi_textfile_read(const char *what, const char *path, char **text,
                                  size_t *size_bytes, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    char *room = malloc(FILE_MAX_BYTES + 1);
    char shown[256];
    ssize_t n;
    /* a pipe without a writer is opened all the same; what is no pipe ignores it */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

    hvi_escape(shown, sizeof shown, path, strlen(path));
    if (room == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "%s %s: out of memory", what, shown);
        goto done;
    }
    n = fd >= 0 ? read_all(fd, room) : -1;
    if (n < 0 && errno == ETIMEDOUT)
        rc = hvi_fail(err, HVD_EINVAL,
                      "%s %s: it is a pipe, and nothing came through it for %d s", what,
                      shown, HVI_TEXTFILE_PATIENCE_MS / 1000);
    else if (n < 0)
        rc = hvi_fail(err, HVD_EINVAL, "%s %s: %s", what, shown, strerror(errno));
    else if (n == FILE_MAX_BYTES)
        rc = hvi_fail(err, HVD_EINVAL, "%s %s: larger than 1 MiB", what, shown);
    if (rc != HVD_OK)
        goto done;
    room[n] = '\0';
    *text = room;
    *size_bytes = (size_t)n;
    room = NULL;
done:
    free(room);
    if (fd >= 0)
        close(fd);
    return rc;
}
