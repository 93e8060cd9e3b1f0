/** Lists of hosts as users write them: -H, host files. Pure. */
#ifndef HVI_HVDRUN_HOSTS_H
#define HVI_HVDRUN_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/err.h"

#define HVI_HOST_NAME_MAX 255
#define HVI_HOSTS_MAX 4096 /* entries; a range that makes more is refused */

struct hvi_host {
    char *name;  /* "host1", "10.0.0.2", "fe80::1"; without brackets and user */
    char *user;  /* NULL: ssh decides */
    int slots;   /* 0: not said */
    bool remote; /* not this machine: its ranks are started by ssh */
};

/** Zero-initialized is empty. */
struct hvi_hosts {
    struct hvi_host *list; /* [n], in the order written */
    size_t n, cap;
};

void hvi_hosts_fini(struct hvi_hosts *h);

/**
 * Adds what -H says: `a:4,b,node[01-16]:8,user@c:2,[fe80::1]:2`. A host that comes
 * twice gets the sum of its slots.
 *
 * Returns  HVD_OK; HVD_EINVAL: the text names the entry; HVD_ELIMIT, HVD_ENOMEM.
 */
enum hvd_status hvi_hosts_parse(struct hvi_hosts *h, const char *text,
                                struct hvi_err *err);

/**
 * Adds the lines of a host file: `host slots=4`, `host:4`, `host 4`, `host`; `#` starts
 * a comment; empty lines are skipped; further `key=value` words (max_slots=) are
 * ignored. A host that comes on several lines gets the sum (PBS writes one line a
 * slot).
 *
 * @param name  for messages: "name:line: ..."
 */
enum hvd_status hvi_hosts_parse_file(struct hvi_hosts *h, const char *name,
                                     const char *text, size_t size_bytes,
                                     struct hvi_err *err);

/** Reads a host file from disk. HVD_EINVAL also when it cannot be read. */
enum hvd_status hvi_hosts_load(struct hvi_hosts *h, const char *path,
                               struct hvi_err *err);

/** true for localhost, loopback addresses and own_name (with or without its domain). */
bool hvi_host_is_local(const char *name, const char *own_name);

#endif
