/** The environment, files and programs of this machine, for alloc.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/cli/textfile.h"
#include "hvdrun/hosts/alloc.h"
#include "hvdrun/job/proc.h"
#include "proto/base/clock.h"

#define ANSWER_MS 10000 /* a scheduler's program that says nothing is broken */
#define ANSWER_MAX_BYTES (1024 * 1024)

static const char *here_get(void *data, const char *name)
{
    (void)data;
    return getenv(name);
}

static enum hvd_status here_read(void *data, const char *path, char **text,
                                 size_t *size_bytes, struct hvi_err *err)
{
    (void)data;
    return hvi_textfile_read("host file", path, text, size_bytes, err);
}

/* Reads to the end; false: too late, too much, or an error. */
static bool drain(int fd, char *text, size_t *n)
{
    int64_t until = hvi_now_ms() + ANSWER_MS;

    for (*n = 0; *n < ANSWER_MAX_BYTES;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = until - hvi_now_ms();
        ssize_t got;

        if (left <= 0)
            return false;
        if (poll(&p, 1, (int)left) < 0 && errno != EINTR)
            return false;
        if (p.revents == 0)
            continue;
        got = read(fd, text + *n, ANSWER_MAX_BYTES - *n);
        if (got == 0)
            return true;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return false;
        *n += got > 0 ? (size_t)got : 0;
    }
    return false;
}

static enum hvd_status here_ask(void *data, char *const argv[], char **text,
                                struct hvi_err *err)
{
    struct hvi_proc p;
    char *answer = malloc(ANSWER_MAX_BYTES + 1);
    enum hvd_status rc;
    int status = 0;
    size_t n = 0;
    bool whole;

    (void)data;
    if (answer == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = hvi_proc_start_piped(argv, &p, err);
    if (rc != HVD_OK) {
        free(answer);
        return HVD_EINVAL;
    }
    close(p.to_fd);
    whole = drain(p.from_fd, answer, &n);
    if (!whole)
        (void)kill(-p.pid, SIGKILL);
    close(p.from_fd);
    close(p.err_fd);
    while (waitpid(p.pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (whole && status == 0) {
        answer[n] = '\0';
        *text = answer;
        return HVD_OK;
    }
    free(answer);
    return hvi_fail(err, HVD_EINVAL,
                    whole ? "'%s %s' failed" : "'%s %s' does not answer", argv[0],
                    argv[1]);
}

const struct hvi_alloc_sys hvi_alloc_here = {
    .get = here_get, .read = here_read, .ask = here_ask};
