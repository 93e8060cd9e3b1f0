/** AVX2 with F16C. The Makefile gives this file its -m flags; only the plain loops, the
 *  16-bit conversions and the non-temporal copy differ from the baseline. */
#include <immintrin.h>
#include <string.h>

#include "worker/plane/reduce/half.h"

static void widen_f16_avx2(float *out, const void *in, int64_t count)
{
    const char *v = in;
    int64_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(v + 2 * i));

        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
    }
    for (; i < count; i++) {
        uint16_t h;

        memcpy(&h, v + 2 * i, sizeof(h));
        out[i] = half_widen_f16(h);
    }
}

static void narrow_f16_avx2(void *out, const float *in, int64_t count)
{
    const __m256 one_nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    char *o = out;
    int64_t i = 0;

    for (; i + 8 <= count; i += 8) {
        __m256 f = _mm256_loadu_ps(in + i);
        __m256 is_nan = _mm256_cmp_ps(f, f, _CMP_UNORD_Q);
        __m128i h = _mm256_cvtps_ph(_mm256_blendv_ps(f, one_nan, is_nan),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

        _mm_storeu_si128((__m128i *)(void *)(o + 2 * i), h);
    }
    for (; i < count; i++) {
        uint16_t h = in[i] == in[i] ? half_narrow_f16(in[i]) : 0x7e00;

        memcpy(o + 2 * i, &h, sizeof(h));
    }
}

/* Whole cache lines past the caches, the ragged ends with memcpy. */
static void stream_avx2(void *out, const void *in, size_t size_bytes)
{
    char *o = out;
    const char *v = in;
    size_t head = (size_t)(-(uintptr_t)o & 63u);

    if (head > size_bytes)
        head = size_bytes;
    memcpy(o, v, head);
    o += head;
    v += head;
    size_bytes -= head;
    for (; size_bytes >= 64; size_bytes -= 64, o += 64, v += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)v);
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(v + 32));

        _mm256_stream_si256((__m256i *)(void *)o, a);
        _mm256_stream_si256((__m256i *)(void *)(o + 32), b);
    }
    memcpy(o, v, size_bytes);
}

static void fence_avx2(void)
{
    _mm_sfence();
}

#define ISA_TABLE hvi_reduce_avx2
#define ISA_NAME "avx2"
#define ISA_WIDEN_F16 widen_f16_avx2
#define ISA_NARROW_F16 narrow_f16_avx2
#define ISA_STREAM stream_avx2
#define ISA_FENCE fence_avx2
#include "worker/plane/reduce/loops.inc"
