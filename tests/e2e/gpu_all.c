/* Every collective on GPU tensors, checked: for t4002 (fakes) and t4010 (a real GPU).
 *     SHARE=1: all ranks use GPU 0 */
#include "gpu.h"

static void *stream;

static void *put(const void *host, size_t bytes)
{
    void *d = gpu_alloc(bytes);

    gpu_put(d, host, bytes, stream);
    return d;
}

static void finish(hvd_handle h)
{
    OK(hvd_wait(h, HVD_WAIT_ENQUEUED, 20000));
    OK(hvd_stream_wait(h, stream));
}

static void reductions(void)
{
    static const enum hvd_dtype types[] = {HVD_INT32, HVD_INT16};
    int64_t dims[1] = {3};
    int product = 1;

    for (int i = 1; i <= n; i++)
        product *= i;
    for (int t = 0; t < 2; t++)
        for (int op = HVD_AVERAGE; op <= HVD_PRODUCT; op++) {
            if (op == HVD_ADASUM)
                continue;
            int32_t v32[3] = {me + 1, -(me + 1), 2};
            int16_t v16[3] = {(int16_t)(me + 1), (int16_t) - (me + 1), 2};
            size_t size = hvd_dtype_size(types[t]);
            void *d = put(t == 0 ? (void *)v32 : v16, 3 * size);
            char name[32];
            hvd_handle h;

            snprintf(name, sizeof name, "r%d.%d", t, op);
            struct hvd_op o =
                gpu_op(HVD_ALLREDUCE, name, d, d, dims, 1, types[t], stream);
            o.reduce_op = op;
            OK(hvd_enqueue(&o, &h));
            finish(h);
            OK(hvd_release(h));
            gpu_get(t == 0 ? (void *)v32 : v16, d, 3 * size, stream);
            int got = t == 0 ? v32[0] : v16[0], low = t == 0 ? v32[1] : v16[1];
            int sum = n * (n + 1) / 2;
            IS(got == (op == HVD_SUM       ? sum
                       : op == HVD_AVERAGE ? sum / n
                       : op == HVD_MIN     ? 1
                       : op == HVD_MAX     ? n
                                           : product));
            IS(low == (op == HVD_SUM       ? -sum
                       : op == HVD_AVERAGE ? -(sum / n)
                       : op == HVD_MIN     ? -n
                       : op == HVD_MAX     ? -1
                                           : (n % 2 ? -product : product)));
            gpu_free(d);
        }
    if ((n & (n - 1)) == 0) {
        float v[2] = {1, 2};
        void *d = put(v, sizeof v);
        int64_t two[1] = {2};
        hvd_handle h;
        struct hvd_op o =
            gpu_op(HVD_ALLREDUCE, "adasum", d, d, two, 1, HVD_FLOAT32, stream);

        o.reduce_op = HVD_ADASUM; /* equal vectors: their average */
        OK(hvd_enqueue(&o, &h));
        finish(h);
        OK(hvd_release(h));
        gpu_get(v, d, sizeof v, stream);
        IS(v[0] > 0.999f && v[0] < 1.001f);
        gpu_free(d);
    }
}

/* v, a small whole number, as element i. */
static void set_element(void *at, int i, enum hvd_dtype type, int v)
{
    float f = (float)v;
    double d = v;
    int64_t wide = type == HVD_BOOL ? v & 1 : v;
    uint32_t bits;
    int e = 0;

    memcpy(&bits, &f, sizeof bits);
    if (type == HVD_FLOAT32)
        ((float *)at)[i] = f;
    else if (type == HVD_FLOAT64)
        ((double *)at)[i] = d;
    else if (type == HVD_BFLOAT16)
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
    else if (type == HVD_FLOAT16) {
        while (v >> (e + 1) != 0)
            e++;
        ((uint16_t *)at)[i] =
            (uint16_t)(v == 0 ? 0 : (e + 15) << 10 | ((v << 10 >> e) & 0x3ff));
    } else
        memcpy((char *)at + (size_t)i * hvd_dtype_size(type), &wide,
               hvd_dtype_size(type));
}

enum { PIECES = 3, MOST = 5000 };
static const int64_t piece_count[PIECES] = {37, MOST, 1};

/* The three tensors, as a group, in place; what it came to. */
static enum hvd_status reduce_three(struct hvd_op *ops, const char *name)
{
    hvd_handle h[PIECES];
    enum hvd_status rc = hvd_enqueue_group(ops, PIECES, name, h);

    if (rc != HVD_OK)
        return rc;
    rc = hvd_wait_all(h, PIECES, HVD_WAIT_DONE, 20000);
    for (int k = 0; k < PIECES; k++)
        OK(hvd_release(h[k]));
    return rc;
}

/* One type and operation: three tensors that are packed, the GPU's at odd places, give what the
 * CPU gives. */
static void same_as_cpu(enum hvd_dtype type, int op, double prescale)
{
    static char host[PIECES][MOST * 8], got[MOST * 8];
    size_t size = hvd_dtype_size(type);
    struct hvd_op cpu[PIECES], on_gpu[PIECES];
    char name[2][PIECES][32];
    char *d[PIECES];

    for (int k = 0; k < PIECES; k++) {
        for (int i = 0; i < piece_count[k]; i++)
            set_element(host[k], i, type,
                        op == HVD_PRODUCT ? 1 + (i + me) % 2 : n * (1 + (i + me) % 5));
        d[k] = (char *)gpu_alloc((size_t)MOST * 8 + 16) + (k == 0 ? size : 0);
        gpu_put(d[k], host[k], (size_t)piece_count[k] * size, stream);
        for (int c = 0; c < 2; c++) {
            struct hvd_op *o = c == 0 ? &on_gpu[k] : &cpu[k];

            snprintf(name[c][k], sizeof name[c][k], "t%d.%d.%d.%d.%g", c, k, type, op,
                     prescale);
            *o = gpu_op(HVD_ALLREDUCE, name[c][k], d[k], d[k], &piece_count[k], 1, type,
                        stream);
            o->reduce_op = op;
            o->prescale = prescale;
        }
        cpu[k].in.data = cpu[k].out.data = host[k];
        cpu[k].in.device = cpu[k].out.device = HVD_CPU;
        cpu[k].in.device_id = cpu[k].out.device_id = 0;
        cpu[k].ready.kind = HVD_READY_NONE;
    }
    CU(cuStreamSynchronize, (void *),
       (stream)); /* the CPU's results lie where it reads */
    enum hvd_status want = reduce_three(cpu, "types, cpu");
    IS(reduce_three(on_gpu, "types, gpu") == want);
    for (int k = 0; k < PIECES && want == HVD_OK; k++) {
        gpu_get(got, d[k], (size_t)piece_count[k] * size, stream);
        if (memcmp(got, host[k], (size_t)piece_count[k] * size) != 0) {
            printf(
                "rank %d: dtype %d, op %d, prescale %g: tensor %d is not the CPU's\n",
                me, type, op, prescale, k);
            exit(1);
        }
    }
    for (int k = 0; k < PIECES; k++)
        gpu_free(d[k] - (k == 0 ? size : 0));
}

static void types(void)
{
    for (int type = HVD_UINT8; type <= HVD_BOOL; type++)
        for (int op = HVD_AVERAGE; op <= HVD_PRODUCT; op++)
            for (int scaled = 0; op != HVD_ADASUM && scaled < 2; scaled++)
                same_as_cpu(type, op, scaled ? 2 : 1);
}

/* The same names every step, without ever waiting for the device. */
static void steps(void)
{
    enum { TENSORS = 20, STEPS = 10 };
    int64_t dims[TENSORS];
    float *d[TENSORS], host[400];
    struct hvd_op ops[TENSORS];
    hvd_handle h[TENSORS];
    char name[TENSORS][16];
    float want = 0;

    for (int i = 0; i < TENSORS; i++) {
        dims[i] = i * i + 1;
        for (int k = 0; k < dims[i]; k++)
            host[k] = 1;
        d[i] = gpu_alloc((size_t)dims[i] * 4);
        gpu_put(d[i], host, (size_t)dims[i] * 4, stream);
        CU(cuStreamSynchronize, (void *), (stream));
    }
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < TENSORS; i++) {
            snprintf(name[i], 16, "grad%d", i);
            ops[i] = gpu_op(HVD_ALLREDUCE, name[i], d[i], d[i], &dims[i], 1,
                            HVD_FLOAT32, stream);
            ops[i].postscale = 2.0 / n;
            if (s % 2 == 0)
                OK(hvd_enqueue(&ops[i], &h[i]));
        }
        if (s % 2 == 1)
            OK(hvd_enqueue_group(ops, TENSORS, "step", h));
        OK(hvd_wait_all(h, TENSORS, HVD_WAIT_ENQUEUED, 20000));
        for (int i = 0; i < TENSORS; i++) {
            OK(hvd_stream_wait(h[i], stream));
            OK(hvd_release(h[i]));
        }
        want = want == 0 ? 2 : want * 2;
    }
    for (int i = 0; i < TENSORS; i++) {
        gpu_get(host, d[i], (size_t)dims[i] * 4, stream);
        IS(host[0] == want && host[dims[i] - 1] == want);
        gpu_free(d[i]);
    }
}

static void mixed_group(void)
{
    double a[2] = {me, 1};
    int8_t b[3] = {1, 2, (int8_t)me};
    void *da = put(a, sizeof a), *db = put(b, sizeof b);
    int64_t two[1] = {2}, three[1] = {3};
    struct hvd_op ops[2] = {
        gpu_op(HVD_ALLREDUCE, "ga", da, da, two, 1, HVD_FLOAT64, stream),
        gpu_op(HVD_ALLREDUCE, "gb", db, db, three, 1, HVD_INT8, stream)};
    hvd_handle h[2];

    OK(hvd_enqueue_group(ops, 2, "mixed", h));
    OK(hvd_wait_all(h, 2, HVD_WAIT_DONE, 20000));
    gpu_get(a, da, sizeof a, stream);
    gpu_get(b, db, sizeof b, stream);
    IS(a[0] == n * (n - 1) / 2 && a[1] == n && b[1] == 2 * n);
    OK(hvd_release(h[0]));
    OK(hvd_release(h[1]));
    gpu_free(da);
    gpu_free(db);
}

static void gathers(void)
{
    int16_t mine[16], all[256];
    int64_t dims[2] = {me + 1, 2};
    hvd_handle h;
    struct hvd_tensor out;
    void *taken;
    int at = 0;

    for (int i = 0; i < 2 * (me + 1); i++)
        mine[i] = (int16_t)(100 * me + i);
    void *d = put(mine, sizeof mine);
    struct hvd_op o =
        gpu_op(HVD_ALLGATHER, "gather", d, NULL, dims, 2, HVD_INT16, stream);
    /* as a caller that knows neither the GPU nor the stream */
    o.in.device_id = HVD_DEVICE_OF_DATA;
    o.ready = (struct hvd_ready){HVD_READY_CUCTX, NULL};
    OK(hvd_enqueue(&o, &h));
    OK(hvd_wait(h, HVD_WAIT_ENQUEUED, 20000));
    OK(hvd_ctx_wait(h, NULL));
    OK(hvd_result(h, &out));
    IS(out.device == HVD_CUDA && out.device_id == gpu_id &&
       out.dims[0] == n * (n + 1) / 2);
    OK(hvd_result_take(h, &taken));
    OK(hvd_release(h));
    gpu_get(all, taken, (size_t)(n * (n + 1)) * 2, stream);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < 2 * (r + 1); i++, at++)
            IS(all[at] == 100 * r + i);
    hvd_buffer_free_after(taken, &(struct hvd_ready){HVD_READY_CUSTREAM, stream});
    /* rows without elements are rows all the same */
    int64_t empty[2] = {me, 0};
    o = gpu_op(HVD_ALLGATHER, "empty", NULL, NULL, empty, 2, HVD_FLOAT32, stream);
    OK(hvd_enqueue(&o, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_result(h, &out));
    IS(out.dims[0] == n * (n - 1) / 2 && out.dims[1] == 0);
    OK(hvd_release(h));
    gpu_free(d);
    double b[3] = {me, me + 1, me + 2};
    int64_t three[1] = {3};
    d = put(b, sizeof b);
    o = gpu_op(HVD_BROADCAST, "broadcast", d, d, three, 1, HVD_FLOAT64, stream);
    o.root = n - 1;
    OK(hvd_enqueue(&o, &h));
    finish(h);
    OK(hvd_release(h));
    gpu_get(b, d, sizeof b, stream);
    IS(b[0] == n - 1 && b[2] == n + 1);
    gpu_free(d);
}

static void alltoall(void)
{
    int64_t rows = n * (n + 1) / 2, splits[16], got[16], dims[2] = {rows, 2};
    int32_t *in = calloc((size_t)rows * 2, sizeof *in), out[64];
    int at = 0;
    hvd_handle h;
    struct hvd_tensor t;

    for (int k = 0; k < n; k++) {
        splits[k] = k + 1;
        for (int i = 0; i < 2 * (k + 1); i++)
            in[at++] = 1000 * me + k;
    }
    void *d = put(in, (size_t)rows * 8);
    struct hvd_op o =
        gpu_op(HVD_ALLTOALL, "alltoall", d, NULL, dims, 2, HVD_INT32, stream);
    o.splits = splits;
    o.nsplits = n;
    OK(hvd_enqueue(&o, &h));
    finish(h);
    OK(hvd_result(h, &t));
    IS(t.dims[0] == (int64_t)n * (me + 1) && t.dims[1] == 2);
    IS(hvd_result_splits(h, got, 16) == n && got[n - 1] == me + 1);
    gpu_get(out, t.data, (size_t)t.dims[0] * 8, stream);
    for (int r = 0; r < n; r++)
        IS(out[2 * r * (me + 1)] == 1000 * r + me);
    OK(hvd_release(h));
    gpu_free(d);
    free(in);
}

static void reducescatter(void)
{
    int64_t dims[1] = {2 * n + 1};
    float in[64], out[8];
    hvd_handle h;
    struct hvd_tensor t;

    for (int i = 0; i < 2 * n + 1; i++)
        in[i] = (float)(i + me);
    void *d = put(in, sizeof in);
    for (int s = 0; s < 2; s++) {
        struct hvd_op o = gpu_op(HVD_REDUCESCATTER, s ? "rs2" : "rs", d, NULL, dims, 1,
                                 HVD_FLOAT32, stream);
        o.prescale = s ? 2 : 1;
        OK(hvd_enqueue(&o, &h));
        OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
        OK(hvd_result(h, &t));
        IS(t.dims[0] == (me == 0 ? 3 : 2));
        gpu_get(out, t.data, (size_t)t.dims[0] * 4, stream);
        int first = me == 0 ? 0 : 2 * me + 1;
        IS(out[0] == (s ? 2.0f : 1.0f) * (float)(n * first + n * (n - 1) / 2));
        OK(hvd_release(h));
    }
    gpu_free(d);
}

static void barrier_and_sets(void)
{
    int32_t ranks[2] = {0, n - 1}, id;
    float v = (float)(me + 1);
    int64_t dims[1] = {1};
    hvd_handle h;
    struct hvd_op o =
        gpu_op(HVD_BARRIER, "barrier", NULL, NULL, NULL, 0, HVD_UINT8, stream);

    OK(hvd_enqueue(&o, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_release(h));
    if (n < 3)
        return;
    for (int again = 0; again < 2; again++) {
        OK(hvd_pset_add(ranks, 2, &id));
        if (me == 0 || me == n - 1) {
            void *d = put(&v, sizeof v);

            o = gpu_op(HVD_ALLREDUCE, "in set", d, d, dims, 1, HVD_FLOAT32, stream);
            o.pset = id;
            OK(hvd_enqueue(&o, &h));
            OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
            OK(hvd_release(h));
            gpu_get(&v, d, sizeof v, stream);
            IS(v == (float)(n + 1));
            v = (float)(me + 1);
            gpu_free(d);
        }
        OK(hvd_pset_remove(id));
    }
}

static void join(void)
{
    int64_t dims[1] = {600000};
    float *v = malloc(600000 * sizeof *v);
    hvd_handle h, j;

    if (me != 0) {
        void *d = gpu_alloc(600000 * sizeof *v);

        for (int i = 0; i < 600000; i++)
            v[i] = 1;
        gpu_put(d, v, 600000 * sizeof *v, stream);
        struct hvd_op o =
            gpu_op(HVD_ALLREDUCE, "late", d, d, dims, 1, HVD_FLOAT32, stream);
        o.reduce_op = HVD_SUM;
        OK(hvd_enqueue(&o, &h));
        OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
        OK(hvd_release(h));
        gpu_get(v, d, 600000 * sizeof *v, stream);
        IS(v[0] == (float)(n - 1) && v[599999] == (float)(n - 1));
        gpu_free(d);
    }
    OK(hvd_enqueue_join(gpu_id, &j));
    OK(hvd_wait(j, HVD_WAIT_DONE, 20000));
    OK(hvd_release(j));
    free(v);
}

static void with_cpu(void)
{
    float v = 1, d1 = 1;
    int64_t dims[1] = {1};
    void *d = put(&d1, sizeof d1);
    hvd_handle h;
    struct hvd_op o =
        gpu_op(HVD_ALLREDUCE, "gpu one", d, d, dims, 1, HVD_FLOAT32, stream);

    OK(hvd_enqueue(&o, &h));
    OK(hvd_allreduce(&v, &v, 1, HVD_FLOAT32, HVD_SUM, "cpu one"));
    IS(v == (float)n);
    finish(h);
    OK(hvd_release(h));
    gpu_get(&d1, d, sizeof d1, stream);
    IS(d1 == (float)n);
    gpu_free(d);
    if (n == 1)
        return;
    /* the same tensor on different devices: named, and the job goes on */
    d = gpu_alloc(4);
    o = gpu_op(HVD_ALLREDUCE, "both", d, d, dims, 1, HVD_FLOAT32, stream);
    if (me == 1) {
        o.in.data = o.out.data = &v;
        o.in.device = o.out.device = HVD_CPU;
        o.in.device_id = o.out.device_id = 0;
        o.ready.kind = HVD_READY_NONE;
    }
    OK(hvd_enqueue(&o, &h));
    IS(hvd_wait(h, HVD_WAIT_ENQUEUED, 20000) == HVD_EMISMATCH);
    IS(strstr(hvd_last_error(), "device cuda on rank 0, cpu on rank 1") != NULL ||
       strstr(hvd_last_error(), "device cpu on rank 1, cuda on rank") != NULL);
    OK(hvd_release(h));
    gpu_free(d);
}

static void misuse(void)
{
    float v = 1;
    int64_t dims[1] = {1};
    hvd_handle h;
    void *d = put(&v, sizeof v);
    struct hvd_op o = gpu_op(HVD_ALLREDUCE, "m", d, d, dims, 1, HVD_FLOAT32, stream);

    o.in.device_id = o.out.device_id = gpu_id == 0 ? 99 : 0;
    IS(hvd_enqueue(&o, &h) == HVD_EUNSUPPORTED);
    IS(strstr(hvd_last_error(), "a rank uses one GPU") != NULL);
    o.in.device_id = gpu_id;
    IS(hvd_enqueue(&o, &h) == HVD_EINVAL);
    IS(strstr(hvd_last_error(), "different devices") != NULL);
    o.out.device_id = gpu_id;
    o.in.data = o.out.data = &v;
    IS(hvd_enqueue(&o, &h) == HVD_EINVAL);
    IS(strstr(hvd_last_error(), "m: 0x") != NULL &&
       strstr(hvd_last_error(), " is not GPU memory") != NULL);
    o.in.data = o.out.data = d;
    CU(cuStreamBeginCapture_v2, (void *, int), (stream, 0));
    IS(hvd_enqueue(&o, &h) == HVD_EUNSUPPORTED);
    IS(strstr(hvd_last_error(), "captured into a CUDA graph") != NULL);
    void *graph;
    CU(cuStreamEndCapture, (void *, void **), (stream, &graph));
    OK(hvd_enqueue(&o, &h));
    OK(hvd_wait(h, HVD_WAIT_DONE, 20000));
    OK(hvd_release(h));
    gpu_free(d);
}

int main(int argc, char **argv)
{
    const char *share = getenv("SHARE");

    (void)argc;
    (void)argv;
    for (int round = 0; round < 2; round++) {
        OK(hvd_init(NULL));
        me = hvd_rank();
        n = hvd_size();
        gpu_open(share != NULL ? 0 : hvd_local_rank());
        stream = gpu_stream();
        reductions();
        types();
        steps();
        mixed_group();
        gathers();
        alltoall();
        reducescatter();
        barrier_and_sets();
        join();
        with_cpu();
        misuse();
        OK(hvd_shutdown());
        if (round == 1)
            printf("rank %d of %d fine\n", me, n);
    }
    return 0;
}
