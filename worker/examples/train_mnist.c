/**
 * train_mnist - trains a small network on handwritten digits, data-parallel.
 *
 *     hvdrun -np 4 build/examples/train_mnist
 *
 * Every rank holds all parameters and computes the gradients of its share of each
 * batch; libhvd adds the gradients of all ranks. The batches are the same whatever the
 * number of ranks (one seeded shuffle, equal on all; a rank takes a contiguous part of
 * each batch), and the sum is divided by the size of the whole batch: 4 ranks do the
 * same as 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "mnist/data.h"
#include "mnist/gpu.h"
#include "mnist/mlp.h"

struct options {
    int epochs, batch;
    double lr, momentum;
    uint64_t seed;
    const char *data, *checkpoint, *dump_grads;
    int cuda; /* gradients are reduced on GPUs */
};

struct trainer {
    struct options opt;
    int rank, size;
    struct mnist_set train, test;
    float *params, *velocity; /* [MLP_PARAMS] */
    float *grads;             /* [MLP_PARAMS], from hvd_alloc: reduced without a copy */
    int32_t *order;           /* [train.count], the epoch's shuffle */
    struct mlp_work work;
    struct mnist_gpu gpu; /* --device cuda: a copy of grads */
};

/* ---- small things ---- */

/* End this rank with one line; leaving through exit() says goodbye to the other ranks. */
static void need(enum hvd_status status, const char *what)
{
    if (status == HVD_OK)
        return;
    const char *why = hvd_last_error()[0] ? hvd_last_error() : hvd_strerror(status);
    fprintf(stderr, "train_mnist: %s: %s\n", what, why);
    exit(1);
}

static void *need_memory(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "train_mnist: out of memory\n");
        exit(1);
    }
    return memory;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Write floats so that `path` never holds half a file: a new file, then a rename. */
static void save_floats(const char *path, const float *values, size_t elem_count)
{
    char temp[PATH_MAX];
    FILE *f = NULL;

    if ((size_t)snprintf(temp, sizeof temp, "%s.%ld.tmp", path, (long)getpid()) >=
        sizeof temp)
        errno = ENAMETOOLONG;
    else
        f = fopen(temp, "wbe");
    if (f == NULL) {
        fprintf(stderr, "train_mnist: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    int bad = fwrite(values, sizeof *values, elem_count, f) != elem_count;
    bad |= fflush(f) != 0 || fsync(fileno(f)) != 0;
    bad |= fclose(f) != 0;
    if (bad || rename(temp, path) != 0) {
        fprintf(stderr, "train_mnist: %s: %s\n", path, strerror(errno));
        unlink(temp);
        exit(1);
    }
}

/* FNV-1a over the bytes: two ranks agree only if every bit does. */
static uint64_t checksum(const float *values, size_t elem_count)
{
    const unsigned char *bytes = (const unsigned char *)values;
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < elem_count * sizeof *values; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* ---- what the ranks do together ---- */

/* The tensor is on the GPU: queue its copy, and say on which stream it becomes ready. */
static void move_to_gpu(struct trainer *t, const struct mlp_slice *slice,
                        struct hvd_op *op)
{
    if (mnist_gpu_put(&t->gpu, slice->offset_elems, t->grads + slice->offset_elems,
                      slice->elem_count) != 0)
        exit(1);
    op->in.data = t->gpu.data + slice->offset_elems;
    op->in.device = HVD_CUDA;
    op->in.device_id = t->gpu.id;
    op->ready.kind = HVD_READY_CUSTREAM;
    op->ready.object = t->gpu.stream;
}

/* Queue the sum over all ranks of `count` gradient tensors, in place, as one group. */
static void start_sum(struct trainer *t, const enum mlp_tensor *which, int32_t count,
                      const char *group, hvd_handle *out)
{
    struct hvd_op ops[MLP_TENSORS];
    int64_t dims[MLP_TENSORS];
    char names[MLP_TENSORS][32];

    memset(ops, 0, sizeof ops);
    for (int32_t i = 0; i < count; i++) {
        const struct mlp_slice *slice = &mlp_slices[which[i]];

        dims[i] = (int64_t)slice->elem_count;
        snprintf(names[i], sizeof names[i], "grad/%s", slice->name);
        ops[i].size = sizeof ops[i];
        ops[i].kind = HVD_ALLREDUCE;
        ops[i].reduce_op = HVD_SUM;
        ops[i].name = names[i];
        ops[i].in.data = t->grads + slice->offset_elems;
        ops[i].in.dims = &dims[i];
        ops[i].in.ndim = 1;
        ops[i].in.dtype = HVD_FLOAT32;
        if (t->opt.cuda)
            move_to_gpu(t, slice, &ops[i]);
        ops[i].out = ops[i].in;
    }
    need(hvd_enqueue_group(ops, count, group, out), "hvd_enqueue_group");
}

/* On a GPU it is enough that the sums are queued: the copy back comes after them. */
static void finish(struct trainer *t, hvd_handle *handles, int32_t count)
{
    enum hvd_wait_mode mode = t->opt.cuda ? HVD_WAIT_ENQUEUED : HVD_WAIT_DONE;
    enum hvd_status status;

    do
        status = hvd_wait_all(handles, count, mode, -1);
    while (status == HVD_EINTR);
    need(status, "allreduce of the gradients");
    for (int32_t i = 0; i < count; i++) {
        if (t->opt.cuda)
            need(hvd_stream_wait(handles[i], t->gpu.stream), "hvd_stream_wait");
        hvd_release(handles[i]);
    }
    if (t->opt.cuda && mnist_gpu_get(&t->gpu, t->grads) != 0)
        exit(1);
}

/* Forward and backward pass over this rank's part of one batch. The output layer's
 * gradients travel while the hidden layer's, which are most of the work, are computed.
 */
static void batch_gradients(struct trainer *t, double *loss_sum, double *correct)
{
    static const enum mlp_tensor output[] = {MLP_W2, MLP_B2};
    static const enum mlp_tensor hidden[] = {MLP_W1, MLP_B1};
    hvd_handle handles[4];

    mlp_forward(&t->work, t->params, loss_sum, correct);
    mlp_backward_output(&t->work, t->params, t->grads);
    start_sum(t, output, 2, "output layer", handles);
    mlp_backward_hidden(&t->work, t->grads);
    start_sum(t, hidden, 2, "hidden layer", handles + 2);
    finish(t, handles, 4);
}

/* Rank 0 decides where all start. */
static void share_params(struct trainer *t)
{
    if (t->rank == 0)
        mlp_params_init(t->params, t->opt.seed);
    for (int i = 0; i < MLP_TENSORS; i++) {
        char name[32];

        snprintf(name, sizeof name, "param/%s", mlp_slices[i].name);
        need(hvd_broadcast(t->params + mlp_slices[i].offset_elems,
                           (int64_t)mlp_slices[i].elem_count, HVD_FLOAT32, 0, name),
             "broadcast of the parameters");
    }
}

/* Do all ranks hold the same bits? Returns 0 or 1, on every rank alike. */
static int ranks_agree(const struct trainer *t)
{
    int64_t mine = (int64_t)checksum(t->params, MLP_PARAMS);
    int64_t *all = need_memory(calloc((size_t)t->size, sizeof *all));
    int agree = 1;

    need(hvd_allgather(&mine, 1, all, t->size, HVD_INT64, "checksums"),
         "allgather of the checksums");
    for (int r = 0; r < t->size; r++) {
        if (all[r] == all[0])
            continue;
        if (t->rank == 0)
            fprintf(stderr, "train_mnist: rank %d has other parameters than rank 0\n",
                    r);
        agree = 0;
    }
    if (agree && t->rank == 0)
        printf("parameters are bit-identical on %d rank%s, checksum %016llx\n", t->size,
               t->size == 1 ? "" : "s", (unsigned long long)mine);
    free(all);
    return agree;
}

/* ---- training ---- */

/* The first of `count` samples that belong to rank; rank + 1's first is this one's end.
 */
static int32_t share_begin(int32_t count, int rank, int size)
{
    return (int32_t)((int64_t)count * rank / size);
}

/* The same permutation on every rank (Fisher-Yates). */
static void shuffle(int32_t *order, int32_t count, uint64_t seed)
{
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = (int32_t)(mlp_random(&seed) % (uint64_t)(i + 1));
        int32_t keep = order[i];

        order[i] = order[j];
        order[j] = keep;
    }
}

/* Loss and accuracy over the test digits, each rank measuring its share. */
static void evaluate(struct trainer *t, double *loss, double *accuracy)
{
    double sums[2] = {0, 0};
    int32_t at = share_begin(t->test.count, t->rank, t->size);
    int32_t end = share_begin(t->test.count, t->rank + 1, t->size);

    while (at < end) {
        int32_t index[64];
        int32_t count = 0;

        while (count < 64 && count < t->work.cap && at < end)
            index[count++] = at++;
        mlp_load(&t->work, &t->test, index, count);
        mlp_forward(&t->work, t->params, &sums[0], &sums[1]);
    }
    need(hvd_allreduce(sums, sums, 2, HVD_FLOAT64, HVD_SUM, "test sums"),
         "allreduce of the test result");
    *loss = sums[0] / t->test.count;
    *accuracy = 100.0 * sums[1] / t->test.count;
}

/* Load this rank's part of the batch that starts at `at`; returns the whole batch's
 * size. */
static int32_t load_batch(struct trainer *t, int32_t at)
{
    int32_t left = t->train.count - at;
    int32_t count = left < t->opt.batch ? left : t->opt.batch;
    int32_t begin = share_begin(count, t->rank, t->size);
    int32_t end = share_begin(count, t->rank + 1, t->size);

    mlp_load(&t->work, &t->train, t->order + at + begin, end - begin);
    return count;
}

static void dump_first_grads(const struct trainer *t, int32_t batch)
{
    float *average = need_memory(malloc(MLP_PARAMS * sizeof *average));

    for (size_t i = 0; i < MLP_PARAMS; i++)
        average[i] = t->grads[i] / (float)batch;
    save_floats(t->opt.dump_grads, average, MLP_PARAMS);
    free(average);
}

/* One pass over the training digits; sums[2] = loss and correct answers of this rank. */
static void train_epoch(struct trainer *t, int epoch, int progress, double sums[2])
{
    double next_line_s = now_s(); /* then every 0.1 s: no flicker, no flood */

    shuffle(t->order, t->train.count, t->opt.seed * 1000003u + (uint64_t)epoch);
    for (int32_t at = 0; at < t->train.count;) {
        int32_t batch = load_batch(t, at);

        batch_gradients(t, &sums[0], &sums[1]);
        if (epoch == 1 && at == 0 && t->rank == 0 && t->opt.dump_grads != NULL)
            dump_first_grads(t, batch);
        mlp_step(t->params, t->velocity, t->grads, 1.0f / (float)batch,
                 (float)t->opt.lr, (float)t->opt.momentum);
        at += batch;
        if (progress && now_s() >= next_line_s) {
            next_line_s = now_s() + 0.1;
            printf("epoch %d/%d: %d of %d images\033[K\r", epoch, t->opt.epochs, at,
                   t->train.count);
            fflush(stdout);
        }
    }
}

/* Does somebody watch? Under hvdrun stdout is a pipe to it, and it says where that
 * ends. */
static int on_terminal(void)
{
    const char *tty = getenv("HVD_TTY");

    return isatty(STDOUT_FILENO) || (tty != NULL && strcmp(tty, "1") == 0);
}

static void train(struct trainer *t)
{
    int progress = t->rank == 0 && on_terminal();
    double test_loss = 0;
    double test_accuracy = 0;

    for (int epoch = 1; epoch <= t->opt.epochs; epoch++) {
        double sums[2] = {0, 0};
        double began_s = now_s();

        train_epoch(t, epoch, progress, sums);
        need(hvd_allreduce(sums, sums, 2, HVD_FLOAT64, HVD_SUM, "epoch sums"),
             "allreduce of the loss");
        double took_s = now_s() - began_s;
        if (t->rank == 0)
            printf("epoch %d/%d  loss %.4f  accuracy %.2f %%  %.0f images/s%s\n", epoch,
                   t->opt.epochs, sums[0] / t->train.count,
                   100.0 * sums[1] / t->train.count, t->train.count / took_s,
                   progress ? "\033[K" : "");
        if (t->rank == 0 && t->opt.checkpoint != NULL)
            save_floats(t->opt.checkpoint, t->params, MLP_PARAMS);
        fflush(stdout);
    }
    evaluate(t, &test_loss, &test_accuracy);
    if (t->rank == 0)
        printf("test loss %.4f  test accuracy %.2f %% of %d images\n", test_loss,
               test_accuracy, t->test.count);
}

static void load_data(struct trainer *t)
{
    char exe[PATH_MAX];
    char dir[PATH_MAX + 64] = "worker/examples/data";
    const char *env = getenv("HVD_EXAMPLES_DATA");

    if (t->opt.data == NULL && env != NULL && env[0] != '\0')
        t->opt.data = env;
    if (t->opt.data == NULL) { /* build/examples/train_mnist: the data is in the tree */
        ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

        if (n > 0) {
            exe[n] = '\0';
            *strrchr(exe, '/') = '\0';
            snprintf(dir, sizeof dir, "%s/../../worker/examples/data", exe);
        }
        if (access(dir, X_OK) != 0)
            snprintf(dir, sizeof dir, "worker/examples/data");
        t->opt.data = dir;
    }
    if (mnist_set_load(t->opt.data, "train", &t->train) != 0 ||
        mnist_set_load(t->opt.data, "t10k", &t->test) != 0)
        exit(1);
}

/* ---- command line ---- */

static void usage(FILE *to)
{
    fputs(
        "usage: train_mnist [OPTION...]      e.g. hvdrun -np 4 train_mnist --epochs 3\n"
        "Train a small network on handwritten digits, data-parallel over all ranks.\n"
        "  --epochs N          passes over the training digits (5)\n"
        "  --batch N           images a step, over all ranks together (128)\n"
        "  --lr X              learning rate (0.1)\n"
        "  --momentum X        momentum of SGD (0.9)\n"
        "  --device WHERE      cpu, or cuda: gradients are reduced on GPUs (cpu)\n"
        "  --seed N            of the first weights and of the shuffle (1)\n"
        "  --data DIR          with the gzipped IDX files (those of the source tree;\n"
        "                      or $HVD_EXAMPLES_DATA)\n"
        "  --checkpoint FILE   rank 0 saves the parameters there after each epoch\n"
        "  --dump-grads FILE   rank 0 saves the first step's averaged gradients there\n"
        "  --help\n"
        "Both files are raw float32: w1[784][128], b1[128], w2[128][10], b2[10].\n",
        to);
}

/* All ranks get the same command line: one of them is enough to complain about it. */
static void refuse(const char *option, const char *value, const char *want)
{
    const char *rank = getenv("HOROVOD_RANK");

    if (rank == NULL || strcmp(rank, "0") == 0)
        fprintf(stderr, "train_mnist: %s '%s': must be %s\n", option, value, want);
    exit(2);
}

static int parse_int(const char *option, const char *text)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > 1000000)
        refuse(option, text, "a whole number from 1 to 1000000");
    return (int)value;
}

static int parse_device(const char *text)
{
    if (strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0)
        refuse("--device", text, "cpu or cuda");
    return strcmp(text, "cuda") == 0;
}

static double parse_real(const char *option, const char *text, double max)
{
    char want[64];
    char *end;
    double value;

    errno = 0;
    value = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !(value >= 0 && value <= max)) {
        snprintf(want, sizeof want, "a number from 0 to %g", max);
        refuse(option, text, want);
    }
    return value;
}

static void parse_options(int argc, char **argv, struct options *o)
{
    static const struct option table[] = {
        {"epochs", required_argument, NULL, 'e'},
        {"batch", required_argument, NULL, 'b'},
        {"lr", required_argument, NULL, 'l'},
        {"momentum", required_argument, NULL, 'm'},
        {"seed", required_argument, NULL, 's'},
        {"device", required_argument, NULL, 'D'},
        {"data", required_argument, NULL, 'd'},
        {"checkpoint", required_argument, NULL, 'c'},
        {"dump-grads", required_argument, NULL, 'g'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int c;

    opterr = 0;
    while ((c = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        switch (c) {
        case 'e':
            o->epochs = parse_int("--epochs", optarg);
            break;
        case 'b':
            o->batch = parse_int("--batch", optarg);
            break;
        case 'l':
            o->lr = parse_real("--lr", optarg, 100);
            break;
        case 'm':
            o->momentum = parse_real("--momentum", optarg, 1);
            break;
        case 's':
            o->seed = (uint64_t)parse_int("--seed", optarg);
            break;
        case 'D':
            o->cuda = parse_device(optarg);
            break;
        case 'd':
            o->data = optarg;
            break;
        case 'c':
            o->checkpoint = optarg;
            break;
        case 'g':
            o->dump_grads = optarg;
            break;
        case 'h':
            usage(stdout);
            exit(0);
        case ':':
            refuse("option", argv[optind - 1], "followed by a value; see --help");
            break;
        default:
            refuse("option", argv[optind - 1], "one of those in --help");
        }
    }
    if (optind < argc)
        refuse("argument", argv[optind], "left out; see --help");
}

int main(int argc, char **argv)
{
    struct trainer t = {
        .opt = {.epochs = 5, .batch = 128, .lr = 0.1, .momentum = 0.9, .seed = 1}};
    int agree;

    parse_options(argc, argv, &t.opt);
    need(hvd_init(NULL), "hvd_init");
    t.rank = hvd_rank();
    t.size = hvd_size();
    if (t.opt.cuda && mnist_gpu_open(&t.gpu, hvd_local_rank(), MLP_PARAMS) != 0)
        exit(1);
    load_data(&t);
    t.params = need_memory(calloc(MLP_PARAMS, sizeof *t.params));
    t.velocity = need_memory(calloc(MLP_PARAMS, sizeof *t.velocity));
    t.order = need_memory(calloc((size_t)t.train.count, sizeof *t.order));
    t.grads = need_memory(hvd_alloc(MLP_PARAMS * sizeof *t.grads));
    if (t.opt.batch > t.train.count)
        t.opt.batch = t.train.count;
    if (mlp_work_init(&t.work, t.opt.batch / t.size + 1) != 0)
        need_memory(NULL);

    share_params(&t);
    if (t.rank == 0)
        printf("%d rank%s, %d training images, batches of %d\n", t.size,
               t.size == 1 ? "" : "s", t.train.count, t.opt.batch);
    train(&t);
    agree = ranks_agree(&t);

    need(hvd_shutdown(), "hvd_shutdown");
    hvd_free(t.grads);
    mlp_work_fini(&t.work);
    mnist_set_fini(&t.train);
    mnist_set_fini(&t.test);
    free(t.params);
    free(t.velocity);
    free(t.order);
    if (fflush(stdout) != 0 || !agree)
        return 1;
    return 0;
}
