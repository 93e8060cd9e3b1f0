/**
 * One event, one line: `hvd: LEVEL subsystem: [rank N] key=value ...`. Selected by
 * HVD_LOG, for example HVD_LOG=info,link:debug (else HOROVOD_LOG_LEVEL). Default: warn
 * in the programs, off in libhvd. HVD_LOG_HIDE_TIME=0 (or HOROVOD_...) puts the time
 * before each line. Lines go to stderr. Any thread.
 */
#ifndef HVI_BASE_LOG_H
#define HVI_BASE_LOG_H

#include "proto/base/err.h"

enum hvi_log_level {
    HVI_LOG_OFF = 0,
    HVI_LOG_ERROR,
    HVI_LOG_WARN,
    HVI_LOG_INFO,
    HVI_LOG_DEBUG,
    HVI_LOG_TRACE
};

/** Reads the environment. program: word before the colon, static. Again: re-reads. */
void hvi_log_setup(const char *program, enum hvi_log_level default_level);
/** HVD_EINVAL: what hvi_log_setup could not read, with what may be written; it went on
 *  without. */
enum hvd_status hvi_log_check(struct hvi_err *err);
/** Shown in every line once set; -1: none. */
void hvi_log_set_rank(int rank);
/** 1 when a line of this level and subsystem would be written. */
int hvi_log_wants(enum hvi_log_level level, const char *subsystem);
void hvi_log_write(enum hvi_log_level level, const char *subsystem, const char *fmt,
                   ...) __attribute__((format(printf, 3, 4)));

/* The level is checked before anything is formatted. */
#define HVI_LOG_AT_(level, subsystem, ...)                                             \
    do {                                                                               \
        if (hvi_log_wants((level), (subsystem)))                                       \
            hvi_log_write((level), (subsystem), __VA_ARGS__);                          \
    } while (0)
#define hvi_log_error(subsystem, ...) HVI_LOG_AT_(HVI_LOG_ERROR, subsystem, __VA_ARGS__)
#define hvi_log_warn(subsystem, ...) HVI_LOG_AT_(HVI_LOG_WARN, subsystem, __VA_ARGS__)
#define hvi_log_info(subsystem, ...) HVI_LOG_AT_(HVI_LOG_INFO, subsystem, __VA_ARGS__)
#define hvi_log_debug(subsystem, ...) HVI_LOG_AT_(HVI_LOG_DEBUG, subsystem, __VA_ARGS__)

#endif
