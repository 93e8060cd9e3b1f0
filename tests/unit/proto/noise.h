/** Reproducible noise for mutation tests. */
#ifndef HVI_TEST_NOISE_H
#define HVI_TEST_NOISE_H

#include <stdint.h>
#include <stdlib.h>

static inline uint64_t noise_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/** few, or many when HVD_SOAK=1. */
static inline long noise_rounds(long few, long many)
{
    const char *soak = getenv("HVD_SOAK");

    return soak != NULL && soak[0] == '1' ? many : few;
}

#endif
