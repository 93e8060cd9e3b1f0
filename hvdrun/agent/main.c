/** hvd-agent: started by hvdrun on each host, speaks frames on stdin and stdout. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <uv.h>

#include "hvdrun/agent/agent.h"
#include "hvdrun/agent/check.h"
#include "hvdrun/job/rundir.h"
#include "proto/base/limits.h"
#include "proto/base/log.h"

#define FDS_OF_OUR_OWN 24 /* the event loop, the keeper, the pipes, the link */
#define MEMORY_OF_OUR_OWN ((size_t)4 << 20)

static int usage(FILE *f)
{
    fputs("usage: hvd-agent --stdin [--runtime-dir DIR] | --check\n"
          "hvdrun starts this program, one on each host; it is of no use by hand.\n",
          f);
    return f == stdout ? 0 : 2;
}

/* Moves the frame pipes away from 0 and 1, so that nothing else writes into them. */
static int take_pipes(int *in_fd, int *out_fd)
{
    int null = open("/dev/null", O_RDWR);

    if (null < 0)
        return -1;
    *in_fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
    *out_fd = fcntl(1, F_DUPFD_CLOEXEC, 3);
    if (*in_fd < 0 || *out_fd < 0)
        return -1;
    dup2(null, 0);
    dup2(null, 1);
    if (null > 2)
        close(null);
    return 0;
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    char made[HVI_RUNDIR_MAX];
    struct hvi_keeper keeper = {0, -1, 0};
    struct hvi_err err;
    int in_fd, out_fd;
    int serve = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--stdin") == 0) {
            serve = 1;
        } else if (strcmp(argv[i], "--runtime-dir") == 0 && i + 1 < argc) {
            dir = argv[++i];
        } else if (strcmp(argv[i], "--check") == 0) {
            return hvi_agent_check();
        } else if (strcmp(argv[i], "--version") == 0) {
            puts("hvd-agent " HVI_VERSION);
            return 0;
        } else {
            return usage(strcmp(argv[i], "--help") == 0 ? stdout : stderr);
        }
    }
    if (!serve)
        return usage(stderr);
    hvi_log_setup("hvd-agent", HVI_LOG_WARN);
    signal(SIGTTOU, SIG_IGN); /* our group is in the background of the terminal */
    /* libuv aborts when it polls a file */
    if (uv_guess_handle(0) != UV_NAMED_PIPE || uv_guess_handle(1) != UV_NAMED_PIPE) {
        hvi_log_error("agent", "stdin and stdout must be pipes");
        return 2;
    }
    hvi_limits_raise_fds();
    if (hvi_limits_fds(FDS_OF_OUR_OWN, "hvd-agent", &err) != HVD_OK ||
        hvi_limits_memory(MEMORY_OF_OUR_OWN, &err) != HVD_OK) {
        hvi_log_error("agent", "%s", err.text);
        return 1;
    }
    if (take_pipes(&in_fd, &out_fd) != 0) {
        hvi_log_error("agent", "stdin and stdout: %s", strerror(errno));
        return 1;
    }
    if (dir == NULL && hvi_rundir_make(made, &err) != HVD_OK) {
        hvi_log_error("agent", "%s", err.text);
        return 1;
    }
    if (hvi_keeper_start(in_fd, dir != NULL ? dir : made, dir == NULL, &keeper, &err) !=
        HVD_OK) {
        hvi_log_error("agent", "%s", err.text);
        return 1;
    }
    prctl(PR_SET_DUMPABLE, 0); /* the job key will be in memory: no core, no ptrace */
    return hvi_agent_run(in_fd, out_fd, dir != NULL ? dir : made, &keeper);
}
