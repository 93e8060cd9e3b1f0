#include "proto/base/clock.h"

#include <limits.h>
#include <time.h>

int64_t hvi_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t hvi_now_us(void)
{
    return hvi_now_ns() / 1000;
}

int64_t hvi_now_ms(void)
{
    return hvi_now_ns() / 1000000;
}

int64_t hvi_now_coarse_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int hvi_ms_left(int64_t deadline_ms)
{
    int64_t left;

    if (deadline_ms < 0)
        return -1;
    left = deadline_ms - hvi_now_ms();
    if (left < 0)
        return 0;
    return left > INT_MAX ? INT_MAX : (int)left;
}
