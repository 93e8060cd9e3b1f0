/** The part of Criterion's interface that our tests use, in one process and without its
 *  library, because TSan cannot run under Criterion. main() is here too. */
#ifndef HVI_TEST_PLAIN_H
#define HVI_TEST_PLAIN_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct plain_test {
    const char *suite, *name;
    void (*run)(void);
    struct plain_options {
        int timeout, exit_code, signal;
        bool disabled;
        const char *description;
        void (*init)(void);
        void (*fini)(void);
    } options;
    struct plain_test *next;
};

static struct plain_test *plain_first, **plain_last = &plain_first;

/* .timeout is enforced with alarm(); tests that expect a signal or exit are skipped. */
#define Test(suite_, name_, ...)                                                       \
    static void suite_##_##name_##_run(void);                                          \
    __attribute__((constructor)) static void suite_##_##name_##_add(void)              \
    {                                                                                  \
        static struct plain_test t = {                                                 \
            #suite_, #name_, suite_##_##name_##_run, {__VA_ARGS__}, NULL};             \
        *plain_last = &t;                                                              \
        plain_last = &t.next;                                                          \
    }                                                                                  \
    static void suite_##_##name_##_run(void)

#define PLAIN_FAIL_(what, ...)                                                         \
    do {                                                                               \
        fprintf(stderr, "%s:%d: assertion failed: %s", __FILE__, __LINE__, what);      \
        fprintf(stderr, " " __VA_ARGS__);                                              \
        fputc('\n', stderr);                                                           \
        _exit(1);                                                                      \
    } while (0)
#define cr_assert(c, ...)                                                              \
    do {                                                                               \
        if (!(c))                                                                      \
            PLAIN_FAIL_(#c, __VA_ARGS__);                                              \
    } while (0)
#define cr_expect cr_assert
#define cr_assert_not(c, ...) cr_assert(!(c), ##__VA_ARGS__)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b), ##__VA_ARGS__)
#define cr_assert_neq(a, b, ...) cr_assert((a) != (b), ##__VA_ARGS__)
#define cr_assert_lt(a, b, ...) cr_assert((a) < (b), ##__VA_ARGS__)
#define cr_assert_leq(a, b, ...) cr_assert((a) <= (b), ##__VA_ARGS__)
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b), ##__VA_ARGS__)
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b), ##__VA_ARGS__)
#define cr_assert_null(a, ...) cr_assert((a) == NULL, ##__VA_ARGS__)
#define cr_assert_not_null(a, ...) cr_assert((a) != NULL, ##__VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp((a), (b)) == 0, ##__VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) cr_assert(strcmp((a), (b)) != 0, ##__VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                                 \
    cr_assert(memcmp((a), (b), (n)) == 0, ##__VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...)                                               \
    cr_assert(fabs((double)(a) - (double)(b)) <= (e), ##__VA_ARGS__)
#define cr_assert_fail(...) PLAIN_FAIL_("failed", __VA_ARGS__)
#define cr_skip_test(...) return
#define cr_log_info(...)                                                               \
    do {                                                                               \
        fprintf(stderr, __VA_ARGS__);                                                  \
        fputc('\n', stderr);                                                           \
    } while (0)
#define cr_log_warn cr_log_info

int main(void)
{
    int passed = 0;
    int skipped = 0;

    for (struct plain_test *t = plain_first; t != NULL; t = t->next) {
        if (t->options.disabled || t->options.signal != 0 ||
            t->options.exit_code != 0) {
            skipped++;
            continue;
        }
        fprintf(stderr, "[plain] %s::%s\n", t->suite, t->name);
        alarm(t->options.timeout > 0 ? (unsigned)t->options.timeout * 6 : 120);
        if (t->options.init != NULL)
            t->options.init();
        t->run();
        if (t->options.fini != NULL)
            t->options.fini();
        passed++;
    }
    printf("%d passed, 0 failed, %d skipped\n", passed, skipped);
    return 0;
}

#endif
