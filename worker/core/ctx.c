/* The context as an object: made, counted, freed, and left alone by a forked child. */
#include "worker/core/ctx.h"

#include <stdlib.h>
#include <unistd.h>

#include "worker/core/timeline.h"

struct hvi_ctx *hvi_ctx_new(void)
{
    struct hvi_ctx *c = calloc(1, sizeof *c);

    if (c == NULL)
        return NULL;
    atomic_store(&c->refs, 1);
    c->conn.fd = -1;
    c->wake_fd = -1;
    pthread_mutex_init(&c->exec, NULL);
    pthread_mutex_init(&c->reader, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->cond, NULL);
    pthread_cond_init(&c->pset_cond, NULL);
    pthread_cond_init(&c->bye_cond, NULL);
    pthread_mutex_init(&c->gpu_lock, NULL);
    pthread_cond_init(&c->device_cond, NULL);
    c->join_device = -1;
    hvi_list_init(&c->lanes);
    hvi_list_init(&c->inflight);
    hvi_list_init(&c->runs);
    hvi_list_init(&c->deferred);
    c->by_id = calloc(HVI_BOARD_MAX_IDS, sizeof(struct hvi_known *));
    if (c->by_id == NULL) {
        free(c);
        return NULL;
    }
    return c;
}

static void drop_gpu(struct hvi_ctx *c)
{
    struct hvi_plane *gpu = atomic_load(&c->gpu);

    if (gpu != NULL)
        gpu->ops->free(gpu);
    atomic_store(&c->gpu, NULL);
    free(c->set_ranks);
    free(c->set_sizes);
    c->set_ranks = NULL;
    c->set_sizes = NULL;
}

void hvi_ctx_drop_plane(struct hvi_ctx *c)
{
    drop_gpu(c); /* stands on the other one */
    if (c->plane != NULL)
        c->plane->ops->free(c->plane);
    c->plane = NULL;
    if (c->segment.mem == NULL)
        free(c->bells);
    c->bells = NULL;
    c->board = NULL;
    hvi_segment_fini(&c->segment);
}

static void ctx_free(struct hvi_ctx *c)
{
    hvi_timeline_fini(c);
    hvi_forward_fini(c);
    hvi_negotiate_fini(c);
    hvi_ctx_drop_plane(c);
    hvi_conn_fini(&c->conn);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    free(c->x.pieces);
    free(c->x.ops);
    free(c->peers);
    hvi_wipe(c->epoch_key, sizeof c->epoch_key);
    pthread_mutex_destroy(&c->exec);
    pthread_mutex_destroy(&c->reader);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->cond);
    pthread_cond_destroy(&c->pset_cond);
    pthread_cond_destroy(&c->bye_cond);
    pthread_mutex_destroy(&c->gpu_lock);
    pthread_cond_destroy(&c->device_cond);
    free(c);
}

void hvi_ctx_unref(struct hvi_ctx *c)
{
    if (c != NULL && atomic_fetch_sub(&c->refs, 1) == 1)
        ctx_free(c);
}

void hvi_ctx_forked(struct hvi_ctx *c)
{
    if (c->conn.fd >= 0)
        close(c->conn.fd);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    c->conn.fd = c->wake_fd = -1;
    if ((c->mode == HVI_MODE_TCP || c->mode == HVI_MODE_HOSTS) && c->plane != NULL) {
        c->plane->ops->free(c->plane); /* closes its sockets; threads are gone */
        c->plane = NULL;
    }
}
