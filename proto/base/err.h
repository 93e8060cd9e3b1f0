/** Error texts: whoever first decides the error words it, callers pass it up. */
#ifndef HVI_BASE_ERR_H
#define HVI_BASE_ERR_H

#include <hvd/hvd.h>

/** Caller-owned; may be NULL everywhere. Holds the last failure's text. */
struct hvi_err {
    char text[HVD_ERROR_TEXT_MAX];
};

/** Words the error and returns status, so that a caller can `rc = hvi_fail(...)`.
 *  Too long texts are cut. */
enum hvd_status hvi_fail(struct hvi_err *err, enum hvd_status status, const char *fmt,
                         ...) __attribute__((format(printf, 3, 4)));

/** "HVD_EINVAL"; never NULL. */
const char *hvi_status_name(enum hvd_status status);
/** "invalid argument"; never NULL. */
const char *hvi_status_text(enum hvd_status status);

/** Copy text to out (cap bytes with NUL), control characters and bad UTF-8 as \xNN: for
 *  everything of a peer or a user that we print. Returns out. */
char *hvi_escape(char *out, size_t cap, const char *text, size_t size_bytes);

#endif
