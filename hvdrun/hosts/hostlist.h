/** Ranges in host names, as Slurm, Flux and users write them. Pure. */
#ifndef HVI_HVDRUN_HOSTLIST_H
#define HVI_HVDRUN_HOSTLIST_H

#include <stddef.h>

#include "proto/base/err.h"

/** Takes one name; what it returns but HVD_OK ends the expansion and is passed on. */
typedef enum hvd_status (*hvi_hostlist_fn)(void *data, const char *name,
                                           struct hvi_err *err);

/**
 * Hands out the names that one element of a host list stands for, in order: any number
 * of brackets, each with numbers, ranges of numbers and words between commas:
 *
 *     n[01-03,7]        n01 n02 n03 n7
 *     gpu-[a]-[1-2]x    gpu-a-1x gpu-a-2x
 *     r[1-2]n[1-2]      r1n1 r1n2 r2n1 r2n2
 *
 * Numbers keep the width of the first of a range. The names are not checked.
 *
 * @param text  without commas outside of brackets
 * @param at    where an error is, in bytes from the start; written only then
 *
 * Returns  HVD_OK; HVD_EINVAL: the text says why, without naming the element;
 *          HVD_ELIMIT: more than HVI_HOSTS_MAX names; or what fn returned.
 */
enum hvd_status hvi_hostlist_expand(const char *text, hvi_hostlist_fn fn, void *data,
                                    size_t *at, struct hvi_err *err);

#endif
