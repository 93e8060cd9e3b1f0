#include "hvdrun/agent/procstat.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "PID (name) S ...": the name may itself hold parentheses, so the last one counts. */
const char *hvi_procstat_parse(const char *line)
{
    const char *p = strrchr(line, ')');

    if (p == NULL || p[1] != ' ')
        return "unknown";
    switch (p[2]) {
    case 'R':
        return "running";
    case 'S':
    case 'I':
        return "sleeping";
    case 'D':
        return "waiting for disk";
    case 'T':
        return "stopped";
    case 't':
        return "traced";
    case 'Z':
        return "zombie";
    case 'X':
    case 'x':
        return "gone";
    default:
        return "unknown";
    }
}

const char *hvi_procstat(pid_t pid)
{
    char path[64], line[512];
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return "gone";
    n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return "gone";
    line[n] = '\0';
    return hvi_procstat_parse(line);
}
