#include "fault.h"

#include <errno.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#ifndef OWN_MALLOC
#define OWN_MALLOC 1
#endif

static _Thread_local long left = -1; /* -1: disarmed */
static _Thread_local bool failed;
static _Thread_local size_t asked_bytes;

bool hvi_fault_available(void)
{
    return OWN_MALLOC;
}

void hvi_fault_malloc_after(long k)
{
    failed = false;
    left = k;
}

bool hvi_fault_malloc_off(void)
{
    left = -1;
    return failed;
}

size_t hvi_fault_asked_bytes(void)
{
    return asked_bytes;
}

#if OWN_MALLOC
/* glibc's own names for what we stand in front of */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

#define EXPORTED __attribute__((visibility("default")))

static bool refuse(size_t size_bytes)
{
    asked_bytes += size_bytes;
    if (left < 0 || left-- > 0)
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

EXPORTED void *malloc(size_t size)
{
    return refuse(size) ? NULL : __libc_malloc(size);
}

EXPORTED void *calloc(size_t n, size_t size)
{
    return refuse(n * size) ? NULL : __libc_calloc(n, size);
}

EXPORTED void *realloc(void *p, size_t size)
{
    return refuse(size) ? NULL : __libc_realloc(p, size);
}

EXPORTED void *aligned_alloc(size_t align, size_t size)
{
    return refuse(size) ? NULL : __libc_memalign(align, size);
}

EXPORTED int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = refuse(size) ? NULL : __libc_memalign(align, size);

    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}
#endif
