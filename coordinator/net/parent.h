/** The pipe to hvdrun (coordinator's stdin and stdout): COORD_CONFIG in, COORD_UP and
 *  COORD_NOTE out. Its end is the end of the job. */
#ifndef HVI_COORDINATOR_NET_PARENT_H
#define HVI_COORDINATOR_NET_PARENT_H

#include <stdbool.h>
#include <uv.h>

#include "proto/msg/msg.h"

struct hvi_parent;

struct hvi_parent_ops {
    /** The first frame; m is freed on return. Once. */
    void (*on_config)(void *data, const Hvi__CoordConfig *m);
    /** hvdrun is gone (why NULL), or spoke nonsense. Once. */
    void (*on_end)(void *data, const char *why);
};

struct hvi_parent {
    const struct hvi_parent_ops *ops;
    void *data;
    uv_pipe_t in, out;
    bool in_open, out_open, configured, ended;
    struct hvi_buf rx;
};

/** Takes both descriptors. HVD_EIO. */
enum hvd_status hvi_parent_open(struct hvi_parent *p, uv_loop_t *loop, int read_fd,
                                int write_fd, const struct hvi_parent_ops *ops,
                                void *data, struct hvi_err *err);
/** Silent when hvdrun is gone. */
void hvi_parent_send(struct hvi_parent *p, uint32_t type, const void *body);
/** Both handles; what is queued is still written if hvdrun reads it at once. */
void hvi_parent_close(struct hvi_parent *p);
void hvi_parent_fini(struct hvi_parent *p); /* after the loop has run */

#endif
