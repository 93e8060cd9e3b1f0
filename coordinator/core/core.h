/**
 * The coordinator's mind: one event in, actions out. No sockets, no clock, no uv.h; the
 * same events give the same actions. coordinator/net feeds it and performs what it
 * says.
 *
 * Life of a job: ranks say HELLO; when all have come the core forms an *epoch*
 * (WELCOME, FORMED, GO), negotiates operations until every rank has said BYE or one is
 * lost (CLOSED), and then is ready for the next epoch. proto/PROTOCOL.md sections 5
 * and 6.
 */
#ifndef HVI_COORDINATOR_CORE_CORE_H
#define HVI_COORDINATOR_CORE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/msg/msg.h"
#include "proto/msg/ready.h"

#define HVI_EPOCH_KEY_BYTES 32

/** Zero a field to get the default named here. */
struct hvi_core_config {
    const char *version; /* our version text; compared with HELLO's */
    uint32_t np;         /* ranks of the job, 1..HVD_RANKS_MAX */
    const char *const
        *hosts; /* [np] host of every slot, in rank order; NULL: no plan */
    uint32_t start_timeout_ms;  /* 30,000 */
    uint64_t fusion_bytes;      /* 64 MiB */
    uint32_t cache_capacity;    /* 4,096 ids */
    uint32_t stall_warn_ms;     /* 0 = off */
    uint32_t stall_shutdown_ms; /* 0 = never */
    uint32_t lease_ms;          /* 15,000; silence of an agent that counts as loss */
    int32_t linger_ms;          /* standalone: finish so long after the last epoch; < 0:
                                 * never by ourselves */
};

enum hvi_event_kind {
    HVI_EV_UNSET = 0,
    HVI_EV_OPENED,  /* an authenticated connection */
    HVI_EV_MESSAGE, /* a decoded message came */
    HVI_EV_READY,   /* a READY frame came */
    HVI_EV_CLOSED,  /* the connection ended, or net had to end it */
    HVI_EV_TICK,    /* time passed */
    HVI_EV_STOP     /* the job is to end: close everything, then FINISH */
};

struct hvi_event {
    enum hvi_event_kind kind;
    uint64_t conn;          /* chosen by net, never reused; not for TICK and STOP */
    bool agent;             /* OPENED: role agent, else worker */
    const uint8_t *entropy; /* OPENED: [HVI_EPOCH_KEY_BYTES] fresh random bytes */
    struct hvi_msg *msg;    /* MESSAGE: the core takes the body (sets it NULL) */
    uint32_t epoch;         /* READY */
    const struct hvi_ready_id *ids; /* READY: [nids], borrowed */
    uint32_t nids;
    const char *text; /* CLOSED: why, NULL = end of file; STOP: cause for the ranks */
    bool clean;       /* CLOSED: the peer sent FINAL */
};

enum hvi_action_kind {
    HVI_ACT_UNSET = 0,
    HVI_ACT_SEND,
    HVI_ACT_CLOSE, /* at once; the core hears no CLOSED event for it and needs none */
    HVI_ACT_NOTE,
    HVI_ACT_FINISH /* nothing more will come: exit with `status` */
};

/** The numbers of CoordNote. LEFT and LOST name a rank of the launcher's plan. */
enum hvi_note_kind {
    HVI_NOTE_INFO = 1,
    HVI_NOTE_STALL = 2,
    HVI_NOTE_FATAL = 3, /* the job cannot go on */
    HVI_NOTE_LEFT = 4,  /* a rank's process ended in an open epoch without BYE */
    HVI_NOTE_LOST = 5,  /* a rank was lost first: the cause of the epoch's end */
    HVI_NOTE_BYE = 6    /* a rank was the first to say BYE in an epoch */
};

/** One frame, shared by the connections it goes to. `tail` holds more payload of the
 *  same frame, shared by several frames (WELCOME's list of peers). */
struct hvi_out {
    uint32_t refs;
    struct hvi_buf head;
    struct hvi_out *tail; /* NULL, or counted */
};

struct hvi_action {
    enum hvi_action_kind kind;
    uint64_t conn;
    struct hvi_out *frame; /* SEND: counted */
    bool last;             /* SEND: with tag FINAL, then close */
    bool droppable;        /* SEND: may be dropped when the peer is slow */
    enum hvi_note_kind note;
    int32_t rank; /* NOTE: LEFT, LOST; else -1 */
    char *text;   /* NOTE: owned, printable */
    int status;   /* FINISH: exit status of the program */
};

/** Zero-initialized is empty. */
struct hvi_actions {
    struct hvi_action *list; /* [count] */
    uint32_t count, cap;
    int64_t deadline_ms; /* when the core wants a TICK; -1: no wish */
};

struct hvi_core;

/** config is copied. NULL: out of memory. */
struct hvi_core *hvi_core_new(const struct hvi_core_config *config);
void hvi_core_free(struct hvi_core *core); /* NULL allowed */

/**
 * Take one event.
 *
 * @param now_ms  monotonic, never smaller than before
 * @param out     cleared first; release with hvi_actions_fini()
 *
 * Returns  HVD_OK; HVD_ENOMEM: the core is unusable, end the program.
 * Threads  one at a time.    Blocks  never.
 */
enum hvd_status hvi_core_step(struct hvi_core *core, const struct hvi_event *event,
                              int64_t now_ms, struct hvi_actions *out);

void hvi_actions_clear(struct hvi_actions *a);
void hvi_actions_fini(struct hvi_actions *a);
void hvi_out_unref(struct hvi_out *frame); /* NULL allowed */
/** Whole frame, appended to buf. */
enum hvd_status hvi_out_flatten(const struct hvi_out *frame, struct hvi_buf *buf);

/** One line about an action, for traces and debug logs: "send 3 ASSIGN id=0 ...". Keys
 *  never appear. Returns out. */
char *hvi_action_text(const struct hvi_action *action, char *out, size_t cap);

#endif
