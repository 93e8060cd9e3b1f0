/*
 * Making communicators. Happy path: all members exchange cards over the CPU plane (GPU,
 * host, NCCL version); member 0 tells NCCL's id; NCCL connects in the background
 * (FORMING); the communicator of all ranks then splits off those of the static sets.
 *
 * Failure paths: the cards say the same to everyone, so all members decide alike: they
 * refuse the group (no NCCL, an old one, different ones), or go through the host (two
 * members on one GPU, no kernel, no memory, asked for). What fails after that fails on one
 * rank alone and breaks the plane.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "worker/plane/nccl/gpu.h"

#define FORM_MS 120000 /* NCCL connects within; the slowest start on a large cluster */

/* ---- errors ---------------------------------------------------------------------- */

/* What people can do about it, where NCCL's own word is none. */
static const char *hint(int result, const char *last)
{
    if (strstr(last, "driver version is insufficient") != NULL)
        return "; this NCCL is built for a newer CUDA than the driver has (hvdrun "
               "--check-build): install the NCCL of the driver's CUDA, as "
               "nvidia-nccl-cu12, or a newer driver";
    switch (result) {
    case HVI_NCCL_SYSTEM:
        return "; often the network or shared memory between the ranks: "
               "NCCL_DEBUG=WARN "
               "says more, NCCL_SOCKET_IFNAME chooses the interface, /dev/shm may be "
               "too small (docker: --shm-size)";
    case HVI_NCCL_UNHANDLED_CUDA:
        return "; a CUDA call inside NCCL failed: NCCL_DEBUG=WARN says which";
    case HVI_NCCL_REMOTE:
        return "; another rank failed or lost its connection: its own message says why";
    default:
        return "";
    }
}

enum hvd_status hvi_gpu_nccl_check(struct hvi_gpu *p, int result, struct ncclComm *comm,
                                   const char *what, struct hvi_err *err)
{
    const char *last;
    char version[16];

    if (result == HVI_NCCL_SUCCESS || result == HVI_NCCL_IN_PROGRESS)
        return HVD_OK;
    last = p->nccl->last_error(comm);
    last = last != NULL ? last : "";
    return hvi_fail(
        err, HVD_EIO, "%s on rank %d (%s, cuda:%d %s): NCCL %s: %s%s%.300s%s", what,
        p->base.rank, p->host, p->dev->id, p->dev->name,
        hvi_nccl_version_text(p->nccl->version, version), p->nccl->error_string(result),
        last[0] != '\0' ? ": " : "", last, hint(result, last));
}

/* ---- the list -------------------------------------------------------------------- */

static void free_comm(struct hvi_comm *c)
{
    if (c == NULL)
        return;
    free(c->members);
    free(c);
}

enum hvd_status hvi_gpu_find_comm(struct hvi_gpu *p, const int32_t *members, int32_t n,
                                  struct hvi_comm **out, struct hvi_err *err)
{
    size_t bytes = (size_t)n * sizeof *members;
    struct hvi_comm *c;

    for (c = p->comms; c != NULL; c = c->next)
        if (c->n == n && memcmp(c->members, members, bytes) == 0)
            break;
    if (c == NULL) {
        c = calloc(1, sizeof *c);
        if (c != NULL)
            c->members = malloc(bytes);
        if (c == NULL || c->members == NULL) {
            free_comm(c);
            return hvi_fail(err, HVD_ENOMEM, "out of memory");
        }
        memcpy(c->members, members, bytes);
        c->n = n;
        pthread_mutex_lock(&p->lock);
        c->next = p->comms;
        p->comms = c;
        pthread_mutex_unlock(&p->lock);
    }
    *out = c;
    return HVD_OK;
}

/* Static set i's communicator on this rank, or NULL: not a member, or none yet. */
static struct hvi_comm *find_static(struct hvi_gpu *p, int32_t i)
{
    size_t bytes = (size_t)p->setup.set_sizes[i] * sizeof(int32_t);

    for (struct hvi_comm *c = p->comms; c != NULL; c = c->next)
        if (c->n == p->setup.set_sizes[i] &&
            memcmp(c->members, p->setup.set_ranks[i], bytes) == 0)
            return c;
    return NULL;
}

/* ---- cards ----------------------------------------------------------------------- */

static int32_t static_sets(const struct hvi_gpu *p)
{
    const int32_t most = 8 * (int32_t)sizeof p->card.split;

    return p->setup.nsets < most ? p->setup.nsets : most;
}

static void fill_card(struct hvi_gpu *p)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc = HVD_OK;

    if (p->nccl == NULL)
        rc = hvi_nccl_get(&p->nccl, &err);
    p->card.status = rc;
    p->card.version = p->nccl != NULL ? p->nccl->version : 0;
    snprintf(p->card.text, sizeof p->card.text, "%.199s", err.text);
    memset(p->card.split, 0, sizeof p->card.split);
    for (int32_t i = 0; i < static_sets(p); i++)
        if (find_static(p, i) == NULL)
            p->card.split[i / 8] |= (uint8_t)(1u << (i % 8));
}

static bool same_gpu(const struct hvi_card *a, const struct hvi_card *b)
{
    static const uint8_t none[16];
    bool uuid = memcmp(a->uuid, none, sizeof none) != 0 &&
                memcmp(a->uuid, b->uuid, sizeof none) == 0;

    return uuid || (a->bus[0] != '\0' && strcmp(a->bus, b->bus) == 0 &&
                    strcmp(a->host, b->host) == 0);
}

/* Why this set goes through the host, or NULL. */
static const char *staging_reason(const struct hvi_gpu *p, char out[200])
{
    const struct hvi_comm *c = p->comm;

    for (int32_t i = 0; i < c->n; i++) {
        if ((p->cards[i].stage & HVI_STAGE_ASKED) != 0)
            return "HVD_GPU_PLANE=host";
        if (p->cards[i].stage != 0) {
            snprintf(out, 200, "rank %d has no %s", c->members[i],
                     (p->cards[i].stage & HVI_STAGE_KERNEL) != 0
                         ? "kernels"
                         : "memory for the fusion buffer");
            return out;
        }
        for (int32_t k = 0; k < i; k++)
            if (same_gpu(&p->cards[k], &p->cards[i])) {
                snprintf(out, 200, "ranks %d and %d share a GPU (cuda:%u on %.60s)",
                         c->members[k], c->members[i], p->cards[i].device,
                         p->cards[i].host);
                return out;
            }
    }
    return NULL;
}

static enum hvd_status judge_versions(struct hvi_gpu *p)
{
    const struct hvi_comm *c = p->comm;
    char a[16];
    char b[16];

    for (int32_t i = 0; i < c->n; i++) {
        const struct hvi_card *card = &p->cards[i];

        if (card->status != HVD_OK)
            return hvi_fail(&p->group_err, (enum hvd_status)card->status,
                            "rank %d (%.60s): %.199s", c->members[i], card->host,
                            card->text);
        if (card->wire != p->cards[0].wire)
            return hvi_fail(&p->group_err, HVD_EMISMATCH,
                            "HVD_GPU_COMPRESSION differs on ranks %d and %d",
                            c->members[0], c->members[i]);
        if (card->version / 100 != p->cards[0].version / 100)
            return hvi_fail(
                &p->group_err, HVD_EVERSION,
                "rank %d has NCCL %s, rank %d has %s: all must have the same",
                c->members[0], hvi_nccl_version_text(p->cards[0].version, a),
                c->members[i], hvi_nccl_version_text(card->version, b));
    }
    return HVD_OK;
}

/* The cards of all are here. */
static enum hvd_status judge(struct hvi_gpu *p, struct hvi_err *err)
{
    char why[200];
    const char *reason = staging_reason(p, why);
    enum hvd_status rc;

    if (reason != NULL) {
        p->comm->staged = p->comm->formed = true;
        hvi_log_warn("gpu", "GPU tensors of %d ranks go through the host: %s",
                     p->comm->n, reason);
        return HVD_OK;
    }
    rc = judge_versions(p);
    if (rc != HVD_OK)
        return hvi_gpu_refuse(p, rc, err);
    if (p->comm->n == p->setup.size)
        for (int32_t i = 0; i < p->comm->n; i++)
            for (size_t k = 0; k < sizeof p->card.split; k++)
                p->cards[0].split[k] &= p->cards[i].split[k];
    p->phase = HVI_GPU_ID;
    return HVD_OK;
}

/* ---- connecting ------------------------------------------------------------------ */

static enum hvd_status begin_init(struct hvi_gpu *p, struct hvi_err *err)
{
    struct hvi_nccl_config config = HVI_NCCL_CONFIG;
    int rc;

    pthread_mutex_lock(&p->api);
    rc = p->nccl->comm_init(&p->comm->made, p->comm->n, p->id, p->g->me, &config);
    pthread_mutex_lock(&p->lock);
    p->comm->nccl = p->comm->made;
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->api);
    p->forming_ms = hvi_now_ms();
    return hvi_gpu_nccl_check(p, rc, NULL, "creating the communicator", err);
}

/* HVD_OK: connected. */
static enum hvd_status poll_state(struct hvi_gpu *p, struct hvi_comm *c,
                                  struct hvi_err *err)
{
    int state = HVI_NCCL_SUCCESS;
    enum hvd_status rc = HVD_OK;

    pthread_mutex_lock(&p->api);
    if (c->nccl != NULL)
        p->nccl->async_error(c->nccl, &state);
    if (state != HVI_NCCL_SUCCESS && state != HVI_NCCL_IN_PROGRESS)
        rc = hvi_gpu_nccl_check(p, state, c->nccl, "creating the communicator", err);
    pthread_mutex_unlock(&p->api);
    if (rc == HVD_OK && state == HVI_NCCL_IN_PROGRESS) {
        if (hvi_now_ms() - p->forming_ms > FORM_MS)
            return hvi_fail(err, HVD_EPEER,
                            "NCCL has not connected %d ranks in %d s (rank %d, %s)",
                            c->n, FORM_MS / 1000, p->base.rank, p->host);
        return HVD_INPROGRESS;
    }
    return rc;
}

/* The fusion buffer is where most reductions happen: NCCL may map it for its peers. */
static void formed(struct hvi_gpu *p, struct hvi_comm *c)
{
    pthread_mutex_lock(&p->api);
    if (p->nccl->comm_register != NULL && p->nccl->comm_deregister != NULL &&
        c->nccl != NULL &&
        p->nccl->comm_register(c->nccl, (void *)(uintptr_t)p->buffer, p->buffer_bytes,
                               &c->registered) != HVI_NCCL_SUCCESS)
        c->registered = NULL;
    pthread_mutex_unlock(&p->api);
    c->formed = true;
    hvi_log_info("gpu", "communicator ranks=%d took_ms=%lld", c->n,
                 (long long)(hvi_now_ms() - p->forming_ms));
}

/* ---- static sets ----------------------------------------------------------------- */

static bool in_set(const struct hvi_gpu *p, int32_t i)
{
    for (int32_t k = 0; k < p->setup.set_sizes[i]; k++)
        if (p->setup.set_ranks[i][k] == p->base.rank)
            return true;
    return false;
}

/* Every rank asks for a split in which the members of set i get a communicator. */
static enum hvd_status begin_split(struct hvi_gpu *p, int32_t i, struct hvi_err *err)
{
    struct hvi_nccl_config config = HVI_NCCL_CONFIG;
    enum hvd_status rc = HVD_OK;
    int nccl;

    p->splitting = NULL;
    if (in_set(p, i))
        rc = hvi_gpu_find_comm(p, p->setup.set_ranks[i], p->setup.set_sizes[i],
                               &p->splitting, err);
    if (rc != HVD_OK)
        return rc;
    pthread_mutex_lock(&p->api);
    if (atomic_load(&p->broken) != 0) {
        pthread_mutex_unlock(&p->api);
        return HVD_EPEER;
    }
    nccl = p->nccl->comm_split(
        p->all->nccl, p->splitting != NULL ? 0 : -1, p->base.rank,
        p->splitting != NULL ? &p->splitting->made : &p->no_comm, &config);
    pthread_mutex_unlock(&p->api);
    p->forming_ms = hvi_now_ms();
    return hvi_gpu_nccl_check(p, nccl, p->all->nccl, "splitting the communicator", err);
}

/* Set i is to be split off: it is a real subset and nobody has a communicator of it. */
static bool wants_split(const struct hvi_gpu *p, int32_t i)
{
    return p->setup.set_sizes[i] > 1 && p->setup.set_sizes[i] < p->setup.size &&
           (p->cards[0].split[i / 8] >> (i % 8) & 1) != 0;
}

static enum hvd_status split_step(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (p->split_at >= 0 && p->splitting != p->all) {
        rc = poll_state(p, p->all, err);
        if (rc == HVD_OK && p->splitting != NULL) {
            pthread_mutex_lock(&p->lock);
            if (atomic_load(&p->broken) == 0)
                p->splitting->nccl = p->splitting->made;
            pthread_mutex_unlock(&p->lock);
            rc = poll_state(p, p->splitting, err);
        }
        if (rc != HVD_OK)
            return rc;
        if (p->splitting != NULL)
            formed(p, p->splitting);
        p->splitting = p->all;
    }
    do
        p->split_at++;
    while (p->split_at < static_sets(p) && !wants_split(p, p->split_at));
    if (p->split_at < static_sets(p)) {
        rc = begin_split(p, p->split_at, err);
        return rc == HVD_OK ? HVD_INPROGRESS : rc;
    }
    return HVD_OK;
}

/* ---- steps ----------------------------------------------------------------------- */

static enum hvd_status meet_step(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc;

    if (!p->sub_started)
        fill_card(p);
    rc = hvi_gpu_exchange(p, &p->card, p->cards, sizeof p->card, err);
    return rc == HVD_OK ? judge(p, err) : rc;
}

static enum hvd_status id_step(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (!p->sub_started && p->g->me == 0)
        rc = hvi_gpu_nccl_check(p, p->nccl->unique_id(&p->id), NULL, "ncclGetUniqueId",
                                err);
    if (rc == HVD_OK)
        rc = hvi_gpu_tell(p, &p->id, sizeof p->id, err);
    if (rc == HVD_OK)
        rc = begin_init(p, err);
    if (rc == HVD_OK)
        p->phase = HVI_GPU_FORMING;
    return rc;
}

static enum hvd_status forming_step(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = poll_state(p, p->comm, err);

    if (rc != HVD_OK)
        return rc;
    formed(p, p->comm);
    if (p->comm->n == p->setup.size) {
        p->all = p->comm;
        p->split_at = -1;
        p->splitting = p->all;
        p->phase = HVI_GPU_SPLIT;
    }
    return HVD_OK;
}

enum hvd_status hvi_gpu_form(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc;

    switch (p->phase) {
    case HVI_GPU_MEET:
        rc = meet_step(p, err);
        return rc != HVD_OK || p->comm->formed ? rc : HVD_INPROGRESS;
    case HVI_GPU_ID:
        rc = id_step(p, err);
        return rc == HVD_OK ? HVD_INPROGRESS : rc;
    case HVI_GPU_FORMING:
        rc = forming_step(p, err);
        return rc == HVD_OK && p->phase == HVI_GPU_SPLIT ? HVD_INPROGRESS : rc;
    default:
        return split_step(p, err);
    }
}

/* ---- the end --------------------------------------------------------------------- */

#define FINALIZE_MS 2000 /* peers that leave at the same time; else abort */

static void drop_comm(struct hvi_gpu *p, struct hvi_comm *c)
{
    const struct timespec nap = {0, 1000000};
    int64_t until = hvi_now_ms() + FINALIZE_MS;
    int state = HVI_NCCL_IN_PROGRESS;

    if (c->registered != NULL)
        p->nccl->comm_deregister(c->nccl, c->registered);
    p->nccl->comm_finalize(c->nccl);
    do {
        if (p->nccl->async_error(c->nccl, &state) != HVI_NCCL_SUCCESS)
            state = HVI_NCCL_SYSTEM;
        if (state == HVI_NCCL_IN_PROGRESS)
            nanosleep(&nap, NULL);
    } while (state == HVI_NCCL_IN_PROGRESS && hvi_now_ms() < until);
    if (state == HVI_NCCL_SUCCESS)
        p->nccl->comm_destroy(c->nccl);
    else
        hvi_gpu_abort_last(p, c->nccl);
    c->nccl = NULL;
}

void hvi_gpu_drop_comms(struct hvi_gpu *p)
{
    while (p->comms != NULL) {
        struct hvi_comm *c = p->comms;

        p->comms = c->next;
        if (c->nccl != NULL)
            drop_comm(p, c);
        free_comm(c);
    }
}
