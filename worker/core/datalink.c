/*
 * Meeting the peers of an epoch.
 *
 * Happy path of a link: the higher rank connects and sends its hello; the lower one
 * replies; the higher proves itself by a first sealed record with its rank and attempt;
 * the lower answers with a record of its own (and a descriptor, for the segment). All
 * four have fixed sizes, so nothing of the payload that follows is read too early.
 *
 * Failure paths: who does not prove itself within LINK_MS is closed and forgotten; an
 * accepted link is worth nothing before its proof. A peer that was dialled and is silent
 * may be slow, or somebody else who has its address here: it is dialled by another way
 * beside, and the first link that is proven wins. What remains missing at the deadline is
 * named.
 */
#include "worker/core/datalink.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/env.h"
#include "proto/base/listenall.h"
#include "proto/base/log.h"
#include "proto/base/ports.h"
#include "proto/base/tmpdir.h"
#include "worker/core/dial.h"

#define LINK_MS 5000     /* for one handshake, PROTOCOL.md section 7 */
#define BESIDE_MS 500    /* to connect by another way: the others wait meanwhile */
#define STRANGERS_MAX 16 /* unproven links beyond those awaited */
#define PROOF_BYTES 8    /* u32 rank, u32 attempt */
#define RECORD_BYTES (24 + 4 + 17 + PROOF_BYTES) /* a first record with a proof in it */

/* ---- listeners ------------------------------------------------------------------- */

static enum hvd_status make_dir(struct hvi_listener *l, struct hvi_err *err)
{
    static atomic_bool swept;
    const char *base = getenv("XDG_RUNTIME_DIR");

    if (base == NULL || base[0] != '/' || strlen(base) > 60 || access(base, W_OK) != 0)
        base = "/tmp";
    if (!atomic_exchange(&swept, true))
        hvi_tmpdir_sweep(base);
    snprintf(l->dir, sizeof l->dir, "%s/hvd-XXXXXX", base);
    if (mkdtemp(l->dir) == NULL) {
        enum hvd_status rc = hvi_fail(err, HVD_EIO, "cannot make a directory in %s: %s",
                                      base, strerror(errno));

        l->dir[0] = '\0';
        return rc;
    }
    return HVD_OK;
}

static enum hvd_status no_socket(struct hvi_err *err)
{
    if (errno == EMFILE || errno == ENFILE)
        return hvi_fail(err, HVD_ELIMIT,
                        "too many open files: raise the limit (ulimit -n)");
    return hvi_fail(err, HVD_EIO, "socket: %s", strerror(errno));
}

static enum hvd_status open_unix(struct hvi_listener *l, struct hvi_err *err)
{
    static _Atomic unsigned serial;
    const char *dir = hvi_env("RUNTIME_DIR");
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    enum hvd_status rc;

    if (dir == NULL || strlen(dir) > 70) {
        rc = make_dir(l, err);
        if (rc != HVD_OK)
            return rc;
        dir = l->dir;
    }
    snprintf(l->path, sizeof l->path, "%.80s/w%ld-%u", dir, (long)getpid(), serial++);
    memcpy(sa.sun_path, l->path, strlen(l->path));
    l->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->unix_fd < 0)
        return no_socket(err);
    if (bind(l->unix_fd, (struct sockaddr *)&sa, sizeof sa) != 0 ||
        listen(l->unix_fd, SOMAXCONN) != 0)
        return hvi_fail(err, HVD_EIO, "cannot listen on %s: %s", l->path,
                        strerror(errno));
    return HVD_OK;
}

/* HVD_PORT_RANGE: "N-M"; not set: any port. Whoever asks for a range has a firewall:
 * there is no other port to fall back on. */
static enum hvd_status port_range(const char *text, int *first, int *last,
                                  struct hvi_err *err)
{
    int got = text != NULL ? sscanf(text, "%d-%d", first, last) : 0;

    if (got == 1)
        *last = *first;
    if (text != NULL && (got < 1 || *first < 1 || *last < *first || *last > 65535))
        return hvi_fail(err, HVD_EINVAL, "HVD_PORT_RANGE: '%.40s' is not N-M", text);
    return HVD_OK;
}

static enum hvd_status cannot_listen(const char *range, struct hvi_err *err)
{
    char gone[HVI_PORTS_TEXT];

    if (errno == EMFILE || errno == ENFILE)
        return no_socket(err);
    if (range == NULL && hvi_ports_gone(errno, gone) != NULL)
        return hvi_fail(err, HVD_ELIMIT, "cannot listen for peers: %s", gone);
    if (range != NULL && errno == EADDRINUSE)
        return hvi_fail(err, HVD_EIO,
                        "HVD_PORT_RANGE: all ports of %.40s are taken; each rank of a "
                        "host needs one",
                        range);
    return hvi_fail(err, HVD_EIO, "cannot listen for peers: %s", strerror(errno));
}

/* On each way. One that has gone meanwhile is not offered. */
static enum hvd_status listen_on_ways(struct hvi_listener *l, struct hvi_ways *ways,
                                      struct hvi_err *err)
{
    const char *range = hvi_env("PORT_RANGE");
    const char *addr[HVI_WAYS_MAX];
    int fds[HVI_WAYS_MAX];
    int first = 0, last = 0, port;
    enum hvd_status rc = port_range(range, &first, &last, err);

    if (rc != HVD_OK)
        return rc;
    for (int i = 0; i < ways->n; i++)
        addr[i] = ways->addr[i];
    if (!hvi_listen_all(addr, (size_t)ways->n, first, last, fds, &port))
        return cannot_listen(range, err);
    for (int i = 0; i < ways->n; i++) {
        if (fds[i] < 0)
            continue;
        memcpy(l->ways.addr[l->ways.n], ways->addr[i], HVI_WAY_BYTES);
        l->tcp_fd[l->ways.n++] = fds[i];
    }
    l->port = (uint16_t)port;
    return HVD_OK;
}

static enum hvd_status open_tcp(struct hvi_listener *l, int near_fd,
                                struct hvi_err *err)
{
    const char *names = hvi_env("NETWORK_INTERFACES");
    struct sockaddr_storage sa = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof sa;
    char near[HVI_WAY_BYTES] = "127.0.0.1";
    struct hvi_ways ways;

    if (near_fd >= 0 && getsockname(near_fd, (struct sockaddr *)&sa, &n) == 0 &&
        (sa.ss_family == AF_INET || sa.ss_family == AF_INET6) &&
        getnameinfo((struct sockaddr *)&sa, n, near, sizeof near, NULL, 0,
                    NI_NUMERICHOST) != 0)
        return hvi_fail(err, HVD_EIO, "cannot listen for peers: no address");
    hvi_ways_find(near, names, &ways);
    if (ways.n == 0)
        return hvi_fail(err, HVD_EINVAL,
                        "HVD_NETWORK_INTERFACES (--network-interfaces): no interface "
                        "of this host with an address is named '%s'",
                        names);
    return listen_on_ways(l, &ways, err);
}

enum hvd_status hvi_listener_open(struct hvi_listener *l, int near_fd, bool unix_too,
                                  bool tcp_too, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    memset(l, 0, sizeof *l);
    l->unix_fd = -1;
    if (unix_too)
        rc = open_unix(l, err);
    if (rc == HVD_OK && tcp_too)
        rc = open_tcp(l, near_fd, err);
    if (rc != HVD_OK)
        hvi_listener_close(l);
    return rc;
}

void hvi_listener_close(struct hvi_listener *l)
{
    if (l->unix_fd >= 0) {
        close(l->unix_fd);
        unlink(l->path);
    }
    for (int i = 0; i < l->ways.n; i++)
        close(l->tcp_fd[i]);
    if (l->dir[0] != '\0')
        rmdir(l->dir);
    l->unix_fd = -1;
    l->ways.n = 0;
    l->dir[0] = l->path[0] = '\0';
}

/* ---- one link -------------------------------------------------------------------- */

enum link_state {
    LINK_UNSET = 0,
    LINK_HELLO, /* server: waits for the hello */
    LINK_REPLY, /* client: waits for the reply */
    LINK_PROOF, /* server: waits for the proof */
    LINK_ACK,   /* client: waits for the server's record */
    LINK_FLUSH, /* server: its record is being written */
    LINK_DONE
};

struct link {
    int fd, rank;                    /* rank -1: not proven yet */
    const struct hvi_target *target; /* client: whom it was dialled for */
    unsigned tried;                  /* client: bit i: its way i was taken before */
    enum link_state state;
    int64_t deadline_ms;
    struct hvi_hs_client hs;
    struct hvi_stream stream;
    uint8_t in[HVI_HELLO_BYTES];
    size_t have, want;
    struct hvi_buf out;
    bool pass; /* the descriptor goes with the next byte written */
};

struct meeting {
    struct hvi_meet *m;
    struct link *links;
    int nlinks, cap;
    int missing; /* ranks still to come */
    bool called_off;
    /* the last rank dialled: its host, and which of its ways answered */
    int host, way;
};

static void link_close(struct link *k)
{
    if (k->fd >= 0)
        close(k->fd);
    k->fd = -1;
    hvi_hs_fini(&k->hs);
    hvi_stream_fini(&k->stream);
    hvi_buf_fini(&k->out);
    k->state = LINK_UNSET;
}

/* Writes what the socket takes; the descriptor rides on the first byte. */
static enum hvd_status link_write(struct link *k, int pass_fd, struct hvi_err *err)
{
    while (hvi_buf_size(&k->out) > 0) {
        union {
            char space[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {(void *)(uintptr_t)hvi_buf_peek(&k->out),
                            hvi_buf_size(&k->out)};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        if (k->pass && pass_fd >= 0) {
            struct cmsghdr *h;

            memset(&control, 0, sizeof control);
            msg.msg_control = control.space;
            msg.msg_controllen = sizeof control.space;
            h = CMSG_FIRSTHDR(&msg);
            h->cmsg_level = SOL_SOCKET;
            h->cmsg_type = SCM_RIGHTS;
            h->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(h), &pass_fd, sizeof pass_fd);
        }
        n = sendmsg(k->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return HVD_INPROGRESS;
        if (n < 0)
            return hvi_fail(err, HVD_EIO, "data connection: %s", strerror(errno));
        k->pass = false;
        hvi_buf_consume(&k->out, (size_t)n);
    }
    return HVD_OK;
}

/* A descriptor that came with the bytes. */
static void take_fd(struct msghdr *msg, int *got_fd)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(msg); h != NULL; h = CMSG_NXTHDR(msg, h)) {
        int fd;

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS ||
            h->cmsg_len != CMSG_LEN(sizeof(int)))
            continue;
        memcpy(&fd, CMSG_DATA(h), sizeof fd);
        if (*got_fd >= 0)
            close(*got_fd);
        *got_fd = fd;
    }
}

/* Reads up to want bytes. HVD_OK: all are there. */
static enum hvd_status link_read(struct link *k, int *got_fd, struct hvi_err *err)
{
    while (k->have < k->want) {
        union {
            char space[CMSG_SPACE(4 * sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {k->in + k->have, k->want - k->have};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n;

        if (k->state == LINK_ACK) { /* only a proven server's answer may bring one */
            msg.msg_control = control.space;
            msg.msg_controllen = sizeof control.space;
        }
        n = recvmsg(k->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return HVD_INPROGRESS;
        if (n < 0)
            return hvi_fail(err, HVD_EIO, "data connection: %s", strerror(errno));
        if (n == 0)
            return hvi_fail(err, HVD_EIO, "data connection: closed by the peer");
        if (k->state == LINK_ACK)
            take_fd(&msg, got_fd);
        if (k->state == LINK_ACK && (msg.msg_flags & MSG_CTRUNC) != 0) {
            errno = EMFILE; /* nothing else takes the descriptor away */
            return no_socket(err);
        }
        k->have += (size_t)n;
    }
    k->have = 0;
    return HVD_OK;
}

static enum hvd_status put_proof(struct link *k, const struct hvi_meet *m)
{
    uint8_t proof[PROOF_BYTES];
    struct hvi_cursor c;

    hvi_cursor_init(&c, proof, sizeof proof);
    hvi_put_u32(&c, (uint32_t)m->rank);
    hvi_put_u32(&c, m->attempt);
    return hvi_stream_seal(&k->stream, proof, sizeof proof, false, &k->out);
}

static enum hvd_status get_proof(struct link *k, const struct hvi_meet *m, int *rank,
                                 struct hvi_err *err)
{
    struct hvi_buf in = {0};
    struct hvi_buf plain = {0};
    struct hvi_cursor c;
    uint32_t r;
    uint32_t attempt;
    enum hvd_status rc = hvi_buf_append(&in, k->in, k->want);

    if (rc == HVD_OK)
        rc = hvi_stream_open(&k->stream, &in, &plain, err);
    if (rc == HVD_INPROGRESS)
        rc = hvi_fail(err, HVD_EPROTO, "data connection: a record of another size");
    if (rc == HVD_OK) {
        hvi_cursor_init_ro(&c, hvi_buf_peek(&plain), hvi_buf_size(&plain));
        r = hvi_get_u32(&c);
        attempt = hvi_get_u32(&c);
        if (c.bad || r >= (uint32_t)m->size)
            rc =
                hvi_fail(err, HVD_EPROTO, "data connection: rank %u of %d", r, m->size);
        else if (attempt != m->attempt)
            rc = hvi_fail(err, HVD_EPROTO, "data connection: attempt %u, not %u",
                          attempt, m->attempt);
        else
            *rank = (int)r;
    }
    hvi_buf_fini(&in);
    hvi_buf_fini(&plain);
    return rc;
}

/* Another link that was dialled for the same rank. */
static struct link *beside(const struct meeting *g, const struct link *k)
{
    for (int i = 0; i < g->nlinks; i++)
        if (&g->links[i] != k && g->links[i].target == k->target &&
            g->links[i].state != LINK_UNSET)
            return &g->links[i];
    return NULL;
}

static void link_done(struct meeting *g, struct link *k)
{
    int fd = k->fd;
    struct link *other;

    while (k->target != NULL && (other = beside(g, k)) != NULL)
        link_close(other);
    k->fd = -1;
    g->m->fds[k->rank] = fd;
    if (!g->m->keep) {
        close(fd);
        g->m->fds[k->rank] = INT32_MAX; /* came */
    }
    g->missing--;
    link_close(k);
    k->state = LINK_DONE;
}

/* The job id by which rank is called at an address that others may have too: who is not
 * meant refuses it, before either has proven itself. */
static void name_rank(const uint8_t *job_id, int rank, uint8_t out[HVI_JOB_ID_BYTES])
{
    struct hvi_cursor c;
    uint8_t who[4];

    memcpy(out, job_id, HVI_JOB_ID_BYTES);
    hvi_cursor_init(&c, who, sizeof who);
    hvi_put_u32(&c, (uint32_t)rank + 1);
    for (size_t i = 0; i < sizeof who; i++)
        out[HVI_JOB_ID_BYTES - sizeof who + i] ^= who[i];
}

static enum hvd_status on_hello(struct meeting *g, struct link *k, struct hvi_err *err)
{
    uint8_t reply[HVI_HELLO_BYTES];
    enum hvi_role role = HVI_ROLE_UNSET;
    uint8_t named[HVI_JOB_ID_BYTES];
    enum hvd_status rc = hvi_hs_server(g->m->epoch_key, g->m->job_id, HVI_ROLE_DATA,
                                       k->in, reply, &k->stream, &role, err);

    if (rc == HVD_EAUTH) {
        name_rank(g->m->job_id, g->m->rank, named);
        rc = hvi_hs_server(g->m->epoch_key, named, HVI_ROLE_DATA, k->in, reply,
                           &k->stream, &role, err);
    }
    if (rc != HVD_OK)
        return rc;
    if (role != HVI_ROLE_DATA)
        return hvi_fail(err, HVD_EAUTH, "data connection: role %d", role);
    k->state = LINK_PROOF;
    k->want = RECORD_BYTES;
    return hvi_buf_append(&k->out, reply, sizeof reply);
}

static enum hvd_status on_proof(struct meeting *g, struct link *k, struct hvi_err *err)
{
    int rank = -1;
    enum hvd_status rc = get_proof(k, g->m, &rank, err);

    if (rc != HVD_OK)
        return rc;
    if (rank <= g->m->rank || g->m->fds[rank] != -1)
        return hvi_fail(err, HVD_EPROTO, "data connection: unexpected rank %d", rank);
    k->rank = rank;
    k->pass = true;
    k->state = LINK_FLUSH;
    return put_proof(k, g->m);
}

/* Everything a link can do now. */
static enum hvd_status link_step(struct meeting *g, struct link *k, struct hvi_err *err)
{
    int rank = -1;
    enum hvd_status rc;

    for (;;) {
        rc = link_write(k, g->m->pass_fd, err);
        if (rc != HVD_OK)
            return rc;
        if (k->state == LINK_FLUSH) {
            link_done(g, k);
            return HVD_OK;
        }
        rc = link_read(k, &g->m->got_fd, err);
        if (rc != HVD_OK)
            return rc;
        switch (k->state) {
        case LINK_HELLO:
            rc = on_hello(g, k, err);
            break;
        case LINK_REPLY:
            rc = hvi_hs_client_finish(&k->hs, k->in, &k->stream, err);
            if (rc == HVD_OK)
                rc = put_proof(k, g->m);
            k->state = LINK_ACK;
            k->want = RECORD_BYTES;
            break;
        case LINK_PROOF:
            rc = on_proof(g, k, err);
            break;
        default: /* LINK_ACK */
            rc = get_proof(k, g->m, &rank, err);
            if (rc == HVD_OK && rank != k->rank)
                rc = hvi_fail(err, HVD_EPROTO,
                              "data connection: rank %d answers for %d", rank, k->rank);
            if (rc == HVD_OK) {
                link_done(g, k);
                return HVD_OK;
            }
            break;
        }
        if (rc != HVD_OK)
            return rc;
    }
}

/* ---- the meeting ----------------------------------------------------------------- */

static struct link *new_link(struct meeting *g, int fd)
{
    struct link *k = NULL;
    int one = 1;

    for (int i = 0; i < g->nlinks && k == NULL; i++)
        if (g->links[i].state == LINK_UNSET)
            k = &g->links[i];
    if (k == NULL && g->nlinks < g->cap)
        k = &g->links[g->nlinks++];
    if (k == NULL)
        return NULL;
    memset(k, 0, sizeof *k);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one,
               sizeof one); /* fails on Unix sockets */
    k->fd = fd;
    k->rank = -1;
    k->deadline_ms = hvi_now_ms() + LINK_MS;
    return k;
}

/* The ways of t that are not in tried; index: which these are. First the one that has
 * answered for its host before. Returns how many. */
static int ways_left(const struct meeting *g, const struct hvi_target *t,
                     unsigned tried, const char *where[HVI_WAYS_MAX],
                     int index[HVI_WAYS_MAX])
{
    int first = t->host == g->host && g->way < t->nways ? g->way : 0;
    int n = 0;

    for (int i = 0; i < t->nways; i++) {
        int way = i == 0 ? first : i <= first ? i - 1 : i;

        if ((tried & 1u << way) != 0)
            continue;
        where[n] = t->where[way];
        index[n++] = way;
    }
    return n;
}

static enum hvd_status say_hello(struct meeting *g, struct link *k, bool named,
                                 struct hvi_err *err)
{
    uint8_t hello[HVI_HELLO_BYTES], job_id[HVI_JOB_ID_BYTES];
    enum hvd_status rc;

    memcpy(job_id, g->m->job_id, sizeof job_id);
    if (named)
        name_rank(g->m->job_id, k->rank, job_id);
    k->state = LINK_REPLY;
    k->want = HVI_HELLO_BYTES;
    rc =
        hvi_hs_client_start(&k->hs, g->m->epoch_key, job_id, HVI_ROLE_DATA, hello, err);
    return rc == HVD_OK ? hvi_buf_append(&k->out, hello, sizeof hello) : rc;
}

static int silence_ms(const struct meeting *g)
{
    return g->m->silence_ms > 0 ? g->m->silence_ms : LINK_MS;
}

/* tried: ways that were taken before */
static enum hvd_status dial(struct meeting *g, const struct hvi_target *t,
                            unsigned tried, int64_t until_ms, struct hvi_err *err)
{
    const char *where[HVI_WAYS_MAX];
    int index[HVI_WAYS_MAX];
    struct hvi_dial_watch watch = {g->m->watch_fd, g->m->on_watch, g->m->arg};
    struct hvi_err why = {{0}};
    struct link *k;
    enum hvd_status rc;
    int which, fd;
    int n = ways_left(g, t, tried, where, index);

    /* what has been read already makes no descriptor readable */
    rc = watch.fd >= 0 && watch.called_off(watch.arg)
             ? HVD_INPROGRESS
             : hvi_dial_any("a peer", where, n, until_ms, &watch, &fd, &which, &why);
    if (rc == HVD_INPROGRESS) {
        g->called_off = true;
        return rc;
    }
    if (rc != HVD_OK)
        return hvi_fail(err, rc == HVD_ELIMIT ? rc : HVD_EIO, "rank %d: %s", t->rank,
                        why.text);
    k = new_link(g, fd);
    if (k == NULL) {
        close(fd);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    g->host = t->host;
    g->way = index[which];
    k->rank = t->rank;
    k->target = t;
    k->tried = tried | 1u << index[which];
    k->deadline_ms = n > 1 ? hvi_now_ms() + silence_ms(g) : g->m->deadline_ms;
    return say_hello(g, k, t->named[index[which]], err);
}

/* The ways to the rank of k that its links have taken. */
static unsigned tried_of(const struct meeting *g, const struct link *k)
{
    unsigned tried = 0;

    for (int i = 0; i < g->nlinks; i++)
        if (g->links[i].target == k->target && g->links[i].state != LINK_UNSET)
            tried |= g->links[i].tried;
    return tried;
}

/* Dials the rank of k by a way that has not been taken. k is not touched. */
static bool dial_another_way(struct meeting *g, const struct link *k, int within_ms,
                             const char *why)
{
    const struct hvi_target *t = k->target;
    const char *where[HVI_WAYS_MAX];
    int index[HVI_WAYS_MAX];
    struct hvi_err err = {{0}};
    unsigned tried = tried_of(g, k);
    int64_t until_ms = hvi_now_ms() + within_ms;

    if (ways_left(g, t, tried, where, index) == 0)
        return false;
    hvi_log_info("form", "rank %d, another way: %s", t->rank, why);
    if (until_ms > g->m->deadline_ms)
        until_ms = g->m->deadline_ms;
    return dial(g, t, tried, until_ms, &err) == HVD_OK;
}

/* It may answer yet. */
static void is_silent(struct meeting *g, struct link *k)
{
    k->deadline_ms = g->m->deadline_ms;
    if (!dial_another_way(g, k, BESIDE_MS, "no handshake in time"))
        k->deadline_ms = hvi_now_ms() + silence_ms(g);
}

/* Somebody else, or the peer has closed it. */
static bool is_refused(struct meeting *g, struct link *k, const char *why)
{
    bool goes_on = dial_another_way(g, k, LINK_MS, why) || beside(g, k) != NULL;

    if (goes_on)
        link_close(k);
    return goes_on;
}

static enum hvd_status accept_all(struct meeting *g, int listen_fd, struct hvi_err *err)
{
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct link *k;

        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            return no_socket(err); /* it would stay readable, and never come */
        if (fd < 0)
            return HVD_OK;
        k = new_link(g, fd);
        if (k == NULL) { /* too many strangers */
            close(fd);
            return HVD_OK;
        }
        k->state = LINK_HELLO;
        k->want = HVI_HELLO_BYTES;
    }
}

/* The poll set: Unix listener, watch, TCP listeners, then the links. */
#define AT_TCP 2
#define AT_LINKS (AT_TCP + HVI_WAYS_MAX)

static void fill_poll(struct meeting *g, const struct hvi_listener *l, struct pollfd *p,
                      int *timeout_ms)
{
    p[0] = (struct pollfd){.fd = l->unix_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = g->m->watch_fd, .events = POLLIN};
    for (int i = 0; i < HVI_WAYS_MAX; i++)
        p[AT_TCP + i] =
            (struct pollfd){.fd = i < l->ways.n ? l->tcp_fd[i] : -1, .events = POLLIN};
    p += AT_LINKS;
    for (int i = 0; i < g->nlinks; i++) {
        struct link *k = &g->links[i];

        p[i] = (struct pollfd){.fd = k->fd, .events = POLLIN};
        if (k->state == LINK_DONE || k->state == LINK_UNSET) {
            p[i].fd = -1;
            continue;
        }
        if (hvi_buf_size(&k->out) > 0)
            p[i].events = POLLOUT;
        if (hvi_ms_left(k->deadline_ms) < *timeout_ms)
            *timeout_ms = hvi_ms_left(k->deadline_ms);
    }
}

static enum hvd_status step_links(struct meeting *g, const struct pollfd *p, int n,
                                  struct hvi_err *err)
{
    for (int i = 0; i < n; i++) {
        struct link *k = &g->links[i];
        struct hvi_err why = {{0}};
        enum hvd_status rc = HVD_INPROGRESS;
        bool late;

        if (k->state == LINK_DONE || k->state == LINK_UNSET)
            continue;
        late = hvi_ms_left(k->deadline_ms) == 0;
        if (p[i].revents != 0 || k->state == LINK_REPLY)
            rc = link_step(g, k, &why);
        if (rc == HVD_INPROGRESS && late && k->target != NULL)
            is_silent(g, k);
        else if (rc == HVD_INPROGRESS && late)
            rc = hvi_fail(&why, HVD_ETIMEDOUT, "data connection: no handshake in time");
        if (rc == HVD_OK || rc == HVD_INPROGRESS)
            continue;
        if (k->target != NULL && rc != HVD_ELIMIT && is_refused(g, k, why.text))
            continue;
        if (k->target != NULL || rc == HVD_ELIMIT)
            return hvi_fail(err, rc, "rank %d: %s", k->rank, why.text);
        hvi_log_warn("form", "refused a data connection: %s", why.text);
        link_close(k);
    }
    return HVD_OK;
}

/* Names who did not come. */
static enum hvd_status timed_out(const struct meeting *g,
                                 const struct hvi_target *targets, int ntargets,
                                 int expected, struct hvi_err *err)
{
    char list[256] = "";
    size_t n = 0;

    for (int i = 0; i < ntargets + expected && n < sizeof list - 16; i++) {
        int rank = i < ntargets ? targets[i].rank : g->m->rank + 1 + i - ntargets;

        if (g->m->fds[rank] == -1)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", n > 0 ? ", " : "",
                                  rank);
    }
    return hvi_fail(err, HVD_ETIMEDOUT, "no data connection with rank %s", list);
}

static enum hvd_status meet(struct meeting *g, struct hvi_listener *l, struct pollfd *p,
                            struct hvi_err *err)
{
    /* what has been read already makes no descriptor readable */
    if (g->m->watch_fd >= 0 && g->m->on_watch(g->m->arg))
        return HVD_INPROGRESS;
    while (g->missing > 0) {
        int timeout_ms = hvi_ms_left(g->m->deadline_ms);
        int n = g->nlinks;
        enum hvd_status rc;

        if (timeout_ms == 0)
            return HVD_ETIMEDOUT;
        fill_poll(g, l, p, &timeout_ms);
        if (poll(p, AT_LINKS + (nfds_t)n, timeout_ms) < 0) {
            if (errno == EINTR)
                continue;
            return hvi_fail(err, HVD_EIO, "poll: %s", strerror(errno));
        }
        if (p[1].revents != 0 && g->m->on_watch(g->m->arg))
            return HVD_INPROGRESS;
        rc = step_links(g, p + AT_LINKS, n, err);
        if (g->called_off)
            return HVD_INPROGRESS;
        if (rc != HVD_OK)
            return rc;
        if (p[0].revents != 0)
            rc = accept_all(g, l->unix_fd, err);
        for (int i = 0; i < l->ways.n && rc == HVD_OK; i++)
            if (p[AT_TCP + i].revents != 0)
                rc = accept_all(g, l->tcp_fd[i], err);
        if (rc != HVD_OK)
            return rc;
    }
    return HVD_OK;
}

enum hvd_status hvi_meet_run(struct hvi_meet *m, struct hvi_listener *l,
                             const struct hvi_target *targets, int ntargets,
                             int expected, struct hvi_err *err)
{
    int more = expected > 0 ? expected : 0;
    struct meeting g = {.m = m,
                        .cap = ntargets * HVI_WAYS_MAX + more + STRANGERS_MAX,
                        .missing = ntargets + more,
                        .host = -1};
    struct pollfd *p = calloc((size_t)g.cap + AT_LINKS, sizeof *p);
    enum hvd_status rc = HVD_OK;

    g.links = calloc((size_t)g.cap, sizeof *g.links);
    if (p == NULL || g.links == NULL)
        rc = hvi_fail(err, HVD_ENOMEM, "out of memory");
    for (int i = 0; i < ntargets && rc == HVD_OK; i++)
        rc = dial(&g, &targets[i], 0, m->deadline_ms, err);
    if (rc == HVD_OK)
        rc = meet(&g, l, p, err);
    if (rc == HVD_ETIMEDOUT)
        rc = timed_out(&g, targets, ntargets, more, err);
    for (int i = 0; i < g.nlinks; i++)
        if (g.links[i].state != LINK_DONE)
            link_close(&g.links[i]);
    free(g.links);
    free(p);
    return rc;
}
