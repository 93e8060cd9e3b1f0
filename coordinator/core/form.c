/*
 * Forming an epoch. Happy path: HELLO of all ranks of the job, WELCOME to all, FORMED
 * from all, GO to all. A HELLO is refused alone when it is itself wrong; all that wait
 * are refused when the job cannot form: start timeout, a rank that exited, settings
 * that differ. A HELLO of a rank whose old epoch is not over waits, under the same
 * timeout.
 */
#include "coordinator/core/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST_MAX 255 /* bytes of a host's name */

/* Ranks of the job that the waiting ones want to form. */
static int32_t wanted_size(const struct hvi_core *core)
{
    const struct conn *first;

    if (core->nwaiting == 0)
        return (int32_t)core->cfg.np;
    first = hvi_conn_at(core->waiting.next);
    return first->hello->n_ranks > 0 ? (int32_t)first->hello->n_ranks
                                     : (int32_t)core->cfg.np;
}

void hvi_form_init_is(struct hvi_core *core, int32_t slot, enum proc_init init)
{
    if (slot >= 0 && slot < (int32_t)core->cfg.np)
        core->procs[slot].init = init;
}

static void refuse(struct hvi_core *core, struct conn *c, int32_t want,
                   enum hvd_status status, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static void refuse(struct hvi_core *core, struct conn *c, int32_t want,
                   enum hvd_status status, const char *fmt, ...)
{
    Hvi__Refused m = HVI__REFUSED__INIT;
    char text[HVD_ERROR_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m.status = status;
    m.text = text;
    hvi_form_init_is(core, c->hello->want_rank, INIT_FAILED);
    if (want >= 0 && want < (int32_t)core->cfg.np)
        snprintf(core->procs[want].refused, sizeof core->procs[want].refused, "%.90s",
                 text);
    hvi_emit_msg(core, c, HVI_MSG_REFUSED, &m, true);
    hvi_core_drop(core, c);
}

void hvi_form_refuse_all(struct hvi_core *core, enum hvd_status status,
                         const char *text)
{
    struct hvi_link *it, *tmp;

    HVI_LIST_EACH(&core->waiting, it, tmp)
    refuse(core, hvi_conn_at(it), -1, status, "%s", text);
}

static void add_hello(struct text *t, const Hvi__Hello *h)
{
    if (h->want_rank >= 0)
        hvi_text_add(t, "rank %d (host ", h->want_rank);
    else
        hvi_text_add(t, "a rank (host ");
    hvi_text_add_peer(t, h->host);
    hvi_text_add(t, ", pid %d)", h->pid);
}

/* ---- one HELLO by itself */

static enum hvd_status check_version(const struct hvi_core *core, const Hvi__Hello *h,
                                     struct text *t)
{
    if (strcmp(h->version, core->cfg.version) == 0)
        return HVD_OK;
    hvi_text_add(t, "version mismatch: libhvd ");
    hvi_text_add_peer(t, h->version);
    hvi_text_add(t, " in ");
    add_hello(t, h);
    hvi_text_add(t, ", hvd-coordinator %s; use one version everywhere",
                 core->cfg.version);
    return HVD_EVERSION;
}

static enum hvd_status check_subset(const struct hvi_core *core, const Hvi__Hello *h,
                                    struct text *t)
{
    struct rankset seen = {{0}};
    bool mine = false;

    if (h->n_ranks == 0)
        return HVD_OK;
    if (h->want_rank < 0) {
        hvi_text_add(t, "a list of ranks needs HVD_RANK on every rank");
        return HVD_EINVAL;
    }
    for (size_t i = 0; i < h->n_ranks; i++) {
        int32_t r = h->ranks[i];

        if (r < 0 || r >= (int32_t)core->cfg.np || rankset_has(&seen, r)) {
            hvi_text_add(t, "list of ranks: %d is %s (the job has %u ranks)", r,
                         r < 0 || r >= (int32_t)core->cfg.np ? "unknown" : "repeated",
                         core->cfg.np);
            return HVD_EINVAL;
        }
        rankset_add(&seen, r);
        mine = mine || r == h->want_rank;
    }
    if (mine)
        return HVD_OK;
    hvi_text_add(t, "rank %d is not in its own list of ranks", h->want_rank);
    return HVD_EINVAL;
}

/* ---- against those that wait already */

static bool same_list(const Hvi__Hello *a, const Hvi__Hello *b)
{
    return a->n_ranks == b->n_ranks &&
           (a->n_ranks == 0 ||
            memcmp(a->ranks, b->ranks, a->n_ranks * sizeof *a->ranks) == 0);
}

static enum hvd_status check_among(struct hvi_core *core, const Hvi__Hello *h,
                                   struct text *t)
{
    struct hvi_link *it, *tmp;

    if (core->nwaiting >= wanted_size(core)) {
        hvi_text_add(t, "all %d ranks of the job have come already", wanted_size(core));
        return HVD_ELIMIT;
    }
    HVI_LIST_EACH(&core->waiting, it, tmp)
    {
        const Hvi__Hello *other = hvi_conn_at(it)->hello;

        if (!same_list(h, other)) {
            hvi_text_add(t, "the list of ranks differs from that of ");
            add_hello(t, other);
            hvi_text_add(t, "; it must be the same on every rank of the job");
            return HVD_EMISMATCH;
        }
        if (h->want_rank >= 0 && h->want_rank == other->want_rank) {
            hvi_text_add(t, "rank %d is taken: ", h->want_rank);
            add_hello(t, other);
            hvi_text_add(t, " came first");
            return HVD_EDUPLICATE;
        }
    }
    return HVD_OK;
}

static enum hvd_status check_hello(struct hvi_core *core, const Hvi__Hello *h,
                                   struct text *t)
{
    enum hvd_status rc = check_version(core, h, t);

    if (rc == HVD_OK && (h->want_rank < -1 || h->want_rank >= (int32_t)core->cfg.np)) {
        hvi_text_add(t, "HVD_RANK=%d, but the job has %u ranks (0 to %u)", h->want_rank,
                     core->cfg.np, core->cfg.np - 1);
        rc = HVD_EINVAL;
    }
    if (rc == HVD_OK &&
        (strlen(h->host) > HOST_MAX || strlen(h->host_id) > 4 * HOST_MAX)) {
        hvi_text_add(t, "the name of the host is longer than %d bytes", HOST_MAX);
        rc = HVD_EINVAL;
    }
    if (rc == HVD_OK && h->cpu_plane > HVI_PLANE_TCP) {
        hvi_text_add(t, "unknown data plane %u", h->cpu_plane);
        rc = HVD_EINVAL;
    }
    if (rc == HVD_OK)
        rc = check_subset(core, h, t);
    if (rc == HVD_OK)
        rc = check_among(core, h, t);
    return rc;
}

void hvi_form_hello(struct hvi_core *core, struct conn *c, Hvi__Hello *hello)
{
    struct text t = {.n = 0};
    enum hvd_status rc;

    c->hello = hello;
    rc = check_hello(core, hello, &t);
    if (rc != HVD_OK) {
        refuse(core, c, hello->want_rank, rc, "%s", t.s);
        return;
    }
    c->state = CONN_WAITS;
    hvi_list_append(&core->waiting, &c->link);
    if (core->nwaiting++ == 0)
        core->start_by_ms = core->now + core->cfg.start_timeout_ms;
    hvi_form_init_is(core, hello->want_rank, INIT_WAITS);
    if (hello->want_rank >= 0)
        core->procs[hello->want_rank].refused[0] = '\0';
    hvi_form_check_exited(core);
}

/* ---- who is missing */

static bool waits(const struct hvi_core *core, int32_t slot)
{
    struct hvi_link *it, *tmp;

    HVI_LIST_EACH(&core->waiting, it, tmp)
    if (hvi_conn_at(it)->hello->want_rank == slot)
        return true;
    return false;
}

/* The i-th rank of the plan that the job to form needs. */
static int32_t wanted_slot(const struct hvi_core *core, int32_t i)
{
    const Hvi__Hello *h = hvi_conn_at(core->waiting.next)->hello;

    return h->n_ranks > 0 ? h->ranks[i] : i;
}

static void add_slot_host(struct text *t, const struct hvi_core *core, int32_t slot)
{
    hvi_text_add(t, "rank %d", slot);
    if (core->cfg.hosts != NULL)
        hvi_text_add(t, " (host %s)", core->cfg.hosts[slot]);
}

/* The rank whose end keeps the job from forming, -1: none. Of several the first: the
 * others may have ended for want of it. One that waits on a lost host is lost too. */
static int32_t first_exited(const struct hvi_core *core)
{
    int32_t n = wanted_size(core), first = -1;

    for (int32_t i = 0; i < n; i++) {
        int32_t slot = wanted_slot(core, i);
        const struct proc *p = &core->procs[slot];

        if (p->state != PROC_EXITED && p->state != PROC_LOST)
            continue;
        if (first >= 0 && p->nth > core->procs[first].nth)
            continue;
        if (p->state == PROC_LOST || !waits(core, slot))
            first = slot;
    }
    return first;
}

/* Where in the program it ended. */
static const char *how_far(const struct proc *p)
{
    if (p->init == INIT_WAITS)
        return " while it waited in hvd_init";
    if (p->init == INIT_FAILED)
        return " after its hvd_init had failed";
    return p->served ? " and will not come back" : " before hvd_init";
}

void hvi_form_check_exited(struct hvi_core *core)
{
    struct text t = {.n = 0};
    int32_t slot = core->nwaiting > 0 && core->nexits > 0 ? first_exited(core) : -1;
    const struct proc *p;

    if (slot < 0)
        return;
    p = &core->procs[slot];
    if (p->state == PROC_LOST) { /* that was told when it was lost */
        hvi_form_refuse_all(core, HVD_EPEER, p->lost != NULL ? p->lost : "lost");
        return;
    }
    hvi_text_add(&t, "the job cannot start: ");
    add_slot_host(&t, core, slot);
    hvi_text_add(&t, " ");
    hvi_text_wait_status(&t, p->wait_status);
    hvi_text_add(&t, "%s", how_far(p));
    if (p->wait_status != 0) /* a failed rank speaks for itself, maybe later than we */
        hvi_emit_rank_note(core, HVI_NOTE_LOST, slot, t.s);
    hvi_form_refuse_all(core, HVD_EPEER, t.s);
    if (p->wait_status == 0)
        hvi_emit_note(core, HVI_NOTE_FATAL, "%s", t.s);
}

static const struct member *still_member(const struct hvi_core *core, int32_t slot)
{
    for (int32_t r = 0; core->phase != EP_NONE && r < core->size; r++)
        if (core->members[r].slot == slot && !core->members[r].ended)
            return &core->members[r];
    return NULL;
}

static void add_missing(struct text *t, const struct hvi_core *core, int32_t slot)
{
    const struct proc *p = &core->procs[slot];

    add_slot_host(t, core, slot);
    if (still_member(core, slot) != NULL)
        hvi_text_add(t, ": has not left epoch %u", core->epoch);
    else if (p->refused[0] != '\0')
        hvi_text_add(t, ": refused: %s", p->refused);
    else if (p->state == PROC_EXITED)
        hvi_text_add(t, ": exited");
    else if (p->state == PROC_LOST)
        hvi_text_add(t, ": its host is lost");
    else if (p->state == PROC_RUNS)
        hvi_text_add(t, ": pid %d runs, but has not called hvd_init", p->pid);
    else
        hvi_text_add(t, ": has not connected");
}

static void add_anonymous(struct text *t, const struct hvi_core *core, int32_t n)
{
    struct hvi_link *it, *tmp;
    int32_t i = 0;

    hvi_text_add(t, "%d of %d ranks did not come; there are ", n - core->nwaiting, n);
    HVI_LIST_EACH(&core->waiting, it, tmp)
    {
        if (i == 8)
            break;
        hvi_text_sep(t, i++, core->nwaiting);
        add_hello(t, hvi_conn_at(it)->hello);
    }
    if (i < core->nwaiting)
        hvi_text_add(t, " and %d more", core->nwaiting - i);
}

static void start_timeout(struct hvi_core *core)
{
    struct text t = {.n = 0};
    int32_t n = wanted_size(core);
    int32_t missing = n - core->nwaiting;
    int32_t shown = 0;

    hvi_text_add(&t, "start timeout after %g s: ", core->cfg.start_timeout_ms / 1000.0);
    if (waits(core, -1) || missing == 0) {
        if (missing == 0)
            hvi_text_add(&t, "epoch %u is not over on every rank", core->epoch);
        else
            add_anonymous(&t, core, n);
    } else {
        for (int32_t i = 0; i < n && shown < 8; i++) {
            if (waits(core, wanted_slot(core, i)))
                continue;
            hvi_text_sep(&t, shown++, missing);
            add_missing(&t, core, wanted_slot(core, i));
        }
        if (shown < missing)
            hvi_text_add(&t, " and %d more", missing - shown);
    }
    hvi_form_refuse_all(core, HVD_ETIMEDOUT, t.s);
    hvi_emit_note(core, HVI_NOTE_FATAL, "%s", t.s);
}

/* ---- what all must agree on */

static bool same_psets(const Hvi__Hello *a, const Hvi__Hello *b)
{
    if (a->n_psets != b->n_psets)
        return false;
    for (size_t i = 0; i < a->n_psets; i++)
        if (a->psets[i]->n_ranks != b->psets[i]->n_ranks ||
            (a->psets[i]->n_ranks > 0 &&
             memcmp(a->psets[i]->ranks, b->psets[i]->ranks,
                    a->psets[i]->n_ranks * sizeof(int32_t)) != 0))
            return false;
    return true;
}

static enum hvd_status agree_psets(struct hvi_core *core, struct text *t)
{
    int32_t first = 0;

    for (int32_t r = 1; r < core->size; r++)
        if (!same_psets(core->members[0].conn->hello, core->members[r].conn->hello)) {
            hvi_text_add(t, "the static process sets differ between ");
            hvi_text_member(t, core, first);
            hvi_text_add(t, " and ");
            hvi_text_member(t, core, r);
            return HVD_EMISMATCH;
        }
    return HVD_OK;
}

static enum hvd_status make_psets(struct hvi_core *core, struct text *t)
{
    const Hvi__Hello *h = core->members[0].conn->hello;
    enum hvd_status rc = HVD_OK;

    if (h->n_psets > HVI_PSETS_MAX) {
        hvi_text_add(t, "more than %d process sets", HVI_PSETS_MAX);
        return HVD_ELIMIT;
    }
    for (size_t i = 0; i < h->n_psets && rc == HVD_OK; i++) {
        Hvi__PsetDef *d = h->psets[i];

        rc = hvi_psets_check(d->ranks, d->n_ranks, core->size, t);
        if (rc == HVD_OK &&
            hvi_psets_equal(core, d->ranks, (int32_t)d->n_ranks) != NULL) {
            hvi_text_add(t, "two process sets have the same ranks");
            rc = HVD_EDUPLICATE;
        }
        if (rc == HVD_OK)
            hvi_psets_make(core, d->ranks, (int32_t)d->n_ranks);
    }
    return rc;
}

static bool one_memory(const struct hvi_core *core, struct text *t)
{
    const char *id = core->members[0].conn->hello->host_id;

    if (core->size > HVI_SHM_RANKS_MAX) {
        hvi_text_add(t, "more than %d ranks", HVI_SHM_RANKS_MAX);
        return false;
    }
    for (int32_t r = 0; r < core->size; r++)
        if (id[0] == '\0' || strcmp(core->members[r].conn->hello->host_id, id) != 0) {
            hvi_text_member(t, core, 0);
            hvi_text_add(t, " and ");
            hvi_text_member(t, core, r);
            hvi_text_add(t, " cannot share memory");
            return false;
        }
    return true;
}

/* Several hosts, at least one of several ranks that share memory; a host's ranks follow
 * one another. Else plane tcp serves better or alone. */
static bool hosts_share_memory(const struct hvi_core *core)
{
    bool several = false;

    for (int32_t r = 1; r < core->size; r++) {
        bool same = core->places[r].host_index == core->places[r - 1].host_index;

        if (core->places[r].host_index < core->places[r - 1].host_index)
            return false;
        if (!same)
            continue;
        several = true;
        if (core->members[r].conn->hello->host_id[0] == '\0' ||
            strcmp(core->members[r].conn->hello->host_id,
                   core->members[r - 1].conn->hello->host_id) != 0 ||
            core->places[r].local_size > HVI_SHM_RANKS_MAX)
            return false;
    }
    return several && core->places[core->size - 1].host_index > 0;
}

static enum hvd_status choose_plane(struct hvi_core *core, struct text *t)
{
    int32_t asks[HVI_PLANE_TCP + 1] = {-1, -1, -1}; /* a rank that asks for it */
    struct text why = {.n = 0};
    bool shm;

    for (int32_t r = core->size - 1; r >= 0; r--)
        asks[core->members[r].conn->hello->cpu_plane] = r;
    if (asks[HVI_PLANE_SHM] >= 0 && asks[HVI_PLANE_TCP] >= 0) {
        hvi_text_add(t, "HVD_CPU_PLANE is shm on rank %d and tcp on rank %d",
                     asks[HVI_PLANE_SHM], asks[HVI_PLANE_TCP]);
        return HVD_EMISMATCH;
    }
    shm = asks[HVI_PLANE_TCP] < 0 && one_memory(core, &why);
    if (!shm && asks[HVI_PLANE_SHM] >= 0) {
        hvi_text_add(t, "HVD_CPU_PLANE=shm is not possible: %s", why.s);
        return HVD_EUNSUPPORTED;
    }
    core->plane = HVI_PLANE_TCP;
    if (shm)
        core->plane = HVI_PLANE_SHM;
    else if (asks[HVI_PLANE_TCP] < 0 && hosts_share_memory(core))
        core->plane = HVI_PLANE_HOSTS;
    core->may_fall_back = core->plane != HVI_PLANE_TCP && asks[HVI_PLANE_SHM] < 0;
    return HVD_OK;
}

/* ---- WELCOME */

static struct hvi_out *shared_part(struct hvi_core *core)
{
    Hvi__Welcome w = HVI__WELCOME__INIT;
    Hvi__Peer *peers = hvi_core_alloc(core, (size_t)core->size, sizeof *peers);
    Hvi__Peer **list = hvi_core_alloc(core, (size_t)core->size, sizeof(Hvi__Peer *));
    struct hvi_out *f = NULL;
    enum hvd_status rc;

    if (peers == NULL || list == NULL)
        goto done;
    for (int32_t r = 0; r < core->size; r++) {
        const Hvi__Hello *h = core->members[r].conn->hello;

        hvi__peer__init(&peers[r]);
        peers[r].rank = r;
        peers[r].host_index = core->places[r].host_index;
        peers[r].pid = h->pid;
        peers[r].unix_path = h->unix_path;
        peers[r].n_tcp_addrs = h->n_tcp_addrs;
        peers[r].tcp_addrs = h->tcp_addrs;
        peers[r].tcp_port = h->tcp_port;
        peers[r].host = h->host;
        list[r] = &peers[r];
    }
    w.n_peers = (size_t)core->size;
    w.peers = list;
    w.n_psets = core->members[0].conn->hello->n_psets;
    w.psets = core->members[0].conn->hello->psets;
    w.fusion_bytes = core->cfg.fusion_bytes;
    w.cache_capacity = core->cfg.cache_capacity;
    w.stall_warn_ms = core->cfg.stall_warn_ms;
    w.stall_shutdown_ms = core->cfg.stall_shutdown_ms;
    w.epoch_key.len = sizeof core->key;
    w.epoch_key.data = core->key;
    f = hvi_core_alloc(core, 1, sizeof *f);
    if (f == NULL)
        goto done;
    f->refs = 1;
    rc = hvi_msg_put(&f->head, HVI_MSG_WELCOME, &w);
    if (rc != HVD_OK) {
        core->oom = core->oom || rc != HVD_ELIMIT;
        hvi_out_unref(f);
        f = NULL;
        goto done;
    }
    hvi_buf_consume(&f->head, HVI_FRAME_HEADER_BYTES);
done:
    free(peers);
    free(list);
    return f;
}

/* The concatenation of two encodings of a message is the encoding of their merger: the
 * list of peers is encoded once, and the frame's length (last field of the header)
 * counts both parts. */
static void send_welcome(struct hvi_core *core, int32_t rank)
{
    const struct hvi_place *p = &core->places[rank];
    Hvi__Welcome w = HVI__WELCOME__INIT;
    struct hvi_cursor cur;
    struct hvi_out *f;
    size_t bytes;

    w.epoch = core->epoch;
    w.attempt = core->attempt;
    w.plane = core->plane;
    w.rank = rank;
    w.size = core->size;
    w.local_rank = p->local_rank;
    w.local_size = p->local_size;
    w.cross_rank = p->cross_rank;
    w.cross_size = p->cross_size;
    w.homogeneous = core->even;
    f = hvi_emit_frame(core, HVI_MSG_WELCOME, &w);
    if (f == NULL)
        return;
    bytes = hvi_buf_size(&f->head) - HVI_FRAME_HEADER_BYTES +
            hvi_buf_size(&core->peers->head);
    hvi_cursor_init(&cur, f->head.data + f->head.off + 8, 4);
    hvi_put_u32(&cur, (uint32_t)bytes);
    f->tail = core->peers;
    core->peers->refs++;
    hvi_emit_send(core, core->members[rank].conn, f, false, false);
    hvi_out_unref(f);
}

static void welcome_all(struct hvi_core *core)
{
    core->form_by_ms = core->now + core->cfg.start_timeout_ms;
    for (int32_t r = 0; r < core->size; r++) {
        core->members[r].formed = false;
        if (core->members[r].conn != NULL)
            send_welcome(core, r);
    }
}

/* ---- the members */

static const struct served *find_served(const struct hvi_core *core,
                                        const Hvi__Hello *h)
{
    for (int32_t i = 0; i < core->nserved; i++)
        if (core->served[i].pid == h->pid && strcmp(core->served[i].host, h->host) == 0)
            return &core->served[i];
    return NULL;
}

/* Rank in the epoch of a slot of the plan. */
static int32_t rank_of_slot(const Hvi__Hello *h, int32_t slot)
{
    for (size_t i = 0; i < h->n_ranks; i++)
        if (h->ranks[i] == slot)
            return (int32_t)i;
    return slot;
}

static bool place_members(struct hvi_core *core)
{
    struct hvi_candidate *c = hvi_core_alloc(core, (size_t)core->size, sizeof *c);
    int32_t *slots = hvi_core_alloc(core, (size_t)core->size, sizeof *slots);
    struct hvi_link *it, *tmp;
    int32_t i = 0;

    if (c == NULL || slots == NULL)
        goto done;
    HVI_LIST_EACH(&core->waiting, it, tmp)
    {
        const Hvi__Hello *h = hvi_conn_at(it)->hello;
        const struct served *s = find_served(core, h);

        c[i].want = h->n_ranks > 0 ? rank_of_slot(h, h->want_rank) : h->want_rank;
        c[i].last_rank = s != NULL ? s->slot : -1;
        c[i].first_epoch = s != NULL ? s->first_epoch : 0;
        c[i++].host = h->host;
    }
    hvi_elect_ranks(c, core->size, core->cfg.hosts, slots);
    i = 0;
    HVI_LIST_EACH(&core->waiting, it, tmp)
    {
        struct conn *w = hvi_conn_at(it);
        struct member *m = &core->members[slots[i]];

        m->conn = w;
        m->slot = w->hello->n_ranks > 0 ? w->hello->want_rank : slots[i];
        m->first_epoch = c[i].first_epoch > 0 ? c[i].first_epoch : core->epoch + 1;
        m->host = hvi_core_strdup(core, w->hello->host);
        m->pid = w->hello->pid;
        m->verdict_ms = -1;
        w->rank = slots[i++];
    }
done:
    free(c);
    free(slots);
    return !core->oom;
}

static bool place_hosts(struct hvi_core *core)
{
    const char **hosts = hvi_core_alloc(core, (size_t)core->size, sizeof *hosts);

    for (int32_t r = 0; hosts != NULL && r < core->size; r++)
        hosts[r] = core->members[r].host;
    if (hosts != NULL)
        core->even = hvi_elect_places(hosts, core->size, core->places);
    free(hosts);
    return hosts != NULL;
}

static void remember_members(struct hvi_core *core)
{
    for (int32_t i = 0; i < core->nserved; i++)
        free(core->served[i].host);
    core->nserved = 0;
    for (int32_t r = 0; r < core->size; r++) {
        const struct member *m = &core->members[r];
        struct served *s = &core->served[core->nserved];

        core->procs[m->slot].served = true;
        core->procs[m->slot].init = INIT_NOT;
        s->host = hvi_core_strdup(core, m->host);
        s->pid = m->pid;
        s->slot = m->slot;
        s->first_epoch = m->first_epoch;
        core->nserved += s->host != NULL;
    }
}

static enum hvd_status prepare(struct hvi_core *core, struct text *t)
{
    enum hvd_status rc;

    hvi_negotiate_begin(core);
    rc = agree_psets(core, t);
    if (rc == HVD_OK)
        rc = choose_plane(core, t);
    if (rc == HVD_OK)
        rc = make_psets(core, t);
    if (rc != HVD_OK)
        return rc;
    memcpy(core->key, core->members[0].conn->entropy, sizeof core->key);
    core->peers = shared_part(core);
    if (core->peers != NULL)
        return HVD_OK;
    hvi_text_add(t, "the addresses of all ranks do not fit one message");
    return HVD_ELIMIT;
}

static void start_members(struct hvi_core *core)
{
    remember_members(core);
    core->epoch++;
    core->attempt = 1;
    core->phase = EP_FORMING;
    core->nlive = core->size;
    for (int32_t r = 0; r < core->size; r++) {
        struct conn *c = core->members[r].conn;

        hvi_list_remove(&c->link);
        c->state = CONN_MEMBER;
    }
    core->nwaiting = 0;
    core->start_by_ms = -1;
    welcome_all(core);
}

void hvi_form_try(struct hvi_core *core)
{
    struct text t = {.n = 0};
    enum hvd_status rc;

    if (core->phase != EP_NONE || core->finished || core->oom || core->nwaiting == 0 ||
        core->nwaiting < wanted_size(core))
        return;
    hvi_epoch_reset(core);
    core->size = wanted_size(core);
    core->members = hvi_core_alloc(core, (size_t)core->size, sizeof *core->members);
    core->places = hvi_core_alloc(core, (size_t)core->size, sizeof *core->places);
    if (core->oom || !place_members(core) || !place_hosts(core))
        return;
    rc = prepare(core, &t);
    if (core->oom)
        return;
    if (rc == HVD_OK) {
        start_members(core);
        return;
    }
    hvi_form_refuse_all(core, rc, t.s);
    hvi_emit_note(core, HVI_NOTE_FATAL, "the job cannot start: %s", t.s);
    hvi_epoch_reset(core);
}

/* ---- FORMED */

/* A rank whose own limit kept it from forming hangs up on its peers: they may be heard
 * first, but their broken connections are not the reason. */
static bool explains(enum hvd_status first, int32_t later)
{
    return first == HVD_EIO && (later == HVD_ELIMIT || later == HVD_ENOMEM);
}

static void form_failed(struct hvi_core *core, int32_t rank, const Hvi__Formed *m)
{
    struct text t = {.n = 0};

    if (core->may_fall_back) {
        hvi_text_add(&t, "shared memory failed on ");
        hvi_text_member(&t, core, rank);
        hvi_text_add(&t, ": ");
        hvi_text_add_peer(&t, m->text);
        hvi_emit_note(core, HVI_NOTE_INFO, "%s; using TCP", t.s);
        core->may_fall_back = false;
        core->plane = HVI_PLANE_TCP;
        core->attempt++;
        welcome_all(core);
        return;
    }
    if (core->failure.at_ms >= 0 && !explains(core->failure.status, m->status))
        return; /* the first counts */
    hvi_text_add(&t, "could not form the %s data plane: ",
                 core->plane == HVI_PLANE_SHM ? "shm" : "tcp");
    hvi_text_add_peer(&t, m->text);
    if (core->failure.at_ms < 0)
        core->failure.at_ms = core->now + HVI_VERDICT_MS;
    free(core->failure.text);
    core->failure.rank = rank;
    core->failure.status = m->status < 0 ? (enum hvd_status)m->status : HVD_EIO;
    core->failure.text = hvi_core_strdup(core, t.s);
}

void hvi_form_forget_failure(struct hvi_core *core)
{
    free(core->failure.text);
    core->failure.text = NULL;
    core->failure.at_ms = -1;
}

/* A rank could not reach its peers, and none of them was lost meanwhile. */
static void tell_failure(struct hvi_core *core)
{
    struct text t = {.n = 0};

    if (core->nverdicts > 0) { /* one may be */
        core->failure.at_ms = core->now + HVI_VERDICT_MS;
        return;
    }
    hvi_text_member(&t, core, core->failure.rank);
    hvi_text_add(&t, " %s", core->failure.text);
    hvi_emit_rank_note(core, HVI_NOTE_LOST, core->members[core->failure.rank].slot,
                       t.s);
    core->lost_any = true;
    hvi_epoch_close(core, core->failure.rank, core->failure.text, core->failure.status);
}

void hvi_form_formed(struct hvi_core *core, struct conn *c, const Hvi__Formed *m)
{
    struct member *me = hvi_core_member(core, c);
    Hvi__Go go = HVI__GO__INIT;

    if (m->attempt < core->attempt)
        return; /* of an attempt that was given up */
    if (core->phase != EP_FORMING || m->attempt > core->attempt || me->formed) {
        hvi_core_violation(core, c, "unexpected FORMED of attempt %u", m->attempt);
        return;
    }
    if (m->status != HVD_OK) {
        form_failed(core, c->rank, m);
        return;
    }
    me->formed = true;
    for (int32_t r = 0; r < core->size; r++)
        if (!core->members[r].formed)
            return;
    core->phase = EP_OPEN;
    core->form_by_ms = -1;
    go.epoch = core->epoch;
    hvi_emit_all(core, NULL, -1, HVI_MSG_GO, &go);
}

void hvi_form_tick(struct hvi_core *core)
{
    struct text t = {.n = 0};

    if (core->start_by_ms >= 0 && core->now >= core->start_by_ms)
        start_timeout(core);
    if (core->phase == EP_FORMING && core->failure.at_ms >= 0 &&
        core->now >= core->failure.at_ms)
        tell_failure(core);
    if (core->phase != EP_FORMING || core->now < core->form_by_ms)
        return;
    for (int32_t r = 0; r < core->size; r++)
        if (!core->members[r].formed) {
            hvi_text_add(&t, "did not form the data plane within %g s",
                         core->cfg.start_timeout_ms / 1000.0);
            core->lost_any = true;
            hvi_epoch_close(core, r, t.s, HVD_ETIMEDOUT);
            return;
        }
}
