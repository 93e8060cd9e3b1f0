/** The gradients of one training step, in the order of the forward pass: what the step
 *  benchmarks exchange, last one first. */
#ifndef STEPS_H
#define STEPS_H

#include "bench.h"

#define STEPS_TENSORS_MAX 1000

struct steps_shape {
    const char *name;
    int n;
    int count[STEPS_TENSORS_MAX]; /* floats */
};

static inline void steps_add(struct steps_shape *s, int count)
{
    s->count[s->n++] = count;
}

/* A convolution and the scale and shift after it. */
static inline void steps_conv(struct steps_shape *s, int in, int out, int size)
{
    steps_add(s, in * out * size * size);
    steps_add(s, out);
    steps_add(s, out);
}

/** 161 tensors, 25,557,032 floats. */
static inline void steps_resnet50(struct steps_shape *s)
{
    static const int width[] = {64, 128, 256, 512};
    static const int blocks[] = {3, 4, 6, 3};
    int in = 64;

    s->name = "resnet50";
    s->n = 0;
    steps_conv(s, 3, 64, 7);
    for (int stage = 0; stage < 4; stage++)
        for (int b = 0; b < blocks[stage]; b++) {
            steps_conv(s, in, width[stage], 1);
            steps_conv(s, width[stage], width[stage], 3);
            steps_conv(s, width[stage], width[stage] * 4, 1);
            if (b == 0)
                steps_conv(s, in, width[stage] * 4, 1);
            in = width[stage] * 4;
        }
    steps_add(s, 1000 * 2048);
    steps_add(s, 1000);
}

/** 1000 tensors of 1 KiB. */
static inline void steps_small(struct steps_shape *s)
{
    s->name = "small";
    s->n = 0;
    while (s->n < 1000)
        steps_add(s, 256);
}

static inline size_t steps_bytes(const struct steps_shape *s)
{
    size_t sum = 0;

    for (int i = 0; i < s->n; i++)
        sum += (size_t)s->count[i] * sizeof(float);
    return sum;
}

static inline void steps_report(const char *peer, int np, const struct steps_shape *s,
                                double *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, bench_compare);
    printf("{\"peer\":\"%s\",\"np\":%d,\"step\":\"%s\",\"bytes\":%zu,\"n\":%d,"
           "\"med_us\":%.1f,\"p99_us\":%.1f}\n",
           peer, np, s->name, steps_bytes(s), n, us[n / 2],
           us[(int)(0.99 * (n - 1) + 0.5)]);
    fflush(stdout);
}

#endif
