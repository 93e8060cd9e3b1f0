#include "hvdrun/job/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/tmpdir.h"
#include "proto/sec/handshake.h"

enum hvd_status hvi_rundir_make(char out[HVI_RUNDIR_MAX], struct hvi_err *err)
{
    const char *bases[] = {getenv("XDG_RUNTIME_DIR"), "/tmp", getenv("TMPDIR")};

    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        char path[HVI_RUNDIR_MAX];
        int n;

        if (bases[i] == NULL || bases[i][0] != '/')
            continue;
        n = snprintf(path, sizeof path, "%s/hvd-XXXXXX", bases[i]);
        if (n < 0 || n >= (int)sizeof path)
            continue;
        hvi_tmpdir_sweep(bases[i]);
        if (mkdtemp(path) != NULL) {
            (void)hvi_tmpdir_lock(path); /* until we end, however that comes */
            memcpy(out, path, sizeof path);
            return HVD_OK;
        }
    }
    return hvi_fail(
        err, HVD_EIO,
        "cannot make a runtime directory in XDG_RUNTIME_DIR, /tmp or TMPDIR: %s",
        strerror(errno));
}

void hvi_rundir_remove(const char *path)
{
    hvi_tmpdir_remove(path);
}

enum hvd_status hvi_rundir_put_key(const char *dir, const uint8_t *key, char *out,
                                   size_t cap, struct hvi_err *err)
{
    static const char digits[] = "0123456789abcdef";
    enum hvd_status rc = HVD_OK;
    char text[2 * HVI_KEY_BYTES + 1];
    ssize_t n;
    int fd;

    snprintf(out, cap, "%s/key", dir);
    fd = open(out, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return hvi_fail(err, HVD_EIO, "%s: %s", out, strerror(errno));
    for (size_t i = 0; i < HVI_KEY_BYTES; i++) {
        text[2 * i] = digits[key[i] >> 4];
        text[2 * i + 1] = digits[key[i] & 15];
    }
    text[sizeof text - 1] = '\n';
    n = write(fd, text, sizeof text);
    if (n != (ssize_t)sizeof text) {
        int error = n < 0 ? errno : ENOSPC;

        rc = hvi_fail(err, HVD_EIO, "%s: %s%s", out, strerror(error),
                      error == ENOSPC || error == EDQUOT
                          ? "; free some room in its file system"
                          : "");
    }
    hvi_wipe(text, sizeof text);
    close(fd);
    return rc;
}
