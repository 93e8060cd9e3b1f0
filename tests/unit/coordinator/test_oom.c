/* Every allocation of a job's life fails once: the core says HVD_ENOMEM, never anything
 * worse, and frees all that it had. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/core/core.h"
#include "fault.h"

struct life {
    struct hvi_core *core;
    struct hvi_actions actions;
    int64_t now;
    enum hvd_status rc; /* of the first step that failed; none follows */
};

static void step(struct life *l, const struct hvi_event *ev)
{
    if (l->rc == HVD_OK)
        l->rc = hvi_core_step(l->core, ev, ++l->now, &l->actions);
}

static void opened(struct life *l, uint64_t conn, bool agent)
{
    static const uint8_t entropy[HVI_EPOCH_KEY_BYTES];
    struct hvi_event ev = {
        .kind = HVI_EV_OPENED, .conn = conn, .agent = agent, .entropy = entropy};

    step(l, &ev);
}

/* What the network does is not what fails here. */
static void say(struct life *l, uint64_t conn, uint32_t type, const void *body)
{
    struct hvi_event ev = {.kind = HVI_EV_MESSAGE, .conn = conn};
    struct hvi_buf buf = {0};
    struct hvi_msg msg;

    if (l->rc != HVD_OK)
        return;
    if (hvi_msg_put(&buf, type, body) != HVD_OK ||
        hvi_msg_get(type, hvi_buf_peek(&buf) + HVI_FRAME_HEADER_BYTES,
                    hvi_buf_size(&buf) - HVI_FRAME_HEADER_BYTES, &msg,
                    NULL) != HVD_OK) {
        l->rc = HVD_ENOMEM;
    } else {
        ev.msg = &msg;
        step(l, &ev);
        if (msg.body != NULL)
            hvi_msg_free(&msg);
    }
    hvi_buf_fini(&buf);
}

static void announce(struct life *l, uint64_t conn, const char *name, int64_t count)
{
    Hvi__Announce m = HVI__ANNOUNCE__INIT;
    Hvi__Request r = HVI__REQUEST__INIT, *list = &r;
    Hvi__Tensor t = HVI__TENSOR__INIT, *tensors = &t;

    t.dtype = HVD_FLOAT32;
    t.n_dims = 1;
    t.dims = &count;
    r.name = (char *)(uintptr_t)name;
    r.kind = HVD_ALLREDUCE;
    r.n_tensors = 1;
    r.tensors = &tensors;
    m.epoch = 1;
    m.n_requests = 1;
    m.requests = &list;
    say(l, conn, HVI_MSG_ANNOUNCE, &m);
}

static void both(struct life *l, uint32_t type, const void *body)
{
    say(l, 1, type, body);
    say(l, 2, type, body);
}

static void live(struct life *l)
{
    static const char *const hosts[] = {"a", "a"};
    struct hvi_core_config cfg = {.version = "0.1.0",
                                  .np = 2,
                                  .hosts = hosts,
                                  .cache_capacity = 2,
                                  .stall_warn_ms = 1,
                                  .linger_ms = -1};
    Hvi__AgentHello agent = HVI__AGENT_HELLO__INIT;
    Hvi__RankStarted started = HVI__RANK_STARTED__INIT;
    Hvi__Hello hello = HVI__HELLO__INIT;
    Hvi__Formed formed = HVI__FORMED__INIT;
    Hvi__PsetAdd add = HVI__PSET_ADD__INIT;
    Hvi__Stalled stalled = HVI__STALLED__INIT;
    Hvi__ProbeReply reply = HVI__PROBE_REPLY__INIT;
    Hvi__Join join = HVI__JOIN__INIT;
    int32_t zero = 0;
    struct hvi_event closed = {.kind = HVI_EV_CLOSED, .conn = 2, .text = "gone"};
    struct hvi_event stop = {.kind = HVI_EV_STOP, .text = "over"};

    l->core = hvi_core_new(&cfg);
    if (l->core == NULL) {
        l->rc = HVD_ENOMEM;
        return;
    }
    opened(l, 9, true);
    agent.version = (char *)"0.1.0";
    agent.host = (char *)"a";
    say(l, 9, HVI_MSG_AGENT_HELLO, &agent);
    say(l, 9, HVI_MSG_RANK_STARTED, &started);
    for (int i = 0; i < 2; i++) {
        opened(l, 1 + (uint64_t)i, false);
        hello.version = (char *)"0.1.0";
        hello.want_rank = i;
        hello.host = (char *)"a";
        hello.cpu_plane = 2;
        say(l, 1 + (uint64_t)i, HVI_MSG_HELLO, &hello);
    }
    formed.epoch = formed.attempt = 1;
    formed.text = (char *)"";
    both(l, HVI_MSG_FORMED, &formed);
    for (int i = 0; i < 3; i++) /* the third evicts the first */
        for (uint64_t c = 1; c <= 2; c++)
            announce(l, c, i == 0 ? "x" : i == 1 ? "y" : "z", 4);
    announce(l, 1, "bad", 4);
    announce(l, 2, "bad", 5);
    add.epoch = 1;
    add.n_ranks = 1;
    add.ranks = &zero;
    both(l, HVI_MSG_PSET_ADD, &add);
    announce(l, 1, "late", 4);
    stalled.epoch = 1;
    stalled.name = (char *)"late";
    stalled.kind = HVD_ALLREDUCE;
    stalled.waited_ms = 10;
    say(l, 1, HVI_MSG_STALLED, &stalled);
    reply.epoch = 1;
    reply.probe = 1;
    reply.doing = (char *)"sleeps";
    say(l, 2, HVI_MSG_PROBE_REPLY, &reply);
    join.epoch = 1;
    say(l, 2, HVI_MSG_JOIN, &join);
    step(l, &closed);
    step(l, &stop);
}

Test(oom, every_failed_allocation_is_a_status, .timeout = 120)
{
    long k;

    if (!hvi_fault_available())
        cr_skip_test("allocations cannot be made to fail under this sanitizer");
    for (k = 0;; k++) {
        long before = hvi_fault_live_blocks();
        struct life l = {.rc = HVD_OK};
        bool failed;

        hvi_fault_malloc_after(k);
        live(&l);
        failed = hvi_fault_malloc_off();
        hvi_core_free(l.core);
        hvi_actions_fini(&l.actions);
        cr_assert_eq(hvi_fault_live_blocks(), before, "allocation %ld: blocks are left",
                     k);
        if (!failed) {
            cr_assert_eq(l.rc, HVD_OK, "nothing failed, and yet status %d", l.rc);
            break;
        }
        cr_assert_eq(l.rc, HVD_ENOMEM, "allocation %ld failed, status %d", k, l.rc);
    }
    cr_assert_gt(k, 100);
}
