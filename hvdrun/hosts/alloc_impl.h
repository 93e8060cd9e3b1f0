/** What the schedulers' readers share; for alloc*.c only. */
#ifndef HVI_HVDRUN_ALLOC_IMPL_H
#define HVI_HVDRUN_ALLOC_IMPL_H

#include "hvdrun/hosts/alloc.h"

struct hvi_alloc_find {
    const struct hvi_alloc_sys *sys;
    struct hvi_hosts *hosts;
    struct hvi_alloc *out;
    struct hvi_err *err;
};

/** The variable's value; NULL: not set, or empty. */
const char *hvi_alloc_get(const struct hvi_alloc_find *f, const char *name);
/** Adds to the names of out->from. */
void hvi_alloc_used(struct hvi_alloc_find *f, const char *name);
/** "NAME, character AT+1: WHY"; HVD_EINVAL. */
enum hvd_status hvi_alloc_bad(struct hvi_alloc_find *f, const char *name, size_t at,
                              const char *why);
enum hvd_status hvi_alloc_slurm(struct hvi_alloc_find *f);
enum hvd_status hvi_alloc_flux(struct hvi_alloc_find *f);

#endif
