/** What `hvd-agent --check` finds out about its host, and what that means: the lines of
 * `hvdrun doctor`. Pure. */
#ifndef HVI_HVDRUN_FACTS_H
#define HVI_HVDRUN_FACTS_H

#include <stdbool.h>
#include <stddef.h>

#define HVI_FACTS_MARK "hvd-check: " /* before each line; all else is a banner */
#define HVI_CHECK_TEXT_MAX 400
#define HVI_CHECKS_MAX 48

enum hvi_check_result {
    HVI_CHECK_UNSET = 0,
    HVI_CHECK_OK,
    HVI_CHECK_WARNING, /* jobs run, but something will hurt */
    HVI_CHECK_FAILED   /* no job would run there */
};

struct hvi_check {
    const char *name; /* "ssh", "version", ... */
    enum hvi_check_result result;
    char detail[HVI_CHECK_TEXT_MAX];
    char fix[HVI_CHECK_TEXT_MAX]; /* "" when ok */
};

struct hvi_checks {
    struct hvi_check list[HVI_CHECKS_MAX];
    size_t n;
};

/** Appends one; more than HVI_CHECKS_MAX are dropped. */
void hvi_checks_add(struct hvi_checks *c, const char *name,
                    enum hvi_check_result result, const char *detail, const char *fix);
/** The worst result of all. */
enum hvi_check_result hvi_checks_worst(const struct hvi_checks *c);

/**
 * Judges what an agent printed.
 *
 * @param text   lines with HVI_FACTS_MARK; others are skipped
 * @param now_s  the time here when the last of it came, seconds since 1970
 * @param late_s how long the host needed for its answer: the clock is known no better
 *
 * Returns  false: the text has no end; the checks so far are in out.
 */
bool hvi_facts_judge(const char *text, double now_s, double late_s,
                     struct hvi_checks *out);

#endif
