#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/env.h"
#include "proto/base/log.h"
#include "worker/plane/nccl/api.h"

#define CUDA_SONAME "libcuda.so.1"
#define NCCL_SONAME "libnccl.so.2"

static struct {
    pthread_mutex_t lock;
    bool have_cuda, have_nccl;
    struct hvi_cuda cuda;
    struct hvi_nccl_api nccl;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

char *hvi_nccl_version_text(int version, char out[16])
{
    snprintf(out, 16, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return out;
}

char *hvi_cuda_version_text(int version, char out[16])
{
    snprintf(out, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return out;
}

/* ---- finding --------------------------------------------------------------------- */

struct beside {
    char path[256]; /* of the library, or "" */
};

/* A framework installed by pip brings NCCL as a package of its own, in the same folder;
 * folders above it may have such a name too. */
static int look_beside(struct dl_phdr_info *info, size_t size, void *arg)
{
    static const char packages[] = "-packages/"; /* site- or, on Debian, dist- */
    struct beside *b = arg;
    const char *at = info->dlpi_name;

    (void)size;
    while ((at = strstr(at, packages)) != NULL) {
        at += sizeof packages - 1;
        snprintf(b->path, sizeof b->path, "%.*snvidia/nccl/lib/%s",
                 (int)(at - info->dlpi_name), info->dlpi_name, NCCL_SONAME);
        if (access(b->path, R_OK) == 0)
            return 1;
    }
    b->path[0] = '\0';
    return 0;
}

/* The copy that is loaded, the one that was asked for, one beside a framework, any. */
static void *find_library(const char *soname, const char *variable, bool beside,
                          char why[200])
{
    void *lib = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
    const char *chosen = hvi_env(variable);
    struct beside b = {""};

    if (lib != NULL)
        return lib;
    if (chosen == NULL && beside && dl_iterate_phdr(look_beside, &b) != 0)
        lib = dlopen(b.path, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        lib = dlopen(chosen != NULL ? chosen : soname, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        snprintf(why, 200, "%s", dlerror());
    return lib;
}

static void note_path(void *lib, char path[256])
{
    struct link_map *map = NULL;

    if (dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0 && map != NULL)
        snprintf(path, 256, "%s", map->l_name);
    else
        path[0] = '\0';
}

struct entry {
    const char *symbol;
    size_t offset; /* of the pointer in the table */
    bool needed;
};

/* The first needed entry that is missing, or NULL. */
static const char *fill(void *lib, void *table, const struct entry *entries, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(lib, entries[i].symbol);

        if (f == NULL && entries[i].needed)
            return entries[i].symbol;
        memcpy((char *)table + entries[i].offset, &f, sizeof f);
    }
    return NULL;
}

/* ---- the driver ------------------------------------------------------------------ */

#define CUDA_ENTRY(member, symbol, arguments)                                          \
    {#symbol, offsetof(struct hvi_cuda, member), true},
#define CUDA_NEWER(member, symbol, arguments)                                          \
    {#symbol, offsetof(struct hvi_cuda, member), false},
static const struct entry cuda_entries[] = {HVI_CUDA_NEEDED(CUDA_ENTRY)
                                                HVI_CUDA_OPTIONAL(CUDA_NEWER)};

static enum hvd_status open_cuda(struct hvi_cuda *cu, struct hvi_err *err)
{
    char why[200] = "";
    void *lib = find_library(CUDA_SONAME, "CUDA_LIBRARY", false, why);
    const char *missing;
    const char *text = NULL;
    int rc;

    if (lib == NULL)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "GPU tensors need NVIDIA's driver, which is not here: %s", why);
    note_path(lib, cu->path);
    missing = fill(lib, cu, cuda_entries, sizeof cuda_entries / sizeof cuda_entries[0]);
    if (missing != NULL)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "the NVIDIA driver %s is too old: it has no %s", cu->path,
                        missing);
    rc = cu->init(0);
    if (rc == HVI_CU_STUB_LIBRARY)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "%s is the CUDA toolkit's stub, not a driver: take its folder "
                        "out of LD_LIBRARY_PATH",
                        cu->path);
    if (rc != HVI_CU_SUCCESS) {
        if (cu->error_string(rc, &text) != HVI_CU_SUCCESS || text == NULL)
            text = "unknown error";
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "the NVIDIA driver %s does not start: %s (%d)", cu->path, text,
                        rc);
    }
    if (cu->driver_version(&cu->version) != HVI_CU_SUCCESS)
        cu->version = 0;
    hvi_log_info("gpu", "driver=%s version=%d", cu->path, cu->version);
    return HVD_OK;
}

enum hvd_status hvi_cuda_get(const struct hvi_cuda **out, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    pthread_mutex_lock(&g.lock);
    if (!g.have_cuda)
        rc = open_cuda(&g.cuda, err);
    if (rc == HVD_OK) {
        g.have_cuda = true;
        *out = &g.cuda;
    }
    pthread_mutex_unlock(&g.lock);
    return rc;
}

/* ---- NCCL ------------------------------------------------------------------------ */

#define NCCL_ENTRY(member, symbol, type, arguments)                                    \
    {#symbol, offsetof(struct hvi_nccl_api, member), true},
#define NCCL_NEWER(member, symbol, type, arguments)                                    \
    {#symbol, offsetof(struct hvi_nccl_api, member), false},
static const struct entry nccl_entries[] = {HVI_NCCL_NEEDED(NCCL_ENTRY)
                                                HVI_NCCL_OPTIONAL(NCCL_NEWER)};

/* Before the entries are looked at: an old version lacks some of them. */
static enum hvd_status check_version(void *lib, struct hvi_nccl_api *nccl,
                                     struct hvi_err *err)
{
    int (*get)(int *) = NULL;
    char have[16];
    void *f = dlsym(lib, "ncclGetVersion");

    memcpy(&get, &f, sizeof f);
    if (get == NULL || get(&nccl->version) != HVI_NCCL_SUCCESS)
        return hvi_fail(err, HVD_EUNSUPPORTED, "%s is not NCCL: no ncclGetVersion",
                        nccl->path);
    if (nccl->version < HVI_NCCL_MIN_VERSION)
        return hvi_fail(err, HVD_EVERSION,
                        "NCCL %s at %s is too old: GPU collectives need 2.18 or newer",
                        nccl->version < 10000
                            ? "before 2.9"
                            : hvi_nccl_version_text(nccl->version, have),
                        nccl->path);
    return HVD_OK;
}

int hvi_nccl_known_version(void)
{
    struct hvi_nccl_api probe = {.version = 0};
    void *lib = dlopen(NCCL_SONAME, RTLD_NOW | RTLD_NOLOAD);

    pthread_mutex_lock(&g.lock);
    if (g.have_nccl)
        probe.version = g.nccl.version;
    pthread_mutex_unlock(&g.lock);
    if (probe.version == 0 && lib != NULL)
        check_version(lib, &probe, NULL);
    if (lib != NULL)
        dlclose(lib);
    return probe.version > 0 ? probe.version : HVI_NCCL_MIN_VERSION;
}

static enum hvd_status open_nccl(struct hvi_nccl_api *nccl, struct hvi_err *err)
{
    char why[200] = "";
    void *lib = find_library(NCCL_SONAME, "NCCL_LIBRARY", true, why);
    const char *missing;
    enum hvd_status rc;

    if (lib == NULL)
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "GPU collectives need NCCL, which is not here: %s; install it, "
                        "or set HVD_NCCL_LIBRARY to its path",
                        why);
    note_path(lib, nccl->path);
    rc = check_version(lib, nccl, err);
    if (rc != HVD_OK)
        return rc;
    missing =
        fill(lib, nccl, nccl_entries, sizeof nccl_entries / sizeof nccl_entries[0]);
    if (missing != NULL)
        return hvi_fail(err, HVD_EUNSUPPORTED, "NCCL at %s has no %s", nccl->path,
                        missing);
    hvi_log_info("gpu", "nccl=%s version=%d", nccl->path, nccl->version);
    return HVD_OK;
}

enum hvd_status hvi_nccl_get(const struct hvi_nccl_api **out, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    pthread_mutex_lock(&g.lock);
    if (!g.have_nccl)
        rc = open_nccl(&g.nccl, err);
    if (rc == HVD_OK) {
        g.have_nccl = true;
        *out = &g.nccl;
    }
    pthread_mutex_unlock(&g.lock);
    return rc;
}
