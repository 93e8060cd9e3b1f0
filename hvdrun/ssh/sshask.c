#include "hvdrun/ssh/sshask.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/job/proc.h"
#include "proto/base/clock.h"

#define SETTINGS_BYTES (64 * 1024)
#define SETTINGS_MS 5000 /* it reads files, and runs what "Match exec" names */

/* All that comes until the end, within SETTINGS_MS. */
static void read_all(int fd, char *out, size_t cap)
{
    int64_t deadline = hvi_now_ms() + SETTINGS_MS;
    size_t n = 0;

    while (n + 1 < cap) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left_ms = deadline - hvi_now_ms();
        ssize_t got;

        if (left_ms <= 0 || poll(&p, 1, (int)left_ms) == 0)
            break;
        got = read(fd, out + n, cap - 1 - n);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        n += got > 0 ? (size_t)got : 0;
    }
    out[n] = '\0';
}

/* false: ssh did not print settings. */
static bool ask(const struct hvi_rshell *shell, const struct hvi_host *host,
                const struct hvi_opts *opts, char *out, size_t cap)
{
    char **argv = hvi_sshargv_make(shell, host, opts, NULL);
    char *text = malloc(SETTINGS_BYTES);
    struct hvi_proc proc;
    struct hvi_err err;
    bool known = false;

    if (argv != NULL && text != NULL &&
        hvi_proc_start_piped(argv, &proc, &err) == HVD_OK) {
        read_all(proc.from_fd, text, SETTINGS_BYTES);
        close(proc.from_fd);
        close(proc.to_fd);
        close(proc.err_fd);
        kill(proc.pid, SIGKILL);
        while (waitpid(proc.pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        known = hvi_sshargv_setting(text, "hostname", out, cap);
    }
    hvi_sshargv_free(argv);
    free(text);
    return known;
}

void hvi_sshask(struct hvi_rshell *shell, const struct hvi_host *host,
                const struct hvi_opts *opts, char *out, size_t cap)
{
    snprintf(out, cap, "%s", host->name);
    if (shell->kind != HVI_RSHELL_SSH || ask(shell, host, opts, out, cap) || shell->old)
        return;
    shell->old = true; /* then it may have refused an option that it does not know */
    (void)ask(shell, host, opts, out, cap);
}
