/*
 * A script of events for the coordinator's core: up to six connections open, speak any
 * message with any small values, end; agents report; time passes. Whatever comes, the
 * core answers only connections that are open, in decodable frames, never twice after
 * an end, and asks for its next tick at a time that gets it somewhere.
 */
#include "tests/fuzz/fuzz.h"

#include "coordinator/core/core.h"

#define CONNS 7
#define NP 3
#define CAPACITY 4

enum seen { NEVER = 0, OPEN, ENDED };

struct script {
    struct hvi_cursor in;
    struct hvi_core *core;
    struct hvi_actions actions;
    uint64_t ids[CONNS]; /* connection now behind a number */
    enum seen seen[256];
    uint64_t next_id;
    int64_t now;
    uint32_t epoch, attempt; /* of the last WELCOME */
    bool finished;
};

static const char *const names[] = {"a", "b",        "c",  "d",
                                    "e", "\x1b[31m", "%s", "long name"};
static const char *const hosts[] = {"h", "g", ""};

static const char *name_of(uint8_t b)
{
    return names[b % (sizeof names / sizeof *names)];
}

static void check_action(struct script *s, const struct hvi_action *a)
{
    const char *welcome;
    char text[4096];

    FUZZ_CHECK(!s->finished || a->kind != HVI_ACT_FINISH);
    hvi_action_text(a, text, sizeof text);
    FUZZ_CHECK(strstr(text, "undecodable") == NULL, "%s", text);
    welcome = strstr(text, "WELCOME epoch=");
    if (welcome != NULL)
        (void)sscanf(welcome, "WELCOME epoch=%u attempt=%u", &s->epoch, &s->attempt);
    switch (a->kind) {
    case HVI_ACT_SEND:
        FUZZ_CHECK(a->conn < 256 && s->seen[a->conn] == OPEN, "%s", text);
        if (a->last)
            s->seen[a->conn] = ENDED;
        break;
    case HVI_ACT_CLOSE:
        FUZZ_CHECK(a->conn < 256 && s->seen[a->conn] == OPEN, "%s", text);
        s->seen[a->conn] = ENDED;
        break;
    case HVI_ACT_NOTE:
        FUZZ_CHECK(a->text != NULL);
        fuzz_check_text(a->text, 2048);
        break;
    default:
        FUZZ_CHECK(a->kind == HVI_ACT_FINISH);
        s->finished = true;
        break;
    }
}

static void step(struct script *s, struct hvi_event *ev)
{
    FUZZ_CHECK(hvi_core_step(s->core, ev, s->now, &s->actions) == HVD_OK);
    for (uint32_t i = 0; i < s->actions.count; i++)
        check_action(s, &s->actions.list[i]);
}

static void open_conn(struct script *s, int c, bool agent)
{
    static const uint8_t entropy[HVI_EPOCH_KEY_BYTES];
    struct hvi_event ev = {.kind = HVI_EV_OPENED,
                           .conn = ++s->next_id,
                           .agent = agent,
                           .entropy = entropy};

    if (s->next_id >= 256)
        return;
    s->ids[c] = s->next_id;
    s->seen[s->next_id] = OPEN;
    step(s, &ev);
}

/* On the way it is encoded and decoded, as the network does. */
static void say(struct script *s, int c, uint32_t type, const void *body)
{
    struct hvi_event ev = {.kind = HVI_EV_MESSAGE, .conn = s->ids[c]};
    struct hvi_buf buf = {0};
    struct hvi_msg msg;
    struct hvi_err err;

    if (hvi_msg_put(&buf, type, body) == HVD_OK &&
        hvi_msg_get(type, hvi_buf_peek(&buf) + HVI_FRAME_HEADER_BYTES,
                    hvi_buf_size(&buf) - HVI_FRAME_HEADER_BYTES, &msg,
                    &err) == HVD_OK) {
        ev.msg = &msg;
        step(s, &ev);
        if (msg.body != NULL)
            hvi_msg_free(&msg);
    }
    hvi_buf_fini(&buf);
}

static size_t some_ranks(struct script *s, int32_t out[4])
{
    uint8_t b = hvi_get_u8(&s->in);

    for (int i = 0; i < 4; i++)
        out[i] = (int32_t)(b >> (2 * i) & 3) - (b == 0xff);
    return b % 5;
}

static void say_hello(struct script *s, int c)
{
    Hvi__Hello m = HVI__HELLO__INIT;
    Hvi__PsetDef set = HVI__PSET_DEF__INIT, *sets = &set;
    uint8_t b = hvi_get_u8(&s->in);
    int32_t ranks[4], subset[4];

    m.version = (char *)(uintptr_t)(b == 0x77 ? "9.9" : "0.1.0");
    m.want_rank = (b & 3) == 3 ? -1 : (b & 3);
    if (b == 0x78)
        m.want_rank = NP;
    m.host = (char *)(uintptr_t)hosts[(b >> 2) % 3];
    m.host_id = (char *)(uintptr_t)((b >> 4) % 3 != 0 ? "m" : "n");
    m.pid = c;
    m.cpu_plane = b >> 6;
    b = hvi_get_u8(&s->in);
    if (b & 1) {
        set.n_ranks = some_ranks(s, ranks);
        set.ranks = ranks;
        m.psets = &sets;
        m.n_psets = 1;
    }
    if (b & 2) {
        m.n_ranks = some_ranks(s, subset);
        m.ranks = subset;
    }
    say(s, c, HVI_MSG_HELLO, &m);
}

static void say_announce(struct script *s, int c, uint32_t epoch)
{
    Hvi__Announce m = HVI__ANNOUNCE__INIT;
    Hvi__Request r = HVI__REQUEST__INIT, *list = &r;
    Hvi__Tensor t = HVI__TENSOR__INIT, *tensors[3] = {&t, &t, &t};
    uint8_t b = hvi_get_u8(&s->in);
    int64_t dims[2];

    r.name = (char *)(uintptr_t)name_of(b);
    r.kind =
        (b & 0x80) == 0 ? HVD_ALLREDUCE : hvi_get_u8(&s->in) % (HVD_KIND_COUNT + 1);
    b = hvi_get_u8(&s->in);
    r.reduce_op = b & 7;
    r.pset = (b >> 3 & 7) == 7 ? hvi_get_u8(&s->in) % 4 : 0;
    r.grouped = (b & 0x40) != 0;
    r.n_tensors = r.grouped ? (b >> 7) + 1u : 1;
    r.tensors = tensors;
    b = hvi_get_u8(&s->in);
    r.priority = (int8_t)b / 16;
    r.root = b % 4;
    t.dtype = HVD_FLOAT32 + (b & 1);
    dims[0] = b >> 1 & 3;
    dims[1] = 1 << (b >> 3 & 7);
    t.dims = dims;
    t.n_dims = (size_t)(b >> 6);
    t.n_dims = t.n_dims > 2 ? 2 : t.n_dims;
    m.epoch = epoch;
    m.n_requests = 1;
    m.requests = &list;
    say(s, c, HVI_MSG_ANNOUNCE, &m);
}

static void say_ready(struct script *s, int c, uint32_t epoch)
{
    struct hvi_ready_id ids[4];
    struct hvi_event ev = {
        .kind = HVI_EV_READY, .conn = s->ids[c], .epoch = epoch, .ids = ids};
    uint8_t b = hvi_get_u8(&s->in);

    ev.nids = b & 3;
    for (uint32_t i = 0; i < ev.nids; i++) {
        b = hvi_get_u8(&s->in);
        ids[i] = (struct hvi_ready_id){b % (CAPACITY + 1), b >> 4};
    }
    step(s, &ev);
}

static void say_stall(struct script *s, int c, uint32_t epoch)
{
    Hvi__Stalled m = HVI__STALLED__INIT;
    uint8_t b = hvi_get_u8(&s->in);
    int32_t ranks[4];

    m.epoch = epoch;
    m.name = (char *)(uintptr_t)name_of(b);
    m.pset = b >> 6;
    m.kind = b >> 3 & 7;
    m.waited_ms = (uint64_t)hvi_get_u8(&s->in) * 500;
    m.n_missing = some_ranks(s, ranks);
    m.missing = ranks;
    say(s, c, HVI_MSG_STALLED, &m);
}

static void say_small(struct script *s, int c, uint32_t epoch, uint8_t which)
{
    Hvi__Formed formed = HVI__FORMED__INIT;
    Hvi__Suspect suspect = HVI__SUSPECT__INIT;
    Hvi__Join join = HVI__JOIN__INIT;
    Hvi__PsetAdd add = HVI__PSET_ADD__INIT;
    Hvi__PsetRemove drop = HVI__PSET_REMOVE__INIT;
    Hvi__ProbeReply reply = HVI__PROBE_REPLY__INIT;
    Hvi__TimelineChunk chunk = HVI__TIMELINE_CHUNK__INIT;
    Hvi__TimelineCtl ctl = HVI__TIMELINE_CTL__INIT;
    int32_t ranks[4];
    uint8_t b;

    switch (which) {
    case 0:
        b = hvi_get_u8(&s->in);
        formed.epoch = epoch;
        formed.attempt = b & 1 ? s->attempt : 1u + (b >> 1 & 3);
        formed.status = b >= 0xf0 ? HVD_EIO : 0;
        formed.text = (char *)"no\nway";
        say(s, c, HVI_MSG_FORMED, &formed);
        return;
    case 1:
        suspect.epoch = epoch;
        suspect.text = (char *)"a link\nbroke";
        say(s, c, HVI_MSG_SUSPECT, &suspect);
        return;
    case 2:
        join.epoch = epoch;
        say(s, c, HVI_MSG_JOIN, &join);
        return;
    case 3:
        add.epoch = epoch;
        add.n_ranks = some_ranks(s, ranks);
        add.ranks = ranks;
        say(s, c, HVI_MSG_PSET_ADD, &add);
        return;
    case 4:
        drop.epoch = epoch;
        drop.pset = hvi_get_u8(&s->in) % 5;
        say(s, c, HVI_MSG_PSET_REMOVE, &drop);
        return;
    case 5:
        b = hvi_get_u8(&s->in);
        reply.epoch = epoch;
        reply.probe = b % 8;
        reply.doing = (char *)(uintptr_t)(b & 0x10 ? "waits in allreduce 'a'"
                                                   : "\x1b"
                                                     "idle");
        say(s, c, HVI_MSG_PROBE_REPLY, &reply);
        return;
    case 6:
        chunk.epoch = epoch;
        say(s, c, HVI_MSG_TIMELINE_CHUNK, &chunk);
        return;
    default:
        ctl.epoch = epoch;
        say(s, c, HVI_MSG_TIMELINE_CTL, &ctl);
        return;
    }
}

static void say_agent(struct script *s, int c)
{
    Hvi__AgentHello hello = HVI__AGENT_HELLO__INIT;
    Hvi__RankStarted started = HVI__RANK_STARTED__INIT;
    Hvi__RankExited exited = HVI__RANK_EXITED__INIT;
    Hvi__ProcState state = HVI__PROC_STATE__INIT;
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;
    char stopped[] = "stopped", running[] = "running", *states[] = {stopped, running};
    int32_t ranks[4];
    uint8_t b = hvi_get_u8(&s->in);
    int32_t rank = (b >> 3 & 7) - 1;

    switch (b & 7) {
    case 0:
        hello.version = (char *)(uintptr_t)(b >= 0xf0 ? "8.8" : "0.1.0");
        hello.host = (char *)(uintptr_t)hosts[(b >> 3) % 3];
        say(s, c, HVI_MSG_AGENT_HELLO, &hello);
        return;
    case 1:
    case 2:
        started.rank = rank;
        started.pid = c;
        say(s, c, HVI_MSG_RANK_STARTED, &started);
        return;
    case 3:
    case 4:
        exited.rank = rank;
        exited.wait_status = hvi_get_u8(&s->in);
        exited.text = (char *)"";
        say(s, c, HVI_MSG_RANK_EXITED, &exited);
        return;
    case 5:
        (void)some_ranks(s, ranks);
        state.probe = b >> 3;
        state.ranks = ranks;
        state.n_ranks = state.n_states = 2;
        state.states = states;
        say(s, c, HVI_MSG_PROC_STATE, &state);
        return;
    default:
        say(s, c, HVI_MSG_HEARTBEAT, &beat);
        return;
    }
}

static void wait_some(struct script *s, int64_t ms)
{
    struct hvi_event ev = {.kind = HVI_EV_TICK};
    int64_t until = s->now + ms;
    int ticks = 0;

    while (s->actions.deadline_ms >= 0 && s->actions.deadline_ms <= until) {
        if (s->actions.deadline_ms > s->now)
            s->now = s->actions.deadline_ms;
        step(s, &ev);
        FUZZ_CHECK(++ticks < 10000, "ticks without end");
    }
    s->now = until;
}

/* What a random script hardly finds: all ranks come, and form. */
static void form_all(struct script *s, uint8_t plane)
{
    for (int c = 0; c < NP; c++) {
        Hvi__Hello m = HVI__HELLO__INIT;

        open_conn(s, c, false);
        m.version = (char *)"0.1.0";
        m.want_rank = c;
        m.host = (char *)"h";
        m.host_id = (char *)"m";
        m.pid = c;
        m.cpu_plane = plane;
        if (s->ids[c] != 0)
            say(s, c, HVI_MSG_HELLO, &m);
    }
    for (int c = 0; c < NP; c++) {
        Hvi__Formed m = HVI__FORMED__INIT;

        m.epoch = s->epoch;
        m.attempt = s->attempt;
        m.text = (char *)"";
        if (s->ids[c] != 0)
            say(s, c, HVI_MSG_FORMED, &m);
    }
}

static void play_on(struct script *s, int c, uint8_t what)
{
    uint32_t epoch;
    Hvi__Bye bye = HVI__BYE__INIT;
    struct hvi_event ev = {.conn = s->ids[c]};
    bool open = s->ids[c] != 0 && s->seen[s->ids[c]] == OPEN;

    epoch = hvi_get_u8(&s->in);
    if (!open && what < 24) {
        open_conn(s, c, epoch >= 0xc0);
        if (epoch >= 0xc0)
            say_agent(s, c);
        else if (s->ids[c] != 0)
            say_hello(s, c);
        return;
    }
    epoch = epoch >= 0xf8 ? epoch & 3 : s->epoch; /* mostly the running one */
    switch (what) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
        say_announce(s, c, epoch);
        return;
    case 7:
    case 8:
    case 9:
    case 10:
        say_ready(s, c, epoch);
        return;
    case 11:
        say_stall(s, c, epoch);
        return;
    case 12:
        bye.epoch = epoch;
        say(s, c, HVI_MSG_BYE, &bye);
        return;
    case 13:
        ev.kind = HVI_EV_CLOSED;
        ev.clean = s->in.left & 1;
        if (open) {
            s->seen[s->ids[c]] = ENDED;
            step(s, &ev);
        }
        return;
    case 14:
    case 15:
        say_agent(s, c);
        return;
    case 16:
    case 17:
    case 18:
    case 19:
    case 20:
    case 21:
    case 22:
    case 23:
        say_small(s, c, epoch, what - 16);
        return;
    case 24:
    case 25:
        say_small(s, c, epoch, 0);
        return;
    case 26:
        wait_some(s, hvi_get_u8(&s->in) * 100);
        return;
    case 30:
        form_all(s, s->in.left & 1 ? 1 : 2);
        return;
    case 31:
        if (epoch == 3 && !s->finished) {
            ev = (struct hvi_event){.kind = HVI_EV_STOP, .text = "stop"};
            step(s, &ev);
        }
        return;
    default:
        wait_some(s, what);
        return;
    }
}

static void play_one(struct script *s)
{
    uint8_t b = hvi_get_u8(&s->in);
    struct hvi_cursor same;

    if (b >> 3 != 29) {
        play_on(s, (b & 7) % CONNS, b >> 3);
        return;
    }
    b = hvi_get_u8(&s->in); /* all ranks do it */
    same = s->in;
    for (int c = 0; c < NP; c++) {
        s->in = same;
        play_on(s, c, b >> 3);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const plan[NP] = {"h", "h", "g"};
    struct hvi_core_config cfg = {.version = "0.1.0",
                                  .np = NP,
                                  .cache_capacity = CAPACITY,
                                  .start_timeout_ms = 3000,
                                  .stall_warn_ms = 1000,
                                  .lease_ms = 3000};
    struct script s;
    uint8_t mode;

    memset(&s, 0, sizeof s);
    hvi_cursor_init_ro(&s.in, data, size);
    mode = hvi_get_u8(&s.in);
    cfg.hosts = mode & 1 ? plan : NULL;
    cfg.linger_ms = mode & 2 ? 2000 : -1;
    cfg.stall_shutdown_ms = mode & 4 ? 5000 : 0;
    cfg.fusion_bytes = mode & 8 ? 512 : 0;
    s.now = 1;
    s.core = hvi_core_new(&cfg);
    FUZZ_CHECK(s.core != NULL);
    if (mode & 16)
        form_all(&s, mode & 32 ? 1 : 2);
    while (!s.in.bad && s.in.left > 0 && s.next_id < 250)
        play_one(&s);
    hvi_core_free(s.core);
    hvi_actions_fini(&s.actions);
    return 0;
}
