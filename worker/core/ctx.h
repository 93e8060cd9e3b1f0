/**
 * One membership of one rank: everything between hvd_init and hvd_shutdown. Internal;
 * the installed API keeps one process-wide context (api.c).
 *
 * Locks, in this order: `exec` (who runs groups), `reader` (who reads the connection),
 * `lock` (all other fields), the host board's try-lock. Callbacks run without `lock`. No
 * lock is held while waiting for a peer except `exec`.
 *
 * Life of an operation: submit.c checks it and makes a struct hvi_entry -> negotiate.c
 * announces it or, when its name has an id, publishes it -> the order (board log, or
 * ORDER of the coordinator) turns entries into a struct hvi_run -> engine.c runs it on
 * a plane and completes its handles.
 */
#ifndef HVI_CORE_CTX_H
#define HVI_CORE_CTX_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/hash.h"
#include "proto/base/buf.h"
#include "proto/base/err.h"
#include "proto/base/list.h"
#include "proto/msg/msg.h"
#include "proto/msg/ready.h"
#include "proto/msg/request.h"
#include "proto/sec/handshake.h"
#include "worker/board/board.h"
#include "worker/core/op.h"
#include "worker/core/pulse.h"
#include "worker/core/segment.h"
#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/spin.h"
#include "worker/plane/plane.h"

#define HVI_UNNAMED_LANES                                                              \
    64 /* unnamed operations of a class in flight with an id each */

#define HVI_FLIGHT_CHAINS 2048

/* Who orders: nobody else (SOLO), the host board (SHM), the coordinator by readiness of
 * every rank (TCP) or of every host (HOSTS). */
enum hvi_mode {
    HVI_MODE_UNSET = 0,
    HVI_MODE_SOLO,
    HVI_MODE_SHM,
    HVI_MODE_TCP,
    HVI_MODE_HOSTS
};

struct hvi_pset {
    int32_t id, size, me; /* me: own index, -1: not a member */
    int32_t *ranks;       /* [size] ascending global ranks, owned */
    bool removed;         /* kept until the end: queued groups may point here */
    uint64_t unnamed[2][HVD_KIND_COUNT]; /* running numbers: single, grouped */
};

/** A name that has an id. */
struct hvi_known {
    UT_hash_handle hh;
    char *key; /* "set/name", owned */
    struct hvi_request *req;
    uint32_t id, generation;
    struct hvi_entry *entry; /* this rank's operation published under it, or NULL */
    uint32_t follower;       /* id of what was submitted after it the last time */
};

enum hvi_entry_state {
    HVI_ENTRY_UNSET = 0,
    HVI_ENTRY_LANE,      /* unnamed: an earlier one still uses the lane */
    HVI_ENTRY_ANNOUNCED, /* the coordinator decides */
    HVI_ENTRY_PUBLISHED, /* id known, readiness given */
    HVI_ENTRY_SEALED     /* has its place in the order */
};

/** One unit of negotiation of this rank: one op or a whole user group. */
struct hvi_entry {
    struct hvi_entry *next_flight; /* in its chain of ctx->flights, from ANNOUNCED on */
    char *key;                     /* it and ops lie behind the struct */
    unsigned key_chars, key_hash;
    struct hvi_request *req; /* one reference */
    struct hvi_pset *pset;
    struct hvi_op **ops; /* [nops], one reference each */
    uint32_t nops;       /* req->ntensors */
    bool in_op;          /* the struct lies behind its only operation */
    enum hvi_entry_state state;
    uint32_t id, generation;
    struct hvi_link link; /* in ctx->lanes or ctx->inflight */
    int64_t since_ms;     /* when it was submitted */
    int64_t stall_next_ms;
    int64_t submit_us, sealed_us; /* timeline */
};

/** One sealed group, resolved: what the executor runs next. */
struct hvi_run {
    struct hvi_link link;
    uint64_t seq;
    enum hvd_status status; /* != OK: fails without running */
    const char *text;       /* static text of that failure, or NULL */
    int64_t begin_us;       /* timeline */
    struct hvi_pset *pset;
    /* GPU tensors: the run lives until all its launches are done on the device */
    struct hvi_ctx *ctx;
    bool on_device;                /* it has been started there */
    _Atomic int nlaunches;         /* not done yet, + 1 while the engine has the run */
    enum hvd_status device_status; /* first failure, under ctx->lock */
    char *device_text;             /* owned or NULL */
    uint32_t nitems;
    struct hvi_run_item {
        struct hvi_entry *entry; /* NULL: this rank has joined */
        struct hvi_request
            *req; /* borrowed from entry; a reference when entry is NULL */
    } items[];
};

/** Executing a run: under `exec`. */
struct hvi_exec {
    struct hvi_run *run; /* NULL: none */
    int stage;           /* sub-group of one dtype being run */
    uint32_t dtypes;     /* bits: those the run has */
    bool started;
    uint32_t dtype;
    struct hvi_group group;
    struct hvi_piece *pieces; /* [cap], kept */
    struct hvi_op **ops;      /* [cap] of each piece; NULL when joined */
    int32_t cap;
    struct hvi_copy_times copies; /* timeline */
    uint8_t nowhere[64];          /* output of results without elements */
    struct hvi_spin spin;         /* of waiters between groups */
};

struct hvi_peer {
    char host[64];
    int32_t host_index, pid;
    bool gone; /* has said BYE */
};

/** The connection to the parent endpoint. */
struct hvi_conn {
    int fd; /* -1: none */
    struct hvi_stream stream;
    struct hvi_buf in, plain, out; /* out: sealed bytes to write */
    struct hvi_pulse pulse;        /* the link thread looks */
};

struct hvi_ctx {
    _Atomic int refs;
    enum hvi_mode mode;
    /* facts, constant after forming */
    uint32_t epoch;
    int rank, size, local_rank, local_size, cross_rank, cross_size;
    bool homogeneous;
    struct hvi_peer *peers; /* [size] */
    int ngone;
    uint32_t cache_capacity, stall_warn_ms;
    int64_t stall_look_ms; /* link thread: when something can be due again */
    uint64_t fusion_bytes;
    uint8_t epoch_key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    /* plane; SHM and HOSTS: the ranks that share the segment, in rank order; a rank's
     * place in bells and on the board is its number less the first's */
    int32_t host_first, host_count;
    struct hvi_segment segment;
    struct hvi_bells *bells;
    int bell;                          /* own index in bells */
    struct hvi_board *board;           /* SHM, HOSTS; else NULL */
    bool board_left;                   /* this rank has done with it: FINAL is said */
    struct hvi_board_group next_group; /* read from the board, not yet resolved */
    bool have_next_group;              /* it waits for an ASSIGN */
    bool poll_owed; /* published, and left to who reads the board next */
    struct hvi_plane *plane;
    /* GPU tensors: made at the first one */
    pthread_mutex_t gpu_lock;
    _Atomic(struct hvi_plane *) gpu;
    const int32_t **set_ranks; /* static sets, [nstatic], owned arrays */
    int32_t *set_sizes;
    int32_t nstatic;
    _Atomic int
        ndevice; /* runs that are queued on the device; changed under the lock */
    pthread_cond_t device_cond;
    _Atomic int nwaiting; /* threads that wait for a handle, or leave */

    pthread_mutex_t exec;
    struct hvi_exec x;

    pthread_mutex_t lock;
    pthread_cond_t cond; /* executor thread: work, or stop */
    _Atomic bool stop;   /* threads leave */
    bool closing;        /* hvd_shutdown has begun */
    _Atomic int failed;  /* enum hvd_status of the epoch's end, 0 while it lasts */
    char failed_text[HVD_ERROR_TEXT_MAX];
    _Atomic int want_exec;    /* threads in hvd_wait that would run groups themselves */
    _Atomic int parked;       /* the engine thread sleeps on cond */
    _Atomic int idle;         /* the engine thread holds exec with nothing to run */
    struct hvi_link inflight; /* entries from ANNOUNCED on, oldest first ... */
    struct hvi_entry *flights[HVI_FLIGHT_CHAINS]; /* ... and by key */
    _Atomic uint32_t ninflight;                   /* changed under the lock */
    struct hvi_known *known;                      /* by key */
    struct hvi_known **by_id;                     /* [HVI_BOARD_MAX_IDS] */
    struct hvi_known *last_known;                 /* the last submission's, or NULL */
    struct hvi_link lanes;       /* entries in state LANE, oldest first */
    struct hvi_link runs;        /* resolved groups, in order */
    _Atomic int nruns;           /* their number; read without the lock */
    struct hvi_entry **announce; /* not yet written to the link */
    uint32_t nannounce, announce_cap;
    struct hvi_ready_id *ready; /* same, for planes tcp and hosts */
    uint32_t nready, ready_cap;
    bool sends_now;           /* the submission under way is followed by a flush */
    bool claimed;             /* HOSTS: what the board has complete is ours to send */
    struct hvi_link deferred; /* HOSTS: frames that wait for the log; under reader */
    struct hvi_pset **psets;  /* [npsets], index is not id */
    int32_t npsets;
    struct hvi_op *join_op;
    int32_t join_device;
    bool join_pending; /* JOIN has been said while earlier operations were in flight */
    int64_t join_since_ms;
    uint32_t join_generation;
    struct hvi_pset_call { /* one pset_add/remove at a time */
        bool busy, answered;
        enum hvd_status status;
        int32_t id;
        char text[HVD_ERROR_TEXT_MAX];
    } pset_call;
    pthread_cond_t pset_cond;
    bool bye_acked; /* the coordinator has let us go */
    pthread_cond_t bye_cond;
    char last_name[128]; /* last submission, for probes */
    int64_t last_submit_ms;
    struct hvd_stats stats;
    struct hvi_timeline *timeline;

    struct hvi_conn conn;    /* after forming: `out` under lock, `in` and `plain` under
                           * reader */
    int wake_fd;             /* link thread's eventfd */
    pthread_mutex_t reader;  /* whoever reads the connection; taken before lock */
    enum hvd_status read_rc; /* under reader: it cannot be read any more */
    struct hvi_err read_err;
    _Atomic int readers;     /* threads in hvd_wait that read it themselves */
    _Atomic uint32_t reads;  /* what they have read */
    _Atomic bool link_dozes; /* the link thread leaves it to them */
    _Atomic bool forwards;   /* HOSTS: ORDER comes to this rank */
    pthread_t link_thread, exec_thread;
    bool link_running, exec_running;
};

/* ---- submit.c */
/** kick false: the caller waits for it at once, nobody else need wake. */
enum hvd_status hvi_submit(struct hvi_ctx *c, const struct hvd_op *ops, int32_t count,
                           const char *name, bool grouped, bool kick, hvd_handle *out,
                           struct hvi_err *err);
enum hvd_status hvi_submit_join(struct hvi_ctx *c, int32_t device_id, hvd_handle *out,
                                struct hvi_err *err);

/* ---- negotiate.c: all under ctx->lock unless said */
/** A reference to the request of the name that e has, if it equals `wanted`; or NULL. */
struct hvi_request *hvi_negotiate_known(struct hvi_ctx *c, const struct hvi_entry *e,
                                        const struct hvi_request *wanted);
/** Hand over a new entry. On failure it stays the caller's. */
enum hvd_status hvi_negotiate_submit(struct hvi_ctx *c, struct hvi_entry *e,
                                     struct hvi_err *err);
/** Move what the order has decided to ctx->runs. */
void hvi_negotiate_pump(struct hvi_ctx *c);
/** The same for the next group only, if there is none: what becomes ready until it runs
 *  is fused into the one after it. */
void hvi_negotiate_next(struct hvi_ctx *c);
/** Let the board seal, wake whom it concerns. */
void hvi_negotiate_poll(struct hvi_ctx *c);
/** Write waiting announcements and readiness to the connection's buffer. */
void hvi_negotiate_flush(struct hvi_ctx *c);
/** The same, but for readiness that is held back (hvi_gpu_holds). */
void hvi_negotiate_flush_paced(struct hvi_ctx *c);
/** Flush, and write to the socket; what it does not take the link thread writes. */
void hvi_negotiate_send_now(struct hvi_ctx *c);
/** A message of the coordinator, without the lock. HVD_EPROTO ends the epoch. */
enum hvd_status hvi_negotiate_message(struct hvi_ctx *c, uint32_t type,
                                      const uint8_t *payload, size_t size_bytes,
                                      struct hvi_err *err);
/** Send JOIN and tell the board. */
void hvi_negotiate_join(struct hvi_ctx *c);
/** Takes e out of flight (under lock); the caller then completes it without the lock. */
void hvi_negotiate_remove(struct hvi_ctx *c, struct hvi_entry *e);
void hvi_negotiate_fini(struct hvi_ctx *c);
/** Fail all that has no place in the order yet and needs `rank` (-1: all). No lock. */
void hvi_negotiate_cancel(struct hvi_ctx *c, int rank, enum hvd_status status,
                          const char *text);

/* ---- forward.c: plane hosts, where the order reaches a rank by its host's log */
/** A frame of the coordinator, in its turn: now, or when the log has come so far. Under
 *  reader, without the lock. */
enum hvd_status hvi_forward_message(struct hvi_ctx *c, uint32_t type,
                                    const uint8_t *payload, size_t size_bytes,
                                    struct hvi_err *err);
/** Those that have waited. Under reader, without the lock. */
enum hvd_status hvi_forward_deferred(struct hvi_ctx *c, struct hvi_err *err);
/** Frames wait: look again soon. */
bool hvi_forward_waits(const struct hvi_ctx *c);
/** What is complete on this host moves to ctx->ready. Under ctx->lock. */
void hvi_forward_take(struct hvi_ctx *c);
/** Readiness for up to every id fits ctx->ready. HVD_ENOMEM. */
enum hvd_status hvi_forward_init(struct hvi_ctx *c);
void hvi_forward_fini(struct hvi_ctx *c);

/* ---- entry.c */
/** Without the lock: completes every op of e, which is in no table, and frees it. */
void hvi_entry_finish(struct hvi_entry *e, enum hvd_status status, const char *text);
void hvi_entry_free(struct hvi_entry *e); /* NULL allowed */
/** Zeroed items; NULL: out of memory. */
struct hvi_run *hvi_run_new(struct hvi_pset *set, uint64_t seq, uint32_t nitems);
/** Also takes it off ctx->runs. Entries stay in flight. */
void hvi_run_free(struct hvi_run *run);

/* ---- pset.c: under ctx->lock */
struct hvi_pset *hvi_pset_find(struct hvi_ctx *c, int32_t id);
/** Add a set to the table. ranks are copied and sorted. HVD_ENOMEM. */
enum hvd_status hvi_pset_insert(struct hvi_ctx *c, int32_t id, const int32_t *ranks,
                                int32_t n);

/* ---- stall.c */
/** Under ctx->lock: what this rank is doing, in words. */
void hvi_describe_rank(struct hvi_ctx *c, char *out, size_t cap);
/** Without the lock: words HVD_ETIMEDOUT of a wait for op: its name and who is missing.
 */
void hvi_describe_wait(struct hvi_ctx *c, const struct hvi_op *op, struct hvi_err *err);
/** Entries that wait longer than the warning time are reported; returns ms until the
 * next look, -1 when there is nothing to watch. For the link thread only. */
int hvi_stall_look(struct hvi_ctx *c, int64_t now_ms);

/* ---- engine.c */
/** Run groups on this thread until op completes, or is queued on its device (mode
 *  ENQUEUED), or deadline_ms. Holds `exec`. HVD_OK, HVD_ETIMEDOUT, HVD_EINTR. */
enum hvd_status hvi_engine_run(struct hvi_ctx *c, struct hvi_op *op,
                               enum hvd_wait_mode mode, int64_t deadline_ms);
/** Run what has its place in the order to its end; for leaving. Takes `exec`. */
void hvi_engine_drain(struct hvi_ctx *c);
void *hvi_engine_thread(void *ctx);
/** Wake whoever runs groups: there is new work, or the end. Any thread. */
void hvi_engine_kick(struct hvi_ctx *c);
/** The same after a submission: whoever has nothing to run yet need not wake for it; the
 *  one that seals it will. */
void hvi_engine_submitted(struct hvi_ctx *c);

/* ---- gpu.c */
/** The plane of GPU tensors in c->gpu, made at the first call. HVD_EUNSUPPORTED: no
 *  driver, or another GPU than before; HVD_EINVAL: no such GPU; HVD_ENOMEM, HVD_EIO. */
enum hvd_status hvi_gpu_open(struct hvi_ctx *c, int32_t device_id, struct hvi_err *err);
/** The same for the GPU that the operations name, or that their memory lies on. */
enum hvd_status hvi_gpu_open_for(struct hvi_ctx *c, const struct hvd_op *ops,
                                 int32_t count, struct hvi_err *err);
/** The same for a rank that has joined and never had a GPU tensor. Under `exec`. */
enum hvd_status hvi_gpu_open_joined(struct hvi_ctx *c, struct hvi_err *err);
/** Memory for op's result on its device; NULL: err says why. */
void *hvi_op_memory(const struct hvi_op *op, size_t size_bytes, struct hvi_err *err);
/** A run begins on the device: hvi_group.queued and .done for its stages. */
void hvi_gpu_begin(struct hvi_ctx *c, struct hvi_run *run);
void hvi_gpu_queued(void *run, struct hvi_event *event);
void hvi_gpu_done(void *run, enum hvd_status status, const char *text);
/** The engine lets go of a run whose entries are out of flight; status != HVD_OK: not all
 *  of it was queued. Its handles complete when the device is done. */
void hvi_gpu_hand_over(struct hvi_run *run, enum hvd_status status, const char *text);
/**
 * Two runs are on the device and nobody waits for more: what comes meanwhile is to be
 * fused, so the next group of the board's log is left where it is, and readiness is told
 * to the coordinator later. Else a backward pass, which the host enqueues much faster than
 * the device runs it, would become a launch per tensor. A wait ends it, in either mode:
 * then nothing more is coming, and a wait for the queue must not be one for the device.
 * Any thread.
 */
bool hvi_gpu_holds(const struct hvi_ctx *c);
/** A thread begins to wait (or leave): nothing is held back until it says it is over. */
void hvi_gpu_wait_begin(struct hvi_ctx *c);
void hvi_gpu_wait_end(struct hvi_ctx *c);
/** Wait until nothing of this membership is queued on the device; bounded. */
void hvi_gpu_settle(struct hvi_ctx *c);

/* ---- link.c */
/** Connect, authenticate; blocking, until deadline_ms. */
enum hvd_status hvi_conn_open(struct hvi_conn *conn, const char *endpoint,
                              const uint8_t *key, const uint8_t *job_id,
                              int64_t deadline_ms, struct hvi_err *err);
/** Queue a message (under lock once threads run). */
enum hvd_status hvi_conn_put(struct hvi_conn *conn, uint32_t type, const void *body);
/** Queue ready-made frame bytes. */
enum hvd_status hvi_conn_put_frame(struct hvi_conn *conn, const struct hvi_buf *frame,
                                   bool last);
/** Write what the socket takes now. HVD_OK: all; HVD_INPROGRESS; HVD_EIO. */
enum hvd_status hvi_conn_flush(struct hvi_conn *conn, struct hvi_err *err);
/** Read what is there. HVD_ESHUTDOWN: the peer ended it; HVD_EIO. */
enum hvd_status hvi_conn_fill(struct hvi_conn *conn, struct hvi_err *err);
/** Next whole frame: payload is borrowed until the next call. HVD_INPROGRESS: none. */
enum hvd_status hvi_conn_next(struct hvi_conn *conn, uint32_t *type,
                              const uint8_t **payload, size_t *size_bytes,
                              struct hvi_err *err);
/** Blocking: flush, then wait for one message until deadline_ms. */
enum hvd_status hvi_conn_wait(struct hvi_conn *conn, int64_t deadline_ms,
                              struct hvi_msg *out, struct hvi_err *err);
void hvi_conn_fini(struct hvi_conn *conn);
void *hvi_link_thread(void *ctx);
/** A thread that waits reads the connection itself, and takes what has come, if nobody
 *  else is at it. true: something has come. Without the lock; callbacks may run. */
bool hvi_link_read(struct hvi_ctx *c);
/** Nobody reads for the link thread any more. */
void hvi_link_wake(struct hvi_ctx *c);
void hvi_link_kick(struct hvi_ctx *c);
/** The epoch is over for this rank: everything in flight fails. Any thread, no lock. */
void hvi_ctx_fail(struct hvi_ctx *c, enum hvd_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- form.c */
/** From nothing to a running membership (or a solo one); blocking. */
enum hvd_status hvi_ctx_form(const struct hvd_config *config, struct hvi_ctx **out,
                             struct hvi_err *err);

/* ---- leave.c */
/** Leave: what was agreed is finished, the rest fails; then threads end. */
void hvi_ctx_leave(struct hvi_ctx *c);
/** Ends the threads that run; joins them. */
void hvi_ctx_stop_threads(struct hvi_ctx *c);

/* ---- ctx.c */
/** One reference; nothing formed yet. NULL: out of memory. */
struct hvi_ctx *hvi_ctx_new(void);
void hvi_ctx_unref(struct hvi_ctx *c); /* NULL allowed */
/** Frees the plane and what it stands on. */
void hvi_ctx_drop_plane(struct hvi_ctx *c);
/** In a forked child: close what is ours, touch nothing else. */
void hvi_ctx_forked(struct hvi_ctx *c);

/** Test seam: HVD_FAILPOINT=name:action[:count] (exit, abort, kill, stop). */
void hvi_failpoint(const char *name);

#endif
