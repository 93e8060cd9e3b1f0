/* Two ranks of a host as threads of this process, over one board: a rank that publishes
 * while it has a group to read owes the board a poll, and whoever reads for it pays: a
 * thread that waits, the engine thread, or the one with a message of the coordinator
 * (here the test's own; the rest is libhvd's). */
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/msg/frame.h"
#include "worker/core/ctx.h"

enum {
    RANKS = 2,
    OWED = 8,                /* operations of a round, behind the first */
    LATE = 8,                /* more of them, in a round where all happens at once */
    NAMES = 1 + OWED + LATE, /* each with an id of its own */
    ROUNDS = 80,
    LIMIT_MS = 20000
};

_Static_assert(NAMES *(ROUNDS + 1) <= HVI_BOARD_MAX_IDS, "ids are not used again");

/* What happens once the owing ranks may read. */
enum round {
    WAITER,  /* the threads that submitted wait, and read themselves */
    ENGINE,  /* nobody waits: the engine threads do all */
    AT_ONCE, /* both, while more is submitted and ids come from the coordinator */
    ONE, /* the same, but only one rank owes: the other's threads run all the time */
    KINDS
};

struct rank {
    struct job *job;
    struct hvi_ctx *c;
    int me;
    float x[NAMES];
    hvd_handle handle[NAMES];
};

struct job {
    struct hvi_segment segment;
    struct rank ranks[RANKS];
    _Atomic int met;    /* meet */
    _Atomic int failed; /* 0, then 1 while the text is written, then 2 */
    char text[500];
};

/* ---- saying what went wrong, from any thread */

__attribute__((format(printf, 2, 3))) static bool fail(struct rank *r, const char *fmt,
                                                       ...)
{
    struct job *j = r->job;
    int none = 0;
    va_list ap;

    if (atomic_compare_exchange_strong(&j->failed, &none, 1)) {
        int at = snprintf(j->text, sizeof j->text, "rank %d: ", r->me);

        va_start(ap, fmt);
        vsnprintf(j->text + at, sizeof j->text - (size_t)at, fmt, ap);
        va_end(ap);
        atomic_store(&j->failed, 2);
    }
    return false;
}

static bool owes(struct rank *r)
{
    bool owed;

    pthread_mutex_lock(&r->c->lock);
    owed = r->c->poll_owed;
    pthread_mutex_unlock(&r->c->lock);
    return owed;
}

/* false: another thread has failed, or ready(r) does not come. */
static bool until(struct rank *r, bool (*ready)(struct rank *r), const char *what,
                  int round)
{
    int64_t deadline_ms = hvi_now_ms() + LIMIT_MS;

    while (!ready(r)) {
        if (atomic_load(&r->job->failed) != 0)
            return false;
        if (hvi_ms_left(deadline_ms) == 0)
            return fail(r, "round %d: %s has not come in %d ms", round, what, LIMIT_MS);
        sched_yield();
    }
    return true;
}

/* All four threads of the ranks come here. */
static bool meet(struct rank *r, const char *where, int round)
{
    int64_t deadline_ms = hvi_now_ms() + 2 * LIMIT_MS;
    int parties = 2 * RANKS;
    int all = (atomic_fetch_add(&r->job->met, 1) / parties + 1) * parties;

    while (atomic_load(&r->job->met) < all) {
        if (atomic_load(&r->job->failed) != 0)
            return false;
        if (hvi_ms_left(deadline_ms) == 0)
            return fail(r, "round %d: not all threads came to the %s", round, where);
        sched_yield();
    }
    return true;
}

/* ---- two memberships without a coordinator */

static void form(struct job *j, struct rank *r)
{
    static const int32_t all[RANKS] = {0, 1};
    struct hvi_err err = {{0}};
    struct hvi_ctx *c = hvi_ctx_new();

    cr_assert_not_null(c);
    r->job = j;
    r->c = c;
    r->me = (int)(r - j->ranks);
    c->mode = HVI_MODE_SHM;
    c->epoch = 1;
    c->rank = c->local_rank = c->bell = r->me;
    c->size = c->local_size = c->host_count = RANKS;
    c->cross_size = 1;
    c->bells = j->segment.bells;
    c->board = hvi_board_attach(j->segment.board, RANKS);
    cr_assert_not_null(c->board);
    cr_assert_eq(hvi_pset_insert(c, 0, all, RANKS), HVD_OK);
    cr_assert_eq(
        hvi_shm_attach(j->segment.plane, c->bells, r->me, RANKS, all, &c->plane, &err),
        HVD_OK, "%s", err.text);
    hvi_spin_init(&c->x.spin, RANKS);
}

static void up(struct job *j, bool engines)
{
    struct hvi_err err = {{0}};
    int fd = -1;

    memset(j, 0, sizeof *j);
    cr_assert_eq(hvi_segment_create(&j->segment, RANKS, false, 64 << 20, &fd, &err),
                 HVD_OK, "%s", err.text);
    close(fd);
    for (int i = 0; i < RANKS; i++)
        form(j, &j->ranks[i]);
    for (int i = 0; engines && i < RANKS; i++) {
        struct hvi_ctx *c = j->ranks[i].c;

        cr_assert_eq(pthread_create(&c->exec_thread, NULL, hvi_engine_thread, c), 0);
        c->exec_running = true;
    }
}

static void down(struct job *j)
{
    for (int i = 0; i < RANKS; i++)
        hvi_ctx_stop_threads(j->ranks[i].c);
    for (int i = 0; i < RANKS; i++) {
        struct hvi_ctx *c = j->ranks[i].c;

        c->plane->ops->free(c->plane);
        c->plane = NULL;
        c->bells = NULL; /* of the job's segment */
        hvi_ctx_unref(c);
    }
    hvi_segment_fini(&j->segment);
}

static void name_of(int round, int k, char out[32])
{
    snprintf(out, 32, "round%d.%d", round, k);
}

static bool message(struct rank *r, uint32_t type, const void *body)
{
    struct hvi_buf frame = {0};
    struct hvi_err err = {{0}};
    enum hvd_status rc = hvi_msg_put(&frame, type, body);

    if (rc == HVD_OK)
        rc = hvi_negotiate_message(r->c, type,
                                   hvi_buf_peek(&frame) + HVI_FRAME_HEADER_BYTES,
                                   hvi_buf_size(&frame) - HVI_FRAME_HEADER_BYTES, &err);
    hvi_buf_fini(&frame);
    return rc == HVD_OK ||
           fail(r, "%s: %s %s", hvi_msg_name(type), hvi_status_text(rc), err.text);
}

/* The coordinator gives the names of a round their ids. */
static bool assign(struct rank *r, int round)
{
    bool good = true;

    for (int k = 0; k < NAMES && good; k++) {
        Hvi__Assign m = HVI__ASSIGN__INIT;
        struct hvi_request *req;
        char name[32];

        name_of(round, k, name);
        req = hvi_request_new(name, 1);
        if (req == NULL)
            return fail(r, "no memory for %s", name);
        req->kind = HVD_ALLREDUCE;
        req->reduce_op = HVD_SUM;
        req->prescale = req->postscale = 1.0;
        req->shapes[0].dtype = HVD_FLOAT32;
        req->shapes[0].ndim = 1;
        req->shapes[0].dims[0] = 1;
        hvi_request_seal(req);
        m.epoch = 1;
        m.id = (uint32_t)(round * NAMES + k);
        m.generation = 1;
        m.request = hvi_request_to_msg(req);
        good = m.request != NULL && message(r, HVI_MSG_ASSIGN, &m);
        hvi_request_msg_free(m.request);
        hvi_request_free(req);
    }
    return good;
}

static bool submit(struct rank *r, int round, int k)
{
    static const int64_t one = 1;
    struct hvi_err err = {{0}};
    struct hvd_op op = {.size = sizeof op, .kind = HVD_ALLREDUCE, .reduce_op = HVD_SUM};
    char name[32];

    name_of(round, k, name);
    r->x[k] = (float)(r->me + 1);
    op.in = (struct hvd_tensor){
        .data = &r->x[k], .dims = &one, .ndim = 1, .dtype = HVD_FLOAT32};
    op.out = op.in;
    return hvi_submit(r->c, &op, 1, name, false, true, &r->handle[k], &err) == HVD_OK ||
           fail(r, "%s: %s", name, err.text);
}

/* Until operation k is done. */
static bool finish(struct rank *r, int round, int k, bool runs)
{
    struct hvi_op *op = hvi_handle_get(r->handle[k]);
    int64_t deadline_ms = hvi_now_ms() + LIMIT_MS;
    bool good = true;

    if (op == NULL)
        return fail(r, "round %d: operation %d has no handle", round, k);
    if (runs)
        hvi_engine_run(r->c, op, HVD_WAIT_DONE, deadline_ms);
    while (!hvi_op_settled(op, HVD_WAIT_DONE) && hvi_ms_left(deadline_ms) > 0 &&
           atomic_load(&r->job->failed) == 0)
        sched_yield();
    if (hvi_op_status(op) != HVD_OK)
        good = fail(r, "round %d: operation %d is not done in %d ms: %s%s", round, k,
                    LIMIT_MS, hvi_status_text(hvi_op_status(op)),
                    owes(r) ? ", a poll is owed" : "");
    else if (r->x[k] != 3.0f)
        good =
            fail(r, "round %d: operation %d gave %g, not 3", round, k, (double)r->x[k]);
    hvi_op_unref(op);
    hvi_handle_drop(r->handle[k]);
    return good;
}

static void check(struct job *j)
{
    cr_assert_eq(atomic_load(&j->failed), 0, "%s", j->text);
}

/* ---- step by step, in one thread */

/* Both ranks have a group to read, and have published one operation more. */
static void owe(struct job *j)
{
    up(j, false);
    for (int i = 0; i < RANKS; i++)
        assign(&j->ranks[i], 0);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < RANKS; i++)
            submit(&j->ranks[i], 0, k);
        check(j);
        for (int i = 0; i < RANKS; i++) {
            cr_assert(hvi_board_unread(j->ranks[i].c->board, i));
            cr_assert_eq(owes(&j->ranks[i]), k > 0, "rank %d, operation %d", i, k);
        }
    }
    cr_assert_not(hvi_board_backlog(j->ranks[0].c->board), "nobody has polled");
}

static void read_next(struct rank *r)
{
    pthread_mutex_lock(&r->c->lock);
    hvi_negotiate_next(r->c);
    pthread_mutex_unlock(&r->c->lock);
    cr_assert_eq(atomic_load(&r->c->nruns), 1);
    cr_assert_not(owes(r), "rank %d has read, and has not polled", r->me);
}

static void *finish_two(void *arg)
{
    struct rank *r = arg;

    for (int k = 0; k < 2; k++)
        finish(r, 0, k, true);
    return NULL;
}

static void finish_owed(struct job *j)
{
    pthread_t threads[RANKS];

    for (int i = 0; i < RANKS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, finish_two, &j->ranks[i]), 0);
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    check(j);
    down(j);
}

Test(owed, who_reads_polls_for_what_was_published_meanwhile, .timeout = 60)
{
    static struct job j;

    owe(&j);
    read_next(&j.ranks[0]);
    cr_assert(hvi_board_backlog(j.ranks[0].c->board), "it polled; rank 1 has to read");
    cr_assert_not(hvi_board_unread(j.ranks[0].c->board, 0));
    read_next(&j.ranks[1]);
    for (int i = 0; i < RANKS; i++)
        cr_assert(hvi_board_unread(j.ranks[i].c->board, i), "sealed for rank %d", i);
    finish_owed(&j);
}

Test(owed, the_last_to_read_seals_though_nobody_saw_a_backlog, .timeout = 60)
{
    static struct job j;
    struct hvi_board_group *g = malloc(sizeof *g);

    cr_assert_not_null(g);
    owe(&j);
    /* rank 0 has read and not polled yet */
    pthread_mutex_lock(&j.ranks[0].c->lock);
    cr_assert(hvi_board_read(j.ranks[0].c->board, 0, g));
    j.ranks[0].c->next_group = *g;
    j.ranks[0].c->have_next_group = true;
    pthread_mutex_unlock(&j.ranks[0].c->lock);
    free(g);
    read_next(&j.ranks[1]);
    cr_assert(hvi_board_unread(j.ranks[1].c->board, 1), "all had read: it is sealed");
    read_next(&j.ranks[0]);
    finish_owed(&j);
}

Test(owed, a_message_of_the_coordinator_polls_too, .timeout = 60)
{
    static struct job j;
    Hvi__Evict m = HVI__EVICT__INIT;

    owe(&j);
    m.epoch = 1;
    m.id = HVI_BOARD_MAX_IDS - 1; /* which means nothing */
    message(&j.ranks[0], HVI_MSG_EVICT, &m);
    check(&j);
    cr_assert_not(owes(&j.ranks[0]));
    cr_assert(owes(&j.ranks[1]));
    cr_assert(hvi_board_backlog(j.ranks[0].c->board));
    finish_owed(&j);
}

/* ---- by all threads at once */

static enum round kind_of(int round)
{
    return (enum round)(round % KINDS);
}

static bool at_once(int round)
{
    return kind_of(round) == AT_ONCE || kind_of(round) == ONE;
}

static bool owing(const struct rank *r, int round)
{
    return kind_of(round) != ONE || round / KINDS % RANKS == r->me;
}

static bool has_unread(struct rank *r)
{
    return hvi_board_unread(r->c->board, r->me);
}

static bool got_exec(struct rank *r)
{
    return pthread_mutex_trylock(&r->c->exec) == 0;
}

/* With `exec` nobody reads for this rank: every publication leaves a poll to who does. */
static bool publish_unread(struct rank *r, int round)
{
    if (!submit(r, round, 0) || !until(r, has_unread, "the first group", round))
        return false;
    for (int k = 1; k <= OWED; k++) {
        if (!submit(r, round, k))
            return false;
        if (!owes(r))
            return fail(r, "round %d: operation %d left no poll to who reads", round,
                        k);
    }
    return true;
}

static bool play(struct rank *r, int round)
{
    bool good = true;
    int count = 1 + OWED;

    if (!meet(r, "begin", round))
        return false;
    if (owing(r, round)) {
        if (!until(r, got_exec, "the engine thread's leave", round))
            return false;
        good = publish_unread(r, round) && meet(r, "reading", round);
        pthread_mutex_unlock(&r->c->exec);
    } else {
        for (int k = 0; k < count && good; k++)
            good = submit(r, round, k);
        good = good && meet(r, "reading", round);
    }
    for (; good && at_once(round) && count < NAMES; count++)
        good = submit(r, round, count);
    for (int k = 0; k < count && good; k++)
        good = finish(r, round, k, kind_of(round) != ENGINE);
    if (good && owes(r))
        good = fail(r, "round %d: all is read, and a poll is owed", round);
    return good && meet(r, "end", round);
}

static void *program(void *arg)
{
    for (int round = 0; round < ROUNDS; round++)
        if (!play(arg, round))
            break;
    return NULL;
}

/* In the place of the link thread. It polls, so it is silent where reading has to do. */
static void *link_of(void *arg)
{
    struct rank *r = arg;

    for (int round = 0; round < ROUNDS; round++) {
        if ((round == 0 || !at_once(round - 1)) && !assign(r, round))
            break;
        if (!meet(r, "begin", round) || !meet(r, "reading", round))
            break;
        if (at_once(round) && !assign(r, round + 1))
            break;
        if (!meet(r, "end", round))
            break;
    }
    return NULL;
}

Test(owed, waiters_engines_and_links_pay_for_one_another, .timeout = 100)
{
    static struct job j;
    pthread_t threads[2 * RANKS];

    up(&j, true);
    for (int i = 0; i < RANKS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, program, &j.ranks[i]), 0);
        cr_assert_eq(pthread_create(&threads[RANKS + i], NULL, link_of, &j.ranks[i]),
                     0);
    }
    for (int i = 0; i < 2 * RANKS; i++)
        pthread_join(threads[i], NULL);
    check(&j);
    down(&j);
}
