/** A hint to the CPU that this is a spin loop. */
#ifndef HVI_PLANE_CPU_PAUSE_H
#define HVI_PLANE_CPU_PAUSE_H

#if defined(__x86_64__) || defined(__i386__)
static inline void hvi_pause(void)
{
    __builtin_ia32_pause();
}
#elif defined(__aarch64__)
static inline void hvi_pause(void)
{
    __asm__ __volatile__("yield");
}
#else
static inline void hvi_pause(void)
{
}
#endif

#endif
