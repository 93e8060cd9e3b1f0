/** Internals of the GPU plane, shared by its files. */
#ifndef HVI_PLANE_NCCL_GPU_H
#define HVI_PLANE_NCCL_GPU_H

#include "worker/plane/cpu/group.h"
#include "worker/plane/nccl/nccl.h"
#include "worker/plane/nccl/pack.h"
#include "worker/plane/nccl/plan.h"

#define HVI_POLL_FIRST_US 20 /* the first look at what NCCL does in the background */

/** Ranks that run groups together. */
struct hvi_comm {
    struct hvi_comm *next;
    int32_t n;
    int32_t *members;      /* [n], owned */
    struct ncclComm *nccl; /* NULL: staged, or aborted */
    struct ncclComm *made; /* where a split puts it, maybe after the call */
    void *registered;      /* the fusion buffer, as NCCL knows it */
    bool formed, staged;
};

/** What the kernel reads: a table in host memory and its copy on the device. */
struct hvi_table {
    struct hvi_table *next;
    struct hvi_pack_item *host;
    uint64_t device;
    int32_t cap, n;
    int64_t ntiles;
};

/** Work that is queued on the device. */
struct hvi_launch {
    struct hvi_launch *next;
    uint64_t number;
    struct hvi_event *event; /* after it */
    struct hvi_table *tables;
    void *memory; /* host memory that it reads or writes, or NULL */
    void (*done)(void *arg, enum hvd_status status, const char *text);
    void *arg;
};

enum hvi_gpu_phase {
    HVI_GPU_IDLE = 0,
    HVI_GPU_MEET,     /* identities of all members, over the CPU plane */
    HVI_GPU_ID,       /* NCCL's id, likewise */
    HVI_GPU_FORMING,  /* NCCL connects */
    HVI_GPU_SPLIT,    /* communicators of static sets */
    HVI_GPU_SIZES,    /* rows of gathered results */
    HVI_GPU_AGREE,    /* has everyone memory for them? */
    HVI_GPU_LAUNCH,   /* next round */
    HVI_GPU_CALLED,   /* NCCL has taken it, or is still at it */
    HVI_GPU_END,      /* queue the event */
    HVI_GPU_SYNC,     /* wait for it (groups without `done`) */
    HVI_GPU_COPY_OUT, /* staged: device to host is queued */
    HVI_GPU_HOST      /* staged: the CPU plane runs */
};

/** What a rank says of itself when a communicator is made; on the CPU plane as bytes. */
struct hvi_card {
    uint8_t uuid[16];
    char bus[24], host[64];
    int32_t version; /* of NCCL; 0: status says why */
    int32_t status;
    uint32_t stage, device; /* stage: enum of reasons below */
    uint32_t wire;          /* enum hvd_dtype that f32 travels as, 0: as it is */
    uint8_t split[8];       /* bit i: static set i has no communicator here */
    char text[200];
};
enum { HVI_STAGE_ASKED = 1, HVI_STAGE_KERNEL = 2, HVI_STAGE_MEMORY = 4 };

struct hvi_stage_piece {
    const struct hvi_group *g;
    struct hvi_piece *piece;
    void *result; /* of unknown size, malloc */
    size_t result_bytes;
    int64_t total_rows;
};

struct hvi_gpu {
    struct hvi_plane base;
    struct hvi_nccl_setup setup;
    char host[64];
    struct hvi_device *dev;
    const struct hvi_nccl_api *nccl; /* NULL: card.status, card.text */
    struct hvi_card card;
    struct CUstream_st *stream;
    uint64_t buffer; /* fusion buffer, buffer_bytes */
    size_t buffer_bytes;
    int64_t timeout_ms; /* of one launch; 0: none */
    int64_t abort_ms;

    /* the running group; whoever runs groups */
    const struct hvi_group *g;
    struct hvi_facts facts;
    enum hvi_gpu_phase phase;
    struct hvi_comm *comm;
    struct hvi_comm *all; /* of all ranks, once formed */
    int32_t split_at;
    struct hvi_comm *splitting;
    struct ncclComm *no_comm; /* of a split without this rank */
    int64_t forming_ms;
    uint32_t round_no; /* exchanges on the CPU plane in this group */
    struct hvi_group sub;
    struct hvi_piece sub_piece;
    int64_t sub_rows[HVD_RANKS_MAX];
    bool sub_started;
    struct hvi_card *cards; /* [HVD_RANKS_MAX] room, or NULL */
    struct hvi_nccl_id id;
    int64_t *head, *heads; /* own, and [members] of them */
    uint8_t *oks;          /* [HVD_RANKS_MAX + 1], the last is our own */
    struct hvi_nccl_plan plan;
    int32_t round;
    bool *waited; /* [cap_waited] of each piece */
    int32_t cap_waited;
    uint32_t wtype; /* enum hvd_dtype as it is reduced */
    int nccl_type, nccl_op;
    double post;
    bool pre_pass, cast;
    bool any_joined;               /* in a reducescatter */
    struct hvi_table *tables;      /* of the running group */
    struct hvi_stage_piece *stage; /* [nstage] */
    int32_t nstage;
    struct hvi_piece *shadow;
    struct hvi_group shadow_group;
    void *stage_memory;
    _Atomic int sync_state; /* 0 waiting, 1 done */
    bool refused;           /* the group, alike on every member */
    bool cpu_failed;        /* the CPU plane broke: its owner finds out why */
    struct hvi_err group_err;
    int poll_us;

    /** held around NCCL calls; an abort takes the communicators away under it */
    pthread_mutex_t api;

    pthread_mutex_t lock;      /* all below */
    pthread_cond_t cond;       /* launches came or went, threads ended */
    pthread_cond_t watch_cond; /* the watch thread's */
    bool watch_parked;
    struct hvi_comm *comms;
    struct hvi_table *free_tables;
    struct hvi_launch *first, **last;
    uint64_t launches;
    int64_t head_since_ms;
    int nthreads; /* that have not ended, aborts too */
    int naborts;
    bool stop, told_stuck;
    int64_t broken_ms;
    _Atomic int broken; /* enum hvd_status, 0: good */
    char broken_text[HVD_ERROR_TEXT_MAX];
    _Atomic uint32_t wake; /* futex of wait() */
};

/* ---- watch.c: threads */
enum hvd_status hvi_gpu_start_threads(struct hvi_gpu *p, struct hvi_err *err);
/** Hand over queued work; takes l. */
void hvi_gpu_push(struct hvi_gpu *p, struct hvi_launch *l);
/** The plane is broken: tell, abort all communicators. say: call setup.broken. */
void hvi_gpu_break(struct hvi_gpu *p, enum hvd_status status, bool say,
                   const char *text);
void hvi_gpu_wake(struct hvi_gpu *p);
/** Abort a communicator after all threads have ended: waits abort_ms for it, then tells that
 *  the process is stuck. */
void hvi_gpu_abort_last(struct hvi_gpu *p, struct ncclComm *comm);
/** true: all threads have ended. */
bool hvi_gpu_stop_threads(struct hvi_gpu *p);
/** Wait until nothing is queued, at most timeout_ms. */
bool hvi_gpu_drain(struct hvi_gpu *p, int timeout_ms);

/* ---- comm.c */
/** HVD_OK, or the plane is broken and rc its status: words NCCL's error. */
enum hvd_status hvi_gpu_nccl_check(struct hvi_gpu *p, int result, struct ncclComm *comm,
                                   const char *what, struct hvi_err *err);
/** The communicator of the group's members in p->comm (formed or not). HVD_ENOMEM. */
enum hvd_status hvi_gpu_find_comm(struct hvi_gpu *p, const int32_t *members, int32_t n,
                                  struct hvi_comm **out, struct hvi_err *err);
/** One step of making p->comm: HVD_INPROGRESS until p->phase has moved on. */
enum hvd_status hvi_gpu_form(struct hvi_gpu *p, struct hvi_err *err);
/** Finalize and destroy what is not aborted. */
void hvi_gpu_drop_comms(struct hvi_gpu *p);

/* ---- run.c */
/** Decide how g is reduced. */
void hvi_gpu_choose(struct hvi_gpu *p, const struct hvi_group *g);
/** true: NCCL does not do this one; the host does. Equal on every rank. */
bool hvi_gpu_needs_host(const struct hvi_gpu *p, const struct hvi_group *g);
enum hvd_status hvi_gpu_launch(struct hvi_gpu *p, struct hvi_err *err);
enum hvd_status hvi_gpu_called(struct hvi_gpu *p, struct hvi_err *err);
enum hvd_status hvi_gpu_sizes(struct hvi_gpu *p, struct hvi_err *err);
enum hvd_status hvi_gpu_agree(struct hvi_gpu *p, struct hvi_err *err);
/** Order the stream after piece i. */
enum hvd_status hvi_gpu_await_piece(struct hvi_gpu *p, int32_t i, struct hvi_err *err);

/* ---- table.c */
/** A new table for the running group, with room for n items. HVD_ENOMEM. */
enum hvd_status hvi_gpu_table(struct hvi_gpu *p, int32_t n, struct hvi_table **out,
                              struct hvi_err *err);
void hvi_table_add(struct hvi_table *t, struct hvi_pack_item item);
/** Queue the kernel over the table. */
enum hvd_status hvi_gpu_run_table(struct hvi_gpu *p, struct hvi_table *t,
                                  struct hvi_err *err);
void hvi_gpu_free_tables(struct hvi_gpu *p);
/** Takes tables (or NULL) that a device may still read, and never frees them. Any thread. */
void hvi_gpu_keep_tables(struct hvi_table *tables);

/* ---- stage.c */
enum hvd_status hvi_gpu_stage(struct hvi_gpu *p, struct hvi_err *err);
enum hvd_status hvi_gpu_stage_out(struct hvi_gpu *p, struct hvi_err *err);
enum hvd_status hvi_gpu_stage_host(struct hvi_gpu *p, struct hvi_err *err);
void hvi_gpu_stage_drop(struct hvi_gpu *p);

/* ---- plane.c */
/** One exchange of `bytes` bytes of every member on the CPU plane; in: own, out:
 *  [members * bytes]. Call until it is not HVD_INPROGRESS. */
enum hvd_status hvi_gpu_exchange(struct hvi_gpu *p, const void *in, void *out,
                                 size_t bytes, struct hvi_err *err);
/** The same, from member 0 to all, in place. */
enum hvd_status hvi_gpu_tell(struct hvi_gpu *p, void *data, size_t bytes,
                             struct hvi_err *err);
/** A launch object after everything queued so far, with the group's tables. */
enum hvd_status hvi_gpu_mark(struct hvi_gpu *p, struct hvi_launch **out,
                             struct hvi_err *err);
/** Wait on the host until `sync_state` is 1: queue the mark that sets it. */
enum hvd_status hvi_gpu_sync(struct hvi_gpu *p, struct hvi_err *err);
/** The group failed alike on every member. */
enum hvd_status hvi_gpu_refuse(struct hvi_gpu *p, enum hvd_status status,
                               struct hvi_err *err);

#endif
