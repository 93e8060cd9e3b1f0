#include "hvdrun/agent/procstat.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
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

static bool read_stat(pid_t pid, char line[512])
{
    char path[64];
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, line, 511);
    close(fd);
    line[n > 0 ? n : 0] = '\0';
    return n > 0;
}

const char *hvi_procstat(pid_t pid)
{
    char line[512];

    return read_stat(pid, line) ? hvi_procstat_parse(line) : "gone";
}

pid_t hvi_procstat_group(pid_t pid)
{
    char line[512];
    const char *p = NULL;
    char *end;

    if (read_stat(pid, line))
        p = strrchr(line, ')');
    if (p == NULL || strlen(p) < 5)
        return 0;
    (void)strtol(p + 4, &end, 10); /* the parent */
    return (pid_t)strtol(end, NULL, 10);
}

uint64_t hvi_procstat_oom_kills(void)
{
    FILE *f = fopen("/proc/vmstat", "re");
    unsigned long long n = 0;
    char line[128];

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "oom_kill %llu", &n) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return n;
}
