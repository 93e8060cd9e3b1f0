#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "hvdrun/debug/attach.h"
#include "hvdrun/job/rundir.h"
#include "proto/base/clock.h"
#include "proto/base/env.h"

#define JOBS_MAX 16
#define CONNECT_MS 1000 /* many attach at the same time, or hvdrun is stopped */
#define CONNECT_AGAIN_MS 10
#define NOT_ACCEPTED "its hvdrun does not answer; is it stopped?"
#define NAMES_MAX 20000 /* looked at in one directory */

struct job {
    int fd;
    pid_t pid;
    char dir[HVI_RUNDIR_MAX];
};

struct jobs {
    struct job list[JOBS_MAX];
    int n;
    char silent[HVI_RUNDIR_MAX]; /* the last that does not accept; "": none */
};

/* As connect(); EAGAIN: as many wait already as may. */
static int connect_in_time(int fd, const struct sockaddr_un *sa)
{
    int64_t until = hvi_now_ms() + CONNECT_MS;

    while (connect(fd, (const struct sockaddr *)sa, sizeof *sa) != 0) {
        if ((errno != EAGAIN && errno != EINTR) || hvi_now_ms() >= until)
            return -1;
        poll(NULL, 0, CONNECT_AGAIN_MS);
    }
    errno = 0; /* of earlier tries */
    return 0;
}

/* Who listens must be this user, and so must the directory: others may make names in
 * /tmp too. -1: not so, with errno. */
static int connect_to(const char *dir, pid_t *pid)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct stat st;
    int n = snprintf(sa.sun_path, sizeof sa.sun_path, "%s/" HVI_ATTACH_SOCKET, dir);
    int fd;

    if (n < 0 || n >= (int)sizeof sa.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (lstat(dir, &st) != 0)
        return -1;
    if (!S_ISDIR(st.st_mode) || (st.st_uid != geteuid() && geteuid() != 0)) {
        errno = EPERM;
        return -1;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    errno = 0;
    if (connect_in_time(fd, &sa) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        peer.uid != st.st_uid) {
        int error = errno != 0 ? errno : EPERM;

        close(fd);
        errno = error;
        return -1;
    }
    *pid = peer.pid;
    return fd;
}

static void look_in(const char *base, struct jobs *jobs)
{
    DIR *d = opendir(base);
    const struct dirent *e;

    for (int i = 0; d != NULL && i < NAMES_MAX && (e = readdir(d)) != NULL; i++) {
        struct job *j = &jobs->list[jobs->n];
        int n;

        if (strncmp(e->d_name, "hvd-", 4) != 0 || jobs->n == JOBS_MAX)
            continue;
        n = snprintf(j->dir, sizeof j->dir, "%s/%s", base, e->d_name);
        errno = 0;
        j->fd = n > 0 && n < (int)sizeof j->dir ? connect_to(j->dir, &j->pid) : -1;
        if (j->fd < 0 && errno == EAGAIN)
            memcpy(jobs->silent, j->dir, sizeof jobs->silent);
        jobs->n += j->fd >= 0;
    }
    if (d != NULL)
        closedir(d);
}

/* Where hvi_rundir_make() makes them. */
static void look(struct jobs *jobs)
{
    const char *bases[] = {getenv("XDG_RUNTIME_DIR"), "/tmp", getenv("TMPDIR")};

    for (size_t i = 0; i < 3; i++) {
        bool again = bases[i] == NULL || bases[i][0] != '/';

        for (size_t k = 0; k < i && !again; k++)
            again = bases[k] != NULL && strcmp(bases[k], bases[i]) == 0;
        if (!again)
            look_in(bases[i], jobs);
    }
}

static void name_all(const struct jobs *jobs, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < jobs->n && used + 24 < cap; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s%d", i > 0 ? ", " : "",
                                 (int)jobs->list[i].pid);
}

static int choose(const struct jobs *jobs, const char *job)
{
    if (job == NULL)
        return jobs->n == 1 ? 0 : -1;
    for (int i = 0; i < jobs->n; i++) {
        char pid[16];

        snprintf(pid, sizeof pid, "%d", (int)jobs->list[i].pid);
        if (strcmp(pid, job) == 0)
            return i;
    }
    return -1;
}

static enum hvd_status say_none(const struct jobs *jobs, const char *job,
                                struct hvi_err *err)
{
    char all[256], shown[64];

    name_all(jobs, all, sizeof all);
    if (job != NULL)
        hvi_escape(shown, sizeof shown, job, strlen(job));
    if (jobs->silent[0] != '\0' && job != NULL) /* which may be the one meant */
        return hvi_fail(err, HVD_EINVAL,
                        "no hvdrun of pid %s that answers has ranks under a debugger; "
                        "%s: " NOT_ACCEPTED,
                        shown, jobs->silent);
    if (jobs->silent[0] != '\0' && jobs->n == 0)
        return hvi_fail(err, HVD_EIO, "%s: " NOT_ACCEPTED, jobs->silent);
    if (jobs->n == 0)
        return hvi_fail(err, HVD_EINVAL,
                        "no job of yours on this host has a rank under a debugger "
                        "(hvdrun --debug)");
    if (job == NULL)
        return hvi_fail(err, HVD_EINVAL,
                        "which job? These hvdrun have ranks under a debugger: %s; "
                        "'hvdrun attach %d RANK'",
                        all, (int)jobs->list[0].pid);
    return hvi_fail(err, HVD_EINVAL,
                    "no hvdrun of pid %s has ranks under a debugger; these have: %s",
                    shown, all);
}

static enum hvd_status connect_dir(const char *dir, int *fd, struct hvi_err *err)
{
    pid_t pid;
    char shown[128];
    int got = connect_to(dir, &pid);

    if (got < 0)
        return hvi_fail(err, HVD_EIO, "%s: no job answers there: %s",
                        hvi_escape(shown, sizeof shown, dir, strlen(dir)),
                        errno == EAGAIN ? NOT_ACCEPTED : strerror(errno));
    *fd = got;
    return HVD_OK;
}

enum hvd_status hvi_attach_connect(const char *job, int *fd, struct hvi_err *err)
{
    struct jobs jobs = {.n = 0};
    enum hvd_status rc = HVD_OK;
    int chosen;

    if (job != NULL && strchr(job, '/') != NULL)
        return connect_dir(job, fd, err);
    look(&jobs);
    chosen = choose(&jobs, job);
    if (chosen < 0)
        rc = say_none(&jobs, job, err);
    for (int i = 0; i < jobs.n; i++)
        if (i != chosen)
            close(jobs.list[i].fd);
    if (chosen >= 0)
        *fd = jobs.list[chosen].fd;
    return rc;
}
