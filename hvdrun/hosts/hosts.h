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
    int max;     /* slots that --oversubscribe may make of them; 0: no limit */
    bool remote; /* not this machine: its ranks are started by ssh */
};

/** Zero-initialized is empty. */
struct hvi_hosts {
    struct hvi_host *list; /* [n], in the order written */
    size_t n, cap;
    char
        ignored[192]; /* the first setting of a host file that has no meaning here, with
                        * its place; "" when there is none */
    size_t nignored;
};

void hvi_hosts_fini(struct hvi_hosts *h);

/**
 * Adds one host. One that is there already (same name and user) gets the sum of the
 * slots, a mention without a number counting as one.
 *
 * @param user   NULL: none
 * @param slots  0: not said
 *
 * Returns  HVD_OK; HVD_EINVAL: no name of a host, "bad host name" or "too long";
 * HVD_ELIMIT, HVD_ENOMEM.
 */
enum hvd_status hvi_hosts_add(struct hvi_hosts *h, const char *name, const char *user,
                              int slots, struct hvi_err *err);

/** The host of that name and user (NULL: none), or NULL. */
struct hvi_host *hvi_hosts_find(struct hvi_hosts *h, const char *name,
                                const char *user);

/**
 * Adds what -H says: `a:4,b,node[01-16,20]:8,user@c:2,[fe80::1]:2`; ranges as
 * hostlist.h has them. A host that comes twice gets the sum of its slots.
 *
 * Returns  HVD_OK; HVD_EINVAL: the text names the entry; HVD_ELIMIT, HVD_ENOMEM.
 */
enum hvd_status hvi_hosts_parse(struct hvi_hosts *h, const char *text,
                                struct hvi_err *err);
/** The same; at: where an error is, in bytes from the start. */
enum hvd_status hvi_hosts_parse_at(struct hvi_hosts *h, const char *text, size_t *at,
                                   struct hvi_err *err);

/**
 * Adds the lines of a host file (hostfile.c): each names a host as -H does, and may say
 * more in the form of
 *
 *     Open MPI    host slots=4 max_slots=8      also `slots = 4`, max-slots, user=NAME
 *     MPICH       host:4 binding=user:0,1
 *     DeepSpeed   host slots=4
 *     PBS         host                          once for each slot; also `host 4`
 *
 * `#` starts a comment; empty lines are skipped; lines may end in CR LF; a byte order
 * mark at the start is skipped. Other `key=value` words are ignored, and noted in
 * h->ignored. A host that comes on several lines gets the sum.
 *
 * @param name  for messages: "name:line:column: ...", both from 1, columns in bytes
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
