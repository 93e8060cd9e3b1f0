/*
 * Symbols of the program stand before those of its libraries, so the functions below
 * see every call that any of them makes. What is armed is so for one thread:
 * Criterion's own threads and those of the code under test go on unharmed.
 */
#include "fault.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

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

#define EXPORTED __attribute__((visibility("default")))

static _Thread_local long mallocs_left = -1; /* -1: disarmed */
static _Thread_local bool malloc_failed;
static _Thread_local size_t asked_bytes;
static _Thread_local long live_blocks;

static _Thread_local const void *looked_for;
static _Thread_local size_t looked_for_bytes;
static _Thread_local int freed_with;

static _Thread_local long writes_left = -1;
static _Thread_local int write_error;
static _Thread_local bool write_hit;

static _Thread_local bool no_random;

bool hvi_fault_available(void)
{
    return OWN_MALLOC;
}

void hvi_fault_malloc_after(long k)
{
    malloc_failed = false;
    mallocs_left = k;
}

bool hvi_fault_malloc_off(void)
{
    mallocs_left = -1;
    return malloc_failed;
}

size_t hvi_fault_asked_bytes(void)
{
    return asked_bytes;
}

long hvi_fault_live_blocks(void)
{
    return live_blocks;
}

void hvi_fault_look_for(const void *bytes, size_t size_bytes)
{
    freed_with = 0;
    looked_for = bytes;
    looked_for_bytes = size_bytes;
}

int hvi_fault_freed_with(void)
{
    return freed_with;
}

void hvi_fault_write_after(long k, int error)
{
    write_hit = false;
    write_error = error;
    writes_left = k;
}

bool hvi_fault_write_off(void)
{
    writes_left = -1;
    return write_hit;
}

void hvi_fault_random(bool fails)
{
    no_random = fails;
}

/* ---- memory */

#if OWN_MALLOC
/* glibc's own names for what we stand in front of */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *p);

static bool refuse(size_t size_bytes)
{
    asked_bytes += size_bytes;
    if (mallocs_left < 0 || mallocs_left-- > 0)
        return false;
    malloc_failed = true;
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    live_blocks += p != NULL;
    return p;
}

EXPORTED void *malloc(size_t size)
{
    return refuse(size) ? NULL : counted(__libc_malloc(size));
}

EXPORTED void *calloc(size_t n, size_t size)
{
    return refuse(n * size) ? NULL : counted(__libc_calloc(n, size));
}

EXPORTED void *realloc(void *p, size_t size)
{
    bool had = p != NULL;
    void *now;

    if (refuse(size))
        return NULL;
    now = __libc_realloc(p, size);
    if (!had && now != NULL)
        live_blocks++;
    else if (had && size == 0 && now == NULL)
        live_blocks--;
    return now;
}

EXPORTED void *aligned_alloc(size_t align, size_t size)
{
    return refuse(size) ? NULL : counted(__libc_memalign(align, size));
}

EXPORTED int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = refuse(size) ? NULL : counted(__libc_memalign(align, size));

    if (p == NULL)
        return ENOMEM;
    *out = p;
    return 0;
}

EXPORTED void free(void *p)
{
    live_blocks -= p != NULL;
    if (looked_for != NULL && p != NULL)
        freed_with +=
            memmem(p, malloc_usable_size(p), looked_for, looked_for_bytes) != NULL;
    __libc_free(p);
}
#endif

/* ---- writes: the next definition in line is libc's, or the sanitizer's wrapper of it ---- */

static ssize_t (*next_write)(int, const void *, size_t);
static ssize_t (*next_writev)(int, const struct iovec *, int);
static ssize_t (*next_send)(int, const void *, size_t, int);
static ssize_t (*next_sendmsg)(int, const struct msghdr *, int);
static ssize_t (*next_getrandom)(void *, size_t, unsigned);

/* A pointer to data becomes one to code: by its bytes, as ISO C has no cast for it. */
#define FIND(name)                                                                     \
    do {                                                                               \
        void *found = dlsym(RTLD_NEXT, #name);                                         \
        __builtin_memcpy(&next_##name, &found, sizeof found);                          \
    } while (0)

__attribute__((constructor)) static void find_all(void)
{
    FIND(write);
    FIND(writev);
    FIND(send);
    FIND(sendmsg);
    FIND(getrandom);
}

enum verdict { PASS, FAIL, SHORT };

static enum verdict judge(void)
{
    if (writes_left < 0 || writes_left-- > 0)
        return PASS;
    write_hit = true;
    if (write_error == 0)
        return SHORT;
    errno = write_error;
    return FAIL;
}

/* The first piece that is not empty, cut to one byte. */
static struct iovec first_byte(const struct iovec *iov, size_t n)
{
    struct iovec one = {NULL, 0};

    for (size_t i = 0; i < n && one.iov_len == 0; i++)
        if (iov[i].iov_len > 0)
            one = (struct iovec){iov[i].iov_base, 1};
    return one;
}

EXPORTED ssize_t write(int fd, const void *data, size_t size)
{
    enum verdict v = judge();

    if (v == FAIL)
        return -1;
    if (v == SHORT && size > 1)
        size = 1;
    if (next_write == NULL) /* another library's constructor was earlier */
        return syscall(SYS_write, fd, data, size);
    return next_write(fd, data, size);
}

EXPORTED ssize_t writev(int fd, const struct iovec *iov, int n)
{
    enum verdict v = judge();
    struct iovec one;

    if (v == FAIL)
        return -1;
    if (v == PASS)
        return next_writev(fd, iov, n);
    one = first_byte(iov, (size_t)n);
    return next_writev(fd, &one, 1);
}

EXPORTED ssize_t send(int fd, const void *data, size_t size, int flags)
{
    enum verdict v = judge();

    if (v == FAIL)
        return -1;
    return next_send(fd, data, v == SHORT && size > 1 ? 1 : size, flags);
}

EXPORTED ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    enum verdict v = judge();
    struct msghdr cut;
    struct iovec one;

    if (v == FAIL)
        return -1;
    if (v == PASS)
        return next_sendmsg(fd, msg, flags);
    one = first_byte(msg->msg_iov, msg->msg_iovlen);
    cut = *msg;
    cut.msg_iov = &one;
    cut.msg_iovlen = 1;
    return next_sendmsg(fd, &cut, flags);
}

/* ---- random bytes */

EXPORTED ssize_t getrandom(void *out, size_t size, unsigned flags)
{
    if (no_random) {
        errno = ENOSYS;
        return -1;
    }
    if (next_getrandom == NULL)
        return syscall(SYS_getrandom, out, size, flags);
    return next_getrandom(out, size, flags);
}
