/** Words for the enums of hvd.h, and the rule of what fuses. */
#ifndef HVI_BASE_NAMES_H
#define HVI_BASE_NAMES_H

#include <stdint.h>

/** "float32"; "dtype 99" becomes "?". Never NULL. Argument is the wire's integer. */
const char *hvi_dtype_name(uint32_t dtype);
const char *hvi_kind_name(uint32_t kind);
const char *hvi_reduce_op_name(uint32_t op);
/** Bytes of an element, 0 when unknown. */
uint32_t hvi_dtype_size(uint32_t dtype);

#endif
