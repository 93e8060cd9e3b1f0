/*
 * Stall reports. A rank says STALLED; the coordinator adds who is missing, asks those
 * with PROBE and their agents with PROC_PROBE, and writes one report when all have
 * answered or after HVI_PROBE_MS. Once per warning time and name; other operations that
 * wait for the same ranks are only counted.
 */
#include "coordinator/core/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "proto/base/names.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned by a hash table or a list of actions */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#define STALLS_MAX 1024 /* remembered names */
#define SHOWN_MAX 8     /* ranks in one report */

static bool same_ranks(const struct rankset *a, const struct rankset *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool no_ranks(const struct rankset *s)
{
    static const struct rankset none;

    return same_ranks(s, &none);
}

static void free_stall(struct hvi_core *core, struct stall *s)
{
    while (s->answers != NULL) {
        struct stall_answer *a = s->answers;

        s->answers = a->next;
        free(a->state);
        free(a->doing);
        free(a);
    }
    HASH_DEL(core->stalls, s);
    free(s->key.bytes);
    free(s);
}

void hvi_stall_end(struct hvi_core *core)
{
    struct stall *s, *tmp;

    HASH_ITER(hh, core->stalls, s, tmp)
    {
        free_stall(core, s);
    }
}

static bool collecting(const struct stall *s)
{
    return s->reported_ms < 0;
}

/* When the process set calls that wait are to be reported, -1: not at all. */
static int64_t calls_due(const struct hvi_core *core)
{
    int64_t since = -1;

    if (core->ncalling == 0 || core->cfg.stall_warn_ms == 0 || core->phase != EP_OPEN)
        return -1;
    for (int32_t r = 0; r < core->size; r++)
        if (core->members[r].calls != NULL &&
            (since < 0 || core->members[r].call_ms < since))
            since = core->members[r].call_ms;
    if (core->called_ms > since)
        since = core->called_ms;
    return since + core->cfg.stall_warn_ms;
}

int64_t hvi_stall_deadline(const struct hvi_core *core)
{
    const struct stall *s;
    int64_t at = calls_due(core);

    for (s = core->stalls; s != NULL; s = s->hh.next)
        if (collecting(s) && (at < 0 || s->due_ms < at))
            at = s->due_ms;
    return at;
}

/* ---- who is missing */

static void add_absent(const struct hvi_core *core, const struct pset *set,
                       const struct rankset *here, struct rankset *out)
{
    for (int32_t i = 0; i < set->nranks; i++)
        if (!rankset_has(here, set->ranks[i]) && !core->members[set->ranks[i]].joined)
            rankset_add(out, set->ranks[i]);
}

/* Plane hosts: what a rank waits for may be with any rank of its host: READY and ORDER
 * pass through one of them. */
static void add_hosts(const struct hvi_core *core, struct rankset *out)
{
    struct rankset hosts = {{0}};

    for (int32_t r = 0; r < core->size; r++)
        if (rankset_has(out, r))
            rankset_add(&hosts, core->places[r].host_index);
    for (int32_t r = 0; r < core->size; r++)
        if (rankset_has(&hosts, core->places[r].host_index) &&
            core->members[r].conn != NULL)
            rankset_add(out, r);
}

static void add_listed(const struct hvi_core *core, const struct conn *c,
                       const struct pset *set, const Hvi__Stalled *m,
                       struct rankset *out)
{
    for (size_t i = 0; i < m->n_missing; i++)
        if (m->missing[i] >= 0 && m->missing[i] < core->size &&
            rankset_has(&set->set, m->missing[i]) && m->missing[i] != c->rank)
            rankset_add(out, m->missing[i]);
}

/* Who may keep it from going on: they are asked, and the report names some of them. */
static void find_missing(struct hvi_core *core, const struct conn *c,
                         const struct pset *set, const Hvi__Stalled *m,
                         struct rankset *out)
{
    const struct op *op = hvi_negotiate_op(core, m->pset, m->name);
    const struct slot *slot;

    if (op != NULL) {
        add_absent(core, set, &op->announced, out);
        return;
    }
    slot = hvi_negotiate_slot(core, m->pset, m->name);
    if (m->ordered)
        *out = set->set;
    else if (slot != NULL && (slot->nready > 0 || core->plane == HVI_PLANE_HOSTS))
        add_absent(core, set, &slot->ready, out);
    else
        add_listed(core, c, set, m, out);
    if (core->plane == HVI_PLANE_HOSTS)
        add_hosts(core, out);
}

/* ---- asking */

static void ask_agents(struct hvi_core *core, struct stall *s)
{
    Hvi__ProcProbe m = HVI__PROC_PROBE__INIT;
    int32_t slots[HVD_RANKS_MAX];
    int32_t pids[HVD_RANKS_MAX];
    struct hvi_link *it, *tmp;

    m.probe = s->probe;
    m.ranks = slots;
    m.pids = pids;
    HVI_LIST_EACH(&core->agents, it, tmp)
    {
        struct conn *c = hvi_conn_at(it);

        m.n_ranks = m.n_pids = 0;
        for (int32_t r = 0; r < core->size; r++)
            if (rankset_has(&s->missing, r) &&
                core->procs[core->members[r].slot].agent == c->id) {
                slots[m.n_ranks++] = core->members[r].slot;
                pids[m.n_pids++] = core->members[r].pid;
                rankset_add(&s->asked_proc, r);
            }
        if (m.n_ranks > 0)
            hvi_emit_msg(core, c, HVI_MSG_PROC_PROBE, &m, false);
    }
}

static void op_name(const struct stall *s, char out[HVD_NAME_MAX + 1])
{
    snprintf(out, HVD_NAME_MAX + 1, "%.*s", (int)(s->key.size - 4),
             (const char *)s->key.bytes + 4);
}

static void ask(struct hvi_core *core, struct stall *s)
{
    Hvi__Probe m = HVI__PROBE__INIT;
    char name[HVD_NAME_MAX + 1];

    s->probe = ++core->next_probe;
    s->due_ms = core->now + HVI_PROBE_MS;
    m.epoch = core->epoch;
    m.probe = s->probe;
    op_name(s, name);
    if (s->kind != HVD_KIND_UNSET)
        m.name = name;
    m.pset = s->pset;
    for (int32_t r = 0; r < core->size; r++)
        if (rankset_has(&s->missing, r) && hvi_member_live(&core->members[r]))
            rankset_add(&s->asked, r);
    hvi_emit_all(core, &s->asked, -1, HVI_MSG_PROBE, &m);
    ask_agents(core, s);
}

static struct stall *find_stall(struct hvi_core *core, uint64_t probe)
{
    struct stall *s, *tmp;

    HASH_ITER(hh, core->stalls, s, tmp)
    {
        if (collecting(s) && s->probe == probe)
            return s;
    }
    return NULL;
}

static struct stall_answer *answer_of(struct hvi_core *core, struct stall *s,
                                      int32_t rank)
{
    struct stall_answer *a;

    for (a = s->answers; a != NULL; a = a->next)
        if (a->rank == rank)
            return a;
    a = hvi_core_alloc(core, 1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->rank = rank;
    a->next = s->answers;
    s->answers = a;
    return a;
}

/* ---- the report */

static const struct stall_answer *heard(const struct stall *s, int32_t rank)
{
    for (const struct stall_answer *a = s->answers; a != NULL; a = a->next)
        if (a->rank == rank)
            return a;
    return NULL;
}

/* Who reported it does not wait any more. */
static bool went_on(const struct stall *s)
{
    const struct stall_answer *a = heard(s, s->reporter);

    return a != NULL && a->doing != NULL && !a->waits;
}

/* Those of the asked that the report names: who does not answer; who has not brought it,
 * if it has no place in the order; else who is in it. */
static void choose(struct hvi_core *core, struct stall *s)
{
    const struct pset *set = hvi_psets_find(core, s->pset);
    struct rankset mute = {{0}}, absent = {{0}}, others = s->missing;
    bool ordered = s->ordered;

    for (int32_t r = 0; r < core->size; r++) {
        const struct stall_answer *a = heard(s, r);

        if (!rankset_has(&s->missing, r))
            continue;
        if (a == NULL || a->doing == NULL)
            rankset_add(&mute, r);
        else if (!a->waits && !core->members[r].joined &&
                 (set == NULL || rankset_has(&set->set, r)))
            rankset_add(&absent, r);
        if (a != NULL && a->doing != NULL && !a->waits)
            rankset_del(&others, r);
        ordered = ordered || (a != NULL && a->ordered);
    }
    for (size_t i = 0; !ordered && i < HVD_RANKS_MAX / 64; i++)
        mute.w[i] |= absent.w[i];
    rankset_del(&others, s->reporter);
    if (!no_ranks(&mute))
        s->missing = mute;
    else if (!no_ranks(&others))
        s->missing = others;
}

static void add_state(struct text *t, const struct hvi_core *core,
                      const struct stall *s, int32_t rank)
{
    const struct member *m = &core->members[rank];
    const struct stall_answer *a = heard(s, rank);

    hvi_text_member(t, core, rank);
    hvi_text_add(t, ": ");
    if (a != NULL && a->state != NULL)
        hvi_text_add_peer(t, a->state);
    if (a != NULL && a->doing != NULL) {
        hvi_text_add(t, "%s", a->state != NULL ? ", " : "");
        hvi_text_add_peer(t, a->doing);
    } else if (m->lost || m->ended) {
        hvi_text_add(t, "lost");
    } else if (a == NULL || a->state == NULL) {
        hvi_text_add(t, "does not answer");
    }
}

static void word_report(const struct hvi_core *core, const struct stall *s,
                        struct text *t)
{
    char name[HVD_NAME_MAX + 1];
    int32_t n = 0, shown = 0;

    op_name(s, name);
    for (int32_t r = 0; r < core->size; r++)
        n += rankset_has(&s->missing, r);
    if (s->kind == HVD_KIND_UNSET)
        hvi_text_add_peer(t, name);
    else
        hvi_text_op(t, s->kind, name, s->pset);
    hvi_text_add(t, " has waited %.1f s for ", (double)s->waited_ms / 1e3);
    for (int32_t r = 0; r < core->size && shown < SHOWN_MAX; r++) {
        if (!rankset_has(&s->missing, r))
            continue;
        hvi_text_add(t, "%s", shown > 0 ? "; " : "");
        add_state(t, core, s, r);
        shown++;
    }
    if (shown < n)
        hvi_text_add(t, "; and %d more ranks", n - shown);
    if (s->more > 0)
        hvi_text_add(t, " (%u more operation%s the same)", s->more,
                     s->more == 1 ? " waits for" : "s wait for");
}

static void report(struct hvi_core *core, struct stall *s)
{
    bool end = core->cfg.stall_shutdown_ms > 0 && !core->stall_over &&
               s->waited_ms >= core->cfg.stall_shutdown_ms;
    struct text t = {.n = 0};

    if (went_on(s)) {
        s->reported_ms = core->now;
        s->more = 0;
        return;
    }
    choose(core, s);
    word_report(core, s, &t);
    s->reported_ms = core->now;
    s->more = 0;
    if (!end) {
        hvi_emit_note(core, HVI_NOTE_STALL, "%s", t.s);
        return;
    }
    core->stall_over = true;
    hvi_emit_note(core, HVI_NOTE_FATAL, "stalled: %s", t.s);
    hvi_epoch_close(core, -1, t.s, HVD_ETIMEDOUT); /* frees s */
}

static void report_if_complete(struct hvi_core *core, struct stall *s)
{
    for (size_t i = 0; i < HVD_RANKS_MAX / 64; i++)
        if ((s->asked.w[i] & ~s->answered.w[i]) != 0 ||
            (s->asked_proc.w[i] & ~s->answered_proc.w[i]) != 0)
            return;
    report(core, s);
}

/* ---- messages */

static void forget_old(struct hvi_core *core)
{
    struct stall *s, *tmp;

    HASH_ITER(hh, core->stalls, s, tmp)
    {
        if (!collecting(s) &&
            core->now - s->reported_ms > 2 * (int64_t)core->cfg.stall_warn_ms)
            free_stall(core, s);
    }
}

static struct stall *get_stall(struct hvi_core *core, uint32_t pset, const char *name)
{
    uint8_t bytes[4 + HVD_NAME_MAX];
    size_t n = strnlen(name, HVD_NAME_MAX);
    struct hvi_cursor cur;
    struct stall *s;

    hvi_cursor_init(&cur, bytes, sizeof bytes);
    hvi_put_u32(&cur, pset);
    hvi_put_bytes(&cur, name, n);
    HASH_FIND(hh, core->stalls, bytes, 4 + n, s);
    if (s != NULL)
        return s;
    if (HASH_COUNT(core->stalls) >= STALLS_MAX)
        forget_old(core);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not follow the table */
    if (HASH_COUNT(core->stalls) >= STALLS_MAX)
        return NULL;
    s = hvi_core_alloc(core, 1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->key.size = (unsigned)(4 + n);
    s->key.bytes = hvi_core_alloc(core, s->key.size, 1);
    if (s->key.bytes == NULL) {
        free(s);
        return NULL;
    }
    memcpy(s->key.bytes, bytes, s->key.size);
    s->pset = pset;
    HASH_ADD_KEYPTR(hh, core->stalls, s->key.bytes, s->key.size, s);
    if (s->hh.tbl != NULL)
        return s;
    core->oom = true;
    free(s->key.bytes);
    free(s);
    return NULL;
}

static void start_report(struct hvi_core *core, struct stall *s,
                         const struct rankset *missing)
{
    struct stall *other, *tmp;

    HASH_ITER(hh, core->stalls, other, tmp)
    {
        if (other != s && collecting(other) && same_ranks(&other->missing, missing)) {
            other->more++;
            s->reported_ms = core->now;
            return;
        }
    }
    while (s->answers != NULL) {
        struct stall_answer *a = s->answers;

        s->answers = a->next;
        free(a->state);
        free(a->doing);
        free(a);
    }
    memset(&s->asked, 0, sizeof s->asked);
    memset(&s->answered, 0, sizeof s->answered);
    memset(&s->asked_proc, 0, sizeof s->asked_proc);
    memset(&s->answered_proc, 0, sizeof s->answered_proc);
    s->missing = *missing;
    s->more = 0;
    s->reported_ms = -1;
    ask(core, s);
    if (no_ranks(&s->asked) && no_ranks(&s->asked_proc))
        report(core, s);
}

void hvi_stall_reported(struct hvi_core *core, struct conn *c, const Hvi__Stalled *m)
{
    const struct pset *set = hvi_psets_find(core, m->pset);
    struct rankset missing = {{0}};
    struct stall *s;
    bool fresh;

    if (set == NULL || core->cfg.stall_warn_ms == 0 || core->stall_over ||
        !rankset_has(&set->set, c->rank))
        return;
    find_missing(core, c, set, m, &missing);
    if (no_ranks(&missing))
        return;
    s = get_stall(core, m->pset, m->name);
    if (s == NULL)
        return;
    fresh = s->probe == 0 && s->reported_ms == 0;
    if (m->waited_ms > s->waited_ms || !collecting(s))
        s->waited_ms = m->waited_ms;
    s->kind = m->kind;
    if (!fresh && collecting(s))
        s->ordered = s->ordered || m->ordered;
    if (!fresh && (collecting(s) || core->now - s->reported_ms <
                                        (int64_t)core->cfg.stall_warn_ms * 9 / 10))
        return;
    s->ordered = m->ordered;
    s->reporter = c->rank;
    start_report(core, s, &missing);
}

void hvi_stall_probe_reply(struct hvi_core *core, struct conn *c,
                           const Hvi__ProbeReply *m)
{
    struct stall *s = find_stall(core, m->probe);
    struct stall_answer *a;

    if (s == NULL || !rankset_has(&s->asked, c->rank))
        return;
    a = answer_of(core, s, c->rank);
    if (a == NULL)
        return;
    free(a->doing);
    a->doing = hvi_core_strdup(core, m->doing);
    a->waits = m->waits;
    a->ordered = m->ordered;
    rankset_add(&s->answered, c->rank);
    report_if_complete(core, s);
}

/* A process in one of these states does not answer for itself. */
static bool mute(const char *state)
{
    static const char *const states[] = {"stopped", "traced", "zombie",
                                         "gone",    "exited", "not started"};

    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        if (strcmp(state, states[i]) == 0)
            return true;
    return strncmp(state, "traced by ", 10) == 0;
}

void hvi_stall_proc_state(struct hvi_core *core, const struct conn *c,
                          const Hvi__ProcState *m)
{
    struct stall *s = find_stall(core, m->probe);
    size_t n = m->n_ranks < m->n_states ? m->n_ranks : m->n_states;

    for (size_t i = 0; s != NULL && i < n; i++)
        for (int32_t r = 0; r < core->size; r++) {
            struct stall_answer *a;

            if (core->members[r].slot != m->ranks[i] || !rankset_has(&s->missing, r) ||
                core->procs[core->members[r].slot].agent != c->id)
                continue;
            a = answer_of(core, s, r);
            if (a == NULL)
                return;
            free(a->state);
            a->state = hvi_core_strdup(core, m->states[i]);
            rankset_add(&s->answered_proc, r);
            if (mute(m->states[i]))
                rankset_add(&s->answered, r);
        }
    if (s != NULL)
        report_if_complete(core, s);
}

/* hvd_pset_add and hvd_pset_remove wait for every rank, and no rank reports them. */
static void report_calls(struct hvi_core *core)
{
    const struct member *oldest = NULL;
    struct rankset missing = {{0}};
    struct stall *s;

    for (int32_t r = 0; r < core->size; r++) {
        const struct member *m = &core->members[r];

        if (m->calls == NULL)
            rankset_add(&missing, r);
        else if (oldest == NULL || m->call_ms < oldest->call_ms)
            oldest = m;
    }
    HVI_ASSERT(oldest != NULL);
    core->called_ms = core->now;
    s = get_stall(core, 0, oldest->calls->add ? "hvd_pset_add" : "hvd_pset_remove");
    if (s == NULL || (s->probe != 0 && collecting(s)))
        return;
    s->kind = HVD_KIND_UNSET;
    s->ordered = false;
    s->reporter = (int32_t)(oldest - core->members);
    s->waited_ms = (uint64_t)(core->now - oldest->call_ms);
    start_report(core, s, &missing);
}

void hvi_stall_tick(struct hvi_core *core)
{
    int64_t due = calls_due(core);
    struct stall *s, *tmp;

    if (due >= 0 && core->now >= due)
        report_calls(core);
    HASH_ITER(hh, core->stalls, s, tmp)
    {
        if (!collecting(s) || core->now < s->due_ms)
            continue;
        report(core, s);
        if (core->phase != EP_OPEN)
            return; /* closed: all are freed */
    }
}
