#include "hvdrun/topo/plain.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYSTEM "/sys/devices/system/"

extern char **environ;

static bool told_by_user(void)
{
    for (char **e = environ; e != NULL && *e != NULL; e++)
        if (strncmp(*e, "HWLOC_", 6) == 0)
            return true;
    return false;
}

/* Its first line, without the end of that; false: there is none. */
static bool read_line(const char *root, const char *name, char *out, size_t cap)
{
    char path[512];
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "%s" SYSTEM "%s", root, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, out, cap - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return n > 0 && n < (ssize_t)cap - 1;
}

/* "0-3,8": false: something else, or more than can be named. */
static bool parse_list(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    do {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;

        if (end == text)
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
            if (end == text)
                return false;
        }
        if (last < first || last >= CPU_SETSIZE || (*end != ',' && *end != '\0'))
            return false;
        for (; first <= last; first++)
            CPU_SET(first, out);
        text = end + 1;
        if (*end == '\0')
            return true;
    } while (true);
}

/* The processors of cpu's core, without asking for each where none has two. */
static bool core_of(const char *root, bool smt, int cpu, cpu_set_t *out)
{
    char name[64], text[512];

    if (!smt) {
        CPU_ZERO(out);
        CPU_SET((size_t)cpu, out);
        return true;
    }
    snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", cpu);
    return read_line(root, name, text, sizeof text) && parse_list(text, out) &&
           CPU_ISSET((size_t)cpu, out);
}

bool hvi_plain_look(const char *root, const cpu_set_t *inside, struct hvi_topo *out)
{
    char nodes[64], smt[16];
    cpu_set_t seen;

    memset(out, 0, sizeof *out);
    if (told_by_user() || !read_line(root, "node/online", nodes, sizeof nodes) ||
        strspn(nodes, "0123456789") != strlen(nodes) ||
        !read_line(root, "cpu/smt/active", smt, sizeof smt))
        return false;
    out->core = calloc((size_t)CPU_COUNT(inside) + 1, sizeof *out->core);
    CPU_ZERO(&seen);
    for (int i = 0; i < CPU_SETSIZE && out->core != NULL; i++) {
        struct hvi_topo_core *c = &out->core[out->ncores];

        if (!CPU_ISSET((size_t)i, inside) || CPU_ISSET((size_t)i, &seen))
            continue;
        if (!core_of(root, strcmp(smt, "0") != 0, i, &c->cpus)) {
            hvi_topo_fini(out);
            return false;
        }
        CPU_AND(&c->cpus, &c->cpus, inside);
        CPU_OR(&seen, &seen, &c->cpus);
        c->socket = -1;
        out->ncores++;
    }
    if (out->ncores == 0)
        hvi_topo_fini(out);
    return out->ncores > 0;
}
