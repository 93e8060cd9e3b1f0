/**
 * Fault injection: makes one chosen allocation, write or request for random bytes of
 * this thread fail, also those that libc and other libraries make for us. Allocations
 * not under ASan and TSan, which bring their own malloc; the others always.
 *
 *     for (long k = 0; hvi_fault_available(); k++) {
 *         long blocks = hvi_fault_live_blocks();
 *
 *         hvi_fault_malloc_after(k);
 *         rc = thing();
 *         if (!hvi_fault_malloc_off())
 *             break;              // thing() needed no more than k: all were tried
 *         cr_assert_eq(rc, HVD_ENOMEM);
 *         cr_assert_eq(hvi_fault_live_blocks(), blocks, "allocation %ld: a leak", k);
 *     }
 */
#ifndef HVI_TEST_FAULT_H
#define HVI_TEST_FAULT_H

#include <stdbool.h>
#include <stddef.h>

/** false under ASan and TSan: no allocation will fail and none is counted. */
bool hvi_fault_available(void);
/** k more allocations of this thread succeed, the next one fails, those after succeed. */
void hvi_fault_malloc_after(long k);
/** Disarms; true when an allocation did fail since it was armed. */
bool hvi_fault_malloc_off(void);
/** Bytes this thread has asked for in all, freed or not. */
size_t hvi_fault_asked_bytes(void);
/** Blocks this thread has allocated less those it has freed; only differences count. */
long hvi_fault_live_blocks(void);

/** From here on blocks that this thread frees are looked through for these bytes (the
 *  caller's, until NULL is given). */
void hvi_fault_look_for(const void *bytes, size_t size_bytes);
/** How many of them had the bytes in them. */
int hvi_fault_freed_with(void);

/** k more of this thread's write(), writev(), send() and sendmsg() pass, the next one
 *  fails with errno `error`, or for error 0 takes one byte only; those after pass. */
void hvi_fault_write_after(long k, int error);
/** Disarms; true when a write was hit since it was armed. */
bool hvi_fault_write_off(void);

/** From here on getrandom() of this thread fails with ENOSYS, until false is given. */
void hvi_fault_random(bool fails);

#endif
