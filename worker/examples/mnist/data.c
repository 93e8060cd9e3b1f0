#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* IDX: u32 magic (type and number of dimensions), u32 per dimension, then the bytes;
 * all big-endian. A million digits is far beyond any MNIST and keeps a bad header
 * harmless. */
#define MAGIC_IMAGES 0x00000803u
#define MAGIC_LABELS 0x00000801u
#define COUNT_MAX 1000000u

static int complain(const char *path, const char *what)
{
    fprintf(stderr, "train_mnist: %s: %s\n", path, what);
    return -1;
}

static int read_u32(gzFile f, uint32_t *out)
{
    uint8_t b[4];

    if (gzread(f, b, 4) != 4)
        return -1;
    *out = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return 0;
}

/* Header and contents of one file; item_bytes per digit. */
static int read_idx(const char *path, uint32_t magic, uint32_t item_bytes,
                    uint8_t **out, uint32_t *out_count)
{
    int rc = -1;
    uint8_t *bytes = NULL;
    uint32_t found = 0;
    uint32_t count = 0;
    uint32_t side[2] = {MNIST_SIDE, MNIST_SIDE};
    gzFile f;

    errno = 0;
    f = gzopen(path, "rbe");
    if (f == NULL)
        return complain(path, errno == 0        ? "out of memory"
                              : errno == ENOENT ? "not there; say where with --data DIR"
                                                : strerror(errno));
    if (read_u32(f, &found) != 0 || found != magic || read_u32(f, &count) != 0) {
        complain(path, "not an IDX file of the expected kind");
        goto done;
    }
    if (magic == MAGIC_IMAGES &&
        (read_u32(f, &side[0]) != 0 || read_u32(f, &side[1]) != 0 ||
         side[0] != MNIST_SIDE || side[1] != MNIST_SIDE)) {
        complain(path, "the images are not 28x28");
        goto done;
    }
    if (count == 0 || count > COUNT_MAX) {
        complain(path, "unlikely number of digits (0, or more than a million)");
        goto done;
    }
    bytes = malloc((size_t)count * item_bytes);
    if (bytes == NULL) {
        complain(path, "out of memory");
        goto done;
    }
    if (gzread(f, bytes, count * item_bytes) != (int)(count * item_bytes)) {
        complain(path, "ends early or is damaged");
        goto done;
    }
    *out = bytes;
    *out_count = count;
    bytes = NULL;
    rc = 0;
done:
    free(bytes);
    gzclose(f);
    return rc;
}

int mnist_set_load(const char *dir, const char *stem, struct mnist_set *out)
{
    int rc = -1;
    char path[2][4096];
    struct mnist_set set = {0};
    uint32_t images = 0;
    uint32_t labels = 0;

    snprintf(path[0], sizeof path[0], "%s/%s-images-idx3-ubyte.gz", dir, stem);
    snprintf(path[1], sizeof path[1], "%s/%s-labels-idx1-ubyte.gz", dir, stem);
    if (read_idx(path[0], MAGIC_IMAGES, MNIST_PIXELS, &set.pixels, &images) != 0 ||
        read_idx(path[1], MAGIC_LABELS, 1, &set.labels, &labels) != 0)
        goto done;
    if (images != labels) {
        complain(path[1], "not as many labels as there are images");
        goto done;
    }
    for (uint32_t i = 0; i < labels; i++) {
        if (set.labels[i] >= MNIST_CLASSES) {
            complain(path[1], "a label is not a digit");
            goto done;
        }
    }
    set.count = (int32_t)images;
    *out = set;
    memset(&set, 0, sizeof set);
    rc = 0;
done:
    mnist_set_fini(&set);
    return rc;
}

void mnist_set_fini(struct mnist_set *set)
{
    free(set->pixels);
    free(set->labels);
    memset(set, 0, sizeof *set);
}
