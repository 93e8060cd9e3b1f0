/** Monotonic time; wall-clock jumps change nothing. */
#ifndef HVI_BASE_CLOCK_H
#define HVI_BASE_CLOCK_H

#include <stdint.h>

int64_t hvi_now_ns(void);
int64_t hvi_now_us(void);
int64_t hvi_now_ms(void);
/** The same clock at its last tick, some milliseconds ago at most; cheaper. */
int64_t hvi_now_coarse_ms(void);

/** Milliseconds left until deadline_ms, 0 when passed; -1 (for ever) when deadline < 0:
 *  what poll() wants. */
int hvi_ms_left(int64_t deadline_ms);

#endif
