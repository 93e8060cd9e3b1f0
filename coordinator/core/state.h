/** The core's insides, shared by the files of this folder and by nobody else. */
#ifndef HVI_COORDINATOR_CORE_STATE_H
#define HVI_COORDINATOR_CORE_STATE_H

#define HASH_NONFATAL_OOM 1

#include "proto/base/hash.h"
#include "coordinator/core/core.h"
#include "coordinator/core/elect.h"
#include "proto/base/hash.h"
#include "proto/base/list.h"
#include "proto/msg/request.h"

/* After an end of file the agent may still say how the process ended, and after an exit
 * the connection may still hold a BYE: each is waited for this long. */
#define HVI_VERDICT_MS 200
#define HVI_PROBE_MS 1000     /* stall reports wait so long for answers */
#define HVI_HEARTBEAT_MS 2000 /* to agents */
#define HVI_PENDING_MAX 65536 /* announced operations of one rank */
#define HVI_PENDING_MAX_BYTES ((uint64_t)16 << 20)
#define HVI_PSETS_MAX 4096    /* living process sets */
#define HVI_PSET_CALLS_MAX 64 /* unanswered calls of one rank */
#define HVI_SHM_RANKS_MAX 256
#define HVI_IDS_MAX                                                                    \
    4096 /* ids in use; what a worker's table and the host board hold                  \
          */
#define HVI_PLANE_SHM 1
#define HVI_PLANE_TCP 2
#define HVI_PLANE_HOSTS 3 /* one READY and one ORDER per host */

/* ---- sets of ranks */
struct rankset {
    uint64_t w[HVD_RANKS_MAX / 64];
};

static inline bool rankset_has(const struct rankset *s, int32_t r)
{
    return (s->w[r / 64] >> (r % 64) & 1) != 0;
}
static inline void rankset_add(struct rankset *s, int32_t r)
{
    s->w[r / 64] |= (uint64_t)1 << (r % 64);
}
static inline void rankset_del(struct rankset *s, int32_t r)
{
    s->w[r / 64] &= ~((uint64_t)1 << (r % 64));
}

/* ---- connections */
enum conn_state {
    CONN_UNSET = 0,
    CONN_OPEN,   /* nothing said yet */
    CONN_WAITS,  /* HELLO came; in core->waiting */
    CONN_MEMBER, /* of the epoch */
    CONN_LEFT,   /* said BYE */
    CONN_AGENT
};

struct conn {
    uint64_t id;
    bool agent;
    enum conn_state state;
    uint8_t entropy[HVI_EPOCH_KEY_BYTES];
    Hvi__Hello *hello;    /* WAITS, MEMBER, LEFT: owned */
    int32_t rank;         /* MEMBER, LEFT: rank of the epoch */
    struct hvi_link link; /* WAITS: core->waiting, AGENT: core->agents */
    /* agents */
    char *host;
    int64_t heard_ms, beat_ms;
    UT_hash_handle hh;
};

/* ---- what agents say about the slots of the plan */
enum proc_state { PROC_UNKNOWN = 0, PROC_RUNS, PROC_EXITED, PROC_LOST };
/* What it did about hvd_init last: nothing since it started or left an epoch; its HELLO
 * waits, or waited when the connection ended; it was refused, or gave up. */
enum proc_init { INIT_NOT = 0, INIT_WAITS, INIT_FAILED };

/* A rank of the last epoch, to know it again. */
struct served {
    char *host;
    int32_t pid, slot;
    uint32_t first_epoch;
};

struct proc {
    enum proc_state state;
    enum proc_init init;
    int32_t pid, wait_status;
    uint64_t agent;   /* connection that started it, 0: none */
    uint64_t nth;     /* it was the nth to exit or to be lost */
    char *lost;       /* LOST: why, owned */
    bool served;      /* was in an epoch */
    char refused[96]; /* why its last HELLO was refused, "" */
};

/* ---- the epoch */
enum epoch_phase { EP_NONE = 0, EP_FORMING, EP_OPEN, EP_BROKEN };

struct pset_call {
    bool add;
    uint32_t pset;
    int32_t nranks;
    int32_t *ranks; /* ascending */
    struct pset_call *next;
};

struct member {
    struct conn *conn; /* NULL: ended, or leaving */
    struct conn *left; /* said BYE in an open epoch: it still runs what was ordered */
    int32_t slot;      /* rank in the plan */
    uint32_t first_epoch;
    char *host;
    int32_t pid;
    bool formed, bye, lost, ended, joined, settled, exited;
    int64_t verdict_ms; /* a loss is decided then, -1 */
    char *eof_text;     /* what net said about the end of the connection */
    uint32_t npending;
    uint64_t pending_bytes;
    struct pset_call *calls, *last_call; /* process set calls, oldest first */
    uint32_t ncalls;
    int64_t call_ms;      /* since when the oldest waits */
    uint64_t told_seq;    /* plane hosts: groups below it, by ORDER or MARK */
    size_t unheard_bytes; /* one of two forwarders: of ORDER since it said anything */
};

/* Plane hosts: ranks that share a segment and an order log. */
struct host {
    int32_t first, count;  /* ranks */
    uint64_t sent_seq;     /* groups below it that concern the host were sent to it */
    int32_t forwarders[2]; /* who gets ORDER, -1: nobody, no second one */
    uint64_t chosen;       /* when core->pset_changes was this */
};

struct pset {
    uint32_t id;
    int32_t nranks;
    int32_t *ranks; /* ascending */
    struct rankset set;
    struct rankset hosts; /* places.host_index of its ranks */
    UT_hash_handle hh;
};

/* Key of an operation: set id, then the name; both tables below use it. */
struct opkey {
    uint8_t *bytes;
    unsigned size;
};

struct variant {
    struct hvi_request *req;
    int32_t first; /* rank that announced it first */
    struct rankset who;
    struct variant *next;
};

/* Announced by some, not yet by all. */
struct op {
    struct opkey key;
    struct pset *set;
    struct variant *variants; /* first seen first */
    struct rankset announced;
    int32_t nannounced;
    UT_hash_handle hh;
};

/* An id: in use when req is set. */
struct slot {
    uint32_t id, generation;
    struct hvi_request *req;
    struct opkey key;
    struct pset *set;
    struct rankset ready; /* planes tcp and hosts */
    int32_t nready;
    bool queued;             /* complete, in core->queue */
    bool joined;             /* a host said that a member had joined without it */
    struct hvi_link lru;     /* in use: oldest first */
    struct hvi_link partial; /* ready on some */
    UT_hash_handle hh;
};

/* ---- stalls */
struct stall {
    struct opkey key; /* its text and set */
    uint32_t pset, kind;
    uint64_t waited_ms;
    uint32_t more; /* other operations that wait for the same ranks */
    int32_t reporter;
    bool ordered;                   /* somebody says: it has its place in the order */
    struct rankset missing;         /* while it is being collected: who may be */
    struct rankset asked, answered; /* themselves */
    struct rankset asked_proc, answered_proc; /* their agents */
    int64_t reported_ms;                      /* -1: being collected */
    int64_t due_ms;
    uint64_t probe;
    struct stall_answer *answers;
    UT_hash_handle hh;
};

struct stall_answer {
    int32_t rank;
    char *state; /* from its agent, or NULL */
    char *doing; /* from itself, or NULL */
    bool waits;  /* in the very operation */
    bool ordered;
    struct stall_answer *next;
};

struct hvi_core {
    struct hvi_core_config cfg;
    struct hvi_actions *out; /* of the step under way */
    int64_t now;
    uint32_t magic;
    bool oom, finished;
    bool may_fall_back, even; /* epoch */
    bool lost_any;            /* a rank, over the whole life */
    bool gone_any;            /* somebody said BYE in this epoch */
    bool stall_over;          /* the shutdown for stalls was done */

    /* connections */
    struct conn *conns;
    struct hvi_link waiting; /* of conn.link, in order of arrival */
    int64_t start_by_ms;     /* -1: nobody waits */
    struct proc *procs;      /* [np] */
    uint64_t nexits;
    struct served *served;  /* [nserved] */
    struct hvi_link agents; /* of conn.link */
    int32_t nwaiting, nserved;

    /* epoch */
    uint32_t epoch, attempt, plane;
    enum epoch_phase phase;
    int32_t size;
    struct member *members; /* [size] */
    struct hvi_place *places;
    int32_t nhosts;
    struct host *hosts;    /* [nhosts], in order of host_index */
    struct hvi_out *peers; /* shared part of WELCOME */
    int64_t form_by_ms;
    struct form_failure {
        int64_t at_ms; /* told then, unless a loss explains it; -1: none */
        int32_t rank;
        enum hvd_status status;
        char *text;
    } failure;
    int64_t idle_ms; /* since when nothing is going on after an epoch, -1 */
    uint8_t key[HVI_EPOCH_KEY_BYTES];
    struct rankset gone; /* members that said BYE */
    int32_t nlive;       /* members that have not ended */
    int32_t nverdicts;   /* members with a verdict_ms */

    /* negotiation */
    int32_t njoined, nsettled, last_joined;
    int32_t ncalling; /* members with a process set call that waits */
    uint32_t join_generation, next_pset;
    uint32_t nslots_used; /* ids ever used in this epoch */
    uint32_t nfree, nqueue;
    uint64_t pset_changes; /* process sets ever made or removed */
    struct pset *psets;
    struct op *ops;
    struct slot *slots; /* [cache_capacity] */
    struct slot *by_name;
    uint32_t *free_ids;
    uint32_t *queue; /* complete ids, [cache_capacity] */
    struct hvi_link lru, partial;
    uint64_t seq;

    /* stalls */
    struct stall *stalls;
    uint64_t next_probe;
    int64_t called_ms; /* when waiting process set calls were reported last, -1 */
};

/* ---- core.c */
void *hvi_core_alloc(struct hvi_core *core, size_t count, size_t size_bytes);
char *hvi_core_strdup(struct hvi_core *core, const char *text);
struct conn *hvi_core_conn(struct hvi_core *core, uint64_t id);
/** Forget and free; no action. */
void hvi_core_drop(struct hvi_core *core, struct conn *c);
/** The peer broke the rules: tell it, close it, and count a member as lost. c is gone. */
void hvi_core_violation(struct hvi_core *core, struct conn *c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** The agent of a slot, or NULL. */
struct conn *hvi_core_agent(struct hvi_core *core, int32_t slot);

/* ---- emit.c */
/** Builds a frame; refs 1, or NULL (oom is set). */
struct hvi_out *hvi_emit_frame(struct hvi_core *core, uint32_t type, const void *body);
void hvi_emit_send(struct hvi_core *core, const struct conn *c, struct hvi_out *frame,
                   bool last, bool droppable);
/** One message to one connection; NULL c: nothing. */
void hvi_emit_msg(struct hvi_core *core, const struct conn *c, uint32_t type,
                  const void *body, bool last);
/** To every living member, or those in `who`, but not to `except` (-1: none). */
void hvi_emit_all(struct hvi_core *core, const struct rankset *who, int32_t except,
                  uint32_t type, const void *body);
void hvi_emit_close(struct hvi_core *core, const struct conn *c);
void hvi_emit_finish(struct hvi_core *core, int status);
void hvi_emit_note(struct hvi_core *core, enum hvi_note_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** LEFT or LOST, of a rank of the plan. */
void hvi_emit_rank_note(struct hvi_core *core, enum hvi_note_kind kind, int32_t slot,
                        const char *text);

/* ---- text.c: growing bounded texts for people */
struct text {
    char s[900];
    size_t n;
};
void hvi_text_add(struct text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/** A peer's string, escaped. */
void hvi_text_add_peer(struct text *t, const char *s);
/** ", " or " and " before item i of n; nothing before the first. */
void hvi_text_sep(struct text *t, int32_t i, int32_t n);
/** "killed by SIGKILL", "exited with status 7". */
void hvi_text_wait_status(struct text *t, int wait_status);
/** "allreduce 'x'", with its process set where that is not 0. */
void hvi_text_op(struct text *t, uint32_t kind, const char *name, uint32_t pset);
/** "rank 2 (host a, pid 71)". */
void hvi_text_member(struct text *t, const struct hvi_core *core, int32_t rank);

/* ---- form.c */
void hvi_form_hello(struct hvi_core *core, struct conn *c, Hvi__Hello *hello);
void hvi_form_formed(struct hvi_core *core, struct conn *c, const Hvi__Formed *m);
/** What the rank of the plan, -1: unknown which, does about hvd_init. */
void hvi_form_init_is(struct hvi_core *core, int32_t slot, enum proc_init init);
/** Refuses those who wait when a rank they need has exited. */
void hvi_form_check_exited(struct hvi_core *core);
/** Starts the next epoch when all are there and the old one is over. */
void hvi_form_try(struct hvi_core *core);
/** What FORMED said failed is of no interest any more. */
void hvi_form_forget_failure(struct hvi_core *core);
void hvi_form_tick(struct hvi_core *core);
void hvi_form_refuse_all(struct hvi_core *core, enum hvd_status status,
                         const char *text);

/* ---- epoch.c */
void hvi_epoch_bye(struct hvi_core *core, struct conn *c);
/** The connection of a member ended, after BYE: without FINAL. c is gone. */
void hvi_epoch_eof(struct hvi_core *core, struct conn *c, const char *text);
/** The connection of one that said BYE ended. c is gone. */
void hvi_epoch_left(struct hvi_core *core, struct conn *c, bool clean,
                    const char *text);
/** The agent says that the process of a slot ended. */
void hvi_epoch_exited(struct hvi_core *core, int32_t slot);
void hvi_epoch_lose(struct hvi_core *core, int32_t rank, const char *cause,
                    enum hvd_status status);
/** CLOSED to all members, rank -1 when it is nobody's fault. */
void hvi_epoch_close(struct hvi_core *core, int32_t rank, const char *cause,
                     enum hvd_status status);
/** A member that is there says that its data plane broke: the epoch is over. */
void hvi_epoch_suspect(struct hvi_core *core, struct conn *c, const char *text);
void hvi_epoch_tick(struct hvi_core *core);
/** Frees the old epoch's memory. */
void hvi_epoch_reset(struct hvi_core *core);

/* ---- agents.c */
void hvi_agents_message(struct hvi_core *core, struct conn *c, struct hvi_msg *msg);
void hvi_agents_closed(struct hvi_core *core, struct conn *c, bool clean,
                       const char *text);
void hvi_agents_tick(struct hvi_core *core);

/* ---- negotiate.c */
void hvi_negotiate_begin(struct hvi_core *core);
void hvi_negotiate_end(struct hvi_core *core);
void hvi_negotiate_announce(struct hvi_core *core, struct conn *c,
                            const Hvi__Announce *m);
/** Rank said BYE: what needs it fails. */
void hvi_negotiate_gone(struct hvi_core *core, int32_t rank);
/** Somebody joined: what waited only for it is complete. */
void hvi_negotiate_recheck(struct hvi_core *core);
/** Forgets what is pending in a set (PSET_REPLY fails it) and evicts its ids. */
void hvi_negotiate_drop_set(struct hvi_core *core, struct pset *set);
/** Takes the id out of use on every rank. */
void hvi_negotiate_evict(struct hvi_core *core, struct slot *slot);
/** Members of the set that have joined and are not in `who`. */
int32_t hvi_negotiate_joined(const struct hvi_core *core, const struct pset *set,
                             const struct rankset *who);
struct op *hvi_negotiate_op(struct hvi_core *core, uint32_t pset, const char *name);
/** The id in use for a name, or NULL. */
struct slot *hvi_negotiate_slot(struct hvi_core *core, uint32_t pset, const char *name);

/* ---- ready.c */
/** Plane hosts: MARK to the rank of c, where it may lag behind its host's order. */
void hvi_ready_mark_seq(struct hvi_core *core, const struct conn *c);
void hvi_ready_frame(struct hvi_core *core, struct conn *c, uint32_t epoch,
                     const struct hvi_ready_id *ids, uint32_t nids);
/** The rank has it ready, on plane hosts all members on its host; an old generation is
 * ignored. false: a violation, c is gone. */
bool hvi_ready_mark(struct hvi_core *core, struct conn *c, uint32_t id,
                    uint32_t generation);
void hvi_ready_complete(struct hvi_core *core, struct slot *slot);
void hvi_ready_recheck(struct hvi_core *core);
/** Sends the groups that are complete. */
void hvi_ready_flush(struct hvi_core *core);
void hvi_ready_clear(struct slot *slot);

/* ---- join.c */
void hvi_join_message(struct hvi_core *core, struct conn *c, bool pending);

/* ---- psets.c */
struct pset *hvi_psets_find(struct hvi_core *core, uint32_t id);
/** Sorts ranks; "" or what is wrong with the list in text. */
enum hvd_status hvi_psets_check(int32_t *ranks, size_t nranks, int32_t size,
                                struct text *t);
/** The living set of exactly these ranks (ascending), set 0 too, or NULL. */
struct pset *hvi_psets_equal(struct hvi_core *core, const int32_t *ranks,
                             int32_t nranks);
/** NULL: out of memory. */
struct pset *hvi_psets_make(struct hvi_core *core, const int32_t *ranks,
                            int32_t nranks);
void hvi_psets_call(struct hvi_core *core, struct conn *c, bool add, uint32_t pset,
                    const int32_t *ranks, size_t nranks);
void hvi_psets_gone(struct hvi_core *core);
void hvi_psets_end(struct hvi_core *core);

/* ---- stall.c */
void hvi_stall_reported(struct hvi_core *core, struct conn *c, const Hvi__Stalled *m);
void hvi_stall_probe_reply(struct hvi_core *core, struct conn *c,
                           const Hvi__ProbeReply *m);
void hvi_stall_proc_state(struct hvi_core *core, const struct conn *c,
                          const Hvi__ProcState *m);
void hvi_stall_tick(struct hvi_core *core);
int64_t hvi_stall_deadline(const struct hvi_core *core);
void hvi_stall_end(struct hvi_core *core);

/* ---- small helpers */
static inline struct conn *hvi_conn_at(struct hvi_link *link)
{
    return HVI_CONTAINER(link, struct conn, link);
}
static inline struct member *hvi_core_member(struct hvi_core *core,
                                             const struct conn *c)
{
    return &core->members[c->rank];
}
static inline bool hvi_member_live(const struct member *m)
{
    return m->conn != NULL && !m->bye && !m->lost;
}

#endif
