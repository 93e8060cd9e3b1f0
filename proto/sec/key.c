/* Key files: made and read without ever following a link or trusting others' rights. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/sec/handshake.h"

#define HEX_BYTES (2 * HVI_KEY_BYTES)

static enum hvd_status check_file(const char *path, int fd, struct hvi_err *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return hvi_fail(err, HVD_EIO, "key file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return hvi_fail(err, HVD_EAUTH, "key file %s: not a regular file", path);
    if (st.st_uid != geteuid())
        return hvi_fail(err, HVD_EAUTH,
                        "key file %s: owned by user %u, not by this user (%u)", path,
                        (unsigned)st.st_uid, (unsigned)geteuid());
    if ((st.st_mode & 077) != 0)
        return hvi_fail(err, HVD_EAUTH,
                        "key file %s: others may use it (mode %04o); run chmod 600",
                        path, (unsigned)(st.st_mode & 07777));
    return HVD_OK;
}

/* Reads until the end or cap; -1 on error. */
static ssize_t read_some(int fd, uint8_t *to, size_t cap)
{
    size_t used = 0;

    while (used < cap) {
        ssize_t n = read(fd, to + used, cap - used);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

static int nibble(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static enum hvd_status parse_key(const char *path, const uint8_t *text,
                                 size_t size_bytes, uint8_t key[HVI_KEY_BYTES],
                                 struct hvi_err *err)
{
    if (size_bytes == HVI_KEY_BYTES) {
        memcpy(key, text, HVI_KEY_BYTES);
        return HVD_OK;
    }
    if (size_bytes == HEX_BYTES + 1 && text[HEX_BYTES] == '\n')
        size_bytes--;
    if (size_bytes != HEX_BYTES)
        return hvi_fail(err, HVD_EINVAL,
                        "key file %s: neither %d bytes nor %d hex digits", path,
                        HVI_KEY_BYTES, HEX_BYTES);
    for (size_t i = 0; i < HEX_BYTES; i++)
        if (nibble(text[i]) < 0)
            return hvi_fail(err, HVD_EINVAL, "key file %s: byte %zu is not a hex digit",
                            path, i + 1);
    for (size_t i = 0; i < HVI_KEY_BYTES; i++)
        key[i] = (uint8_t)(nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]));
    return HVD_OK;
}

enum hvd_status hvi_key_load(const char *path, uint8_t key[HVI_KEY_BYTES],
                             struct hvi_err *err)
{
    uint8_t text[HEX_BYTES + 2]; /* one more than allowed: too long shows */
    enum hvd_status rc;
    ssize_t n;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 && errno == ELOOP)
        return hvi_fail(err, HVD_EAUTH, "key file %s: is a link; name the file itself",
                        path);
    if (fd < 0)
        return hvi_fail(err, HVD_EIO, "key file %s: %s", path, strerror(errno));
    rc = check_file(path, fd, err);
    if (rc != HVD_OK)
        goto done;
    n = read_some(fd, text, sizeof text);
    if (n < 0)
        rc = hvi_fail(err, HVD_EIO, "key file %s: %s", path, strerror(errno));
    else
        rc = parse_key(path, text, (size_t)n, key, err);
    hvi_wipe(text, sizeof text);
done:
    close(fd);
    return rc;
}

static bool write_all(int fd, const char *text, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t n = write(fd, text, size_bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        size_bytes -= (size_t)n;
    }
    return true;
}

enum hvd_status hvi_key_create(const char *path, uint8_t key[HVI_KEY_BYTES],
                               struct hvi_err *err)
{
    static const char digits[] = "0123456789abcdef";
    char text[HEX_BYTES + 1];
    uint8_t fresh[HVI_KEY_BYTES];
    enum hvd_status rc = HVD_OK;
    int fd;

    if (hvi_random(fresh, sizeof fresh) != HVD_OK)
        return hvi_fail(err, HVD_EINTERNAL, "the system has no random bytes");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        rc = hvi_fail(err, errno == EEXIST ? HVD_EINVAL : HVD_EIO, "key file %s: %s",
                      path, strerror(errno));
        goto done;
    }
    for (size_t i = 0; i < HVI_KEY_BYTES; i++) {
        text[2 * i] = digits[fresh[i] >> 4];
        text[2 * i + 1] = digits[fresh[i] & 15];
    }
    text[HEX_BYTES] = '\n';
    if (fchmod(fd, 0600) != 0 || !write_all(fd, text, sizeof text)) {
        rc = hvi_fail(err, HVD_EIO, "key file %s: %s", path, strerror(errno));
        unlink(path);
        goto done;
    }
    memcpy(key, fresh, HVI_KEY_BYTES);
done:
    hvi_wipe(fresh, sizeof fresh);
    hvi_wipe(text, sizeof text);
    if (fd >= 0)
        close(fd);
    return rc;
}
