/** The words about the first failure, and the last lines each rank wrote to stderr.
 * Pure. */
#ifndef HVI_HVDRUN_REPORT_H
#define HVI_HVDRUN_REPORT_H

#include <stdint.h>

#include "proto/base/buf.h"

#define HVI_REPORT_TAIL_BYTES 4096 /* kept of each rank's stderr */
#define HVI_REPORT_LINES 20        /* shown at most */

struct hvi_tail; /* the end of one rank's stderr */

struct hvi_report {
    int np;
    struct hvi_tail *tail; /* [np] */
};

enum hvd_status hvi_report_init(struct hvi_report *r, int np); /* HVD_ENOMEM */
void hvi_report_fini(struct hvi_report *r);
/** Remembers; cheap. Without memory nothing is kept. */
void hvi_report_stderr(struct hvi_report *r, int rank, const void *data,
                       size_t size_bytes);

/** What is known about the rank that failed first. */
struct hvi_failure {
    int rank, pid;
    const char *host;
    int wait_status;
    bool exited;        /* else: lost, and its end is not known */
    bool no_bye;        /* left with status 0 while others needed it */
    bool out_of_memory; /* the kernel there killed something for want of memory */
    int64_t age_ms;
    int also_failed; /* others that failed after it */
    int stopped;     /* others that are (being) stopped */
};

/**
 * Appends the report to out, each line ending with a newline:
 *
 *     hvdrun: rank 2 on host1 (pid 4711) was killed by signal 9 (SIGKILL) after 3.2 s
 *     hvdrun: the last lines of its stderr:
 *       | ...
 *     hvdrun: 3 other ranks are being stopped
 */
enum hvd_status hvi_report_failure(const struct hvi_report *r,
                                   const struct hvi_failure *f, struct hvi_buf *out);

#endif
