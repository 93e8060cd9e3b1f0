/** AVX-512 (F, BW, VL, DQ). The Makefile gives this file its -m flags; only the plain
 *  loops, the 16-bit conversions and the non-temporal copy differ from the baseline. */
#include <immintrin.h>
#include <string.h>

#include "worker/plane/reduce/half.h"

static void widen_f16_avx512(float *out, const void *in, int64_t count)
{
    const char *v = in;
    int64_t i = 0;

    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_epi16(v + 2 * i)));
    for (; i < count; i++) {
        uint16_t h;

        memcpy(&h, v + 2 * i, sizeof(h));
        out[i] = half_widen_f16(h);
    }
}

static void narrow_f16_avx512(void *out, const float *in, int64_t count)
{
    const __m512 one_nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    char *o = out;
    int64_t i = 0;

    for (; i + 16 <= count; i += 16) {
        __m512 f = _mm512_loadu_ps(in + i);
        __mmask16 is_nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);
        __m256i h = _mm512_cvtps_ph(_mm512_mask_mov_ps(f, is_nan, one_nan),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

        _mm256_storeu_epi16(o + 2 * i, h);
    }
    for (; i < count; i++) {
        uint16_t h = in[i] == in[i] ? half_narrow_f16(in[i]) : 0x7e00;

        memcpy(o + 2 * i, &h, sizeof(h));
    }
}

/* Whole cache lines past the caches, the ragged ends with memcpy. */
static void stream_avx512(void *out, const void *in, size_t size_bytes)
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
    for (; size_bytes >= 64; size_bytes -= 64, o += 64, v += 64)
        _mm512_stream_si512((__m512i *)(void *)o, _mm512_loadu_si512(v));
    memcpy(o, v, size_bytes);
}

static void fence_avx512(void)
{
    _mm_sfence();
}

#define ISA_TABLE hvi_reduce_avx512
#define ISA_NAME "avx512"
#define ISA_WIDEN_F16 widen_f16_avx512
#define ISA_NARROW_F16 narrow_f16_avx512
#define ISA_STREAM stream_avx512
#define ISA_FENCE fence_avx512
#include "worker/plane/reduce/loops.inc"
