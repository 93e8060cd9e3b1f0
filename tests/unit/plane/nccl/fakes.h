/** The fake driver and NCCL (tests/fake) for unit tests. */
#ifndef HVI_TEST_PLANE_NCCL_FAKES_H
#define HVI_TEST_PLANE_NCCL_FAKES_H

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Turns the name of a fake into its path. */
static inline bool fake_path(char path[PATH_MAX])
{
    char self[PATH_MAX];
    char name[64];
    ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *at;

    if (size < 0)
        return false;
    self[size] = '\0';
    at = strstr(self, "/tests/unit/");
    if (at == NULL)
        return false;
    *at = '\0';
    snprintf(name, sizeof(name), "%.60s", path);
    return snprintf(path, PATH_MAX, "%s/tests/fake/%s", self, name) < PATH_MAX;
}

/* The fakes, loaded as a framework would have loaded the real ones: the plane takes the
 * copies that are there. which: "" or "old/". */
static inline bool load_fakes(const char *which)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%slibcuda.so.1", which);
    if (!fake_path(path) || dlopen(path, RTLD_NOW | RTLD_GLOBAL) == NULL)
        return false;
    snprintf(path, sizeof(path), "%slibnccl.so.2", which);
    return fake_path(path) && dlopen(path, RTLD_NOW) != NULL;
}

#endif
