/** NEON: the compiler vectorizes the plain loops (in scalar.c as well: it is the
 * baseline here); only the f16 conversions are written out. There is no non-temporal
 * copy. */
#include <arm_neon.h>
#include <string.h>

#include "worker/plane/reduce/half.h"

static void widen_f16_neon(float *out, const void *in, int64_t count)
{
    const unsigned char *v = in;
    int64_t i = 0;

    for (; i + 4 <= count; i += 4) {
        float16x4_t h = vreinterpret_f16_u8(vld1_u8(v + 2 * i));

        vst1q_f32(out + i, vcvt_f32_f16(h));
    }
    for (; i < count; i++) {
        uint16_t h;

        memcpy(&h, v + 2 * i, sizeof(h));
        out[i] = half_widen_f16(h);
    }
}

static void narrow_f16_neon(void *out, const float *in, int64_t count)
{
    const float32x4_t one_nan = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u));
    unsigned char *o = out;
    int64_t i = 0;

    for (; i + 4 <= count; i += 4) {
        float32x4_t f = vld1q_f32(in + i);
        float16x4_t h = vcvt_f16_f32(vbslq_f32(vceqq_f32(f, f), f, one_nan));

        vst1_u8(o + 2 * i, vreinterpret_u8_f16(h));
    }
    for (; i < count; i++) {
        uint16_t h = in[i] == in[i] ? half_narrow_f16(in[i]) : 0x7e00;

        memcpy(o + 2 * i, &h, sizeof(h));
    }
}

#define ISA_TABLE hvi_reduce_neon
#define ISA_NAME "neon"
#define ISA_WIDEN_F16 widen_f16_neon
#define ISA_NARROW_F16 narrow_f16_neon
#include "worker/plane/reduce/loops.inc"
