/**
 * Fault injection: makes one chosen allocation of this thread fail, also those that libc
 * and other libraries make for us. Not under sanitizers, which bring their own malloc.
 *
 *     for (long k = 0; hvi_fault_available(); k++) {
 *         hvi_fault_malloc_after(k);
 *         rc = thing();
 *         if (!hvi_fault_malloc_off())
 *             break;              // thing() needed no more than k: all were tried
 *         cr_assert_eq(rc, HVD_ENOMEM);
 *     }
 */
#ifndef HVI_TEST_FAULT_H
#define HVI_TEST_FAULT_H

#include <stdbool.h>
#include <stddef.h>

/** false under ASan and TSan: nothing will fail and nothing is counted. */
bool hvi_fault_available(void);
/** k more allocations of this thread succeed, the next one fails, those after succeed. */
void hvi_fault_malloc_after(long k);
/** Disarms; true when an allocation did fail since it was armed. */
bool hvi_fault_malloc_off(void);
/** Bytes this thread has asked for in all, freed or not. */
size_t hvi_fault_asked_bytes(void);

#endif
