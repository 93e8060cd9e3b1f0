/*
 * From nothing to a running membership.
 *
 * Happy path: read the environment, open the data listener, connect to the parent
 * endpoint, HELLO; WELCOME says who is who and which plane; make or fetch the segment
 * (plane shm) or connect the mesh (plane tcp); FORMED; GO; start the threads.
 *
 * Failure paths: what this rank cannot do while forming it says in FORMED: the
 * coordinator tries plane tcp with a new WELCOME, or ends it with CLOSED. A message
 * that comes while peers are being met ends the meeting: it is a verdict about it.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/env.h"
#include "proto/base/limits.h"
#include "proto/base/log.h"
#include "worker/core/affinity.h"
#include "worker/core/ctx.h"
#include "worker/core/datalink.h"
#include "worker/core/launched.h"
#include "worker/core/settings.h"
#include "worker/core/timeline.h"
#include "worker/plane/cpu/hosts.h"

#define START_TIMEOUT_S 30 /* Horovod's default */
#define LINK_EXTRA_S 5     /* a lost host is told by its lease, not by a broken link */
#define ANSWER_MS 3000     /* the coordinator's verdict comes this much later at most */

struct forming {
    struct hvi_ctx *c;
    struct hvi_listener listener;
    int64_t deadline_ms;
    uint8_t key[HVI_KEY_BYTES];
    uint32_t attempt, plane; /* of the last WELCOME */
    Hvi__Welcome *welcome;   /* borrowed while its plane is made */
};

/* ---- HELLO ----------------------------------------------------------------------- */

/* Equal on two ranks: their Unix sockets and segments can reach each other. */
static void host_id(char *out, size_t cap, const char *host)
{
    char boot[64] = "";
    char ns[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f != NULL) {
        if (fgets(boot, sizeof boot, f) == NULL)
            boot[0] = '\0';
        fclose(f);
    }
    boot[strcspn(boot, "\n")] = '\0';
    if (readlink("/proc/self/ns/mnt", ns, sizeof ns - 1) < 0)
        ns[0] = '\0';
    snprintf(out, cap, "%s/%s/%s", boot, ns, host);
}

static enum hvd_status read_cpu_plane(uint32_t *out, struct hvi_err *err)
{
    const char *text = hvi_env("CPU_PLANE");

    *out = 0;
    if (text == NULL || strcmp(text, "auto") == 0)
        return HVD_OK;
    if (strcmp(text, "shm") == 0)
        *out = 1;
    else if (strcmp(text, "tcp") == 0)
        *out = 2;
    else
        return hvi_fail(err, HVD_EINVAL, "HVD_CPU_PLANE=%s: write shm, tcp or auto",
                        text);
    return HVD_OK;
}

static enum hvd_status add_psets(Hvi__Hello *m, const struct hvd_config *config,
                                 Hvi__PsetDef **out_defs, struct hvi_err *err)
{
    Hvi__PsetDef *defs = NULL;
    Hvi__PsetDef **list = NULL;

    *out_defs = NULL;
    if (config == NULL || config->nsets <= 0)
        return HVD_OK;
    if (config->set_ranks == NULL || config->set_sizes == NULL)
        return hvi_fail(err, HVD_EINVAL, "hvd_config: set_ranks or set_sizes is NULL");
    defs = calloc((size_t)config->nsets, sizeof *defs + sizeof(Hvi__PsetDef *));
    if (defs == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    list = (Hvi__PsetDef **)(void *)(defs + config->nsets);
    for (int32_t i = 0; i < config->nsets; i++) {
        hvi__pset_def__init(&defs[i]);
        defs[i].n_ranks = (size_t)config->set_sizes[i];
        defs[i].ranks = (int32_t *)(uintptr_t)config->set_ranks[i];
        list[i] = &defs[i];
    }
    m->n_psets = (size_t)config->nsets;
    m->psets = list;
    *out_defs = defs;
    return HVD_OK;
}

static enum hvd_status say_hello(struct forming *f, const struct hvd_config *config,
                                 uint32_t cpu_plane, struct hvi_err *err)
{
    Hvi__Hello m = HVI__HELLO__INIT;
    Hvi__PsetDef *defs = NULL;
    char id[256];
    char host[65];
    char *addr[HVI_WAYS_MAX];
    struct utsname uts;
    const char *name = hvi_env("HOSTNAME");
    int64_t rank = -1;
    enum hvd_status rc = hvi_env_int("RANK", -1, -1, HVD_RANKS_MAX - 1, &rank, err);

    if (rc != HVD_OK)
        return rc;
    if (name == NULL)
        name = uname(&uts) == 0 ? uts.nodename : "localhost";
    snprintf(host, sizeof host, "%.64s", name);
    host_id(id, sizeof id, host);
    m.version = (char *)(uintptr_t)hvd_version_string();
    m.want_rank = (int32_t)rank;
    m.host = host;
    m.pid = (int32_t)getpid();
    m.unix_path = f->listener.path;
    if (f->listener.ways.n > 0) {
        for (int i = 0; i < f->listener.ways.n; i++)
            addr[m.n_tcp_addrs++] = f->listener.ways.addr[i];
        m.tcp_addrs = addr;
        m.tcp_port = f->listener.port;
    }
    m.cpu_plane = cpu_plane;
    m.host_id = id;
    rc = add_psets(&m, config, &defs, err);
    if (rc != HVD_OK)
        return rc;
    if (config != NULL && config->nranks > 0) {
        m.n_ranks = (size_t)config->nranks;
        m.ranks = (int32_t *)(uintptr_t)config->ranks;
    }
    rc = hvi_conn_put(&f->c->conn, HVI_MSG_HELLO, &m);
    free(defs);
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "cannot say HELLO: %s", hvi_status_text(rc));
    return HVD_OK;
}

/* ---- WELCOME --------------------------------------------------------------------- */

static enum hvd_status check_welcome(const Hvi__Welcome *m, struct hvi_err *err)
{
    if (m->size < 1 || m->size > HVD_RANKS_MAX || m->rank < 0 || m->rank >= m->size ||
        m->n_peers != (size_t)m->size || m->epoch_key.len != HVI_KEY_BYTES ||
        m->local_size < 1 || m->plane < 1 || m->plane > 3 ||
        (m->plane == 1 && m->size > HVI_SHM_MAX_RANKS))
        return hvi_fail(err, HVD_EPROTO, "WELCOME makes no sense (rank %d of %d)",
                        m->rank, m->size);
    for (size_t i = 0; i < m->n_peers; i++)
        if (m->peers[i]->rank != (int32_t)i)
            return hvi_fail(err, HVD_EPROTO, "WELCOME lists peers out of order");
    return HVD_OK;
}

static enum hvd_status adopt(struct hvi_ctx *c, const Hvi__Welcome *m,
                             struct hvi_err *err)
{
    int32_t *all = NULL;
    enum hvd_status rc = HVD_OK;

    if (c->peers != NULL) { /* a second attempt: only the plane is new */
        memcpy(c->epoch_key, m->epoch_key.data, HVI_KEY_BYTES);
        return HVD_OK;
    }
    c->epoch = m->epoch;
    c->rank = m->rank;
    c->size = m->size;
    c->local_rank = m->local_rank;
    c->local_size = m->local_size;
    c->cross_rank = m->cross_rank;
    c->cross_size = m->cross_size;
    c->homogeneous = m->homogeneous;
    c->cache_capacity = m->cache_capacity;
    c->stall_warn_ms = m->stall_warn_ms;
    c->fusion_bytes = m->fusion_bytes;
    memcpy(c->epoch_key, m->epoch_key.data, HVI_KEY_BYTES);
    c->peers = calloc((size_t)m->size, sizeof *c->peers);
    all = malloc((size_t)m->size * sizeof *all);
    if (c->peers == NULL || all == NULL) {
        free(all);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    for (int i = 0; i < m->size; i++) {
        all[i] = i;
        snprintf(c->peers[i].host, sizeof c->peers[i].host, "%s", m->peers[i]->host);
        c->peers[i].host_index = m->peers[i]->host_index;
        c->peers[i].pid = m->peers[i]->pid;
    }
    rc = hvi_pset_insert(c, 0, all, m->size);
    for (size_t i = 0; rc == HVD_OK && i < m->n_psets; i++)
        rc = hvi_pset_insert(c, (int32_t)i + 1, m->psets[i]->ranks,
                             (int32_t)m->psets[i]->n_ranks);
    free(all);
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "out of memory");
    return HVD_OK;
}

/* ---- planes ---------------------------------------------------------------------- */

/* Something whole came from the coordinator, or the connection broke. */
static bool verdict_came(void *arg)
{
    struct forming *f = arg;
    struct hvi_conn *conn = &f->c->conn;

    return hvi_conn_fill(conn, NULL) != HVD_OK || hvi_buf_size(&conn->in) > 0;
}

static void init_meet(struct forming *f, struct hvi_meet *m)
{
    struct hvi_ctx *c = f->c;

    *m = (struct hvi_meet){.epoch_key = c->epoch_key,
                           .job_id = c->job_id,
                           .rank = c->rank,
                           .size = c->size,
                           .attempt = f->attempt,
                           .deadline_ms = f->deadline_ms,
                           .pass_fd = -1,
                           .got_fd = -1,
                           .watch_fd = c->conn.fd,
                           .on_watch = verdict_came,
                           .arg = f};
}

static int *new_fds(int n)
{
    int *fds = malloc((size_t)n * sizeof *fds);

    for (int i = 0; fds != NULL && i < n; i++)
        fds[i] = -1;
    return fds;
}

/* This rank's host: its ranks follow one another. */
struct host {
    int first, count;
};

static struct host host_of(const struct hvi_ctx *c, int rank)
{
    struct host h = {rank, 1};

    while (h.first > 0 && c->peers[h.first - 1].host_index == c->peers[rank].host_index)
        h.first--;
    while (h.first + h.count < c->size &&
           c->peers[h.first + h.count].host_index == c->peers[rank].host_index)
        h.count++;
    return h;
}

/* The segment of ranks h: the first makes it and sends it to the others. */
static enum hvd_status make_segment(struct forming *f, struct host h,
                                    bool several_hosts, struct hvi_err *err)
{
    struct hvi_ctx *c = f->c;
    struct hvi_listener unix_only = f->listener;
    struct hvi_meet m;
    struct hvi_target leader = {.rank = h.first, .nways = 1};
    enum hvd_status rc = HVD_OK;
    int fd = -1;

    unix_only.ways.n = 0; /* who comes there is for plane tcp, and waits */
    init_meet(f, &m);
    m.fds = new_fds(c->size);
    if (m.fds == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    if (c->rank == h.first) {
        rc = hvi_segment_create(&c->segment, h.count, several_hosts, c->fusion_bytes,
                                &fd, err);
        m.pass_fd = fd;
        if (rc == HVD_OK)
            rc = hvi_meet_run(&m, &unix_only, NULL, 0, h.count - 1, err);
    } else {
        snprintf(leader.where[0], sizeof leader.where[0], "unix:%s",
                 f->welcome->peers[h.first]->unix_path);
        rc = hvi_meet_run(&m, &unix_only, &leader, 1, 0, err);
        fd = m.got_fd;
        if (rc == HVD_OK && fd < 0)
            rc = hvi_fail(err, HVD_EPROTO, "rank %d sent no segment", h.first);
        if (rc == HVD_OK)
            rc = hvi_segment_map(&c->segment, h.count, fd, err);
    }
    if (fd >= 0)
        close(fd);
    free(m.fds);
    return rc;
}

static enum hvd_status use_segment(struct hvi_ctx *c, struct host h, enum hvi_mode mode,
                                   struct hvi_err *err)
{
    c->mode = mode;
    c->host_first = h.first;
    c->host_count = h.count;
    c->bells = c->segment.bells;
    c->bell = c->rank - h.first;
    c->board = hvi_board_attach(c->segment.board, h.count);
    if (c->board == NULL)
        return hvi_fail(err, HVD_EPROTO, "the shared segment has another layout");
    return HVD_OK;
}

static enum hvd_status form_shm(struct forming *f, struct hvi_err *err)
{
    struct hvi_ctx *c = f->c;
    enum hvd_status rc = make_segment(f, (struct host){0, c->size}, false, err);

    if (rc == HVD_OK)
        rc = use_segment(c, (struct host){0, c->size}, HVI_MODE_SHM, err);
    if (rc != HVD_OK)
        return rc;
    return hvi_shm_attach(c->segment.plane, c->bells, c->rank, c->size,
                          c->psets[0]->ranks, &c->plane, err);
}

static enum hvd_status own_bells(struct hvi_ctx *c, struct hvi_err *err)
{
    c->bells = aligned_alloc(64, sizeof *c->bells);
    if (c->bells == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    memset(c->bells, 0, sizeof *c->bells);
    c->bell = 0;
    return HVD_OK;
}

static void add_way(const Hvi__Peer *p, size_t a, struct hvi_target *t)
{
    t->named[t->nways] = a > 0;
    snprintf(t->where[t->nways++], sizeof t->where[0], "tcp:%.100s:%u", p->tcp_addrs[a],
             p->tcp_port);
}

/* The ways to rank i. An address of ours leads to no peer on another host (each may have a
 * bridge of its own by that address), unless two names are of one machine. */
static enum hvd_status find_ways(const struct forming *f,
                                 const struct hvi_netaddrs *own, int i,
                                 struct hvi_target *t, struct hvi_err *err)
{
    const struct hvi_ctx *c = f->c;
    const Hvi__Peer *p = f->welcome->peers[i];
    bool elsewhere = c->peers[i].host_index != c->peers[c->rank].host_index;

    t->rank = i;
    t->host = c->peers[i].host_index;
    if (p->n_tcp_addrs < 1 || p->tcp_port == 0)
        return hvi_fail(err, HVD_EIO, "rank %d (%s) has no TCP listener", i, p->host);
    for (size_t a = 0; elsewhere && a < p->n_tcp_addrs && t->nways < HVI_WAYS_MAX; a++)
        if (p->n_tcp_addrs == 1 || !hvi_netaddrs_have(own, p->tcp_addrs[a]))
            add_way(p, a, t);
    if (t->nways == 0)
        add_way(p, 0, t);
    return HVD_OK;
}

/* A connection to every other rank, and the tcp plane over them. */
static enum hvd_status make_mesh(struct forming *f, struct hvi_plane **out,
                                 struct hvi_err *err)
{
    struct hvi_ctx *c = f->c;
    struct hvi_listener tcp_only = f->listener;
    struct hvi_target *targets = calloc((size_t)c->size, sizeof *targets);
    struct hvi_netaddrs own;
    struct hvi_meet m;
    int64_t lease_s = HVI_LEASE_DEFAULT_S;
    enum hvd_status rc = HVD_OK;

    tcp_only.unix_fd = -1;
    init_meet(f, &m);
    m.keep = true;
    m.fds = new_fds(c->size);
    if (targets == NULL || m.fds == NULL)
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
    hvi_netaddrs_own(&own);
    for (int i = 0; i < c->rank && rc == HVD_OK; i++)
        rc = find_ways(f, &own, i, &targets[i], err);
    hvi_netaddrs_fini(&own);
    if (rc == HVD_OK)
        rc = hvi_meet_run(&m, &tcp_only, targets, c->rank, c->size - 1 - c->rank, err);
    if (rc == HVD_OK)
        rc = hvi_env_int("LEASE_SECONDS", HVI_LEASE_DEFAULT_S, HVI_LEASE_MIN_S,
                         HVI_LEASE_MAX_S, &lease_s, err);
    if (rc == HVD_OK)
        rc = hvi_tcp_new(c->rank, c->size, m.fds, out, err);
    if (rc == HVD_OK)
        hvi_tcp_watch(*out, (int)(lease_s + LINK_EXTRA_S) * 1000);
    for (int i = 0; rc != HVD_OK && m.fds != NULL && i < c->size; i++)
        if (m.fds[i] >= 0)
            close(m.fds[i]);
    free(m.fds);
    free(targets);
    return rc;
}

/* By the coordinator's word: all ranks must see it alike. */
static bool on_one_host(const struct hvi_ctx *c)
{
    for (int i = 0; i < c->size; i++)
        if (c->peers[i].host_index != c->peers[c->rank].host_index)
            return false;
    return true;
}

static enum hvd_status form_tcp(struct forming *f, struct hvi_err *err)
{
    enum hvd_status rc = make_mesh(f, &f->c->plane, err);

    if (rc == HVD_OK && on_one_host(f->c))
        hvi_tcp_one_host(f->c->plane);
    if (rc == HVD_OK)
        rc = own_bells(f->c, err);
    f->c->mode = HVI_MODE_TCP;
    return rc;
}

/* Both, under the plane that combines them. */
static enum hvd_status form_hosts(struct forming *f, struct hvi_err *err)
{
    struct hvi_ctx *c = f->c;
    struct host h = host_of(c, c->rank);
    struct hvi_plane *local = NULL;
    struct hvi_plane *mesh = NULL;
    int32_t *hosts = malloc((size_t)c->size * sizeof *hosts);
    enum hvd_status rc =
        hosts != NULL ? HVD_OK : hvi_fail(err, HVD_ENOMEM, "out of memory");

    for (int i = 0; rc == HVD_OK && i < c->size; i++)
        hosts[i] = c->peers[i].host_index;
    if (rc == HVD_OK)
        rc = h.count > 1 ? make_segment(f, h, true, err)
                         : hvi_segment_private(&c->segment, err);
    if (rc == HVD_OK)
        rc = use_segment(c, h, HVI_MODE_HOSTS, err);
    if (rc == HVD_OK && hvi_forward_init(c) != HVD_OK)
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
    if (rc == HVD_OK)
        rc = hvi_shm_attach(c->segment.plane, c->bells, c->bell, h.count,
                            c->psets[0]->ranks + h.first, &local, err);
    if (rc == HVD_OK)
        rc = make_mesh(f, &mesh, err);
    if (rc == HVD_OK)
        rc = hvi_hosts_new(c->rank, c->size, hosts, local, mesh, &c->plane, err);
    if (rc != HVD_OK) {
        if (local != NULL)
            local->ops->free(local);
        if (mesh != NULL)
            mesh->ops->free(mesh);
    }
    free(hosts);
    return rc;
}

static enum hvd_status form_plane(struct forming *f, uint32_t plane,
                                  struct hvi_err *err)
{
    switch (plane) {
    case 1:
        return form_shm(f, err);
    case 2:
        return form_tcp(f, err);
    default:
        return form_hosts(f, err);
    }
}

/* One attempt; its outcome goes to the coordinator. */
static enum hvd_status on_welcome(struct forming *f, Hvi__Welcome *m,
                                  struct hvi_err *err)
{
    Hvi__Formed reply = HVI__FORMED__INIT;
    struct hvi_err why = {{0}};
    enum hvd_status rc = check_welcome(m, err);

    if (rc == HVD_OK)
        rc = adopt(f->c, m, err);
    if (rc != HVD_OK)
        return rc;
    hvi_ctx_drop_plane(f->c);
    f->attempt = m->attempt;
    f->welcome = m;
    hvi_failpoint("form");
    rc = form_plane(f, m->plane, &why);
    f->welcome = NULL;
    if (rc == HVD_INPROGRESS)
        return HVD_OK; /* the coordinator has decided meanwhile */
    hvi_failpoint("formed");
    reply.epoch = m->epoch;
    reply.attempt = m->attempt;
    reply.status = rc;
    reply.text = why.text;
    rc = hvi_conn_put(&f->c->conn, HVI_MSG_FORMED, &reply);
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "cannot say FORMED: %s", hvi_status_text(rc));
    return HVD_OK;
}

/* Words of the coordinator that end forming. */
static enum hvd_status ended_by(const struct hvi_msg *msg, struct hvi_err *err)
{
    char text[HVD_ERROR_TEXT_MAX];

    if (msg->type == HVI_MSG_REFUSED) {
        const Hvi__Refused *m = msg->body;

        hvi_escape(text, sizeof text, m->text, strlen(m->text));
        return hvi_fail(err, m->status < 0 ? (enum hvd_status)m->status : HVD_EPROTO,
                        "%s", text);
    }
    if (msg->type == HVI_MSG_CLOSED) {
        const Hvi__Closed *m = msg->body;

        hvi_escape(text, sizeof text, m->cause, strlen(m->cause));
        if (m->rank >= 0)
            return hvi_fail(err, m->status < 0 ? (enum hvd_status)m->status : HVD_EPEER,
                            "rank %d (%.64s) was lost: %.800s", m->rank, m->host, text);
        return hvi_fail(err, m->status < 0 ? (enum hvd_status)m->status : HVD_EPEER,
                        "%s", text);
    }
    return hvi_fail(err, HVD_EPROTO, "unexpected message %s while forming",
                    hvi_msg_name(msg->type));
}

static enum hvd_status negotiate_forming(struct forming *f, struct hvi_err *err)
{
    for (;;) {
        struct hvi_msg msg;
        enum hvd_status rc = hvi_conn_wait(&f->c->conn, f->deadline_ms, &msg, err);
        bool go = false;

        if (rc == HVD_ETIMEDOUT)
            return hvi_fail(err, HVD_ETIMEDOUT,
                            "hvd_init: the coordinator has not answered in time");
        if (rc != HVD_OK)
            return rc == HVD_ESHUTDOWN ? HVD_EIO : rc;
        if (msg.type == HVI_MSG_WELCOME)
            rc = on_welcome(f, msg.body, err);
        else if (msg.type == HVI_MSG_GO)
            go = true;
        else
            rc = ended_by(&msg, err);
        hvi_msg_free(&msg);
        if (go && f->c->plane == NULL)
            rc = hvi_fail(err, HVD_EPROTO, "GO before WELCOME");
        if (go || rc != HVD_OK)
            return rc;
    }
}

/* ---- threads --------------------------------------------------------------------- */

static enum hvd_status start_thread(pthread_t *thread, void *(*run)(void *),
                                    struct hvi_ctx *c, const char *name,
                                    struct hvi_err *err)
{
    int error = pthread_create(thread, NULL, run, c);

    if (error != 0)
        return hvi_fail(err, HVD_ENOMEM, "cannot start a thread: %s%s", strerror(error),
                        hvi_limits_of_processes(error));
    pthread_setname_np(*thread, name);
    return HVD_OK;
}

/* They block all signals: the program's handlers run on its own threads. */
static enum hvd_status start_threads(struct hvi_ctx *c, struct hvi_err *err)
{
    sigset_t all;
    sigset_t old;
    int core = -1;
    enum hvd_status rc = hvi_affinity_core(hvi_env("THREAD_AFFINITY"), c->local_rank,
                                           c->local_size, &core, err);

    if (rc != HVD_OK)
        return rc;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = start_thread(&c->exec_thread, hvi_engine_thread, c, "hvd-engine", err);
    c->exec_running = rc == HVD_OK;
    if (rc == HVD_OK && c->mode != HVI_MODE_SOLO) {
        rc = start_thread(&c->link_thread, hvi_link_thread, c, "hvd-link", err);
        c->link_running = rc == HVD_OK;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == HVD_OK)
        rc = hvi_affinity_bind(c->exec_thread, core, err);
    if (rc == HVD_OK && c->link_running)
        rc = hvi_affinity_bind(c->link_thread, core, err);
    return rc;
}

/* ---- the whole ------------------------------------------------------------------- */

static enum hvd_status form_solo(struct hvi_ctx *c, const struct hvd_config *config,
                                 struct hvi_err *err)
{
    static _Atomic uint32_t epoch;
    int32_t zero = 0;
    enum hvd_status rc;

    c->mode = HVI_MODE_SOLO;
    c->epoch = atomic_fetch_add(&epoch, 1) + 1;
    c->size = c->local_size = c->cross_size = 1;
    c->homogeneous = true;
    c->peers = calloc(1, sizeof *c->peers);
    if (c->peers == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = hvi_pset_insert(c, 0, &zero, 1);
    for (int32_t i = 0; config != NULL && rc == HVD_OK && i < config->nsets; i++) {
        if (config->set_sizes[i] != 1 || config->set_ranks[i][0] != 0)
            return hvi_fail(err, HVD_EINVAL,
                            "process set %d names ranks that a job of one rank has not",
                            i + 1);
        rc = hvi_pset_insert(c, i + 1, &zero, 1);
    }
    if (rc == HVD_OK)
        rc = hvi_segment_private(&c->segment, err);
    if (rc != HVD_OK)
        return rc;
    c->bells = c->segment.bells;
    return hvi_shm_attach(c->segment.plane, c->bells, 0, 1, &zero, &c->plane, err);
}

static enum hvd_status start_timeout(const struct hvd_config *config, int64_t *out_ms,
                                     struct hvi_err *err)
{
    int64_t seconds = START_TIMEOUT_S;
    enum hvd_status rc =
        hvi_env_int("START_TIMEOUT", START_TIMEOUT_S, 1, 7 * 86400, &seconds, err);

    if (rc != HVD_OK)
        return rc;
    *out_ms = config != NULL && config->start_timeout_ms > 0 ? config->start_timeout_ms
                                                             : seconds * 1000;
    return HVD_OK;
}

static enum hvd_status form_job(struct forming *f, const char *endpoint,
                                const struct hvd_config *config, struct hvi_err *err)
{
    struct hvi_ctx *c = f->c;
    const char *key_file = hvi_env("KEY_FILE");
    uint32_t cpu_plane = 0;
    int64_t timeout_ms = 0;
    enum hvd_status rc = read_cpu_plane(&cpu_plane, err);

    if (rc == HVD_OK)
        rc = start_timeout(config, &timeout_ms, err);
    if (rc != HVD_OK)
        return rc;
    f->deadline_ms = hvi_now_ms() + timeout_ms + ANSWER_MS;
    if (key_file == NULL)
        return hvi_fail(
            err, HVD_EINVAL,
            "HVD_COORDINATOR is set, HVD_KEY_FILE is not: set it to the job's "
            "key file");
    rc = hvi_key_load(key_file, f->key, err);
    if (rc != HVD_OK)
        return rc;
    hvi_key_job_id(f->key, c->job_id);
    rc = hvi_conn_open(&c->conn, endpoint, f->key, c->job_id, f->deadline_ms, err);
    if (rc == HVD_OK)
        rc = hvi_listener_open(&f->listener, c->conn.fd, cpu_plane != 2, cpu_plane != 1,
                               err);
    if (rc == HVD_OK)
        rc = say_hello(f, config, cpu_plane, err);
    if (rc == HVD_OK)
        rc = negotiate_forming(f, err);
    return rc;
}

enum hvd_status hvi_ctx_form(const struct hvd_config *config, struct hvi_ctx **out,
                             struct hvi_err *err)
{
    const char *endpoint = hvi_env("COORDINATOR");
    struct forming f = {.listener = {.unix_fd = -1}};
    enum hvd_status rc = hvi_settings_check(err);

    if (rc != HVD_OK)
        return rc;
    f.c = hvi_ctx_new();
    if (f.c == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    f.c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f.c->wake_fd < 0)
        rc = hvi_fail(err, HVD_ELIMIT,
                      "too many open files: raise the limit (ulimit -n)");
    else if (endpoint == NULL)
        rc = hvi_launched_check(err);
    else
        rc = form_job(&f, endpoint, config, err);
    if (rc == HVD_OK && endpoint == NULL)
        rc = form_solo(f.c, config, err);
    hvi_wipe(f.key, sizeof f.key);
    hvi_listener_close(&f.listener);
    if (rc == HVD_OK) {
        hvi_log_set_rank(f.c->rank);
        hvi_spin_init(&f.c->x.spin, f.c->local_size);
        rc = hvi_timeline_setup(f.c, err);
    }
    f.c->nstatic = f.c->npsets - 1;
    if (rc == HVD_OK)
        rc = start_threads(f.c, err);
    if (rc != HVD_OK) {
        hvi_ctx_stop_threads(f.c);
        hvi_ctx_unref(f.c);
        return rc;
    }
    hvi_log_info("form", "epoch=%u size=%d plane=%s", f.c->epoch, f.c->size,
                 f.c->plane->ops->name);
    *out = f.c;
    return HVD_OK;
}
