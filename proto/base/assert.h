/** HVI_ASSERT is for our own mistakes and stays on in release builds. Peer data, files,
 *  environment and user arguments get a status instead. */
#ifndef HVI_BASE_ASSERT_H
#define HVI_BASE_ASSERT_H

#define HVI_ASSERT(cond)                                                               \
    do {                                                                               \
        if (!(cond))                                                                   \
            hvi_assert_failed(#cond, __FILE__, __LINE__);                              \
    } while (0)

_Noreturn void hvi_assert_failed(const char *what, const char *file, int line);

#endif
