/*
 * A simulated cluster: the core, workers that follow PROTOCOL.md section 5, and a
 * network with a delay of its own for every message, ordered within a connection only,
 * under a fake clock. Workers submit the same operations in different orders, with
 * sizes that change and, where asked, mistakes; connections end at random times. Every
 * run is named by its seed; HVD_CLUSTER_SEED=n replays one.
 *
 * On plane hosts the ranks are on several hosts, each with a real host board; some
 * operations are of a process set that leaves ranks out. Every frame a rank may send
 * for its host waits a random time, so that all ways to overtake are taken.
 *
 * Promises: no run hangs, the coordinator never finds a worker in breach, all survivors
 * see the same order and the same errors, a loss is told to every survivor, and the job
 * forms again.
 */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/core.h"
#include "worker/board/board.h"

#define NP_MAX 6
#define NAMES 12
#define ROUNDS 6   /* submissions of every name */
#define CAPACITY 8 /* of the id cache: smaller than NAMES */
#define INFLIGHT (1 << 14)

#define DEFERRED 256

enum plane { PLANE_SHM = 1, PLANE_TCP = 2, PLANE_HOSTS = 3 };
enum state { ST_NONE, ST_ANNOUNCED, ST_PUBLISHED };

struct known {
    bool valid;
    int name;
    uint32_t generation;
    int64_t count;
    bool pending; /* our publication under it waits */
};

struct worker {
    uint64_t conn; /* 0: none */
    int rank;
    bool welcomed, up, closed, bye, acked;
    int round[NAMES]; /* next submission */
    enum state state[NAMES];
    int64_t count[NAMES]; /* of the submission in flight */
    struct known ids[CAPACITY];
    int64_t think_ms; /* acts at */
    int ndone, nfailed;
    uint64_t digest[2]; /* of order and errors, by process set */
    uint64_t failures;  /* of what failed, in whatever order */
    bool joined, join_done;
    size_t log_read;
    /* plane hosts */
    int host, local;
    bool claimed; /* has READY to send for its host */
    int64_t send_ms;
    struct hvi_board_group group; /* read, not yet run */
    bool have_group;
    struct frame {
        uint8_t *bytes;
        size_t size;
    } deferred[DEFERRED]; /* waits for the log */
    int ndeferred;
};

struct packet {
    int64_t at;
    uint64_t order;
    uint64_t conn;
    bool to_worker, eof;
    uint8_t *frame;
    size_t size;
};

/* The host board of plane shm: who has published an id in a generation; sealed groups. */
struct board {
    struct {
        uint32_t generation;
        bool has[NP_MAX];
    } ids[CAPACITY];
    struct {
        uint32_t id, generation;
    } log[NAMES * ROUNDS * 4];
    size_t nlog;
};

/* What happens in a run. */
struct what {
    bool mistakes, deaths, join;
    bool sets; /* every third name is of process set 1: ranks 1, 2, 4, 5 */
    bool stops;
};

struct cluster {
    unsigned long seed;
    uint64_t rng;
    struct hvi_core *core;
    struct hvi_actions actions;
    int64_t now;
    int np;
    enum plane plane;
    uint32_t epoch;
    struct what what;
    struct worker w[NP_MAX];
    struct packet net[INFLIGHT];
    int npackets;
    uint64_t next_order, next_conn;
    int64_t last_at[2][256]; /* by connection: packets keep their order */
    struct board board;
    int nhosts;
    int first[NP_MAX + 1]; /* ranks of host h: first[h] .. first[h + 1] - 1 */
    struct hvi_board *boards[NP_MAX];
    uint32_t join_generation;
    uint64_t nready, norder; /* frames */
    int nlost, killed_rank;
    int64_t kill_at;
    int stopped; /* this rank neither hears nor does anything, -1: none */
    int64_t stop_at, go_on_at;
};

static int seen_losses, seen_failures, seen_evictions; /* over all runs of a test */
static int seen_deferred, seen_early_byes, seen_stops, seen_twice;

static uint64_t rnd(struct cluster *k, uint64_t n)
{
    k->rng ^= k->rng << 13;
    k->rng ^= k->rng >> 7;
    k->rng ^= k->rng << 17;
    return k->rng % n;
}

/* ---- the network */

static void put_packet(struct cluster *k, uint64_t conn, bool to_worker, bool eof,
                       const void *frame, size_t size)
{
    struct packet *p = &k->net[k->npackets++];
    int64_t *last = &k->last_at[to_worker][conn % 256];

    cr_assert_lt(k->npackets, INFLIGHT, "seed %lu: too much in flight", k->seed);
    p->at = k->now + 1 + (int64_t)rnd(k, rnd(k, 8) == 0 ? 60 : 5);
    if (p->at < *last)
        p->at = *last;
    *last = p->at;
    p->order = k->next_order++;
    p->conn = conn;
    p->to_worker = to_worker;
    p->eof = eof;
    p->frame = malloc(size + 1);
    p->size = size;
    if (size > 0)
        memcpy(p->frame, frame, size);
}

static void say(struct cluster *k, struct worker *w, uint32_t type, const void *body)
{
    struct hvi_buf buf = {0};

    cr_assert_eq(hvi_msg_put(&buf, type, body), HVD_OK);
    put_packet(k, w->conn, false, false, hvi_buf_peek(&buf), hvi_buf_size(&buf));
    hvi_buf_fini(&buf);
}

static bool is_open(const struct cluster *k, uint64_t conn)
{
    for (int i = 0; i < k->np; i++)
        if (k->w[i].conn == conn)
            return true;
    return false;
}

static void step(struct cluster *k, const struct hvi_event *ev)
{
    char line[1024];

    cr_assert_eq(hvi_core_step(k->core, ev, k->now, &k->actions), HVD_OK);
    for (uint32_t i = 0; i < k->actions.count; i++) {
        const struct hvi_action *a = &k->actions.list[i];

        hvi_action_text(a, line, sizeof line);
        cr_assert_null(strstr(line, "protocol error"), "seed %lu: %s", k->seed, line);
        if (a->kind == HVI_ACT_SEND && is_open(k, a->conn)) {
            struct hvi_buf buf = {0};

            cr_assert_eq(hvi_out_flatten(a->frame, &buf), HVD_OK);
            put_packet(k, a->conn, true, false, hvi_buf_peek(&buf), hvi_buf_size(&buf));
            hvi_buf_fini(&buf);
        }
        k->nlost += a->kind == HVI_ACT_NOTE && a->note == HVI_NOTE_LOST;
        seen_losses += a->kind == HVI_ACT_NOTE && a->note == HVI_NOTE_LOST;
        seen_failures += strstr(line, " FAIL ") != NULL;
        seen_evictions += strstr(line, " EVICT ") != NULL;
    }
}

/* ---- a worker */

/* The same on every rank; changes from time to time. */
static int64_t good_count(int name, int round)
{
    return 4 + (name * 7 + round / 3 * 5) % 11;
}

static bool is_mistake(const struct cluster *k, int name, int round)
{
    return k->what.mistakes && (name * 31 + round * 17 + (int)(k->seed % 97)) % 13 == 0;
}

static int set_of(const struct cluster *k, int name)
{
    return k->what.sets && name % 3 == 0;
}

static bool in_set(int set, int rank)
{
    return set == 0 || rank % 3 != 0;
}

static void mix(struct worker *w, int set, uint64_t v)
{
    w->digest[set] = (w->digest[set] ^ v) * 0x100000001b3u;
}

static void name_text(int name, char out[16])
{
    snprintf(out, 16, "n%d", name);
}

static void announce(struct cluster *k, struct worker *w, int name)
{
    Hvi__Announce m = HVI__ANNOUNCE__INIT;
    Hvi__Request r = HVI__REQUEST__INIT, *list = &r;
    Hvi__Tensor t = HVI__TENSOR__INIT, *tensors = &t;
    char text[16];

    name_text(name, text);
    t.dtype = HVD_FLOAT32;
    t.n_dims = 1;
    t.dims = &w->count[name];
    r.name = text;
    r.pset = (uint32_t)set_of(k, name);
    r.kind = HVD_ALLREDUCE;
    r.reduce_op = HVD_SUM;
    r.n_tensors = 1;
    r.tensors = &tensors;
    m.epoch = k->epoch;
    m.n_requests = 1;
    m.requests = &list;
    w->state[name] = ST_ANNOUNCED;
    say(k, w, HVI_MSG_ANNOUNCE, &m);
}

static void board_seal(struct cluster *k, uint32_t id)
{
    for (int i = 0; i < k->np; i++)
        if (!k->board.ids[id].has[i] && !k->w[i].joined)
            return;
    k->board.log[k->board.nlog].id = id;
    k->board.log[k->board.nlog++].generation = k->board.ids[id].generation;
    memset(k->board.ids[id].has, 0, sizeof k->board.ids[id].has);
}

/* What is complete on this host is sent by whoever finds it, some time later. */
static void poll_board(struct cluster *k, struct worker *w)
{
    struct hvi_board_mask wake;

    if (hvi_board_poll(k->boards[w->host], &wake)) {
        w->claimed = true;
        w->send_ms = k->now + (int64_t)rnd(k, 4);
    }
}

static void send_ready(struct cluster *k, struct worker *w)
{
    struct hvi_board_ready ready[CAPACITY];
    struct hvi_ready_id ids[CAPACITY];
    struct hvi_buf buf = {0};
    bool more;
    uint32_t n = hvi_board_take(k->boards[w->host], ready, CAPACITY, &more);

    cr_assert_not(more);
    w->claimed = false;
    for (uint32_t i = 0; i < n; i++) {
        ids[i].id = ready[i].id | (ready[i].joined ? HVI_READY_JOINED : 0);
        ids[i].generation = ready[i].generation;
    }
    if (n == 0)
        return;
    k->nready++;
    cr_assert_eq(hvi_ready_put(&buf, k->epoch, ids, n), HVD_OK);
    put_packet(k, w->conn, false, false, hvi_buf_peek(&buf), hvi_buf_size(&buf));
    hvi_buf_fini(&buf);
}

static void publish(struct cluster *k, struct worker *w, uint32_t id)
{
    struct known *e = &w->ids[id];

    w->state[e->name] = ST_PUBLISHED;
    e->pending = true;
    if (k->plane == PLANE_HOSTS) {
        hvi_board_publish(k->boards[w->host], w->local, id, e->generation);
        poll_board(k, w);
        return;
    }
    if (k->plane == PLANE_TCP) {
        struct hvi_ready_id one = {id, e->generation};
        struct hvi_buf buf = {0};

        k->nready++;
        cr_assert_eq(hvi_ready_put(&buf, k->epoch, &one, 1), HVD_OK);
        put_packet(k, w->conn, false, false, hvi_buf_peek(&buf), hvi_buf_size(&buf));
        hvi_buf_fini(&buf);
        return;
    }
    if (k->board.ids[id].generation < e->generation) {
        k->board.ids[id].generation = e->generation;
        memset(k->board.ids[id].has, 0, sizeof k->board.ids[id].has);
    }
    if (k->board.ids[id].generation == e->generation) {
        k->board.ids[id].has[w - k->w] = true;
        board_seal(k, id);
    }
}

static void submit(struct cluster *k, struct worker *w, int name)
{
    int me = (int)(w - k->w);
    int round = w->round[name]++;

    w->count[name] =
        good_count(name, round) +
        (is_mistake(k, name, round) && me == (name + round) % k->np ? 1 : 0);
    for (uint32_t id = 0; id < CAPACITY; id++)
        if (w->ids[id].valid && w->ids[id].name == name &&
            w->ids[id].count == w->count[name]) {
            publish(k, w, id);
            return;
        }
    announce(k, w, name);
}

static void complete(struct worker *w, int name, bool failed)
{
    w->state[name] = ST_NONE;
    w->ndone++;
    w->nfailed += failed;
}

/* One sealed id: ours, if we are in it. */
static void run_id(struct cluster *k, struct worker *w, uint32_t id)
{
    struct known *e = &w->ids[id];

    cr_assert(e->valid, "seed %lu: rank %d is ordered to run an unknown id %u", k->seed,
              w->rank, id);
    if (!in_set(set_of(k, e->name), w->rank))
        return;
    mix(w, set_of(k, e->name), (uint64_t)e->name * 1000 + (uint64_t)e->count);
    if (!e->pending) {
        cr_assert(w->joined, "seed %lu: rank %d runs n%d, which it has not submitted",
                  k->seed, w->rank, e->name);
        return;
    }
    e->pending = false;
    complete(w, e->name, false);
}

/* The log is read before an id changes its meaning. */
static void read_log(struct cluster *k, struct worker *w)
{
    const struct hvi_board_group *g = &w->group;

    for (;;) {
        if (!w->have_group && !hvi_board_read(k->boards[w->host], w->local, &w->group))
            return;
        w->have_group = true;
        for (uint32_t i = 0; i < g->nids; i++) {
            const struct known *e = &w->ids[g->ids[i].id];

            if (!e->valid || e->generation < g->ids[i].generation)
                return; /* its ASSIGN is still on its way */
            cr_assert_eq(e->generation, g->ids[i].generation,
                         "seed %lu: rank %d reads an id that has changed its meaning",
                         k->seed, w->rank);
        }
        mix(w, set_of(k, w->ids[g->ids[0].id].name), g->seq);
        for (uint32_t i = 0; i < g->nids; i++)
            run_id(k, w, g->ids[i].id);
        w->have_group = false;
    }
}

static void pump(struct cluster *k, struct worker *w)
{
    if (k->plane == PLANE_HOSTS)
        read_log(k, w);
    if (k->plane == PLANE_SHM)
        while (w->log_read < k->board.nlog)
            run_id(k, w, k->board.log[w->log_read++].id);
}

static void pump_all(struct cluster *k)
{
    for (int i = 0; i < k->np; i++)
        if (k->w[i].up && !k->w[i].closed && i != k->stopped)
            pump(k, &k->w[i]);
}

static int name_number(const char *text)
{
    return atoi(text + 1);
}

static void on_assign(struct cluster *k, struct worker *w, const Hvi__Assign *m)
{
    int name = name_number(m->request->name);
    struct known *e = &w->ids[m->id];

    cr_assert_lt(m->id, CAPACITY);
    cr_assert(!e->valid, "seed %lu: id %u is given again without EVICT", k->seed,
              m->id);
    e->valid = true;
    e->name = name;
    e->generation = m->generation;
    e->count = m->request->tensors[0]->dims[0];
    e->pending = false;
    if (k->plane == PLANE_HOSTS) {
        struct hvi_board_meta meta = {.bytes = 4, .kind = HVD_ALLREDUCE};

        for (int i = k->first[w->host]; i < k->first[w->host + 1]; i++)
            if (in_set(set_of(k, name), i))
                hvi_board_mask_set(&meta.members, i - k->first[w->host]);
        hvi_board_define(k->boards[w->host], m->id, m->generation, &meta);
    }
    if (w->state[name] != ST_ANNOUNCED)
        return;
    cr_assert_eq(w->count[name], e->count);
    if (k->plane == PLANE_SHM || (k->plane == PLANE_HOSTS && !m->ordered)) {
        publish(k, w, m->id);
    } else {
        w->state[name] = ST_PUBLISHED;
        e->pending = true;
    }
}

static void on_evict(struct cluster *k, struct worker *w, const Hvi__Evict *m)
{
    struct known *e = &w->ids[m->id];
    bool waiting;

    if (!e->valid || e->generation != m->generation)
        return;
    waiting = e->pending;
    if (k->plane == PLANE_HOSTS)
        hvi_board_evict(k->boards[w->host], w->local, m->id, m->generation);
    if (k->plane == PLANE_SHM && waiting &&
        k->board.ids[m->id].generation == m->generation)
        k->board.ids[m->id].has[w - k->w] = false;
    e->valid = e->pending = false;
    if (waiting)
        announce(k, w, e->name);
}

static void on_fail(struct cluster *k, struct worker *w, const Hvi__Fail *m)
{
    int name = name_number(m->name);

    cr_assert_eq(m->status, HVD_EMISMATCH, "seed %lu: %s", k->seed, m->text);
    cr_assert_eq(w->state[name], ST_ANNOUNCED);
    cr_assert(is_mistake(k, name, w->round[name] - 1), "seed %lu: n%d failed: %s",
              k->seed, name, m->text);
    for (const char *c = m->text; *c != '\0'; c++) {
        mix(w, set_of(k, name), (uint64_t)*c);
        w->failures += (uint64_t)*c * (uint64_t)(name * 100 + w->round[name]);
    }
    complete(w, name, true);
}

/* Real workers cancel what needs the rank and is not ordered. Leavers of this test have
 * done all of theirs, so nothing is left to cancel. */
static void on_peer_bye(struct cluster *k, struct worker *w, int rank)
{
    if (rank == w->rank) {
        w->acked = true;
        return;
    }
    for (int i = 0; i < NAMES; i++)
        if (k->plane != PLANE_SHM && w->state[i] != ST_NONE && !w->closed)
            cr_assert_not(in_set(set_of(k, i), rank),
                          "seed %lu: rank %d cancels n%d, which rank %d has run",
                          k->seed, w->rank, i, rank);
    if (!w->bye)
        seen_early_byes++;
}

static void on_welcome(struct cluster *k, struct worker *w, const Hvi__Welcome *m)
{
    Hvi__Formed formed = HVI__FORMED__INIT;

    k->epoch = m->epoch;
    w->rank = m->rank;
    w->welcomed = true;
    cr_assert_eq(m->plane, k->plane);
    formed.epoch = m->epoch;
    formed.attempt = m->attempt;
    formed.text = (char *)"";
    say(k, w, HVI_MSG_FORMED, &formed);
}

static void on_order(struct cluster *k, struct worker *w, const uint8_t *p, size_t n)
{
    struct hvi_order_group *g = NULL;
    uint32_t epoch, count;

    cr_assert_eq(hvi_order_get(p, n, &epoch, &g, &count, NULL), HVD_OK);
    k->norder++;
    for (uint32_t i = 0; i < count; i++) {
        struct hvi_board_mask wake = {{0}};

        if (k->plane == PLANE_HOSTS) {
            seen_twice += g[i].seq < hvi_board_ordered(k->boards[w->host]);
            cr_assert(hvi_board_order(k->boards[w->host], g[i].seq, false, g[i].ids,
                                      g[i].nids, &wake));
            continue;
        }
        if (g[i].nids > 0 && w->ids[g[i].ids[0]].valid &&
            in_set(set_of(k, w->ids[g[i].ids[0]].name), w->rank))
            mix(w, set_of(k, w->ids[g[i].ids[0]].name), g[i].seq);
        for (uint32_t j = 0; j < g[i].nids; j++)
            if (w->ids[g[i].ids[j]].valid || !k->what.sets)
                run_id(k, w, g[i].ids[j]);
    }
    free(g);
}

/* true: this frame, and what comes behind it, waits for the log. */
static bool must_wait(const struct cluster *k, const struct worker *w, uint32_t type,
                      const uint8_t *payload, size_t size)
{
    struct hvi_msg msg;
    uint64_t seq;

    if (type != HVI_MSG_MARK || w->closed)
        return false;
    cr_assert_eq(hvi_msg_get(type, payload, size, &msg, NULL), HVD_OK);
    seq = ((Hvi__Mark *)msg.body)->seq;
    hvi_msg_free(&msg);
    return hvi_board_ordered(k->boards[w->host]) < seq;
}

static void worker_takes(struct cluster *k, struct worker *w, uint32_t type,
                         const uint8_t *payload, size_t payload_bytes);

/* false: it waits. */
static bool worker_tries(struct cluster *k, struct worker *w, const uint8_t *bytes,
                         size_t size, bool again)
{
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    uint32_t type;

    cr_assert_eq(hvi_frame_peek(bytes, size, &type, &payload, &payload_bytes,
                                &frame_bytes, NULL),
                 HVD_OK);
    if (type != HVI_MSG_CLOSED &&
        ((w->ndeferred > 0 && !again) || must_wait(k, w, type, payload, payload_bytes)))
        return false;
    worker_takes(k, w, type, payload, payload_bytes);
    return true;
}

static void worker_catches_up(struct cluster *k, struct worker *w)
{
    while (w->ndeferred > 0 &&
           worker_tries(k, w, w->deferred[0].bytes, w->deferred[0].size, true)) {
        free(w->deferred[0].bytes);
        w->ndeferred--;
        memmove(w->deferred, w->deferred + 1,
                (size_t)w->ndeferred * sizeof *w->deferred);
    }
}

static void worker_hears(struct cluster *k, struct worker *w, const struct packet *p)
{
    struct frame *d = &w->deferred[w->ndeferred];

    if (worker_tries(k, w, p->frame, p->size, false))
        return;
    cr_assert_lt(w->ndeferred, DEFERRED - 1);
    seen_deferred++;
    d->bytes = malloc(p->size);
    memcpy(d->bytes, p->frame, p->size);
    d->size = p->size;
    w->ndeferred++;
}

static void worker_takes(struct cluster *k, struct worker *w, uint32_t type,
                         const uint8_t *payload, size_t payload_bytes)
{
    struct hvi_msg msg;

    if (w->closed && type != HVI_MSG_PEER_BYE)
        return;
    pump(k, w);
    if (type == HVI_MSG_ORDER) {
        on_order(k, w, payload, payload_bytes);
        return;
    }
    cr_assert_eq(hvi_msg_get(type, payload, payload_bytes, &msg, NULL), HVD_OK);
    switch (type) {
    case HVI_MSG_WELCOME:
        on_welcome(k, w, msg.body);
        break;
    case HVI_MSG_GO:
        w->up = true;
        w->think_ms = k->now;
        break;
    case HVI_MSG_ASSIGN:
        on_assign(k, w, msg.body);
        break;
    case HVI_MSG_EVICT:
        on_evict(k, w, msg.body);
        break;
    case HVI_MSG_FAIL:
        on_fail(k, w, msg.body);
        break;
    case HVI_MSG_JOIN_DONE:
        w->join_done = true;
        w->joined = false;
        if (k->plane == PLANE_HOSTS)
            hvi_board_join_done(k->boards[w->host],
                                ((Hvi__JoinDone *)msg.body)->generation);
        break;
    case HVI_MSG_PEER_BYE:
        on_peer_bye(k, w, ((Hvi__PeerBye *)msg.body)->rank);
        break;
    case HVI_MSG_MARK:
        break;
    case HVI_MSG_CLOSED:
        cr_assert_eq(((Hvi__Closed *)msg.body)->rank, k->killed_rank, "seed %lu: %s",
                     k->seed, ((Hvi__Closed *)msg.body)->cause);
        w->closed = true;
        break;
    default:
        cr_assert_fail("seed %lu: a worker got %s", k->seed, hvi_msg_name(type));
    }
    hvi_msg_free(&msg);
    if (k->plane == PLANE_HOSTS && w->up)
        poll_board(k, w); /* the board's lock was held */
    pump_all(k);
}

/* ---- what workers do by themselves */

static void say_bye(struct cluster *k, struct worker *w)
{
    Hvi__Bye bye = HVI__BYE__INIT;

    bye.epoch = k->epoch;
    w->bye = true;
    if (k->plane == PLANE_HOSTS) {
        hvi_board_leave(k->boards[w->host], w->local);
        poll_board(k, w);
    }
    say(k, w, HVI_MSG_BYE, &bye);
}

/* With the join test on, odd ranks have one round less to do, and join. */
static int rounds_of(const struct cluster *k, const struct worker *w)
{
    return k->what.join && (w - k->w) % 2 == 1 ? ROUNDS - 1 : ROUNDS;
}

/* Operations of the whole program of this rank. */
static int all_of(const struct cluster *k, const struct worker *w)
{
    int n = 0;

    for (int i = 0; i < NAMES; i++)
        n += in_set(set_of(k, i), w->rank);
    return n * rounds_of(k, w);
}

static void work(struct cluster *k, struct worker *w)
{
    int free_names[NAMES], n = 0;

    for (int i = 0; i < NAMES; i++)
        if (w->state[i] == ST_NONE && w->round[i] < rounds_of(k, w) &&
            in_set(set_of(k, i), w->rank))
            free_names[n++] = i;
    if (n > 0) {
        submit(k, w, free_names[rnd(k, (uint64_t)n)]);
    } else if (w->ndone == all_of(k, w)) {
        if (k->what.join && !w->joined && !w->join_done) {
            Hvi__Join join = HVI__JOIN__INIT;

            join.epoch = k->epoch;
            w->joined = true;
            say(k, w, HVI_MSG_JOIN, &join);
            if (k->plane == PLANE_HOSTS) {
                hvi_board_join(k->boards[w->host], w->local, 0);
                poll_board(k, w);
            }
            for (uint32_t id = 0; k->plane == PLANE_SHM && id < CAPACITY; id++)
                for (int i = 0; i < k->np; i++)
                    if (k->board.ids[id].has[i]) {
                        board_seal(k, id);
                        break;
                    }
        } else if (!k->what.join || w->join_done) {
            say_bye(k, w);
        }
    }
}

static void connect_worker(struct cluster *k, int i)
{
    struct worker *w = &k->w[i];
    uint8_t entropy[HVI_EPOCH_KEY_BYTES] = {1};
    struct hvi_event ev = {.kind = HVI_EV_OPENED, .entropy = entropy};
    Hvi__Hello m = HVI__HELLO__INIT;
    Hvi__PsetDef set = HVI__PSET_DEF__INIT, *sets = &set;
    int32_t ranks[NP_MAX];
    char host[16];

    for (int d = 0; d < w->ndeferred; d++)
        free(w->deferred[d].bytes);
    memset(w, 0, sizeof *w);
    for (int r = 0; r < k->np; r++)
        if (in_set(1, r))
            ranks[set.n_ranks++] = r;
    while (k->first[w->host + 1] <= i)
        w->host++;
    w->local = i - k->first[w->host];
    snprintf(host, sizeof host, "h%d", w->host);
    w->conn = ev.conn = ++k->next_conn;
    w->rank = -1;
    k->last_at[0][w->conn % 256] = k->last_at[1][w->conn % 256] = 0;
    step(k, &ev);
    m.version = (char *)"0.1.0";
    m.want_rank = i;
    m.host = (char *)"a";
    m.host_id = (char *)"memory";
    m.pid = 100 + i;
    m.cpu_plane = k->plane == PLANE_HOSTS ? 0 : k->plane;
    if (k->plane == PLANE_HOSTS)
        m.host = m.host_id = host;
    set.ranks = ranks;
    if (k->what.sets) {
        m.n_psets = 1;
        m.psets = &sets;
    }
    say(k, w, HVI_MSG_HELLO, &m);
}

static void kill_worker(struct cluster *k, int i)
{
    uint64_t conn = k->w[i].conn;

    k->killed_rank = i;
    k->w[i].conn = 0;
    k->w[i].closed = true; /* it runs nothing any more */
    k->w[i].up = false;
    put_packet(k, conn, false, true, NULL, 0);
    for (uint32_t id = 0; id < CAPACITY; id++)
        k->board.ids[id].has[i] = false;
}

/* ---- the loop */

static void coordinator_hears(struct cluster *k, const struct packet *p)
{
    struct hvi_event ev = {.conn = p->conn};
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    struct hvi_ready_id *ids = NULL;
    struct hvi_msg msg = {0};
    uint32_t type;

    if (p->eof) {
        ev.kind = HVI_EV_CLOSED;
        step(k, &ev);
        return;
    }
    cr_assert_eq(hvi_frame_peek(p->frame, p->size, &type, &payload, &payload_bytes,
                                &frame_bytes, NULL),
                 HVD_OK);
    if (type == HVI_MSG_READY) {
        cr_assert_eq(
            hvi_ready_get(payload, payload_bytes, &ev.epoch, &ids, &ev.nids, NULL),
            HVD_OK);
        ev.kind = HVI_EV_READY;
        ev.ids = ids;
    } else {
        cr_assert_eq(hvi_msg_get(type, payload, payload_bytes, &msg, NULL), HVD_OK);
        ev.kind = HVI_EV_MESSAGE;
        ev.msg = &msg;
    }
    step(k, &ev);
    if (msg.body != NULL)
        hvi_msg_free(&msg);
    free(ids);
}

static int next_packet(const struct cluster *k)
{
    int best = -1;

    for (int i = 0; i < k->npackets; i++)
        if (best < 0 || k->net[i].at < k->net[best].at ||
            (k->net[i].at == k->net[best].at && k->net[i].order < k->net[best].order))
            best = i;
    return best;
}

static void deliver(struct cluster *k, int i)
{
    struct packet p = k->net[i];

    if (p.to_worker && k->stopped >= 0 && k->now < k->go_on_at &&
        k->w[k->stopped].conn == p.conn) {
        k->net[i].at = k->go_on_at;
        return;
    }
    k->net[i] = k->net[--k->npackets];
    if (!p.to_worker)
        coordinator_hears(k, &p);
    for (int r = 0; p.to_worker && r < k->np; r++)
        if (k->w[r].conn == p.conn)
            worker_hears(k, &k->w[r], &p);
    free(p.frame);
}

static bool all_over(const struct cluster *k)
{
    for (int i = 0; i < k->np; i++)
        if (k->w[i].conn != 0 && !k->w[i].acked)
            return false;
    return true;
}

/* One rank after the other is stopped for a while, the forwarder of a host as well. */
static void stop_some(struct cluster *k)
{
    if (k->stopped >= 0 && k->now >= k->go_on_at) {
        k->stopped = -1;
        k->stop_at = k->now + 1 + (int64_t)rnd(k, 100);
    }
    if (!k->what.stops || k->stopped >= 0 || k->now < k->stop_at)
        return;
    k->stopped = (int)rnd(k, (uint64_t)k->np);
    seen_stops++;
    k->go_on_at = k->now + 1 + (int64_t)rnd(k, 200);
}

static void act(struct cluster *k)
{
    stop_some(k);
    for (int i = 0; i < k->np; i++) {
        struct worker *w = &k->w[i];

        if (i == k->stopped)
            continue;
        if (w->conn != 0 && w->claimed && k->now >= w->send_ms && !w->closed)
            send_ready(k, w);
        if (w->conn != 0)
            worker_catches_up(k, w);
        if (w->conn == 0 || w->bye || k->now < w->think_ms)
            continue;
        if (w->closed) {
            say_bye(k, w);
        } else if (w->up) {
            work(k, w);
            w->think_ms = k->now + (int64_t)rnd(k, 4);
        }
    }
    pump_all(k);
    if (k->kill_at >= 0 && k->now >= k->kill_at) {
        int i = (int)rnd(k, (uint64_t)k->np);

        k->kill_at = -1;
        /* before WELCOME the others would just wait for it: the start timeout's
         * business */
        if (k->w[i].welcomed && !k->w[i].bye)
            kill_worker(k, i);
    }
}

static void new_boards(struct cluster *k)
{
    for (int h = 0; h < k->nhosts && k->plane == PLANE_HOSTS; h++) {
        int n = k->first[h + 1] - k->first[h];
        size_t size = (hvi_board_size(n) + 63) / 64 * 64;

        free(k->boards[h]);
        k->boards[h] = aligned_alloc(64, size);
        memset(k->boards[h], 0, size);
        hvi_board_format(k->boards[h], n, 1 << 20);
        hvi_board_set_forwarding(k->boards[h]);
    }
}

/* Until every worker that lives has left the epoch. */
static void run_epoch(struct cluster *k)
{
    struct hvi_event tick = {.kind = HVI_EV_TICK};
    int64_t give_up = k->now + 60000;

    new_boards(k);
    memset(&k->board, 0, sizeof k->board);
    k->killed_rank = -2;
    k->stopped = -1;
    k->kill_at = k->what.deaths ? k->now + 1 + (int64_t)rnd(k, 400) : -1;
    for (int i = 0; i < k->np; i++)
        connect_worker(k, i);
    while (!all_over(k)) {
        int i = next_packet(k);

        cr_assert_lt(k->now, give_up, "seed %lu: it hangs (plane %d, np %d)", k->seed,
                     (int)k->plane, k->np);
        if (i >= 0 && k->net[i].at <= k->now) {
            deliver(k, i);
            continue;
        }
        if (k->actions.deadline_ms >= 0 && k->actions.deadline_ms <= k->now) {
            step(k, &tick);
            continue;
        }
        act(k);
        k->now++;
    }
}

static void check_epoch(const struct cluster *k)
{
    const struct worker *first = NULL;

    for (int i = 0; i < k->np; i++) {
        const struct worker *w = &k->w[i];

        if (k->killed_rank >= 0) {
            cr_assert(w->conn == 0 || w->closed,
                      "seed %lu: rank %d did not hear of the loss", k->seed, i);
            continue;
        }
        cr_assert_eq(w->ndone, all_of(k, w), "seed %lu: rank %d", k->seed, i);
        if (first == NULL)
            first = w;
        if (!k->what.sets)
            cr_assert_eq(w->nfailed, first->nfailed);
        if (k->plane != PLANE_SHM && !k->what.mistakes)
            cr_assert_eq(w->digest[0], first->digest[0],
                         "seed %lu: rank %d saw another order", k->seed, i);
        if (k->plane != PLANE_SHM && !k->what.mistakes && i > 1 && in_set(1, i))
            cr_assert_eq(w->digest[1], k->w[1].digest[1],
                         "seed %lu: rank %d saw another order in set 1", k->seed, i);
    }
    cr_assert_eq(k->nlost, k->killed_rank >= 0 ? 1 : 0);
}

static void end_connections(struct cluster *k)
{
    for (int i = 0; i < k->np; i++)
        if (k->w[i].conn != 0) {
            struct hvi_event ev = {
                .kind = HVI_EV_CLOSED, .conn = k->w[i].conn, .clean = true};

            k->w[i].conn = 0;
            step(k, &ev);
        }
    while (k->npackets > 0) {
        int i = next_packet(k);

        if (k->net[i].at > k->now)
            k->now = k->net[i].at;
        deliver(k, i);
    }
}

/* Hosts of 1 to 3 ranks: at least two, and one of several ranks. */
static void make_hosts(struct cluster *k)
{
    do {
        k->nhosts = 0;
        for (int i = 0; i < k->np; k->nhosts++) {
            k->first[k->nhosts] = i;
            i += 1 + (int)rnd(k, 3);
        }
        k->first[k->nhosts] = k->np;
    } while (k->nhosts < 2 || k->nhosts == k->np);
}

/* Returns a digest of what failed. */
static uint64_t run_on(unsigned long seed, enum plane plane, struct what what)
{
    static struct cluster k;
    uint64_t failures = 0;
    struct hvi_core_config cfg = {
        .version = "0.1.0", .cache_capacity = CAPACITY, .linger_ms = -1};

    memset(&k, 0, sizeof k);
    k.seed = seed;
    k.rng = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        rnd(&k, 2);
    k.np = 3 + (int)rnd(&k, NP_MAX - 2);
    make_hosts(&k);
    k.plane = plane;
    k.what = what;
    k.now = 1;
    cfg.np = (uint32_t)k.np;
    k.core = hvi_core_new(&cfg);
    cr_assert_not_null(k.core);
    for (int epoch = 0; epoch < 3; epoch++) {
        k.nlost = 0;
        run_epoch(&k);
        check_epoch(&k);
        for (int i = 0; i < k.np; i++)
            failures += k.w[i].failures;
        end_connections(&k);
    }
    hvi_core_free(k.core);
    hvi_actions_fini(&k.actions);
    for (int i = 0; i < k.np; i++) {
        for (int d = 0; d < k.w[i].ndeferred; d++)
            free(k.w[i].deferred[d].bytes);
        free(k.boards[i]);
    }
    return failures;
}

static void run(unsigned long seed, enum plane plane, bool mistakes, bool deaths,
                bool join)
{
    run_on(seed, plane,
           (struct what){.mistakes = mistakes, .deaths = deaths, .join = join});
}

static void run_seeds(int n, enum plane plane, bool mistakes, bool deaths, bool join)
{
    const char *one = getenv("HVD_CLUSTER_SEED");

    if (one != NULL) {
        run(strtoul(one, NULL, 10), plane, mistakes, deaths, join);
        return;
    }
    cr_log_info("seeds 1 to %d", n);
    for (int i = 1; i <= n; i++)
        run((unsigned long)i, plane, mistakes, deaths, join);
    cr_assert_gt(seen_evictions, n);
    cr_assert(!mistakes || seen_failures > n);
    cr_assert(!deaths || seen_losses > n);
}

Test(cluster, tcp_all_ranks_see_one_order, .timeout = 60)
{
    run_seeds(60, PLANE_TCP, false, false, false);
}

Test(cluster, tcp_mistakes_fail_on_all_and_nothing_hangs, .timeout = 60)
{
    run_seeds(60, PLANE_TCP, true, false, false);
}

Test(cluster, tcp_a_death_is_told_and_the_job_forms_again, .timeout = 60)
{
    run_seeds(60, PLANE_TCP, true, true, false);
}

Test(cluster, tcp_ranks_may_join_early, .timeout = 60)
{
    run_seeds(60, PLANE_TCP, false, false, true);
}

Test(cluster, shm_everything_is_run_by_all, .timeout = 60)
{
    run_seeds(60, PLANE_SHM, false, false, false);
}

Test(cluster, shm_mistakes_fail_on_all_and_nothing_hangs, .timeout = 60)
{
    run_seeds(60, PLANE_SHM, true, false, false);
}

Test(cluster, shm_a_death_is_told_and_the_job_forms_again, .timeout = 60)
{
    run_seeds(60, PLANE_SHM, true, true, false);
}

Test(cluster, hosts_all_ranks_see_one_order, .timeout = 60)
{
    run_seeds(60, PLANE_HOSTS, false, false, false);
    cr_assert_gt(seen_deferred, 60, "messages must have overtaken the order");
}

Test(cluster, hosts_mistakes_fail_on_all_and_nothing_hangs, .timeout = 60)
{
    run_seeds(60, PLANE_HOSTS, true, false, false);
}

Test(cluster, hosts_a_death_is_told_and_the_job_forms_again, .timeout = 60)
{
    run_seeds(60, PLANE_HOSTS, true, true, false);
}

Test(cluster, hosts_ranks_may_join_early, .timeout = 60)
{
    run_seeds(60, PLANE_HOSTS, false, false, true);
}

Test(cluster, hosts_ranks_leave_while_process_sets_go_on, .timeout = 60)
{
    for (unsigned long i = 1; i <= 60; i++)
        run_on(
            i, PLANE_HOSTS,
            (struct what){.mistakes = i % 2 == 0, .deaths = i % 3 == 0, .sets = true});
    cr_assert_gt(seen_early_byes, 60);
    cr_assert_gt(seen_twice, 60, "two forwarders must have brought the same groups");
}

Test(cluster, hosts_what_fails_is_what_fails_without_them, .timeout = 60)
{
    for (unsigned long i = 1; i <= 30; i++) {
        struct what what = {.mistakes = true, .sets = i % 2 == 0, .stops = i % 3 == 0};

        cr_assert_eq(run_on(i, PLANE_HOSTS, what), run_on(i, PLANE_TCP, what),
                     "seed %lu", i);
    }
}

Test(cluster, hosts_a_rank_that_is_stopped_delays_only, .timeout = 60)
{
    for (unsigned long i = 1; i <= 60; i++)
        run_on(i, PLANE_HOSTS,
               (struct what){.mistakes = i % 2 == 0,
                             .deaths = i % 3 == 0,
                             .join = i % 6 == 1,
                             .sets = i % 5 < 2,
                             .stops = true});
    cr_assert_gt(seen_stops, 600);
}

Test(cluster, hosts_ranks_join_while_process_sets_go_on, .timeout = 60)
{
    for (unsigned long i = 1; i <= 60; i++)
        run_on(i, PLANE_HOSTS,
               (struct what){.deaths = i % 3 == 0, .join = true, .sets = true});
}
