/** The CPU planes' table of promises, held by the GPU plane over the fakes. */
#define ONLY_NCCL
#include "../test_table.c"
