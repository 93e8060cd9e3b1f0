#include "hvdrun/job/strays.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define PAUSE_MS 2

/* Pids of our children, separated by blanks. The kernel may leave one out while others
 * end, so callers look again. Returns bytes, <= 0: none. */
static ssize_t list_children(char *text, size_t cap)
{
    char path[64];
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    n = read(fd, text, cap - 1);
    close(fd);
    while (n > 0 &&
           text[n - 1] != ' ') /* each ends with one: a number cut short goes */
        n--;
    text[n > 0 ? n : 0] = '\0';
    return n;
}

void hvi_strays_kill(pid_t except, int limit_ms)
{
    int64_t deadline = hvi_now_ms() + limit_ms;
    char text[4096];

    while (list_children(text, sizeof text) > 0) {
        char *save = NULL;
        int found = 0;

        for (char *w = strtok_r(text, " ", &save); w != NULL;
             w = strtok_r(NULL, " ", &save)) {
            pid_t pid = (pid_t)strtol(w, NULL, 10);

            if (pid <= 1 || pid == except)
                continue;
            found++;
            kill(pid, SIGKILL);
            waitpid(pid, NULL, WNOHANG);
        }
        if (found == 0 || hvi_now_ms() >= deadline)
            return;
        poll(NULL, 0, PAUSE_MS);
    }
}
