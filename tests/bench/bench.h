/** What the allreduce benchmarks share, so that every peer is measured the same way. */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const size_t bench_sizes[] = {4,         1024,      65536,     1u << 20,
                                     16u << 20, 64u << 20, 256u << 20};
#define BENCH_NSIZES (sizeof bench_sizes / sizeof bench_sizes[0])
#define BENCH_ITERS_MAX 4000

static inline double bench_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/** Enough for a p99 when small, bounded when large. */
static inline int bench_iters(size_t size_bytes)
{
    if (size_bytes <= 1024)
        return BENCH_ITERS_MAX;
    if (size_bytes <= 65536)
        return 2000;
    if (size_bytes <= (1u << 20))
        return 400;
    if (size_bytes <= (16u << 20))
        return 60;
    return size_bytes <= (64u << 20) ? 24 : 10;
}

/** Fewer iterations where one takes per_us and all may take cap_s; at least 3. */
static inline int bench_cap(int iters, double per_us, double cap_s)
{
    double fit = cap_s * 1e6 / (per_us > 0.01 ? per_us : 0.01);

    if (fit >= iters)
        return iters;
    return fit < 3 ? 3 : (int)fit;
}

/** Input of rank: small whole numbers, so that sums are exact in any order. */
static inline void bench_fill(float *v, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        v[i] = (float)(rank + 1 + (int)(i & 3));
}

/** 0 when v holds the sum of bench_fill over np ranks. */
static inline int bench_check(const float *v, size_t count, int np)
{
    for (size_t i = 0; i < count; i++)
        if (v[i] != (float)(np * (np + 1) / 2 + np * (int)(i & 3)))
            return -1;
    return 0;
}

static int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/** One JSON line; sorts us[n]. busbw = 2(np-1)/np * bytes / time. */
static inline void bench_report(const char *peer, int np, size_t size_bytes, double *us,
                                int n)
{
    double sum = 0;

    qsort(us, (size_t)n, sizeof *us, bench_compare);
    for (int i = 0; i < n; i++)
        sum += us[i];
    double median = us[(int)(0.5 * (n - 1) + 0.5)];
    printf("{\"peer\":\"%s\",\"np\":%d,\"bytes\":%zu,\"n\":%d,\"med_us\":%.2f,"
           "\"p99_us\":%.2f,\"mean_us\":%.2f,\"busbw\":%.3f}\n",
           peer, np, size_bytes, n, median, us[(int)(0.99 * (n - 1) + 0.5)], sum / n,
           2.0 * (np - 1) / np * (double)size_bytes / median * 1e-3);
    fflush(stdout);
}

#endif
