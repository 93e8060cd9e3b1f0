/**
 * kinds - every collective, of every element type and reduction, at several sizes, with
 * values that every order of reduction sums to the same bits. Prints one number made of
 * all results of all ranks: it must not depend on hosts and planes.
 */
#include <hvd/hvd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(call)                                                                     \
    do {                                                                               \
        enum hvd_status s_ = (call);                                                   \
        if (s_ != HVD_OK) {                                                            \
            printf("rank %d: %s: %d: %s\n", me, #call, (int)s_, hvd_last_error());     \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static int me, n;
static uint64_t sum = UINT64_C(0xcbf29ce484222325);

static void add(const void *data, size_t size_bytes)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < size_bytes; i++)
        sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
}

static size_t size_of(int dtype)
{
    static const uint8_t sizes[HVD_DTYPE_COUNT] = {0, 1, 1, 2, 2, 4, 8, 2, 2, 4, 8, 1};

    return sizes[dtype];
}

static void put(void *to, int dtype, int64_t i, int value)
{
    uint8_t *p = (uint8_t *)to + (size_t)i * size_of(dtype);
    float f = (float)value;
    double d = value;
    int64_t w = value;
    uint16_t h = 0;
    int e = 0;

    if (dtype == HVD_FLOAT16 && value > 0) {
        while (value >> (e + 1) != 0)
            e++;
        h = (uint16_t)((e + 15) << 10 | ((value << (10 - e)) & 0x3ff));
    } else if (dtype == HVD_BFLOAT16) {
        memcpy(&h, (uint8_t *)&f + 2, 2); /* little-endian */
    }
    if (dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16)
        memcpy(p, &h, 2);
    else if (dtype == HVD_FLOAT32)
        memcpy(p, &f, 4);
    else if (dtype == HVD_FLOAT64)
        memcpy(p, &d, 8);
    else
        memcpy(p, &w, size_of(dtype));
}

/* Small enough for 16 bits; for bool, 0 and 1; as factors, 1 and 2. */
static int value(int dtype, int op, int64_t i)
{
    int v = (int)((i * 7 + me * 3 + i / 11) % 8);

    if (dtype == HVD_BOOL)
        return v % 2;
    return op == HVD_PRODUCT ? 1 + (v == 7) : v;
}

static struct hvd_op begin(int kind, int op, int dtype, const void *in,
                           const int64_t *dims)
{
    struct hvd_op o;

    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.kind = kind;
    o.reduce_op = op;
    o.in = (struct hvd_tensor){
        .data = (void *)(uintptr_t)in, .dims = dims, .ndim = 2, .dtype = dtype};
    o.out = o.in;
    o.out.data = NULL;
    return o;
}

/* Shape [rows, width], which may differ among ranks where the kind allows it. */
static void one(int kind, int op, int dtype, int64_t rows, int64_t width)
{
    int64_t dims[2] = {rows, width};
    int64_t splits[64];
    char name[64];
    struct hvd_tensor out;
    hvd_handle h;
    void *in;
    size_t bytes;

    if (kind == HVD_ALLGATHER)
        dims[0] = (rows + me * 5) % (rows + 3);
    if (kind == HVD_ALLTOALL)
        for (int k = dims[0] = 0; k < n; k++)
            dims[0] += splits[k] = (rows / n + me + k) % (rows / n + 4);
    in = malloc((size_t)(dims[0] * width + 1) * size_of(dtype));
    if (in == NULL)
        exit(1);
    for (int64_t i = 0; i < dims[0] * width; i++)
        put(in, dtype, i, value(dtype, op, i));
    struct hvd_op o = begin(kind, op, dtype, in, dims);
    snprintf(name, sizeof name, "%d/%d/%d/%ld", kind, op, dtype, (long)rows);
    o.name = name;
    o.root = (int32_t)(rows % n);
    if (kind == HVD_BROADCAST)
        o.out.data = in;
    if (kind == HVD_ALLTOALL) {
        o.splits = splits;
        o.nsplits = n;
    }
    if (kind == HVD_REDUCESCATTER && dtype != HVD_BOOL && rows > 100)
        o.prescale = 2;
    NEED(hvd_enqueue(&o, &h));
    NEED(hvd_wait(h, HVD_WAIT_DONE, 30000));
    NEED(hvd_result(h, &out));
    bytes = size_of(dtype);
    for (int d = 0; d < out.ndim; d++)
        bytes *= (size_t)out.dims[d];
    add(out.dims, sizeof(int64_t) * (size_t)out.ndim);
    add(out.data, bytes);
    if (kind == HVD_ALLTOALL) {
        int64_t got[64];

        if (hvd_result_splits(h, got, 64) != n)
            exit(1);
        add(got, sizeof(int64_t) * (size_t)n);
    }
    NEED(hvd_release(h));
    free(in);
}

int main(void)
{
    static const int64_t rows[] = {0, 1, 3, 17, 64, 1001};
    uint64_t all[64];

    NEED(hvd_init(NULL));
    me = hvd_rank();
    n = hvd_size();
    for (int dtype = 1; dtype < HVD_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            int64_t width = i == 5 ? 37 : 1 + (int64_t)i % 3;

            for (int op = 0; op < HVD_REDUCE_OP_COUNT; op++) {
                bool half = dtype == HVD_FLOAT16 || dtype == HVD_FLOAT32 ||
                            dtype == HVD_FLOAT64;

                if (op == HVD_ADASUM && (!half || (n & (n - 1)) != 0))
                    continue;
                if (op == HVD_AVERAGE && dtype == HVD_BOOL)
                    continue;
                one(HVD_ALLREDUCE, op, dtype, rows[i], width);
                if (op != HVD_ADASUM)
                    one(HVD_REDUCESCATTER, op, dtype, rows[i], width);
            }
            one(HVD_ALLGATHER, 1, dtype, rows[i], width);
            one(HVD_BROADCAST, 1, dtype, rows[i], width);
            one(HVD_ALLTOALL, 1, dtype, rows[i], width);
        }
    NEED(hvd_allgather(&sum, 1, all, n, HVD_INT64, "sums"));
    if (me == 0) {
        sum = 0;
        add(all, sizeof all[0] * (size_t)n);
        printf("all collectives: %016llx\n", (unsigned long long)sum);
    }
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
