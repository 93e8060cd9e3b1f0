#include "hvdrun/io/procstat.h"

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

/* The first line of a file below /proc/PID. */
static bool read_line(pid_t pid, const char *name, char *line, int cap)
{
    char path[64];
    FILE *f;
    bool got;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    got = fgets(line, cap, f) != NULL;
    fclose(f);
    line[got ? strcspn(line, "\n") : 0] = '\0';
    return got && line[0] != '\0';
}

pid_t hvi_procstat_tracer(pid_t pid)
{
    char path[64], line[256];
    long tracer = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "TracerPid:", 10) == 0) {
            tracer = strtol(line + 10, NULL, 10);
            break;
        }
    fclose(f);
    return (pid_t)tracer;
}

const char *hvi_procstat_words(pid_t pid, char out[HVI_PROCSTAT_WORDS_MAX])
{
    const char *state = hvi_procstat(pid);
    pid_t tracer = strcmp(state, "traced") == 0 ? hvi_procstat_tracer(pid) : 0;
    char name[32];

    if (tracer > 0 && read_line(tracer, "comm", name, sizeof name))
        snprintf(out, HVI_PROCSTAT_WORDS_MAX, "traced by %s (pid %d)", name,
                 (int)tracer);
    else
        snprintf(out, HVI_PROCSTAT_WORDS_MAX, "%s", state);
    return out;
}

/* Field number n of those behind the state: 0 parent, 1 group, 2 session, 18 start. */
static uint64_t stat_field(pid_t pid, int n)
{
    char line[512];
    char *at = NULL;

    if (read_stat(pid, line))
        at = strrchr(line, ')');
    if (at == NULL || strlen(at) < 5)
        return 0;
    at += 4;
    while (n-- > 0)
        (void)strtoull(at, &at, 10);
    return strtoull(at, NULL, 10);
}

pid_t hvi_procstat_group(pid_t pid)
{
    return (pid_t)stat_field(pid, 1);
}

pid_t hvi_procstat_session(pid_t pid)
{
    return (pid_t)stat_field(pid, 2);
}

uint64_t hvi_procstat_began(pid_t pid)
{
    return stat_field(pid, 18);
}
