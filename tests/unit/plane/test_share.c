/** Tensors that peers read and write where they lie (shm_share.c), step by step: two
 * ranks, one thread. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/names.h"
#include "test.h"
#include "worker/plane/cpu/shm.h"
#include "worker/plane/shared.h"

#define COUNT 3000 /* three slots of 4 KiB: the pipeline */
#define STEPS_MAX 1000

struct pair {
    struct hvi_bells *bells;
    size_t size_bytes;
    struct hvi_plane *p[2];
    struct hvi_shared *mem[2];
    struct hvi_piece piece[2];
    struct hvi_group g[2];
};

static const int32_t both[2] = {0, 1};

static struct hvi_shm *shm(const struct pair *w, int r)
{
    return (struct hvi_shm *)(void *)w->p[r];
}

static void use_block(struct pair *w, int r, size_t at)
{
    float *v = (float *)(void *)(w->mem[r]->data + at);

    w->piece[r] = (struct hvi_piece){.in = v,
                                     .out = v,
                                     .count = COUNT,
                                     .row = 1,
                                     .in_mem = w->mem[r],
                                     .out_mem = w->mem[r]};
}

static void make(struct pair *w)
{
    struct hvi_err err = {{0}};

    memset(w, 0, sizeof(*w));
    w->size_bytes = sizeof(*w->bells) + hvi_shm_size(2, 4096, 3);
    w->bells = mmap(NULL, w->size_bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(w->bells != MAP_FAILED);
    hvi_shm_format(w->bells + 1, 2, 4096, 3);
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(hvi_shm_attach(w->bells + 1, w->bells, r, 2, both, &w->p[r], &err),
                     HVD_OK, "%s", err.text);
        w->mem[r] = hvi_shared_new(3 * COUNT * sizeof(float));
        cr_assert_not_null(w->mem[r]);
        use_block(w, r, 0);
        w->g[r] = (struct hvi_group){.kind = HVD_ALLREDUCE,
                                     .reduce_op = HVD_SUM,
                                     .dtype = HVD_FLOAT32,
                                     .prescale = 1,
                                     .postscale = 1,
                                     .nmembers = 2,
                                     .members = both,
                                     .me = r,
                                     .npieces = 1,
                                     .pieces = &w->piece[r]};
    }
}

static void drop(struct pair *w)
{
    for (int r = 0; r < 2; r++) {
        w->p[r]->ops->free(w->p[r]);
        hvi_shared_free(w->mem[r]);
    }
    munmap(w->bells, w->size_bytes);
}

static void start(struct pair *w)
{
    struct hvi_err err = {{0}};

    for (int r = 0; r < 2; r++) {
        float *v = (float *)(uintptr_t)w->piece[r].in;

        for (int i = 0; i < COUNT; i++)
            v[i] = (float)(i % 100 + r);
        w->g[r].seq++;
        cr_assert_eq(w->p[r]->ops->start(w->p[r], &w->g[r], &err), HVD_OK, "%s",
                     err.text);
    }
}

static enum hvd_status progress(struct pair *w, int r, struct hvi_err *err)
{
    return w->p[r]->ops->progress(w->p[r], err);
}

static void check(const struct pair *w)
{
    for (int r = 0; r < 2; r++) {
        const float *v = w->piece[r].out;

        for (int i = 0; i < COUNT; i++)
            cr_assert_eq((int)v[i], 2 * (i % 100) + 1, "rank %d element %d", r, i);
    }
}

static void run(struct pair *w)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc[2] = {HVD_INPROGRESS, HVD_INPROGRESS};

    start(w);
    for (int i = 0; i < STEPS_MAX; i++)
        for (int r = 0; r < 2; r++)
            if (rc[r] == HVD_INPROGRESS)
                rc[r] = progress(w, r, &err);
    cr_assert(rc[0] == HVD_OK && rc[1] == HVD_OK, "%s", err.text);
    check(w);
}

Test(share, tensors_are_read_where_they_lie_from_the_second_time_on, .timeout = 10)
{
    struct pair w;

    make(&w);
    run(&w);
    cr_assert(!shm(&w, 0)->all_direct && !shm(&w, 1)->all_direct);
    run(&w);
    cr_assert(shm(&w, 0)->all_direct && shm(&w, 1)->all_direct);
    use_block(&w, 1, COUNT * sizeof(float) + 4); /* another part of a known block */
    run(&w);
    cr_assert(shm(&w, 1)->all_direct);
    w.piece[0].in_mem = w.piece[0].out_mem = NULL; /* only one of the two */
    run(&w);
    cr_assert(!shm(&w, 0)->shares && shm(&w, 1)->all_direct);
    drop(&w);
}

Test(share, a_freed_block_is_forgotten_and_a_new_one_is_found, .timeout = 10)
{
    struct pair w;

    make(&w);
    run(&w);
    for (int i = 0; i < HVI_SHM_BLOCKS + 10; i++) { /* more than the table has room */
        hvi_shared_free(w.mem[0]);
        w.mem[0] = hvi_shared_new(COUNT * sizeof(float));
        cr_assert_not_null(w.mem[0]);
        use_block(&w, 0, 0);
        run(&w);
        cr_assert(!shm(&w, 0)->all_direct);
        run(&w);
        cr_assert(shm(&w, 0)->all_direct);
    }
    drop(&w);
}

Test(share, more_blocks_than_the_table_has_room_for_are_staged, .timeout = 20)
{
    struct hvi_shared *held[HVI_SHM_BLOCKS];
    struct pair w;

    make(&w);
    for (int i = 0; i < HVI_SHM_BLOCKS; i++) {
        held[i] = w.mem[0];
        run(&w);
        w.mem[0] = hvi_shared_new(COUNT * sizeof(float));
        cr_assert_not_null(w.mem[0]);
        use_block(&w, 0, 0);
    }
    run(&w);
    run(&w);
    cr_assert(!shm(&w, 0)->all_direct);
    hvi_shared_free(held[7]); /* its place is the new one's */
    run(&w);
    run(&w);
    cr_assert(shm(&w, 0)->all_direct);
    for (int i = 0; i < HVI_SHM_BLOCKS; i++)
        if (i != 7)
            hvi_shared_free(held[i]);
    drop(&w);
}

/* Rank 0 is through but for the last word of rank 1, is stopped, and uses its tensor. */
Test(share, what_a_stopped_rank_wrote_meanwhile_is_no_result, .timeout = 10)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc;
    struct pair w;

    make(&w);
    run(&w);
    start(&w);
    cr_assert_eq(progress(&w, 0, &err), HVD_INPROGRESS);
    cr_assert_eq(progress(&w, 1, &err), HVD_INPROGRESS);
    cr_assert_eq(progress(&w, 0, &err), HVD_INPROGRESS);
    w.p[0]->ops->abort(w.p[0], HVD_EPEER);
    memset(w.mem[0]->data, 0xff, COUNT * sizeof(float));
    rc = progress(&w, 1, &err);
    cr_assert_eq(rc, HVD_EPEER, "%s", hvi_status_name(rc));
    cr_assert_not_null(strstr(err.text, "rank 0"), "%s", err.text);
    drop(&w);
}

/* Bytes of the first and of the last element of a piece that lie in pages with others. */
static bool is_inner(const struct pair *w, int r, int64_t i)
{
    size_t page = hvi_shared_page();
    size_t from = (size_t)((const uint8_t *)w->piece[r].out - w->mem[r]->data);
    size_t at = from + (size_t)i * sizeof(float);

    return at / page * page >= from && (at + sizeof(float) + page - 1) / page * page <=
                                           from + COUNT * sizeof(float);
}

/* Of a second group rank 1 has filled all, and waits. */
static void begin_second(struct pair *w)
{
    struct hvi_err err = {{0}};

    run(w);
    start(w);
    cr_assert_eq(progress(w, 1, &err), HVD_INPROGRESS);
}

static void give_up(struct pair *w, int r)
{
    w->p[r]->ops->abort(w->p[r], HVD_EPEER);
    w->p[r]->ops->take_back(w->p[r]);
}

/* As a peer sees it; unmapped by the caller. */
static uint8_t *map(const struct hvi_shared *m)
{
    uint8_t *seen =
        hvi_shared_map((int)getpid(), m->fd, m->inode, m->device, m->size_bytes);

    cr_assert_not_null(seen);
    return seen;
}

Test(share, who_folds_a_slice_stores_it_to_all, .timeout = 10)
{
    for (size_t at = 0; at <= 4096; at += 1364) { /* pages in the same places, or not */
        struct hvi_err err = {{0}};
        struct pair w;
        int stored = 0;

        make(&w);
        for (int r = 0; r < 2; r++)
            use_block(&w, r, r == 0 ? 0 : at);
        begin_second(&w);
        cr_assert_eq(progress(&w, 0, &err), HVD_INPROGRESS);
        for (int i = 0; i < COUNT; i++) {
            int mine = (int)((const float *)w.piece[0].out)[i];
            int theirs = (int)((const float *)w.piece[1].out)[i];

            cr_assert(theirs == i % 100 + 1 || theirs == mine, "element %d", i);
            if (theirs == i % 100 + 1)
                continue;
            cr_assert_eq(theirs, 2 * (i % 100) + 1, "element %d", i);
            cr_assert(is_inner(&w, 0, i) && is_inner(&w, 1, i),
                      "element %d is in a page with others", i);
            stored++;
        }
        cr_assert_gt(stored, 500, "rank 0 has stored %d elements of rank 1", stored);
        drop(&w);
    }
}

Test(share, what_lies_beside_a_tensor_stays_its_owners, .timeout = 10)
{
    struct pair w;
    struct hvi_err err = {{0}};
    enum hvd_status rc[2] = {HVD_INPROGRESS, HVD_INPROGRESS};
    const size_t at = 1364;
    int n = 0;

    make(&w);
    use_block(&w, 1, at);
    run(&w);
    start(&w);
    for (; n < STEPS_MAX && (rc[0] == HVD_INPROGRESS || rc[1] == HVD_INPROGRESS); n++) {
        memset(w.mem[1]->data, n, at);
        memset(w.mem[1]->data + at + COUNT * sizeof(float), n, at);
        for (int r = 0; r < 2; r++)
            if (rc[r] == HVD_INPROGRESS)
                rc[r] = progress(&w, r, &err);
        for (size_t i = 0; i < at; i++)
            cr_assert(w.mem[1]->data[i] == (uint8_t)n &&
                      w.mem[1]->data[at + COUNT * sizeof(float) + i] == (uint8_t)n);
    }
    cr_assert(rc[0] == HVD_OK && rc[1] == HVD_OK, "%s", err.text);
    check(&w);
    drop(&w);
}

/* Rank 1 is stopped and uses its tensor, which rank 0 then stores to. */
Test(share, a_late_store_arrives_nowhere, .timeout = 10)
{
    for (size_t at = 0; at <= 4; at += 4) {
        struct hvi_err err = {{0}};
        struct pair w;
        uint8_t *other;
        size_t stored_at = hvi_shared_page() + 4 * sizeof(float) + 3;

        make(&w);
        use_block(&w, 1, at);
        begin_second(&w);
        other = map(w.mem[1]);
        give_up(&w, 1);
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq((int)((const float *)w.piece[1].out)[i], i % 100 + 1,
                         "element %d has changed", i);
        memset(w.mem[1]->data, 0x5a, w.mem[1]->size_bytes);
        cr_assert_eq(other[stored_at], 0, "the old pages are kept");
        cr_assert_eq(progress(&w, 0, &err), HVD_INPROGRESS);
        cr_assert_neq(other[stored_at], 0, "rank 0 has not stored anything");
        for (size_t i = 0; i < w.mem[1]->size_bytes; i++)
            cr_assert_eq(w.mem[1]->data[i], 0x5a, "byte %zu was stored to", i);
        hvi_shared_unmap(other, w.mem[1]->size_bytes);
        drop(&w);
    }
}

Test(share, what_was_taken_back_is_staged_from_then_on, .timeout = 10)
{
    struct pair old;
    struct pair w;

    make(&old);
    begin_second(&old);
    give_up(&old, 1);
    make(&w);
    hvi_shared_free(w.mem[1]);
    w.mem[1] = old.mem[1];
    hvi_shared_ref(w.mem[1]);
    use_block(&w, 1, 0);
    for (int i = 0; i < 3; i++) {
        run(&w);
        cr_assert(!shm(&w, 1)->shares);
    }
    drop(&w);
    drop(&old);
}

Test(share, a_group_in_flight_is_taken_back_when_its_plane_goes, .timeout = 10)
{
    struct pair w;
    struct hvi_shared *m;
    uint8_t *other;

    make(&w);
    begin_second(&w);
    m = w.mem[1];
    other = map(m);
    hvi_shared_ref(m);
    drop(&w);
    memset(m->data, 1, hvi_shared_page());
    other[0] = 2;
    cr_assert_eq(m->data[0], 1);
    hvi_shared_unmap(other, m->size_bytes);
    hvi_shared_unref(m);
}

enum lie { OFFSET, SIZE, BLOCK, UNMAPPED, NLIES };

static void tell(struct pair *w, enum lie lie)
{
    struct hvi_shm_place *p = hvi_shm_places(shm(w, 0), 0);

    switch (lie) {
    case OFFSET:
        p->in_offset = UINT64_MAX - 64;
        break;
    case SIZE:
        p->out_offset = 3 * COUNT * sizeof(float) - 4;
        break;
    case BLOCK:
        p->in_block = HVI_SHM_BLOCKS + 1;
        break;
    default:
        p->in_block = 9; /* never published */
    }
}

Test(share, places_that_make_no_sense_are_refused, .timeout = 10)
{
    for (int lie = 0; lie < NLIES; lie++) {
        struct hvi_err err = {{0}};
        struct pair w;
        enum hvd_status rc;

        make(&w);
        run(&w);
        start(&w);
        cr_assert_eq(progress(&w, 0, &err), HVD_INPROGRESS);
        tell(&w, (enum lie)lie);
        rc = progress(&w, 1, &err);
        cr_assert_eq(rc, HVD_EPROTO, "lie %d: %s", lie, hvi_status_name(rc));
        drop(&w);
    }
}

Test(share, a_block_that_peers_cannot_map_is_staged, .timeout = 10)
{
    struct pair w;

    make(&w);
    w.mem[0]->inode++; /* as in another namespace of process numbers: a stranger */
    for (int i = 0; i < 3; i++) {
        run(&w);
        cr_assert(!shm(&w, 0)->all_direct);
    }
    cr_assert(shm(&w, 1)->all_direct);
    drop(&w);
}

Test(share, map_takes_only_the_very_block, .timeout = 10)
{
    struct hvi_shared *m = hvi_shared_new(10000);
    uint8_t *seen;
    int plain = memfd_create("plain", MFD_CLOEXEC);
    int pid = (int)getpid();

    cr_assert_not_null(m);
    m->data[9999] = 7;
    seen = hvi_shared_map(pid, m->fd, m->inode, m->device, m->size_bytes);
    cr_assert_not_null(seen);
    cr_assert_eq(seen[9999], 7);
    hvi_shared_unmap(seen, m->size_bytes);
    cr_assert_null(hvi_shared_map(pid, m->fd, m->inode + 1, m->device, m->size_bytes));
    cr_assert_null(hvi_shared_map(pid, m->fd, m->inode, m->device + 1, m->size_bytes));
    cr_assert_null(
        hvi_shared_map(pid, m->fd, m->inode, m->device, m->size_bytes + 4096));
    cr_assert_null(hvi_shared_map(pid, plain, m->inode, m->device, m->size_bytes));
    cr_assert_null(hvi_shared_map(pid, -1, m->inode, m->device, m->size_bytes));
    cr_assert_neq(ftruncate(m->fd, 0), 0, "a peer that reads would be killed");
    close(plain);
    hvi_shared_free(m);
}
