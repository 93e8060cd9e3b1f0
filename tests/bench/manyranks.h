/** Forced in before the coordinator's core for bench_coordinator: a job larger than any
 *  that hvd admits, to see how its cost grows. */
#include <hvd/hvd.h>

#undef HVD_RANKS_MAX
#define HVD_RANKS_MAX 16384
