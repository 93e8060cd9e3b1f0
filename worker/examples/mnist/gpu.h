/** The little of CUDA's driver that the example needs, by dlopen: it builds without a
 *  toolkit and runs with any driver. */
#ifndef MNIST_GPU_H
#define MNIST_GPU_H

#include <stddef.h>

struct mnist_gpu {
    int id;       /* ordinal among the visible GPUs */
    void *stream; /* CUstream; copies are queued there */
    float *data;  /* device memory, [elem_count] */
    size_t elem_count;
};

/** One GPU per local rank, wrapping round when there are fewer. 0, or -1 after one line on
 *  stderr. */
int mnist_gpu_open(struct mnist_gpu *gpu, int local_rank, size_t elem_count);
/** Queue the copy of elements [first, first + count) to the device. 0 or -1. */
int mnist_gpu_put(struct mnist_gpu *gpu, size_t first, const float *from, size_t count);
/** Copy everything back and wait for it. 0 or -1. */
int mnist_gpu_get(struct mnist_gpu *gpu, float *to);

#endif
