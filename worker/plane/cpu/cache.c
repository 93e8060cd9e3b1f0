#include "worker/plane/cpu/cache.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { DEFAULT_CACHE_BYTES = 8 * 1024 * 1024 };

static bool read_text(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, out, cap - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* sysconf() adds up all caches of the machine on some CPUs; one of them is what counts. */
int64_t hvi_cache_share(int nranks)
{
    static const char dir[] = "/sys/devices/system/cpu/cpu0/cache/index3";
    char text[1024];
    char path[128];
    long long kib = 0;
    int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int cpus = 0;

    snprintf(path, sizeof(path), "%s/size", dir);
    if (read_text(path, text, sizeof(text)) && sscanf(text, "%lldK", &kib) == 1 &&
        kib > 0)
        bytes = kib * 1024;
    snprintf(path, sizeof(path), "%s/shared_cpu_map", dir);
    if (read_text(path, text, sizeof(text)))
        for (const char *c = text; *c != '\0'; c++)
            if (isxdigit((unsigned char)*c))
                cpus += __builtin_popcount((unsigned)(isdigit((unsigned char)*c)
                                                          ? *c - '0'
                                                          : (*c | 32) - 'a' + 10));
    if (bytes <= 0)
        bytes = DEFAULT_CACHE_BYTES;
    return bytes / (cpus > 0 && cpus < nranks ? cpus : nranks);
}
