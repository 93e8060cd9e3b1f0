/** The loops for the machine's baseline: runs everywhere, and what the others must
 * equal. */
#define ISA_TABLE hvi_reduce_scalar
#define ISA_NAME "scalar"
#include "worker/plane/reduce/loops.inc"
