#include "hvdrun/doctor/checkbuild.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "hvdrun/job/exitcode.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define LIBRARY "libhvd.so." TEXT(HVD_ABI_VERSION)

/* bin/hvdrun: ../lib; else the linker's search. */
static void *load(char path[PATH_MAX])
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
        n = snprintf(path, PATH_MAX, "%s/../lib/%s", self, LIBRARY);
        if (n > 0 && n < PATH_MAX && access(path, R_OK) == 0)
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    snprintf(path, PATH_MAX, "%s", LIBRARY);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* A python3 that starts here finds the package that came with this hvdrun: in a wheel
 * (horovod/_dist/bin/hvdrun) or in the source tree (build/bin/hvdrun). */
static void add_own_package(void)
{
    static const char *const places[] = {"../../..", "../../worker/python"};
    char self[PATH_MAX], probe[PATH_MAX + 64], list[2 * PATH_MAX + 4096];
    const char *old = getenv("PYTHONPATH");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;
    int len = snprintf(list, sizeof list, "%.4000s", old != NULL ? old : "");

    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL)
        return;
    *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(probe, sizeof probe, "%s/%s/horovod/check.py", self, places[i]);
        if (access(probe, R_OK) == 0)
            len += snprintf(list + len, sizeof list - (size_t)len, "%s%.*s",
                            len > 0 ? ":" : "",
                            (int)(strlen(probe) - strlen("/horovod/check.py")), probe);
    }
    if (len > 0)
        setenv("PYTHONPATH", list, 1);
}

#define FRAMEWORKS 3
static const char *const framework[FRAMEWORKS] = {"TensorFlow", "PyTorch", "MXNet"};

/* What the Python package says of itself; nothing without python3 or the package. */
static void ask_python(int there[FRAMEWORKS])
{
    char line[128];
    FILE *f;

    add_own_package();
    f = popen("python3 -m horovod.check --frameworks 2>/dev/null </dev/null", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        for (int i = 0; i < FRAMEWORKS; i++)
            there[i] |= strcmp(line, framework[i]) == 0;
    }
    if (f != NULL)
        pclose(f);
}

static void mark(FILE *out, int there, const char *what)
{
    fprintf(out, "    [%s] %s\n", there ? "X" : " ", what);
}

int hvi_check_build(FILE *out)
{
    char path[PATH_MAX];
    void *lib = load(path);
    const char *(*version)(void) = NULL;
    int (*abi)(void) = NULL;
    int (*feature)(const char *) = NULL;
    int there[FRAMEWORKS] = {0};
    enum hvd_status (*gpu_info)(char *, size_t) = NULL;
    char text[1024];

    if (lib != NULL) {
        *(void **)&version = dlsym(lib, "hvd_version_string");
        *(void **)&abi = dlsym(lib, "hvd_abi_version");
        *(void **)&feature = dlsym(lib, "hvd_feature");
        *(void **)&gpu_info = dlsym(lib, "hvd_gpu_info");
    }
    if (version == NULL || abi == NULL || feature == NULL) {
        fprintf(stderr, "hvdrun: the library cannot be loaded: %s\n", dlerror());
        return HVI_EXIT_LAUNCHER;
    }
    fprintf(out, "hvd %s (%s, ABI %d)\n\nAvailable Frameworks:\n", version(), path,
            abi());
    ask_python(there);
    for (int i = 0; i < FRAMEWORKS; i++)
        mark(out, there[i], framework[i]);
    fputs("\nAvailable Controllers:\n", out);
    mark(out, 0, "MPI");
    mark(out, 1, "Gloo (as hvd-coordinator)");
    fputs("\nAvailable Tensor Operations:\n", out);
    mark(out, feature("nccl"), "NCCL (GPU tensors)");
    if (gpu_info != NULL && gpu_info(text, sizeof text) == HVD_OK)
        fprintf(out, "        %s\n", text);
    mark(out, 0, "DDL");
    mark(out, 0, "CCL");
    mark(out, 0, "MPI");
    mark(out, 1, "Gloo (CPU tensors, as the next two)");
    mark(out, feature("shm"), "shared memory (CPU tensors, ranks of one host)");
    mark(out, feature("tcp"), "TCP (CPU tensors)");
    return HVI_EXIT_OK;
}
