/**
 * A core under a fake clock, fed by hand. Every action becomes a line of f->trace:
 * "send 2 ASSIGN id=0 gen=1 name='x'". Connection k is rank k-1 where a helper says so.
 */
#ifndef HVI_TEST_COORDINATOR_FEED_H
#define HVI_TEST_COORDINATOR_FEED_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/core.h"
#include "test.h"

#define FEED_TRACE_BYTES (256 * 1024)

struct feed {
    struct hvi_core *core;
    struct hvi_actions actions;
    int64_t now;
    char trace[FEED_TRACE_BYTES]; /* since the last feed_forget() */
    size_t n;
    bool finished;
    int status;
};

static inline void feed_forget(struct feed *f)
{
    f->n = 0;
    f->trace[0] = '\0';
}

static inline void feed_step(struct feed *f, const struct hvi_event *ev)
{
    char line[2048];

    cr_assert_eq(hvi_core_step(f->core, ev, f->now, &f->actions), HVD_OK);
    for (uint32_t i = 0; i < f->actions.count; i++) {
        const struct hvi_action *a = &f->actions.list[i];

        hvi_action_text(a, line, sizeof line);
        if (f->n + strlen(line) + 2 < sizeof f->trace)
            f->n +=
                (size_t)snprintf(f->trace + f->n, sizeof f->trace - f->n, "%s\n", line);
        if (a->kind == HVI_ACT_FINISH) {
            f->finished = true;
            f->status = a->status;
        }
    }
}

static inline struct feed *feed_new(const struct hvi_core_config *config)
{
    struct feed *f = calloc(1, sizeof *f);
    struct hvi_core_config cfg = *config;

    if (cfg.version == NULL)
        cfg.version = "0.1.0";
    f->core = hvi_core_new(&cfg);
    cr_assert_not_null(f->core);
    f->now = 1000;
    return f;
}

static inline void feed_free(struct feed *f)
{
    hvi_core_free(f->core);
    hvi_actions_fini(&f->actions);
    free(f);
}

/* ---- events */

static inline void feed_opened(struct feed *f, uint64_t conn, bool agent)
{
    uint8_t entropy[HVI_EPOCH_KEY_BYTES];
    struct hvi_event ev = {
        .kind = HVI_EV_OPENED, .conn = conn, .agent = agent, .entropy = entropy};

    memset(entropy, (int)conn, sizeof entropy);
    feed_step(f, &ev);
}

/** Encodes and decodes on the way, as the network does. */
static inline void feed_msg(struct feed *f, uint64_t conn, uint32_t type,
                            const void *body)
{
    struct hvi_event ev = {.kind = HVI_EV_MESSAGE, .conn = conn};
    struct hvi_buf buf = {0};
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    struct hvi_msg msg;
    uint32_t got;

    cr_assert_eq(hvi_msg_put(&buf, type, body), HVD_OK);
    cr_assert_eq(hvi_frame_peek(hvi_buf_peek(&buf), hvi_buf_size(&buf), &got, &payload,
                                &payload_bytes, &frame_bytes, NULL),
                 HVD_OK);
    cr_assert_eq(hvi_msg_get(got, payload, payload_bytes, &msg, NULL), HVD_OK);
    ev.msg = &msg;
    feed_step(f, &ev);
    if (msg.body != NULL)
        hvi_msg_free(&msg);
    hvi_buf_fini(&buf);
}

static inline void feed_ready(struct feed *f, uint64_t conn, uint32_t epoch,
                              uint32_t id, uint32_t generation)
{
    struct hvi_ready_id one = {id, generation};
    struct hvi_event ev = {
        .kind = HVI_EV_READY, .conn = conn, .epoch = epoch, .ids = &one, .nids = 1};

    feed_step(f, &ev);
}

static inline void feed_closed(struct feed *f, uint64_t conn)
{
    struct hvi_event ev = {.kind = HVI_EV_CLOSED, .conn = conn};

    feed_step(f, &ev);
}

static inline void feed_stop(struct feed *f, const char *cause)
{
    struct hvi_event ev = {.kind = HVI_EV_STOP, .text = cause};

    feed_step(f, &ev);
}

/** Time passes; the core gets a tick whenever it asked for one. */
static inline void feed_wait(struct feed *f, int64_t ms)
{
    int64_t until = f->now + ms;
    struct hvi_event ev = {.kind = HVI_EV_TICK};

    while (f->actions.deadline_ms >= 0 && f->actions.deadline_ms <= until) {
        int64_t before = f->actions.deadline_ms;

        if (f->actions.deadline_ms > f->now)
            f->now = f->actions.deadline_ms;
        feed_step(f, &ev);
        cr_assert(f->actions.deadline_ms != before || f->actions.deadline_ms > f->now,
                  "the core asks for a tick at the time that it just had one");
    }
    f->now = until;
}

/* ---- what a worker says */

struct feed_hello {
    int want;
    const char *host, *version, *host_id;
    uint32_t plane;
    const int32_t *ranks; /* sub-job */
    size_t nranks;
    const int32_t *set; /* one static process set */
    size_t nset;
    int pid;
};

static inline void feed_hello(struct feed *f, uint64_t conn, const struct feed_hello *h)
{
    Hvi__Hello m = HVI__HELLO__INIT;
    Hvi__PsetDef set = HVI__PSET_DEF__INIT, *sets = &set;

    m.version = (char *)(uintptr_t)(h->version != NULL ? h->version : "0.1.0");
    m.want_rank = h->want;
    m.host = (char *)(uintptr_t)(h->host != NULL ? h->host : "a");
    m.host_id = (char *)(uintptr_t)(h->host_id != NULL ? h->host_id : "memory");
    m.pid = h->pid != 0 ? h->pid : 100 + h->want;
    m.cpu_plane = h->plane;
    m.ranks = (int32_t *)(uintptr_t)h->ranks;
    m.n_ranks = h->nranks;
    if (h->nset > 0) {
        set.ranks = (int32_t *)(uintptr_t)h->set;
        set.n_ranks = h->nset;
        m.psets = &sets;
        m.n_psets = 1;
    }
    feed_opened(f, conn, false);
    feed_msg(f, conn, HVI_MSG_HELLO, &m);
}

static inline void feed_formed(struct feed *f, uint64_t conn, uint32_t epoch,
                               uint32_t attempt, int status, const char *text)
{
    Hvi__Formed m = HVI__FORMED__INIT;

    m.epoch = epoch;
    m.attempt = attempt;
    m.status = status;
    m.text = (char *)(uintptr_t)text;
    feed_msg(f, conn, HVI_MSG_FORMED, &m);
}

/** HELLO to GO of np ranks on connections first .. first + np - 1; forgets the trace. */
static inline void feed_form(struct feed *f, uint64_t first, int np, uint32_t epoch,
                             uint32_t plane)
{
    for (int r = 0; r < np; r++)
        feed_hello(f, first + (uint64_t)r,
                   &(struct feed_hello){.want = r, .plane = plane});
    for (int r = 0; r < np; r++)
        feed_formed(f, first + (uint64_t)r, epoch, 1, 0, "");
    cr_assert_not_null(strstr(f->trace, " GO\n"), "not formed: %s", f->trace);
    feed_forget(f);
}

/** The same on hosts h0, h1, ... of two ranks each: plane hosts. */
static inline struct feed *feed_up_hosts(int np, uint32_t stall_warn_ms)
{
    struct feed *f = feed_new(&(struct hvi_core_config){
        .np = (uint32_t)np, .linger_ms = -1, .stall_warn_ms = stall_warn_ms});

    for (int r = 0; r < np; r++) {
        char host[16];

        snprintf(host, sizeof host, "h%d", r / 2);
        feed_hello(f, 1 + (uint64_t)r,
                   &(struct feed_hello){.want = r, .host = host, .host_id = host});
    }
    for (int r = 0; r < np; r++)
        feed_formed(f, 1 + (uint64_t)r, 1, 1, 0, "");
    cr_assert_not_null(strstr(f->trace, "plane=3"), "not hosts: %s", f->trace);
    feed_forget(f);
    return f;
}

static inline struct feed *feed_up(int np, uint32_t plane)
{
    struct feed *f =
        feed_new(&(struct hvi_core_config){.np = (uint32_t)np, .linger_ms = -1});

    feed_form(f, 1, np, 1, plane);
    return f;
}

struct feed_op {
    const char *name;
    uint32_t kind; /* 0: allreduce */
    uint32_t dtype, reduce_op, pset;
    int64_t count;
    int32_t root, priority;
    uint32_t ntensors; /* 0: 1; more: a group */
    double prescale;
};

static inline void feed_announce(struct feed *f, uint64_t conn, uint32_t epoch,
                                 const struct feed_op *op)
{
    Hvi__Announce m = HVI__ANNOUNCE__INIT;
    Hvi__Request r = HVI__REQUEST__INIT, *list = &r;
    Hvi__Tensor t = HVI__TENSOR__INIT, *tensors[16];
    int64_t count = op->count != 0 ? op->count : 4;

    t.dtype = op->dtype != 0 ? op->dtype : HVD_FLOAT32;
    t.n_dims = 1;
    t.dims = &count;
    r.name = (char *)(uintptr_t)op->name;
    r.kind = op->kind != 0 ? op->kind : HVD_ALLREDUCE;
    r.reduce_op = op->reduce_op != 0 ? op->reduce_op : HVD_SUM;
    r.pset = op->pset;
    r.root = op->root;
    r.priority = op->priority;
    r.prescale = op->prescale;
    r.grouped = op->ntensors > 1;
    r.n_tensors = op->ntensors > 0 ? op->ntensors : 1;
    for (size_t i = 0; i < r.n_tensors; i++)
        tensors[i] = &t;
    r.tensors = tensors;
    m.epoch = epoch;
    m.n_requests = 1;
    m.requests = &list;
    feed_msg(f, conn, HVI_MSG_ANNOUNCE, &m);
}

/** By connections 1 .. np. */
static inline void feed_announce_all(struct feed *f, int np, const struct feed_op *op)
{
    for (int r = 0; r < np; r++)
        feed_announce(f, 1 + (uint64_t)r, 1, op);
}

static inline void feed_bye(struct feed *f, uint64_t conn, uint32_t epoch)
{
    Hvi__Bye m = HVI__BYE__INIT;

    m.epoch = epoch;
    feed_msg(f, conn, HVI_MSG_BYE, &m);
}

/** FINAL came: a clean end. */
static inline void feed_final(struct feed *f, uint64_t conn)
{
    struct hvi_event ev = {.kind = HVI_EV_CLOSED, .conn = conn, .clean = true};

    feed_step(f, &ev);
}

static inline void feed_leave(struct feed *f, uint64_t conn, uint32_t epoch)
{
    feed_bye(f, conn, epoch);
    feed_final(f, conn);
}

static inline void feed_join_as(struct feed *f, uint64_t conn, uint32_t epoch,
                                bool pending)
{
    Hvi__Join m = HVI__JOIN__INIT;

    m.epoch = epoch;
    m.pending = pending;
    feed_msg(f, conn, HVI_MSG_JOIN, &m);
}

static inline void feed_join(struct feed *f, uint64_t conn, uint32_t epoch)
{
    feed_join_as(f, conn, epoch, false);
}

static inline void feed_pset_add(struct feed *f, uint64_t conn, size_t n,
                                 const int32_t *ranks)
{
    Hvi__PsetAdd m = HVI__PSET_ADD__INIT;

    m.epoch = 1;
    m.ranks = (int32_t *)(uintptr_t)ranks;
    m.n_ranks = n;
    feed_msg(f, conn, HVI_MSG_PSET_ADD, &m);
}

static inline void feed_pset_remove(struct feed *f, uint64_t conn, uint32_t id)
{
    Hvi__PsetRemove m = HVI__PSET_REMOVE__INIT;

    m.epoch = 1;
    m.pset = id;
    feed_msg(f, conn, HVI_MSG_PSET_REMOVE, &m);
}

/* nmissing FEED_ORDERED: it has its place in the order. */
#define FEED_ORDERED SIZE_MAX
static inline void feed_stalled_in(struct feed *f, uint64_t conn, const char *name,
                                   uint32_t pset, uint64_t waited_ms, size_t nmissing,
                                   const int32_t *missing)
{
    Hvi__Stalled m = HVI__STALLED__INIT;

    m.epoch = 1;
    m.name = (char *)(uintptr_t)name;
    m.kind = HVD_ALLREDUCE;
    m.pset = pset;
    m.waited_ms = waited_ms;
    m.missing = (int32_t *)(uintptr_t)missing;
    m.ordered = nmissing == FEED_ORDERED;
    m.n_missing = m.ordered ? 0 : nmissing;
    feed_msg(f, conn, HVI_MSG_STALLED, &m);
}

static inline void feed_stalled(struct feed *f, uint64_t conn, const char *name,
                                uint64_t waited_ms, size_t nmissing,
                                const int32_t *missing)
{
    feed_stalled_in(f, conn, name, 0, waited_ms, nmissing, missing);
}

static inline void feed_probe_reply(struct feed *f, uint64_t conn, uint64_t probe,
                                    const char *doing)
{
    Hvi__ProbeReply m = HVI__PROBE_REPLY__INIT;

    m.epoch = 1;
    m.probe = probe;
    m.doing = (char *)(uintptr_t)doing;
    m.ordered = strncmp(doing, "runs", 4) == 0; /* tests only: a rank says "waits in" */
    m.waits = m.ordered || strncmp(doing, "waits in", 8) == 0;
    feed_msg(f, conn, HVI_MSG_PROBE_REPLY, &m);
}

/* ---- what an agent says */

static inline void feed_agent(struct feed *f, uint64_t conn, const char *host)
{
    Hvi__AgentHello m = HVI__AGENT_HELLO__INIT;

    m.version = (char *)"0.1.0";
    m.host = (char *)(uintptr_t)host;
    feed_opened(f, conn, true);
    feed_msg(f, conn, HVI_MSG_AGENT_HELLO, &m);
}

static inline void feed_started(struct feed *f, uint64_t conn, int rank)
{
    Hvi__RankStarted m = HVI__RANK_STARTED__INIT;

    m.rank = rank;
    m.pid = 100 + rank;
    feed_msg(f, conn, HVI_MSG_RANK_STARTED, &m);
}

static inline void feed_exited(struct feed *f, uint64_t conn, int rank, int wait_status)
{
    Hvi__RankExited m = HVI__RANK_EXITED__INIT;

    m.rank = rank;
    m.pid = 100 + rank;
    m.wait_status = wait_status;
    m.text = (char *)"";
    feed_msg(f, conn, HVI_MSG_RANK_EXITED, &m);
}

/* ---- looking */

static inline void feed_is_(struct feed *f, const char *file, int line,
                            const char *want)
{
    cr_assert_str_eq(f->trace, want, "%s:%d: the trace is\n%s\nand not\n%s", file, line,
                     f->trace, want);
    feed_forget(f);
}
/** The whole trace, then forgotten. */
#define feed_is(f, want) feed_is_(f, __FILE__, __LINE__, want)

static inline void feed_has_(struct feed *f, const char *file, int line,
                             const char *want)
{
    cr_assert_not_null(strstr(f->trace, want), "%s:%d: no \"%s\" in\n%s", file, line,
                       want, f->trace);
}
#define feed_has(f, want) feed_has_(f, __FILE__, __LINE__, want)

static inline void feed_lacks_(struct feed *f, const char *file, int line,
                               const char *what)
{
    cr_assert_null(strstr(f->trace, what), "%s:%d: \"%s\" is in\n%s", file, line, what,
                   f->trace);
}
#define feed_lacks(f, what) feed_lacks_(f, __FILE__, __LINE__, what)

#endif
