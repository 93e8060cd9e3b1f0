#include "hvdrun/doctor/checkbuild.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "hvdrun/job/exitcode.h"
#include "proto/base/env.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define LIBRARY "libhvd.so." TEXT(HVD_ABI_VERSION)

/* The folder of this program; "" when it cannot be told. */
static void own_folder(char out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    char *slash;

    out[n > 0 ? n : 0] = '\0';
    slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = '\0';
}

/* bin/hvdrun: ../lib; else the linker's search. */
static void *load(char path[PATH_MAX])
{
    char self[PATH_MAX];
    int n;

    own_folder(self);
    n = snprintf(path, PATH_MAX, "%s/../lib/%s", self, LIBRARY);
    if (self[0] != '\0' && n > 0 && n < PATH_MAX && access(path, R_OK) == 0)
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, PATH_MAX, "%s", LIBRARY);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* A Python that starts here finds the package that came with this hvdrun: in a wheel
 * (horovod/_dist/bin/hvdrun) or in the source tree (build/bin/hvdrun). */
static void add_own_package(const char *self)
{
    static const char *const places[] = {"../../..", "../../worker/python"};
    char probe[PATH_MAX + 64], list[2 * PATH_MAX + 4096];
    const char *old = getenv("PYTHONPATH");
    int len = snprintf(list, sizeof list, "%.4000s", old != NULL ? old : "");

    for (size_t i = 0; self[0] != '\0' && i < sizeof places / sizeof places[0]; i++) {
        snprintf(probe, sizeof probe, "%s/%s/horovod/check.py", self, places[i]);
        if (access(probe, R_OK) == 0)
            len += snprintf(list + len, sizeof list - (size_t)len, "%s%.*s",
                            len > 0 ? ":" : "",
                            (int)(strlen(probe) - strlen("/horovod/check.py")), probe);
    }
    if (len > 0)
        setenv("PYTHONPATH", list, 1);
}

/* The last n names of a path go. Returns the last of them. */
static const char *cut(char *path, int n)
{
    char *slash = path;

    for (; n > 0 && (slash = strrchr(path, '/')) != NULL; n--)
        *slash = '\0';
    return slash != NULL ? slash + 1 : "";
}

/* The Python that the package with this hvdrun is installed for, by where it lies:
 * P/bin/python3.11 of P/lib/python3.11/site-packages/horovod/_dist/bin. */
static bool python_of_package(const char *self, char out[PATH_MAX])
{
    char path[PATH_MAX];
    char name[32];
    int n;

    snprintf(path, sizeof path, "%s", self);
    if (strcmp(cut(path, 1), "bin") != 0 || strcmp(cut(path, 1), "_dist") != 0)
        return false;
    snprintf(name, sizeof name, "%s", cut(path, 3));
    cut(path, 1);
    n = snprintf(out, PATH_MAX, "%s/bin/%s", path, name);
    return strncmp(name, "python", strlen("python")) == 0 && n < PATH_MAX &&
           access(out, X_OK) == 0;
}

/* Whose frameworks are told. Ranks may be started by any Python, so this is a guess
 * unless HVD_PYTHON says it; the report names the Python. */
static void choose_python(const char *self, char out[PATH_MAX])
{
    const char *given = hvi_env("PYTHON");
    const char *venv = getenv("VIRTUAL_ENV");
    int n;

    if (given != NULL) {
        snprintf(out, PATH_MAX, "%s", given);
        return;
    }
    if (python_of_package(self, out))
        return;
    n = snprintf(out, PATH_MAX, "%s/bin/python3", venv != NULL ? venv : "");
    if (venv == NULL || venv[0] == '\0' || n >= PATH_MAX || access(out, X_OK) != 0)
        snprintf(out, PATH_MAX, "python3");
}

#define FRAMEWORKS 3
static const char *const framework[FRAMEWORKS] = {"TensorFlow", "PyTorch", "MXNet"};

/* What the Python package says of itself: which Python, in a line, and what is there. */
static void ask_python(FILE *out, int there[FRAMEWORKS])
{
    char self[PATH_MAX];
    char python[PATH_MAX];
    char line[PATH_MAX + 128];
    bool answered = false;
    FILE *f;

    own_folder(self);
    choose_python(self, python);
    add_own_package(self);
    setenv("HVD_PYTHON", python, 1);
    f = popen(
        "exec \"$HVD_PYTHON\" -m horovod.check --frameworks 2>/dev/null </dev/null",
        "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "Python ", strlen("Python ")) == 0) {
            fprintf(out, "%s\n", line);
            answered = true;
        }
        for (int i = 0; i < FRAMEWORKS; i++)
            there[i] |= strcmp(line, framework[i]) == 0;
    }
    if (f != NULL)
        pclose(f);
    if (!answered)
        fprintf(out, "No Python: '%s -m horovod.check' does not run\n", python);
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
    fprintf(out, "hvd %s (%s, ABI %d)\n", version(), path, abi());
    ask_python(out, there);
    fputs("\nAvailable Frameworks:\n", out);
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
