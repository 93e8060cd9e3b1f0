/* Speed of the pack kernel against the GPU's own copy, on the gradients of ResNet-50: each a
 * tensor of its own, into one buffer, in one launch, as the plane does it. Prints
 *     copy GB/s  pack GB/s  percent  cast GB/s
 * (bytes read and written; cast: f32 to f16). scripts/gpu-check.sh judges it.
 *     pack PTX [REPETITIONS] */
#include "tests/bench/steps.h"
#include "tests/e2e/gpu.h"
#include "worker/plane/nccl/pack.h"

enum { TRIES = 7 };

static void *stream;
static void *kernel;

static char *read_ptx(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);

    if (f == NULL || fread(text, 1, (1 << 20) - 1, f) == 0) {
        printf("cannot read %s\n", path);
        exit(1);
    }
    fclose(f);
    return text;
}

static void load_kernel(const char *path)
{
    char *text = read_ptx(path);
    void *module;

    CU(cuModuleLoadData, (void **, const void *), (&module, text));
    CU(cuModuleGetFunction, (void **, void *, const char *),
       (&kernel, module, HVI_PACK_KERNEL));
    free(text);
}

struct table {
    void *device;
    int32_t n;
    int64_t ntiles;
};

/* All gradients, one after the other, into `buffer` as `to`. */
static struct table make_table(const struct steps_shape *s, void *const *gradients,
                               char *buffer, enum hvd_dtype to)
{
    struct hvi_pack_item items[STEPS_TENSORS_MAX];
    struct table t = {.n = s->n};

    for (int i = 0; i < s->n; i++) {
        items[i] = (struct hvi_pack_item){.dst = (uint64_t)(uintptr_t)buffer,
                                          .src = (uint64_t)(uintptr_t)gradients[i],
                                          .count = s->count[i],
                                          .first_tile = t.ntiles,
                                          .scale = 1.0,
                                          .from = HVD_FLOAT32,
                                          .to = to};
        t.ntiles += hvi_pack_tiles(s->count[i]);
        buffer += ((size_t)s->count[i] * hvd_dtype_size(to) + 15) / 16 * 16;
    }
    t.device = gpu_alloc(sizeof items);
    gpu_put(t.device, items, (size_t)s->n * sizeof *items, stream);
    CU(cuStreamSynchronize, (void *), (stream));
    return t;
}

static void launch(struct table *t)
{
    unsigned blocks =
        t->ntiles < HVI_PACK_BLOCKS ? (unsigned)t->ntiles : HVI_PACK_BLOCKS;
    void *params[] = {&t->device, &t->n, &t->ntiles};

    CU(cuLaunchKernel,
       (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
        void *, void **, void **),
       (kernel, blocks, 1, 1, HVI_PACK_THREADS, 1, 1, 0, stream, params, NULL));
}

/* The fastest of some tries, us of one repetition. */
static double time_of(void (*body)(void *), void *arg, int repetitions)
{
    double best = 1e18;

    for (int k = 0; k < TRIES; k++) {
        CU(cuStreamSynchronize, (void *), (stream));
        double began = bench_now_us();
        for (int i = 0; i < repetitions; i++)
            body(arg);
        CU(cuStreamSynchronize, (void *), (stream));
        double took = (bench_now_us() - began) / repetitions;
        if (took < best)
            best = took;
    }
    return best;
}

static void *from, *to;
static size_t bytes;

static void copy(void *arg)
{
    (void)arg;
    CU(cuMemcpyDtoDAsync_v2, (uint64_t, uint64_t, size_t, void *),
       ((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, stream));
}

static void pack(void *arg)
{
    launch(arg);
}

int main(int argc, char **argv)
{
    static struct steps_shape s;
    static void *gradients[STEPS_TENSORS_MAX];
    int repetitions = argc > 2 ? atoi(argv[2]) : 100;

    if (argc < 2)
        return 2;
    gpu_open(0);
    stream = gpu_stream();
    load_kernel(argv[1]);
    steps_resnet50(&s);
    bytes = steps_bytes(&s) + (size_t)s.n * 16; /* room for padding */
    from = gpu_alloc(bytes);
    to = gpu_alloc(bytes);
    for (int i = 0; i < s.n; i++)
        gradients[i] = gpu_alloc((size_t)s.count[i] * sizeof(float));
    struct table plain = make_table(&s, gradients, to, HVD_FLOAT32);
    struct table cast = make_table(&s, gradients, to, HVD_FLOAT16);
    bytes = steps_bytes(&s);
    double copy_us = time_of(copy, NULL, repetitions);
    double pack_us = time_of(pack, &plain, repetitions);
    double cast_us = time_of(pack, &cast, repetitions);
    double moved = 2.0 * (double)bytes / 1e3; /* GB/s = bytes / us / 1000 */
    printf("%.0f %.0f %.0f %.0f\n", moved / copy_us, moved / pack_us,
           100 * copy_us / pack_us, moved * 0.75 / cast_us);
    return 0;
}
