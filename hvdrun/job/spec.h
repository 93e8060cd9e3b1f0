/** What hvdrun tells the coordinator and the agents about the job: COORD_CONFIG,
 * JOB_SPEC. */
#ifndef HVI_HVDRUN_SPEC_H
#define HVI_HVDRUN_SPEC_H

#include "hvdrun/cli/opts.h"
#include "hvdrun/hosts/plan.h"
#include "proto/msg/msg.h"
#include "proto/sec/handshake.h"

#define HVI_STALL_WARN_DEFAULT_MS 10000

/** All that both are made from; borrowed. */
struct hvi_spec {
    const struct hvi_opts *opts;
    const struct hvi_plan *plan;
    const uint8_t *key;    /* [HVI_KEY_BYTES] */
    const uint8_t *job_id; /* [HVI_JOB_ID_BYTES] */
    const char *endpoint;  /* the coordinator's */
    const char *listen;    /* for the coordinator itself; NULL: endpoint */
    char *const *others;   /* [nothers] further endpoints, for remote hosts */
    size_t nothers;
    bool try_ssh; /* remote hosts first try the address that their ssh came from */
    const char *cwd;
    char **environ; /* hvdrun's own */
    int master_port;
    bool tty;                /* hvdrun's output is a terminal: ranks get HVD_TTY=1 */
    const char *master_addr; /* of rank 0's host, for the others; NULL: 127.0.0.1 */
};

/** Settings of the coordinator, from options and environment. HVD_EINVAL names the
 *  variable. */
enum hvd_status hvi_spec_settings(const struct hvi_opts *opts, Hvi__CoordConfig *out,
                                  struct hvi_err *err);
/** Appends the COORD_CONFIG frame (it holds the key: wipe). HVD_EINVAL, HVD_ENOMEM. */
enum hvd_status hvi_spec_coord(const struct hvi_spec *s, struct hvi_buf *out,
                               struct hvi_err *err);
/** Appends the JOB_SPEC frame for one host of the plan (it holds the key: wipe).
 *  HVD_ELIMIT: the environment or the command does not fit. HVD_ENOMEM. */
enum hvd_status hvi_spec_agent(const struct hvi_spec *s, size_t host,
                               struct hvi_buf *out, struct hvi_err *err);

/** false for variables that must not travel: secrets, an outer job's, BASH_FUNC_...;
 * to another machine also what is true only of this one or of this login. */
bool hvi_spec_forwards(const char *name, size_t name_bytes, bool remote);

#endif
