/* The fault injection itself: a harness that hits nothing would prove nothing. */
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fault.h"
#include "proto/sec/handshake.h"

Test(fault, exactly_the_chosen_allocation_fails, .timeout = 10)
{
    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    for (long k = 0; k < 6; k++) {
        void *volatile got[6] = {NULL};
        int rc;

        hvi_fault_malloc_after(k);
        got[0] = malloc(10);
        got[1] = calloc(1, 10);
        got[2] = realloc(NULL, 10);
        got[3] = aligned_alloc(64, 64);
        rc = posix_memalign((void **)&got[4], 64, 64);
        got[5] = strdup("libc's own");
        cr_assert(hvi_fault_malloc_off());
        for (long i = 0; i < 6; i++) {
            cr_assert_eq(got[i] == NULL, i == k, "%ld failed, allocation %ld", k, i);
            free(got[i]);
        }
        cr_assert_eq(rc, k == 4 ? ENOMEM : 0);
    }
    hvi_fault_malloc_after(1);
    free(malloc(1));
    cr_assert_not(hvi_fault_malloc_off(), "not reached");
}

Test(fault, a_failed_realloc_keeps_the_block, .timeout = 10)
{
    char *volatile p = malloc(4); /* volatile: the compiler knows realloc() too well */
    char *volatile grown;
    long blocks = hvi_fault_live_blocks();

    if (!hvi_fault_available()) {
        free(p);
        cr_skip_test("the sanitizer has its own malloc");
    }
    memcpy(p, "abc", 4);
    hvi_fault_malloc_after(0);
    grown = realloc(p, 1000);
    cr_assert(hvi_fault_malloc_off());
    cr_assert_null(grown);
    cr_assert_str_eq(p, "abc");
    cr_assert_eq(hvi_fault_live_blocks(), blocks);
    free(p);
    cr_assert_eq(hvi_fault_live_blocks(), blocks - 1);
}

Test(fault, a_leak_shows, .timeout = 10)
{
    long before = hvi_fault_live_blocks();
    size_t asked = hvi_fault_asked_bytes();
    void *volatile leaked;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    leaked = malloc(123);
    free(malloc(7));
    cr_assert_eq(hvi_fault_live_blocks(), before + 1);
    cr_assert_eq(hvi_fault_asked_bytes(), asked + 130);
    free(leaked);
    cr_assert_eq(hvi_fault_live_blocks(), before);
}

static void *allocate(void *arg)
{
    (void)arg;
    return malloc(1);
}

Test(fault, other_threads_are_spared, .timeout = 10)
{
    pthread_t thread;
    void *got = NULL;
    int rc;

    cr_assert_eq(pthread_create(&thread, NULL, allocate, NULL), 0);
    cr_assert_eq(pthread_join(thread, &got), 0); /* its stack is kept for the next */
    free(got);
    got = NULL;
    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    hvi_fault_malloc_after(100);
    rc = pthread_create(&thread, NULL, allocate, NULL);
    hvi_fault_malloc_after(0);
    rc = rc != 0 ? rc : pthread_join(thread, &got);
    (void)hvi_fault_malloc_off();
    cr_assert_eq(rc, 0);
    cr_assert_not_null(got);
    free(got);
}

Test(fault, exactly_the_chosen_write_fails_or_is_short, .timeout = 10)
{
    struct iovec iov[3] = {{(void *)"", 0}, {(void *)"ab", 2}, {(void *)"c", 1}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 3};
    static const int errors[] = {EPIPE, 0};
    int fds[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    for (int e = 0; e < 2; e++)
        for (long k = 0; k < 4; k++) {
            ssize_t got[4];
            int error = 0;
            char sink[64];

            hvi_fault_write_after(k, errors[e]);
            got[0] = write(fds[0], "abc", 3);
            error = got[0] < 0 ? errno : error;
            got[1] = writev(fds[0], iov, 3);
            error = got[1] < 0 ? errno : error;
            got[2] = send(fds[0], "abc", 3, MSG_NOSIGNAL);
            error = got[2] < 0 ? errno : error;
            got[3] = sendmsg(fds[0], &msg, MSG_NOSIGNAL);
            error = got[3] < 0 ? errno : error;
            cr_assert(hvi_fault_write_off());
            for (long i = 0; i < 4; i++)
                cr_assert_eq(got[i],
                             i != k           ? 3
                             : errors[e] != 0 ? -1
                                              : 1,
                             "%ld hit, write %ld: %zd", k, i, got[i]);
            cr_assert_eq(error, errors[e]);
            cr_assert_gt(read(fds[1], sink, sizeof sink), 0);
        }
    hvi_fault_write_after(1, EIO);
    cr_assert_eq(write(fds[0], "x", 1), 1);
    cr_assert_not(hvi_fault_write_off(), "not reached");
    close(fds[0]);
    close(fds[1]);
}

Test(fault, randomness_can_be_missing, .timeout = 10)
{
    uint8_t bytes[600] = {0};
    enum hvd_status rc;

    cr_assert_eq(hvi_random(bytes, sizeof bytes), HVD_OK);
    hvi_fault_random(true);
    rc = hvi_random(bytes, sizeof bytes);
    hvi_fault_random(false);
    cr_assert_eq(rc, HVD_EINTERNAL);
    cr_assert_eq(hvi_random(bytes, sizeof bytes), HVD_OK);
}
