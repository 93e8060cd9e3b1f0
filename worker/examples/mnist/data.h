/** Handwritten digits from gzipped IDX files, as MNIST is distributed. */
#ifndef MNIST_DATA_H
#define MNIST_DATA_H

#include <stdint.h>

#define MNIST_SIDE 28
#define MNIST_PIXELS (MNIST_SIDE * MNIST_SIDE)
#define MNIST_CLASSES 10

struct mnist_set {
    int32_t count;
    uint8_t *pixels; /* [count][MNIST_PIXELS], 0 to 255 */
    uint8_t *labels; /* [count], 0 to 9 */
};

/**
 * Read DIR/STEM-images-idx3-ubyte.gz and DIR/STEM-labels-idx1-ubyte.gz.
 *
 * @param stem  "train" or "t10k"
 * @param out   written only on success; free with mnist_set_fini()
 *
 * Returns  0, or -1 after one line on stderr that names the file and what is wrong.
 */
int mnist_set_load(const char *dir, const char *stem, struct mnist_set *out);
void mnist_set_fini(struct mnist_set *set);

#endif
