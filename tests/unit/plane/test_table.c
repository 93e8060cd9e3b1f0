/** One table of promises for both CPU planes: every collective x element type x
 * reduction x size, held to the scalar reference bit for bit, inside one group of ranks
 * per rank count. Processes over one memfd or over loopback sockets, and threads (for
 * TSan). */
#include "reference.h"
#include "test.h"
#include "world.h"

#define MAX_PIECES 5
#ifdef __SANITIZE_THREAD__
#define WORLD_HOW WORLD_THREADS
#else
#define WORLD_HOW WORLD_PROCESSES
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW 1 /* every dtype with up to three ranks only */
#else
#define SLOW 0
#endif
#define VALUE HVD_OK
#define NO HVD_EUNSUPPORTED

/* ---- the written table: a value, or this error (adasum: of a power of two of ranks)
 */

/* clang-format off */
static const enum hvd_status promise[HVD_DTYPE_COUNT][HVD_REDUCE_OP_COUNT] = {
    /*               AVERAGE SUM    ADASUM MIN    MAX    PRODUCT */
    [HVD_UINT8] =    {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_INT8] =     {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_UINT16] =   {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_INT16] =    {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_INT32] =    {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_INT64] =    {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_FLOAT16] =  {VALUE,  VALUE, VALUE, VALUE, VALUE, VALUE},
    [HVD_BFLOAT16] = {VALUE,  VALUE, NO,    VALUE, VALUE, VALUE},
    [HVD_FLOAT32] =  {VALUE,  VALUE, VALUE, VALUE, VALUE, VALUE},
    [HVD_FLOAT64] =  {VALUE,  VALUE, VALUE, VALUE, VALUE, VALUE},
    [HVD_BOOL] =     {NO,     VALUE, NO,    VALUE, VALUE, VALUE},
};
/* clang-format on */

/* On the GPU plane a NaN may have any payload, and a joined rank adds its 0 to a -0. */
static bool same_number(const struct rank *r, const void *a, const void *b, int64_t i,
                        uint32_t dtype)
{
    struct value x;
    struct value y;

    if (r->w->plane != WORLD_NCCL || dtype < HVD_FLOAT16 || dtype > HVD_FLOAT64)
        return false;
    x = ref_get(a, i, dtype);
    y = ref_get(b, i, dtype);
    if (dtype == HVD_FLOAT64)
        return x.d == y.d || (isnan(x.d) && isnan(y.d));
    return x.f == y.f || (isnan(x.f) && isnan(y.f));
}

/* ---- inputs of all ranks, known to every rank */

struct inputs {
    int n;
    void *of[WORLD_MAX];
};

static struct inputs make_inputs(struct rank *r, int64_t count, uint32_t dtype)
{
    struct inputs in = {.n = r->n};

    random_state = UINT64_C(0x9e3779b97f4a7c15) * (r->seq + 1);
    for (int k = 0; k < r->n; k++) {
        in.of[k] = rank_alloc(r, (size_t)count * hvi_dtype_size(dtype));
        fill(in.of[k], count, dtype);
    }
    return in;
}

static void free_inputs(struct inputs *in)
{
    for (int k = 0; k < in->n; k++)
        free(in->of[k]);
}

static void expect_bytes(struct rank *r, const void *got, const void *want,
                         int64_t count, uint32_t dtype, const char *what)
{
    size_t es = hvi_dtype_size(dtype);

    for (int64_t i = 0; i < count; i++)
        if (memcmp((const char *)got + (size_t)i * es,
                   (const char *)want + (size_t)i * es, es) != 0 &&
            !same_number(r, got, want, i, dtype)) {
            uint64_t a = 0;
            uint64_t b = 0;

            memcpy(&a, (const char *)got + (size_t)i * es, es);
            memcpy(&b, (const char *)want + (size_t)i * es, es);
            rank_fail(r, "%s: element %lld of %lld is %#llx, not %#llx", what,
                      (long long)i, (long long)count, (unsigned long long)a,
                      (unsigned long long)b);
        }
}

/* Over the members of each host, then over the hosts. A rank that has joined brings the
 * neutral element itself. */
static void want_two_levels(struct rank *r, void *out, const void *const *src,
                            int64_t count, const struct hvi_group *g, double post)
{
    size_t bytes = (size_t)count * hvi_dtype_size(g->dtype);
    bool half = g->dtype == HVD_FLOAT16 || g->dtype == HVD_BFLOAT16;
    char *neutral = rank_alloc(r, bytes);
    char *partials = rank_alloc(r, bytes * (size_t)g->nmembers);
    const void *here[WORLD_MAX];
    const void *hosts[WORLD_MAX];
    int nhosts = 0;

    hvi_reduce_neutral(neutral, count, g->dtype, g->reduce_op);
    for (int m = 0; m < g->nmembers;) {
        int32_t host = r->w->host_of[g->members[m]];
        char *partial = partials + bytes * (size_t)nhosts;
        int n = 0;

        for (; m < g->nmembers && r->w->host_of[g->members[m]] == host; m++)
            here[n++] = src[m] != NULL ? src[m] : neutral;
        ref_fold(partial, here, n, count, g->dtype, g->reduce_op, g->prescale, 1);
        hosts[nhosts++] = partial;
    }
    (half ? ref_fold_hosts : ref_fold)(out, hosts, nhosts, count, g->dtype,
                                       g->reduce_op, 1, post);
    free(neutral);
    free(partials);
}

/* The rule of hosts.h. */
static bool folds_on_two_levels(const struct rank *r, const struct hvi_group *g)
{
    int hosts = 1;

    for (int m = 1; m < g->nmembers; m++)
        hosts += r->w->host_of[g->members[m]] != r->w->host_of[g->members[m - 1]];
    return r->w->plane == WORLD_HOSTS && hosts > 1 && hosts < g->nmembers &&
           (g->prescale == 1.0 || g->reduce_op == HVD_SUM ||
            g->reduce_op == HVD_AVERAGE);
}

static bool inside_one_host(const struct rank *r, const struct hvi_group *g)
{
    return r->w->host_of[g->members[0]] == r->w->host_of[g->members[g->nmembers - 1]];
}

/* The GPU plane: scaled and rounded before, reduced, rounded, scaled. */
static void want_passes(struct rank *r, void *out, const void *const *src,
                        int64_t count, const struct hvi_group *g, double post)
{
    size_t bytes = (size_t)count * hvi_dtype_size(g->dtype);
    bool average = g->reduce_op == HVD_AVERAGE && g->dtype >= HVD_FLOAT16 &&
                   g->prescale == 1.0 && g->postscale == 1.0;
    const void *scaled[WORLD_MAX];
    char *copies = rank_alloc(r, bytes * (size_t)g->nmembers);

    for (int m = 0; m < g->nmembers; m++) {
        scaled[m] = NULL;
        if (src[m] == NULL)
            continue;
        scaled[m] = copies + bytes * (size_t)m;
        hvi_reduce_scale(copies + bytes * (size_t)m, src[m], count, g->dtype,
                         g->prescale);
    }
    ref_fold(out, scaled, g->nmembers, count, g->dtype, g->reduce_op, 1,
             average ? post : 1);
    if (!average)
        hvi_reduce_scale(out, out, count, g->dtype, post);
    free(copies);
}

/* The TCP plane has a host per rank: 16-bit floats are rounded after every one. */
static void want_fold(struct rank *r, void *out, const void *const *src, int64_t count,
                      const struct hvi_group *g)
{
    bool half = g->dtype == HVD_FLOAT16 || g->dtype == HVD_BFLOAT16;
    double post = g->postscale;
    int present = 0;

    if (g->reduce_op == HVD_AVERAGE)
        post *= 1.0 / g->nmembers;
    for (int k = 0; k < g->nmembers; k++)
        present += src[k] != NULL;
    if (r->w->plane == WORLD_NCCL)
        want_passes(r, out, src, count, g, post);
    else if (folds_on_two_levels(r, g))
        want_two_levels(r, out, src, count, g, post);
    else if (half && present > 1 &&
             (r->w->plane == WORLD_TCP ||
              (r->w->plane == WORLD_HOSTS && !inside_one_host(r, g))))
        ref_fold_hosts(out, src, g->nmembers, count, g->dtype, g->reduce_op,
                       g->prescale, post);
    else
        ref_fold(out, src, g->nmembers, count, g->dtype, g->reduce_op, g->prescale,
                 post);
}

/* ---- allreduce */

struct reduce_case {
    uint32_t dtype, op;
    int32_t npieces;
    int64_t counts[MAX_PIECES];
    double pre, post;
    uint64_t joined; /* ranks without input */
    bool apart;      /* out is not in */
    const int32_t *members;
    int32_t nmembers; /* 0: all ranks */
};

static int64_t total_of(const struct reduce_case *c)
{
    int64_t sum = 0;

    for (int i = 0; i < c->npieces; i++)
        sum += c->counts[i];
    return sum;
}

static int32_t index_in(const struct hvi_group *g, int rank)
{
    for (int32_t m = 0; m < g->nmembers; m++)
        if (g->members[m] == rank)
            return m;
    return -1;
}

static void hash_result(struct rank *r, const void *data, size_t size_bytes)
{
    uint64_t h = atomic_load(&r->w->shared->number[r->me]) + 1469598103934665603u;

    for (size_t i = 0; i < size_bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    atomic_store(&r->w->shared->number[r->me], h);
}

/* ---- tensors in memory that peers can map */

static bool in_shared(const struct rank *r, int32_t piece, int side)
{
    if (r->w->memory == WORLD_MIXED)
        return (r->seq + (uint64_t)r->me * 5 + (uint64_t)piece * 3 + (uint64_t)side) %
                   3 !=
               0;
    return r->w->memory == WORLD_SHARED;
}

/* Moves pieces into the rank's block; `own` keeps where they were. All parts are taken
 * at once: a block must not go while pieces lie in it. */
static void share_pieces(struct rank *r, struct hvi_group *g, struct hvi_piece *own)
{
    size_t es = hvi_dtype_size(g->dtype);
    size_t total = 64;
    uint8_t *at;

    memcpy(own, g->pieces, (size_t)g->npieces * sizeof(*own));
    if (r->w->memory == WORLD_ORDINARY)
        return;
    for (int32_t i = 0; i < g->npieces; i++)
        total += 2 * ((size_t)own[i].count + 3) * es;
    at = rank_alloc_shared(r, total, es);
    for (int32_t i = 0; i < g->npieces; i++) {
        struct hvi_piece *p = &g->pieces[i];
        size_t bytes = (size_t)p->count * es;

        if (p->in != NULL && in_shared(r, i, 0)) {
            memcpy(at, p->in, bytes);
            p->in = at;
            p->in_mem = r->block;
            if (own[i].out == own[i].in) {
                p->out = at;
                p->out_mem = r->block;
            }
            at += bytes + es;
        }
        if (p->out != NULL && own[i].out != own[i].in && in_shared(r, i, 1)) {
            p->out = at;
            p->out_mem = r->block;
            at += bytes + es;
        }
    }
}

static void unshare_pieces(const struct hvi_group *g, const struct hvi_piece *own)
{
    for (int32_t i = 0; i < g->npieces; i++)
        if (g->pieces[i].out != own[i].out)
            memcpy(own[i].out, g->pieces[i].out,
                   (size_t)own[i].count * hvi_dtype_size(g->dtype));
}

static void check_allreduce(struct rank *r, const struct reduce_case *c)
{
    size_t es = hvi_dtype_size(c->dtype);
    int64_t total = total_of(c);
    struct hvi_piece pieces[MAX_PIECES];
    struct hvi_piece own[MAX_PIECES];
    struct hvi_group g = rank_group(r, HVD_ALLREDUCE, c->dtype, pieces, c->npieces);
    struct inputs in = make_inputs(r, total, c->dtype);
    const void *src[WORLD_MAX];
    bool joined = c->joined >> r->me & 1;
    char *want = rank_alloc(r, (size_t)total * es);
    char *out = c->apart ? rank_alloc(r, (size_t)total * es) : in.of[r->me];
    int64_t at = 0;

    snprintf(r->where, sizeof(r->where),
             "allreduce dtype %u op %u, %lld elements in %d pieces, pre %g post %g, "
             "joined %llx",
             c->dtype, c->op, (long long)total, (int)c->npieces, c->pre, c->post,
             (unsigned long long)c->joined);
    g.reduce_op = c->op;
    g.prescale = c->pre;
    g.postscale = c->post;
    if (c->nmembers > 0) {
        g.members = c->members;
        g.nmembers = c->nmembers;
        g.me = index_in(&g, r->me);
    }
    for (int m = 0; m < g.nmembers; m++)
        src[m] = c->joined >> g.members[m] & 1 ? NULL : in.of[g.members[m]];
    want_fold(r, want, src, total, &g);
    for (int i = 0; i < c->npieces; i++) {
        pieces[i] = (struct hvi_piece){.count = c->counts[i], .row = 1};
        if (!joined) {
            pieces[i].in = (char *)in.of[r->me] + (size_t)at * es;
            pieces[i].out = out + (size_t)at * es;
        }
        at += c->counts[i];
    }
    if (g.me >= 0) {
        share_pieces(r, &g, own);
        rank_run(r, &g);
        unshare_pieces(&g, own);
    }
    if (!joined && g.me >= 0) {
        expect_bytes(r, out, want, total, c->dtype, "result");
        if (c->joined == 0 && c->nmembers == 0)
            hash_result(r, out, (size_t)total * es);
    }
    if (c->apart)
        free(out);
    free(want);
    free_inputs(&in);
}

static void check_refused(struct rank *r, uint32_t dtype, uint32_t op,
                          enum hvd_status want)
{
    char data[8] = {0};
    struct hvi_piece piece = {.in = data, .out = data, .count = 1, .row = 1};
    struct hvi_group g = rank_group(r, HVD_ALLREDUCE, dtype, &piece, 1);
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    snprintf(r->where, sizeof(r->where), "allreduce dtype %u op %u", dtype, op);
    g.reduce_op = op;
    rc = r->p->ops->start(r->p, &g, &err);
    if (rc != want || err.text[0] == '\0')
        rank_fail(r, "%s (%s), not %s", hvi_status_name(rc), err.text,
                  hvi_status_name(want));
}

/* ---- adasum: to tolerance against the formula in double; bit-equal on all ranks by
 * hash */

static void ref_adasum(double *v, int64_t count, int nranks, int64_t stride)
{
    for (int d = 1; d < nranks; d *= 2)
        for (int k = 0; k + d < nranks; k += 2 * d) {
            double *a = v + k * stride;
            double *b = v + (k + d) * stride;
            double aa = 0;
            double bb = 0;
            double ab = 0;

            for (int64_t i = 0; i < count; i++) {
                aa += a[i] * a[i];
                bb += b[i] * b[i];
                ab += a[i] * b[i];
            }
            for (int64_t i = 0; i < count; i++)
                a[i] = a[i] * (aa == 0 || bb == 0 ? 1 : 1 - ab / (2 * aa)) +
                       b[i] * (aa == 0 || bb == 0 ? 1 : 1 - ab / (2 * bb));
        }
}

static double number_at(const void *p, int64_t i, uint32_t dtype)
{
    struct value v = ref_get(p, i, dtype);

    return dtype == HVD_FLOAT64 ? v.d : (double)v.f;
}

static void check_adasum(struct rank *r, uint32_t dtype, int64_t count)
{
    size_t es = hvi_dtype_size(dtype);
    double tolerance = dtype == HVD_FLOAT16   ? 2e-3
                       : dtype == HVD_FLOAT32 ? 1e-5
                                              : 1e-12;
    double *want = rank_alloc(r, (size_t)(count * r->n) * sizeof(*want));
    char *mine = rank_alloc(r, (size_t)count * es);
    struct hvi_piece pieces[2] = {
        {.in = mine, .out = mine, .count = count / 3, .row = 1}};
    struct hvi_group g = rank_group(r, HVD_ALLREDUCE, dtype, pieces, 2);
    int64_t first = pieces[0].count;

    snprintf(r->where, sizeof(r->where), "adasum dtype %u, %lld elements", dtype,
             (long long)count);
    g.reduce_op = HVD_ADASUM;
    g.postscale = 0.5;
    pieces[1] = pieces[0];
    pieces[1].in = pieces[1].out = mine + (size_t)first * es;
    pieces[1].count = count - first;
    random_state = 77 + r->seq;
    for (int k = 0; k < r->n; k++)
        for (int64_t i = 0; i < count; i++) {
            double d = (double)(random_bits() >> 40) * 0x1p-23 - 0.9;
            struct value v = {0, (float)d, d};
            char room[8];

            ref_put(room, 0, dtype, v);
            want[k * count + i] = number_at(room, 0, dtype);
            if (k == r->me)
                memcpy(mine + (size_t)i * es, room, es);
        }
    rank_run(r, &g);
    ref_adasum(want, first, r->n, count);
    ref_adasum(want + first, count - first, r->n, count);
    for (int64_t i = 0; i < count; i++)
        if (fabs(number_at(mine, i, dtype) - 0.5 * want[i]) > tolerance * r->n)
            rank_fail(r, "element %lld is %g, not %g", (long long)i,
                      number_at(mine, i, dtype), 0.5 * want[i]);
    hash_result(r, mine, (size_t)count * es);
    free(mine);
    free(want);
}

/* ---- reducescatter */

static void check_reducescatter(struct rank *r, uint32_t dtype, uint32_t op,
                                int64_t dim0, int64_t row, bool joined)
{
    size_t es = hvi_dtype_size(dtype);
    int64_t counts[2] = {dim0 * row, (dim0 / 2 + 1) * row};
    int64_t total = counts[0] + counts[1];
    struct hvi_piece pieces[2];
    struct hvi_group g = rank_group(r, HVD_REDUCESCATTER, dtype, pieces, 2);
    struct inputs in = make_inputs(r, total, dtype);
    const void *src[WORLD_MAX];
    char *want = rank_alloc(r, (size_t)total * es);
    char *out = rank_alloc(r, (size_t)total * es);
    int64_t at = 0;
    int64_t got_at = 0;
    bool absent = joined && r->me == 0;

    snprintf(r->where, sizeof(r->where),
             "reducescatter dtype %u op %u, %lld rows of %lld%s", dtype, op,
             (long long)dim0, (long long)row, joined ? ", rank 0 joined" : "");
    g.reduce_op = op;
    for (int k = 0; k < r->n; k++)
        src[k] = joined && k == 0 ? NULL : in.of[k];
    want_fold(r, want, src, total, &g);
    for (int i = 0; i < 2; i++) {
        struct hvi_span rows = hvi_rows_split(counts[i] / row, r->n, r->me);

        pieces[i] = (struct hvi_piece){.count = counts[i], .row = row};
        if (!absent) {
            pieces[i].in = (char *)in.of[r->me] + (size_t)at * es;
            pieces[i].out = out + (size_t)got_at * es;
        }
        at += counts[i];
        got_at += rows.count * row;
    }
    rank_run(r, &g);
    at = 0;
    for (int i = 0; i < 2 && !absent; i++) {
        struct hvi_span rows = hvi_rows_split(counts[i] / row, r->n, r->me);

        expect_bytes(r, pieces[i].out, want + (size_t)(at + rows.first * row) * es,
                     rows.count * row, dtype, "kept rows");
        at += counts[i];
    }
    free(out);
    free(want);
    free_inputs(&in);
}

/* ---- allgather, alltoall: rank k's element i of piece p is a byte pattern of (k, p,
 * i) */

struct made {
    void *memory;
    int64_t total_rows;
    size_t size_bytes;
    int calls;
};

static void *on_alloc(void *cookie, const int64_t *rows, int32_t nmembers,
                      int64_t total_rows, size_t size_bytes)
{
    struct made *m = cookie;

    (void)rows;
    (void)nmembers;
    m->memory = malloc(size_bytes + 1);
    m->total_rows = total_rows;
    m->size_bytes = size_bytes;
    m->calls++;
    return m->memory;
}

static void pattern(uint8_t *out, int rank, int piece, int64_t first_byte,
                    int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(rank * 37 + piece * 101 + (first_byte + i) * 7 +
                           (first_byte + i) / 251);
}

static void check_same(struct rank *r, const uint8_t *got, const uint8_t *want,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            rank_fail(r, "byte %zu of %zu is %u, not %u", i, n, got[i], want[i]);
}

static int64_t gather_rows(int rank, int piece, int64_t most)
{
    return most <= 0 ? 0 : (rank * 5 + piece * 3 + 1) % (most + 1);
}

static void check_allgather(struct rank *r, uint32_t dtype, int32_t npieces,
                            int64_t most, int64_t row, bool own_memory)
{
    size_t row_bytes = (size_t)row * hvi_dtype_size(dtype);
    struct hvi_piece pieces[MAX_PIECES];
    struct hvi_group g = rank_group(r, HVD_ALLGATHER, dtype, pieces, npieces);
    struct made made[MAX_PIECES] = {{0}};
    int64_t got_rows[MAX_PIECES][WORLD_MAX];
    uint8_t *in[MAX_PIECES];
    uint8_t *out[MAX_PIECES];

    snprintf(r->where, sizeof(r->where),
             "allgather dtype %u, %d pieces, up to %lld rows of %lld", dtype,
             (int)npieces, (long long)most, (long long)row);
    g.alloc = on_alloc;
    for (int p = 0; p < npieces; p++) {
        int64_t mine = gather_rows(r->me, p, most);
        int64_t all = 0;

        for (int k = 0; k < r->n; k++)
            all += gather_rows(k, p, most);
        in[p] = rank_alloc(r, (size_t)mine * row_bytes);
        out[p] = own_memory ? rank_alloc(r, (size_t)all * row_bytes) : NULL;
        pattern(in[p], r->me, p, 0, mine * (int64_t)row_bytes);
        pieces[p] = (struct hvi_piece){.in = in[p],
                                       .out = out[p],
                                       .count = mine * row,
                                       .row = row,
                                       .rows = got_rows[p],
                                       .cookie = &made[p]};
    }
    rank_run(r, &g);
    for (int p = 0; p < npieces; p++) {
        const uint8_t *got = own_memory ? out[p] : made[p].memory;
        int64_t all = 0;

        for (int k = 0; k < r->n; k++) {
            int64_t rows = gather_rows(k, p, most);
            size_t bytes = (size_t)rows * row_bytes;
            uint8_t *want = rank_alloc(r, bytes);

            if (got_rows[p][k] != rows)
                rank_fail(r, "rank %d gave %lld rows of tensor %d, not %lld", k,
                          (long long)got_rows[p][k], p, (long long)rows);
            pattern(want, k, p, 0, (int64_t)bytes);
            check_same(r, got, want, bytes);
            got += bytes;
            all += rows;
            free(want);
        }
        if (!own_memory && (made[p].calls != 1 || made[p].total_rows != all ||
                            made[p].size_bytes != (size_t)all * row_bytes))
            rank_fail(r, "alloc was called %d times, with %lld rows", made[p].calls,
                      (long long)made[p].total_rows);
        free(in[p]);
        free(out[p]);
        free(made[p].memory);
    }
}

/* Rows that `from` sends to `to`. */
static int64_t split_of(int from, int to, int piece, int64_t most, bool even)
{
    if (even)
        return most;
    return most <= 0 ? 0 : (from * 3 + to * 5 + piece) % (most + 1);
}

/* Two more rows than the splits say belong to nobody. */
static int64_t splits_of(const struct rank *r, int from, int piece, int64_t most,
                         bool even, int64_t *out)
{
    int64_t sum = 0;

    for (int k = 0; k < r->n; k++) {
        out[k] = split_of(from, k, piece, most, even);
        sum += out[k];
    }
    return sum + (even ? 0 : 2);
}

static void check_alltoall(struct rank *r, uint32_t dtype, int32_t npieces,
                           int64_t most, int64_t row, bool even)
{
    size_t row_bytes = (size_t)row * hvi_dtype_size(dtype);
    struct hvi_piece pieces[MAX_PIECES];
    struct hvi_group g = rank_group(r, HVD_ALLTOALL, dtype, pieces, npieces);
    struct made made[MAX_PIECES] = {{0}};
    int64_t splits[MAX_PIECES][WORLD_MAX];
    int64_t got_rows[MAX_PIECES][WORLD_MAX];
    uint8_t *in[MAX_PIECES];

    snprintf(r->where, sizeof(r->where),
             "alltoall dtype %u, %d pieces, up to %lld rows of %lld%s", dtype,
             (int)npieces, (long long)most, (long long)row, even ? ", even" : "");
    g.alloc = on_alloc;
    for (int p = 0; p < npieces; p++) {
        int64_t mine = splits_of(r, r->me, p, most, even, splits[p]);

        in[p] = rank_alloc(r, (size_t)mine * row_bytes);
        pattern(in[p], r->me, p, 0, mine * (int64_t)row_bytes);
        pieces[p] = (struct hvi_piece){.in = in[p],
                                       .count = mine * row,
                                       .row = row,
                                       .splits = even ? NULL : splits[p],
                                       .rows = got_rows[p],
                                       .cookie = &made[p]};
    }
    rank_run(r, &g);
    for (int p = 0; p < npieces; p++) {
        const uint8_t *got = made[p].memory;

        for (int k = 0; k < r->n; k++) {
            int64_t theirs[WORLD_MAX];
            int64_t before = 0;
            size_t bytes;
            uint8_t *want;

            splits_of(r, k, p, most, even, theirs);
            for (int m = 0; m < r->me; m++)
                before += theirs[m];
            bytes = (size_t)theirs[r->me] * row_bytes;
            want = rank_alloc(r, bytes);
            if (got_rows[p][k] != theirs[r->me])
                rank_fail(r, "rank %d sent %lld rows of tensor %d, not %lld", k,
                          (long long)got_rows[p][k], p, (long long)theirs[r->me]);
            pattern(want, k, p, before * (int64_t)row_bytes, (int64_t)bytes);
            check_same(r, got, want, bytes);
            got += bytes;
            free(want);
        }
        if (made[p].calls != 1)
            rank_fail(r, "alloc was called %d times", made[p].calls);
        free(in[p]);
        free(made[p].memory);
    }
}

/* ---- broadcast, barrier */

static void check_broadcast(struct rank *r, uint32_t dtype, int32_t npieces,
                            int64_t count, int root, bool apart)
{
    size_t size = (size_t)count * hvi_dtype_size(dtype);
    struct hvi_piece pieces[MAX_PIECES];
    struct hvi_group g = rank_group(r, HVD_BROADCAST, dtype, pieces, npieces);
    uint8_t *in[MAX_PIECES];
    uint8_t *out[MAX_PIECES];
    uint8_t *want = rank_alloc(r, size);

    snprintf(r->where, sizeof(r->where),
             "broadcast dtype %u, %d pieces of %lld, root %d", dtype, (int)npieces,
             (long long)count, root);
    g.root = root;
    for (int p = 0; p < npieces; p++) {
        in[p] = rank_alloc(r, size);
        out[p] = apart ? rank_alloc(r, size) : in[p];
        pattern(in[p], r->me, p, 0, (int64_t)size);
        pieces[p] =
            (struct hvi_piece){.in = in[p], .out = out[p], .count = count, .row = 1};
    }
    rank_run(r, &g);
    for (int p = 0; p < npieces; p++) {
        pattern(want, root, p, 0, (int64_t)size);
        check_same(r, out[p], want, size);
        if (apart)
            free(out[p]);
        free(in[p]);
    }
    free(want);
}

static void check_barrier(struct rank *r)
{
    struct hvi_group g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0);
    uint64_t mine = g.seq * 1000003;

    snprintf(r->where, sizeof(r->where), "barrier");
    atomic_store(&r->w->shared->number[r->me], mine);
    rank_run(r, &g);
    for (int k = 0; k < r->n; k++)
        if (atomic_load(&r->w->shared->number[k]) < mine)
            rank_fail(r, "left before rank %d came", k);
    g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0);
    rank_run(r, &g); /* nobody writes its number before all have read */
}

/* ---- the table */

struct table {
    uint64_t dtypes;     /* bits */
    int64_t large_bytes; /* three staging slots; one element is added */
    uint32_t every; /* of many ranks: sizes take turns among dtypes and reductions */
};

static bool takes(const struct table *t, uint32_t turn)
{
    return turn % t->every == 0;
}

static bool chosen(const struct table *t, uint32_t dtype)
{
    return t->dtypes >> dtype & 1;
}

static bool power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

/* Results of all allreduces so far are equal everywhere. */
static void check_hashes(struct rank *r)
{
    struct hvi_group g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0);

    snprintf(r->where, sizeof(r->where), "hashes of all results");
    rank_run(r, &g);
    for (int k = 0; k < r->n; k++)
        if (atomic_load(&r->w->shared->number[k]) !=
            atomic_load(&r->w->shared->number[r->me]))
            rank_fail(r, "rank %d has other results", k);
    g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0);
    rank_run(r, &g);
    atomic_store(&r->w->shared->number[r->me], 0);
}

static void table_allreduce(struct rank *r, const struct table *t, uint32_t dtype,
                            uint32_t op)
{
    int64_t large = t->large_bytes / (int64_t)hvi_dtype_size(dtype) + 1;
    int64_t counts[] = {0, 1, r->n - 1, r->n, r->n + 1, large};
    int ncounts = (int)(sizeof(counts) / sizeof(counts[0]));

    for (int i = 0; i < ncounts; i++) {
        struct reduce_case c = {.dtype = dtype,
                                .op = op,
                                .npieces = 1,
                                .counts = {counts[i]},
                                .pre = 1,
                                .post = 1,
                                .apart = i % 2 == 1};

        if (takes(t, (uint32_t)i + dtype + op))
            check_allreduce(r, &c);
    }
    check_allreduce(r, &(struct reduce_case){.dtype = dtype, /* grouped */
                                             .op = op,
                                             .npieces = 5,
                                             .counts = {3, 0, large / 3, 1, large / 2},
                                             .pre = 1,
                                             .post = 1});
}

static void table_scaled(struct rank *r, const struct table *t, uint32_t dtype)
{
    int64_t large = t->large_bytes / (int64_t)hvi_dtype_size(dtype) + 1;
    uint64_t all = (UINT64_C(1) << (r->n - 1) << 1) - 1;

    for (int i = 0; i < 2; i++) {
        struct reduce_case c = {.dtype = dtype,
                                .op = HVD_SUM,
                                .npieces = 2,
                                .counts = {i == 0 ? 2 : large, 3},
                                .pre = 0.75,
                                .post = 1.25};

        if (!takes(t, (uint32_t)i + dtype))
            continue;
        if (dtype != HVD_BOOL)
            check_allreduce(r, &c);
        c.op = HVD_AVERAGE;
        c.pre = 1;
        if (dtype != HVD_BOOL)
            check_allreduce(r, &c);
        c.pre = dtype == HVD_BOOL ? 1 : 0.5;
        c.post = 1;
        c.joined = all & ~UINT64_C(1) & UINT64_C(0x5555555555555555);
        for (uint32_t op = HVD_SUM; op <= HVD_PRODUCT; op++)
            if (op != HVD_ADASUM) {
                c.op = op;
                check_allreduce(r, &c);
            }
        c.joined = all & ~UINT64_C(1); /* all but one */
        c.op = HVD_SUM;
        check_allreduce(r, &c);
    }
}

static void table_reduce(struct rank *r, const struct table *t, uint32_t dtype)
{
    for (uint32_t op = 0; op < HVD_REDUCE_OP_COUNT; op++) {
        if (promise[dtype][op] != VALUE)
            check_refused(r, dtype, op, promise[dtype][op]);
        else if (op != HVD_ADASUM)
            table_allreduce(r, t, dtype, op);
        else if (!power_of_two(r->n))
            check_refused(r, dtype, op, HVD_EUNSUPPORTED);
        else
            for (int i = 0; i < 3; i++)
                check_adasum(r, dtype, (int64_t[]){1, 150, 17001}[i]);
    }
    table_scaled(r, t, dtype);
}

static void table_scatter(struct rank *r, const struct table *t, uint32_t dtype)
{
    int64_t large = t->large_bytes / (int64_t)hvi_dtype_size(dtype) / 3 + 1;
    int64_t rows[] = {0, 1, r->n - 1, r->n, r->n + 1, large};

    for (uint32_t i = 0; i < 6; i++) {
        if (!takes(t, i + dtype))
            continue;
        check_reducescatter(r, dtype, HVD_SUM, rows[i], 3, false);
        if (dtype != HVD_BOOL)
            check_reducescatter(r, dtype, HVD_AVERAGE, rows[i], 1, false);
    }
    check_reducescatter(r, dtype, HVD_MAX, r->n + 2, 2, r->n > 1);
}

static void table_move(struct rank *r, const struct table *t, uint32_t dtype)
{
    int64_t es = hvi_dtype_size(dtype);
    int64_t large = t->large_bytes / es + 1;
    int64_t counts[] = {0, 1, r->n - 1, r->n, r->n + 1, large};

    for (int i = 0; i < 6; i++)
        if (takes(t, (uint32_t)i + dtype))
            check_broadcast(r, dtype, 1 + i % 3, counts[i], (i * 3 + (int)dtype) % r->n,
                            i % 2 == 0);
    check_allgather(r, dtype, 1, 0, 1, false);
    check_allgather(r, dtype, 1, 4, 1, true);
    check_allgather(r, dtype, 3, 3, 5, false);
    check_allgather(r, dtype, 2, large / 7 + 1, 7, false);
    check_alltoall(r, dtype, 1, 1, 1, true);
    check_alltoall(r, dtype, 1, 0, 1, false);
    check_alltoall(r, dtype, 3, 4, 3, false);
    check_alltoall(r, dtype, 2, large / 3 / r->n + 1, 3, false);
    check_barrier(r);
}

/* Groups of a subset run among groups of all; others let them pass. */
static void table_subsets(struct rank *r, const struct table *t)
{
    int32_t even[WORLD_MAX];
    int32_t n = 0;

    for (int k = 0; k < r->n; k += 2)
        even[n++] = k;
    for (int i = 0; i < 3; i++) {
        struct reduce_case c = {.dtype = HVD_FLOAT32,
                                .op = HVD_AVERAGE,
                                .npieces = 1,
                                .counts = {i == 1 ? t->large_bytes / 4 + 1 : 5},
                                .pre = 1,
                                .post = 1,
                                .members = even,
                                .nmembers = n};

        check_allreduce(r, &c);
    }
    atomic_store(&r->w->shared->number[r->me], 0);
    check_barrier(r);
}

static void run_table(struct rank *r, void *arg)
{
    const struct table *t = arg;

    for (uint32_t dtype = 1; dtype < HVD_DTYPE_COUNT; dtype++) {
        if (!chosen(t, dtype))
            continue;
        table_reduce(r, t, dtype);
        check_hashes(r);
    }
    for (uint32_t dtype = 1; dtype < HVD_DTYPE_COUNT; dtype++) {
        if (!chosen(t, dtype))
            continue;
        table_scatter(r, t, dtype);
        table_move(r, t, dtype);
    }
    table_subsets(r, t);
}

#define ALL_DTYPES ((UINT64_C(1) << HVD_DTYPE_COUNT) - 2)
#define FEW_DTYPES                                                                     \
    (UINT64_C(1) << HVD_FLOAT16 | UINT64_C(1) << HVD_FLOAT32 | UINT64_C(1) << HVD_INT8)

static void run_small_slots(enum world_plane plane, enum world_how how, int n,
                            struct table t)
{
    struct world w;

    /* slots as small as they may be: a large size is little to compute */
    world_make(&w, plane, n, plane == WORLD_TCP || plane == WORLD_HOSTS ? 256 : 4096,
               3);
    if (n > 2)
        w.buffer_bytes = 8192; /* several rounds, reducescatter through the host */
    t.large_bytes = plane != WORLD_TCP ? 3 * 4096 : 6 * 256 * (int64_t)(n > 2 ? n : 1);
    t.every = n > 6 ? 3 : n > 4 ? 2 : 1;
    world_run(&w, how, run_table, &t, 75);
    world_free(&w);
}

static uint64_t dtypes_for(int n)
{
    return SLOW && n > 3 ? FEW_DTYPES : ALL_DTYPES;
}

#define TABLE(plane, PLANE, n)                                                         \
    Test(table, plane##_##n##_ranks, .timeout = 90)                                    \
    {                                                                                  \
        run_small_slots(PLANE, WORLD_HOW, n, (struct table){.dtypes = dtypes_for(n)}); \
    }
#ifdef ONLY_NCCL /* tests/unit/plane/nccl/test_gpu_table.c */

TABLE(nccl, WORLD_NCCL, 1)
TABLE(nccl, WORLD_NCCL, 2)
TABLE(nccl, WORLD_NCCL, 3)
TABLE(nccl, WORLD_NCCL, 4)

#else

/* Allreduce again, with tensors that peers may read where they lie. */
static void run_shared_table(struct rank *r, void *arg)
{
    const struct table *t = arg;

    for (uint32_t dtype = 1; dtype < HVD_DTYPE_COUNT; dtype++) {
        if (!chosen(t, dtype))
            continue;
        table_reduce(r, t, dtype);
        check_hashes(r);
    }
    table_subsets(r, t);
}

static void run_shared(enum world_how how, int n, enum world_memory memory,
                       uint64_t dtypes)
{
    struct table t = {.dtypes = dtypes, .large_bytes = 3 * 4096};
    struct world w;

    world_make(&w, WORLD_SHM, n, 4096, 3);
    w.memory = memory;
    t.every = n > 4 ? 2 : 1;
    world_run(&w, how, run_shared_table, &t, 75);
    world_free(&w);
}

#define TABLES(n)                                                                      \
    TABLE(shm, WORLD_SHM, n) TABLE(tcp, WORLD_TCP, n) TABLE(hosts, WORLD_HOSTS, n)

TABLES(1)
TABLES(2)
TABLES(3)
TABLES(4)
TABLES(5)
TABLES(6)
TABLES(7)
TABLES(8)
TABLES(9)

#define SHARED(n)                                                                      \
    Test(table, shared_##n##_ranks, .timeout = 90)                                     \
    {                                                                                  \
        run_shared(WORLD_HOW, n, WORLD_SHARED, dtypes_for(n));                         \
    }                                                                                  \
    Test(table, mixed_##n##_ranks, .timeout = 90)                                      \
    {                                                                                  \
        run_shared(WORLD_HOW, n, WORLD_MIXED, dtypes_for(n));                          \
    }

SHARED(1)
SHARED(2)
SHARED(3)
SHARED(4)
SHARED(5)

Test(table, shared_threads, .timeout = 90)
{
    for (int n = 2; n <= 4; n++) {
        run_shared(WORLD_THREADS, n, WORLD_SHARED, FEW_DTYPES);
        run_shared(WORLD_THREADS, n, WORLD_MIXED, FEW_DTYPES);
    }
}

Test(table, shm_threads, .timeout = 90)
{
    for (int n = 2; n <= 4; n++)
        run_small_slots(WORLD_SHM, WORLD_THREADS, n,
                        (struct table){.dtypes = FEW_DTYPES});
}

Test(table, tcp_threads, .timeout = 90)
{
    for (int n = 2; n <= 4; n++)
        run_small_slots(WORLD_TCP, WORLD_THREADS, n,
                        (struct table){.dtypes = FEW_DTYPES});
}

/* ---- the sizes of real jobs, and many ranks: a few combinations */

static void run_real_slots(struct rank *r, void *arg)
{
    int64_t large = 3 * 256 * 1024;
    struct reduce_case c = {.dtype = HVD_FLOAT32,
                            .op = HVD_SUM,
                            .npieces = 5,
                            .counts = {1000, 0, large / 4 + 1, 3, large / 4},
                            .pre = 1,
                            .post = 1};

    (void)arg;
    for (int i = 0; i < 2; i++) {
        check_allreduce(r, &c);
        c.counts[2] = c.counts[4] = 20000;
        c.apart = true;
    }
    check_hashes(r);
    check_reducescatter(r, HVD_FLOAT64, HVD_SUM, large / 8 + 1, 1, false);
    check_broadcast(r, HVD_UINT8, 2, large + 1, r->n - 1, false);
    check_allgather(r, HVD_INT32, 2, large / 4 / r->n, 1, false);
    check_alltoall(r, HVD_INT16, 2, large / 2 / r->n + 1, 1, false);
    check_barrier(r);
}

static void run_subset(enum world_plane plane, int n, size_t part_bytes,
                       world_body *body)
{
    int64_t large_bytes = 3 * 4096;
    struct world w;

    world_make(&w, plane, n, part_bytes, 0);
    world_run(&w, WORLD_HOW, body, &large_bytes, 60);
    world_free(&w);
}

Test(table, shm_slots_as_in_real_jobs, .timeout = 90)
{
    run_subset(WORLD_SHM, 2, 0, run_real_slots);
    run_subset(WORLD_SHM, 3, 0, run_real_slots);
}

Test(table, shared_slots_as_in_real_jobs, .timeout = 90)
{
    for (int n = 2; n <= 3; n++) {
        struct world w;

        world_make(&w, WORLD_SHM, n, 0, 0);
        w.memory = WORLD_SHARED;
        world_run(&w, WORLD_HOW, run_real_slots, NULL, 60);
        world_free(&w);
    }
}

/* ---- hosts of all shapes, and process sets that lie across them */

static const int layouts[][6] = {
    {3, 1},    {1, 3},    {1, 1}, {1, 1, 1, 1, 1}, {2, 2, 2},    {2, 2, 2, 2},
    {3, 2, 3}, {5, 1, 1}, {4, 4}, {5, 5},          {1, 2, 3, 1}, {2, 1, 1, 2},
};

/* Members by bits of the rank: all kinds of sets are among them. */
static void layout_subsets(struct rank *r, const struct table *t, uint32_t dtype)
{
    for (uint32_t bits = 1; bits < 1u << r->n; bits = bits * 5 / 3 + 1) {
        int32_t members[WORLD_MAX];
        struct reduce_case c = {.dtype = dtype,
                                .op = HVD_AVERAGE,
                                .npieces = 3,
                                .counts = {7, 0, t->large_bytes / 4 + 1},
                                .pre = 1,
                                .post = 0.5,
                                .members = members};

        for (int k = 0; k < r->n; k++)
            if (bits >> k & 1)
                members[c.nmembers++] = k;
        check_allreduce(r, &c);
    }
    check_barrier(r);
}

static void run_layout(struct rank *r, void *arg)
{
    const struct table *t = arg;

    for (uint32_t dtype = 1; dtype < HVD_DTYPE_COUNT; dtype++) {
        if (!chosen(t, dtype))
            continue;
        table_allreduce(r, t, dtype, HVD_SUM);
        table_scaled(r, t, dtype);
        check_hashes(r);
        table_scatter(r, t, dtype);
        table_move(r, t, dtype);
    }
    layout_subsets(r, t, HVD_FLOAT16);
    layout_subsets(r, t, HVD_FLOAT32);
}

Test(table, hosts_of_all_shapes, .timeout = 120)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i += SLOW ? 4 : 1) {
        struct table t = {.dtypes = FEW_DTYPES, .large_bytes = 3 * 4096, .every = 2};
        struct world w;

        world_make_hosts(&w, layouts[i], 256);
        world_run(&w, WORLD_HOW, run_layout, &t, 60);
        world_free(&w);
    }
}

Test(table, hosts_messages_as_in_real_jobs, .timeout = 90)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i += 3) {
        struct world w;

        world_make_hosts(&w, layouts[i], 0);
        world_run(&w, WORLD_HOW, run_real_slots, NULL, 60);
        world_free(&w);
    }
}

Test(table, tcp_messages_as_in_real_jobs, .timeout = 90)
{
    run_subset(WORLD_TCP, 2, 0, run_real_slots);
    run_subset(WORLD_TCP, 3, 0, run_real_slots);
}

#ifndef __SANITIZE_THREAD__ /* TSan is too slow for so many threads */
static void run_many_ranks(struct rank *r, void *arg)
{
    struct table t = {.large_bytes = *(int64_t *)arg};

    for (int i = 0; i < 2; i++) {
        struct reduce_case c = {.dtype = i == 0 ? HVD_FLOAT32 : HVD_BFLOAT16,
                                .op = HVD_AVERAGE,
                                .npieces = 3,
                                .counts = {1, r->n, i == 0 ? t.large_bytes / 4 : 10},
                                .pre = 1,
                                .post = 1};

        check_allreduce(r, &c);
        c.joined = UINT64_C(0xf0f0f0f0f0f0f0f0);
        check_allreduce(r, &c);
    }
    if (power_of_two(r->n))
        check_adasum(r, HVD_FLOAT32, 40);
    check_hashes(r);
    check_reducescatter(r, HVD_INT32, HVD_SUM, r->n + 1, 2, false);
    check_broadcast(r, HVD_UINT8, 2, 1000, r->n / 2, true);
    check_allgather(r, HVD_INT64, 2, 3, 2, false);
    check_alltoall(r, HVD_UINT8, 2, 3, 2, false);
    check_barrier(r);
}

Test(table, shm_64_ranks, .timeout = 90)
{
    run_subset(WORLD_SHM, 64, 4096, run_many_ranks);
}

Test(table, tcp_64_ranks, .timeout = 90)
{
    run_subset(WORLD_TCP, 64, 256, run_many_ranks);
}
#endif

#endif
