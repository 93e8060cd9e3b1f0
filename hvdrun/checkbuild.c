#include "hvdrun/checkbuild.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "hvdrun/exitcode.h"

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

    if (lib != NULL) {
        *(void **)&version = dlsym(lib, "hvd_version_string");
        *(void **)&abi = dlsym(lib, "hvd_abi_version");
    }
    if (version == NULL || abi == NULL) {
        fprintf(stderr, "hvdrun: the library cannot be loaded: %s\n", dlerror());
        return HVI_EXIT_LAUNCHER;
    }
    fprintf(out, "hvd %s (%s, ABI %d)\n\nAvailable Frameworks:\n", version(), path,
            abi());
    mark(out, 0, "TensorFlow");
    mark(out, 0, "PyTorch");
    mark(out, 0, "MXNet");
    fputs("\nAvailable Controllers:\n", out);
    mark(out, 0, "MPI");
    mark(out, 1, "hvd-coordinator");
    fputs("\nAvailable Tensor Operations:\n", out);
    mark(out, 0, "NCCL");
    mark(out, 0, "MPI");
    mark(out, 1, "shared memory (CPU tensors, ranks of one host)");
    mark(out, 1, "TCP (CPU tensors)");
    return HVI_EXIT_OK;
}
