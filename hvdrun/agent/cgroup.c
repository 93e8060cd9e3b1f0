#include "hvdrun/agent/cgroup.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUP2_MAGIC 0x63677270

/* "0::/user.slice/..." of /proc/self/cgroup. */
static int own_path(char *out, size_t cap)
{
    char line[512];
    FILE *f = fopen("/proc/self/cgroup", "re");
    int rc = -1;

    if (f == NULL)
        return -1;
    while (rc != 0 && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0 && strlen(line + 3) < cap &&
            strstr(line, "..") == NULL) {
            memcpy(out, line + 3, strlen(line + 3) + 1);
            rc = 0;
        }
    }
    fclose(f);
    return rc;
}

int hvi_cgroup_make(char *dir, size_t cap, int *fd)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char own[200], file[320];
    struct statfs fs;

    if (own_path(own, sizeof own) != 0)
        return -1;
    for (size_t i = 0; i < 2; i++) {
        int n = snprintf(dir, cap, "%s%s%shvd-%d", mounts[i], own,
                         own[1] == '\0' ? "" : "/", (int)getpid());

        if (statfs(mounts[i], &fs) != 0 || fs.f_type != CGROUP2_MAGIC || n < 0 ||
            (size_t)n >= cap || mkdir(dir, 0755) != 0)
            continue;
        snprintf(file, sizeof file, "%s/cgroup.kill", dir);
        if (access(file, W_OK) == 0) {
            *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (*fd >= 0)
                return 0;
        }
        rmdir(dir);
    }
    return -1;
}

void hvi_cgroup_enter(int dir_fd)
{
    int fd = openat(dir_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)!write(fd, "0", 1);
    close(fd);
}

pid_t hvi_cgroup_fork(int dir_fd)
{
    struct clone_args args = {
        .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (unsigned)dir_fd};

    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

void hvi_cgroup_kill(const char *dir)
{
    char file[320];
    int fd;

    snprintf(file, sizeof file, "%s/cgroup.kill", dir);
    fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!write(fd, "1", 1);
    close(fd);
}

void hvi_cgroup_remove(const char *dir)
{
    for (int i = 0; i < 100 && rmdir(dir) != 0; i++)
        poll(NULL, 0, 5);
}
