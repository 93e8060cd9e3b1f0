/**
 * Handshakes that come out the same in every run: getrandom() is ours in the fuzz
 * targets that include this, so that an input means one thing only.
 */
#ifndef HVI_FUZZ_SESSION_H
#define HVI_FUZZ_SESSION_H

#include <sys/random.h>

#include "proto/sec/handshake.h"
#include "tests/fuzz/fuzz.h"

static const uint8_t session_key[HVI_KEY_BYTES] = "the key of the fuzzed job......";
static const uint8_t session_job[HVI_JOB_ID_BYTES] = "the fuzzed job.";

static uint64_t session_random;

static inline void session_reset(void)
{
    session_random = 1;
}

/* Stands before libc's. */
__attribute__((visibility("default"))) ssize_t getrandom(void *out, size_t size,
                                                         unsigned flags)
{
    uint8_t *to = out;

    (void)flags;
    for (size_t i = 0; i < size; i++) {
        session_random = session_random * 6364136223846793005u + 1442695040888963407u;
        to[i] = (uint8_t)(session_random >> 56);
    }
    return (ssize_t)size;
}

#endif
