/*
 * Shared memory: tensors that peers read and write where they lie (hvd_alloc), instead
 * of through slots.
 *
 * A rank publishes each block of such memory it uses, once, in its table in the segment,
 * and for each group with such tensors their *places*: block and offset. In the first
 * group with a block the data still go through the slots, but the peers map the block
 * and say so; from the next group on, all of them read it directly. A peer that cannot
 * map it (another namespace of process numbers, no permission) never says so, and the
 * tensor is staged for ever. So nobody waits for an answer, and each rank decides for
 * its own tensors, a group at a time. The results are the same, bit for bit.
 *
 * Life. A rank whose places are published ends the group only when all members have
 * consumed its last step: nobody reads its tables or tensors between groups, so they
 * change only then. A block that was freed is taken out of the table at the next such
 * group; peers unmap what they find changed.
 *
 * Where all members have a piece in such memory, whoever folds a slice of it stores the
 * result into the outputs of all. That is the least an allreduce can move, and the only
 * way in which a line never goes from core to core.
 *
 * Failure. An epoch that fails ends without the peers' consent, and one that was stopped
 * in the middle of a fold goes on with it whenever it is let. Two things keep its owner's
 * memory apart from that, both before the owner's operations complete:
 *   - Reading. A rank that was stopped marks its tensors *revoked*, and a reader looks at
 *     that mark after its last read: what it read before the mark was set is what the
 *     owner had there; otherwise its own operation fails as well.
 *   - Writing. The owner takes back the pages that peers may store to: puts others, with
 *     the same contents, in their place. A late store arrives in the old ones, which
 *     nobody sees. Hence peers store only to pages that lie in the output as a whole, and
 *     the owner copies the few elements around them: a page's other tensors may be in use.
 *     The addresses for it are reserved before: a group for which there are none lends
 *     nothing. A block of which a part was taken back is staged from then on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/log.h"
#include "worker/plane/cpu/shm.h"
#include "worker/plane/shared.h"

enum { MAPPED_MAX = 8192 }; /* of all peers: a process has 65530 mappings */

struct hvi_shm_owned {
    struct hvi_shared *mem; /* one reference; NULL: free */
    uint64_t asked[HVI_SHM_MASK_WORDS];
};

struct hvi_shm_view {
    uint64_t generation;
    uint8_t *data;
    size_t size_bytes;
};

/* What a member reads of another one's pieces; NULL: from its slots. */
struct hvi_shm_source {
    uint8_t *in, *out;
};

/* Whole pages that peers may store to while the group runs. */
struct hvi_shm_lent {
    struct hvi_shared *mem; /* the piece's operation holds it */
    size_t offset, size_bytes;
};

struct hvi_shm_share {
    struct hvi_shm_owned owned[HVI_SHM_BLOCKS];
    int nowned, hint;
    uint64_t generation;
    struct hvi_shm_view **views;     /* [nlocal][HVI_SHM_BLOCKS], rows on demand */
    struct hvi_shm_source **sources; /* [nlocal][HVI_SHM_PLACES], rows on demand */
    bool *reads;                     /* [nlocal] by member: it has places */
    int nmapped;
    struct hvi_shm_lent *lent; /* [nlent] */
    int nlent;
    uint8_t *spare; /* private pages that take the place of lent ones; NULL: none */
    size_t spare_bytes;
    struct hvi_span *written; /* [npieces] elements, if writes */
    bool writes, writes_most;
};

struct hvi_shm_share *hvi_shm_share_new(int nlocal)
{
    struct hvi_shm_share *h = calloc(1, sizeof(*h));

    if (h == NULL)
        return NULL;
    h->views = calloc((size_t)nlocal, sizeof(*h->views));
    h->sources = calloc((size_t)nlocal, sizeof(*h->sources));
    h->reads = calloc((size_t)nlocal, sizeof(*h->reads));
    h->lent = calloc(HVI_SHM_PLACES, sizeof(*h->lent));
    h->written = calloc(HVI_SHM_PLACES, sizeof(*h->written));
    if (h->views != NULL && h->sources != NULL && h->reads != NULL && h->lent != NULL &&
        h->written != NULL)
        return h;
    hvi_shm_share_free(h, 0);
    return NULL;
}

void hvi_shm_share_free(struct hvi_shm_share *h, int nlocal)
{
    if (h == NULL)
        return;
    for (int i = 0; i < HVI_SHM_BLOCKS; i++)
        hvi_shared_unref(h->owned[i].mem);
    hvi_shared_unmap(h->spare, h->spare_bytes);
    free(h->lent);
    free(h->written);
    for (int r = 0; r < nlocal; r++) {
        for (int i = 0; h->views[r] != NULL && i < HVI_SHM_BLOCKS; i++)
            hvi_shared_unmap(h->views[r][i].data, h->views[r][i].size_bytes);
        free(h->views[r]);
        free(h->sources[r]);
    }
    free(h->views);
    free(h->sources);
    free(h->reads);
    free(h);
}

/* ---- the owner's side */

static struct hvi_shm_block *block_of(const struct hvi_shm *s, int local, uint32_t i)
{
    return &s->blocks[local * HVI_SHM_BLOCKS + (int)i];
}

static bool is_gone(struct hvi_shared *m)
{
    return atomic_load(&m->freed) || atomic_load(&m->parted);
}

static void retire_gone(struct hvi_shm *s)
{
    struct hvi_shm_share *h = s->share;

    for (uint32_t i = 0; h->nowned > 0 && i < HVI_SHM_BLOCKS; i++) {
        struct hvi_shm_owned *o = &h->owned[i];

        if (o->mem == NULL || !is_gone(o->mem))
            continue;
        atomic_store_explicit(&block_of(s, s->local, i)->generation, 0,
                              memory_order_release);
        hvi_shared_unref(o->mem);
        memset(o, 0, sizeof(*o));
        h->nowned--;
    }
}

static bool publish_block(struct hvi_shm *s, struct hvi_shared *m, uint32_t i)
{
    struct hvi_shm_block *b = block_of(s, s->local, i);

    b->inode = m->inode;
    b->device = m->device;
    b->size_bytes = m->size_bytes;
    b->pid = (int32_t)getpid();
    b->fd = m->fd;
    for (int w = 0; w < HVI_SHM_MASK_WORDS; w++)
        atomic_store(&b->mapped[w], 0);
    atomic_store_explicit(&b->generation, ++s->share->generation, memory_order_release);
    hvi_shared_ref(m);
    s->share->owned[i].mem = m;
    s->share->nowned++;
    return true;
}

/* Its index in the own table; false: there is no room. */
static bool find_block(struct hvi_shm *s, struct hvi_shared *m, uint32_t *out)
{
    struct hvi_shm_share *h = s->share;
    uint32_t room = HVI_SHM_BLOCKS;

    if (h->owned[h->hint].mem == m) {
        *out = (uint32_t)h->hint;
        return true;
    }
    for (uint32_t i = 0; i < HVI_SHM_BLOCKS; i++) {
        if (h->owned[i].mem == m) {
            h->hint = (int)i;
            *out = i;
            return true;
        }
        if (h->owned[i].mem == NULL && room == HVI_SHM_BLOCKS)
            room = i;
    }
    if (room == HVI_SHM_BLOCKS)
        return false;
    h->hint = (int)room;
    *out = room;
    return publish_block(s, m, room);
}

/* One side of a piece. true: peers read it where it lies. */
static bool place(struct hvi_shm *s, struct hvi_shared *m, const void *at,
                  size_t size_bytes, uint32_t *block, uint64_t *offset)
{
    struct hvi_shm_owned *o;
    struct hvi_shm_block *b;
    uint32_t i = 0;
    bool all = true;

    if (m == NULL || !hvi_shared_has(m, at, size_bytes) || is_gone(m) ||
        !find_block(s, m, &i))
        return false;
    o = &s->share->owned[i];
    b = block_of(s, s->local, i);
    for (int w = 0; w < HVI_SHM_MASK_WORDS; w++) {
        if ((s->others[w] & ~atomic_load(&b->mapped[w])) != 0)
            all = false;
        if ((s->others[w] & ~o->asked[w]) != 0) {
            o->asked[w] |= s->others[w];
            s->shares = true;
        }
    }
    s->shares = s->shares || all;
    *block = i + 1;
    *offset = (uint64_t)((const uint8_t *)at - m->data);
    return all;
}

/* Bytes of [offset, offset + size_bytes) of a block that lie in pages of its alone, from
 * `offset` on. */
static struct hvi_span whole_pages(uint64_t offset, size_t size_bytes)
{
    uint64_t page = hvi_shared_page();
    uint64_t first = (offset + page - 1) / page * page;
    uint64_t end = (offset + size_bytes) / page * page;

    return first < end
               ? (struct hvi_span){(int64_t)(first - offset), (int64_t)(end - first)}
               : (struct hvi_span){0, 0};
}

static void lend(struct hvi_shm *s, const struct hvi_piece *p, size_t size_bytes,
                 struct hvi_shm_place *to)
{
    struct hvi_span pages = whole_pages(to->out_offset, size_bytes);

    if (pages.count == 0)
        return;
    to->out_reach = HVI_SHM_WRITTEN;
    s->share->lent[s->share->nlent++] = (struct hvi_shm_lent){
        p->out_mem, (size_t)to->out_offset + (size_t)pages.first, (size_t)pages.count};
}

static bool reserve(struct hvi_shm_share *h)
{
    size_t size_bytes = 0;

    for (int i = 0; i < h->nlent; i++)
        size_bytes += h->lent[i].size_bytes;
    if (size_bytes <= h->spare_bytes)
        return true;
    hvi_shared_unmap(h->spare, h->spare_bytes);
    h->spare = hvi_shared_reserve(size_bytes);
    h->spare_bytes = h->spare != NULL ? size_bytes : 0;
    return h->spare != NULL;
}

static void lend_nothing(struct hvi_shm *s)
{
    for (int32_t i = 0; i < s->g->npieces; i++) {
        struct hvi_shm_place *p = &hvi_shm_places(s, s->local)[i];

        if (p->out_reach == HVI_SHM_WRITTEN)
            p->out_reach = HVI_SHM_READ;
    }
    s->share->nlent = 0;
}

void hvi_shm_share_end(struct hvi_shm *s)
{
    s->share->nlent = 0;
}

/* To go on without would be to let peers into memory that its owner uses. */
void hvi_shm_share_take_back(struct hvi_shm *s)
{
    struct hvi_shm_share *h = s->share;

    for (int i = 0; i < h->nlent; i++) {
        const struct hvi_shm_lent *l = &h->lent[i];

        HVI_ASSERT(l->size_bytes <= h->spare_bytes);
        if (!hvi_shared_take_back(l->mem, l->offset, l->size_bytes, h->spare)) {
            hvi_log_error("shm",
                          "a tensor of %zu bytes cannot be taken back from peers: %s",
                          l->size_bytes, strerror(errno));
            abort();
        }
        h->spare += l->size_bytes;
        h->spare_bytes -= l->size_bytes;
    }
    h->nlent = 0;
    if (h->spare_bytes == 0)
        h->spare = NULL;
}

void hvi_shm_share_begin(struct hvi_shm *s)
{
    const struct hvi_group *g = s->g;
    bool any = false;

    s->shares = s->all_direct = false;
    s->share->nlent = 0;
    s->share->writes = s->share->writes_most = false;
    memset(s->share->reads, 0, (size_t)s->nlocal * sizeof(*s->share->reads));
    for (int32_t i = 0; i < g->npieces && !any; i++)
        any = g->pieces[i].in_mem != NULL || g->pieces[i].out_mem != NULL;
    if (!any || s->facts.joined || g->npieces > HVI_SHM_PLACES)
        return;
    retire_gone(s);
    s->all_direct = !s->facts.no_memory;
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        struct hvi_shm_place *to = &hvi_shm_places(s, s->local)[i];
        size_t size = (size_t)p->count * s->facts.elem_size;

        memset(to, 0, sizeof(*to));
        if (size == 0)
            continue;
        if (place(s, p->in_mem, p->in, size, &to->in_block, &to->in_offset))
            to->in_reach = HVI_SHM_READ;
        if (p->out != NULL &&
            place(s, p->out_mem, p->out, size, &to->out_block, &to->out_offset)) {
            to->out_reach = HVI_SHM_READ;
            lend(s, p, size, to);
        }
        s->all_direct = s->all_direct && to->in_reach != HVI_SHM_STAGED &&
                        to->out_reach != HVI_SHM_STAGED;
    }
    s->all_direct = s->all_direct && s->shares;
    if (!reserve(s->share))
        lend_nothing(s);
}

/* ---- the reader's side */

static bool map_block(struct hvi_shm *s, int local, uint32_t i)
{
    struct hvi_shm_block *b = block_of(s, local, i);
    struct hvi_shm_view *v = &s->share->views[local][i];
    uint64_t generation = atomic_load_explicit(&b->generation, memory_order_acquire);

    if (generation == v->generation)
        return v->data != NULL;
    if (v->data != NULL) {
        hvi_shared_unmap(v->data, v->size_bytes);
        s->share->nmapped--;
    }
    *v = (struct hvi_shm_view){.generation = generation, .size_bytes = b->size_bytes};
    if (generation == 0 || s->share->nmapped == MAPPED_MAX)
        return false;
    v->data = hvi_shared_map(b->pid, b->fd, b->inode, b->device, v->size_bytes);
    if (v->data == NULL)
        return false;
    s->share->nmapped++;
    atomic_fetch_or(&b->mapped[s->local / 64], UINT64_C(1) << (s->local % 64));
    return true;
}

/* Where one side of a peer's piece lies; false: the peer's table makes no sense. */
static bool locate(struct hvi_shm *s, int local, uint32_t block, bool direct,
                   uint64_t offset, size_t size_bytes, uint8_t **out)
{
    const struct hvi_shm_view *v;
    bool mapped;

    *out = NULL;
    if (block == 0)
        return !direct;
    if (block > HVI_SHM_BLOCKS)
        return false;
    mapped = map_block(s, local, block - 1);
    if (!direct)
        return true;
    v = &s->share->views[local][block - 1];
    if (!mapped || offset > v->size_bytes || size_bytes > v->size_bytes - offset)
        return false;
    *out = v->data + offset;
    return true;
}

static bool have_rows(struct hvi_shm_share *h, int local)
{
    if (h->views[local] == NULL)
        h->views[local] = calloc(HVI_SHM_BLOCKS, sizeof(**h->views));
    if (h->sources[local] == NULL)
        h->sources[local] = calloc(HVI_SHM_PLACES, sizeof(**h->sources));
    return h->views[local] != NULL && h->sources[local] != NULL;
}

/* Only what all members lend of a piece is stored to. */
static void narrow(struct hvi_span *written, const struct hvi_shm_place *p,
                   size_t size_bytes)
{
    struct hvi_span pages = {0, 0};
    int64_t end = written->first + written->count;

    if (p->out_reach == HVI_SHM_WRITTEN)
        pages = whole_pages(p->out_offset, size_bytes);
    if (pages.first > written->first)
        written->first = pages.first;
    if (pages.first + pages.count < end)
        end = pages.first + pages.count;
    written->count = end > written->first ? end - written->first : 0;
}

static enum hvd_status read_places(struct hvi_shm *s, int32_t member,
                                   struct hvi_err *err)
{
    int local = s->peers[member];

    if (s->g->npieces > HVI_SHM_PLACES)
        return hvi_fail(err, HVD_EPROTO, "shm: rank %d has places of %d tensors",
                        (int)s->g->members[member], (int)s->g->npieces);
    if (!have_rows(s->share, local))
        return hvi_fail(err, HVD_ENOMEM, "shm: no memory for the places of tensors");
    for (int32_t i = 0; i < s->g->npieces; i++) {
        struct hvi_shm_place p = hvi_shm_places(s, local)[i];
        struct hvi_shm_source *to = &s->share->sources[local][i];
        size_t size = (size_t)s->g->pieces[i].count * s->facts.elem_size;

        if (!locate(s, local, p.in_block, p.in_reach != HVI_SHM_STAGED, p.in_offset,
                    size, &to->in) ||
            !locate(s, local, p.out_block, p.out_reach != HVI_SHM_STAGED, p.out_offset,
                    size, &to->out))
            return hvi_fail(err, HVD_EPROTO,
                            "shm: the shared memory of rank %d is not what it says",
                            (int)s->g->members[member]);
        if (s->shares)
            narrow(&s->share->written[i], &p, size);
    }
    s->share->reads[member] = true;
    return HVD_OK;
}

static void begin_written(struct hvi_shm *s)
{
    for (int32_t i = 0; i < s->g->npieces; i++) {
        size_t size = (size_t)s->g->pieces[i].count * s->facts.elem_size;

        s->share->written[i] = (struct hvi_span){0, (int64_t)size};
        narrow(&s->share->written[i], &hvi_shm_places(s, s->local)[i], size);
    }
}

/* From bytes to elements. */
static void end_written(struct hvi_shm *s)
{
    struct hvi_shm_share *h = s->share;
    int64_t es = (int64_t)s->facts.elem_size;
    int64_t sum = 0;

    for (int32_t i = 0; i < s->g->npieces; i++) {
        struct hvi_span *w = &h->written[i];
        int64_t end = (w->first + w->count) / es;

        w->first = (w->first + es - 1) / es;
        w->count = end > w->first ? end - w->first : 0;
        sum += w->count;
    }
    h->writes = sum > 0;
    h->writes_most = sum > s->plan.total / 2;
}

enum hvd_status hvi_shm_share_read(struct hvi_shm *s, int64_t step, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    bool all = s->shares;

    if (s->shares)
        begin_written(s);
    for (int32_t m = 0; m < s->g->nmembers && rc == HVD_OK; m++) {
        if (m == s->g->me)
            continue;
        if (hvi_shm_line(s, m, step)->places)
            rc = read_places(s, m, err);
        else
            all = false;
    }
    if (rc == HVD_OK && all)
        end_written(s);
    return rc;
}

struct hvi_span hvi_shm_share_written(const struct hvi_shm *s, int32_t piece)
{
    return s->share->writes ? s->share->written[piece] : (struct hvi_span){0, 0};
}

bool hvi_shm_share_writes_most(const struct hvi_shm *s)
{
    return s->share->writes_most;
}

const uint8_t *hvi_shm_share_in(const struct hvi_shm *s, int32_t member, int32_t piece)
{
    return s->share->reads[member] ? s->share->sources[s->peers[member]][piece].in
                                   : NULL;
}

uint8_t *hvi_shm_share_out(const struct hvi_shm *s, int32_t member, int32_t piece)
{
    return s->share->reads[member] ? s->share->sources[s->peers[member]][piece].out
                                   : NULL;
}

enum hvd_status hvi_shm_share_check(const struct hvi_shm *s, struct hvi_err *err)
{
    atomic_thread_fence(memory_order_acquire); /* after the reads of the tensors */
    for (int32_t m = 0; m < s->g->nmembers; m++)
        if (s->share->reads[m] && hvi_shm_is_revoked(s, m))
            return hvi_fail(err, HVD_EPEER,
                            "rank %d has given up the operation before its end",
                            (int)s->g->members[m]);
    return HVD_OK;
}
