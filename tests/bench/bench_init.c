/* What starting and ending costs: init, one barrier, exit. */
#include <stdio.h>

#include <hvd/hvd.h>

int main(void)
{
    if (hvd_init(NULL) == HVD_OK && hvd_barrier(0) == HVD_OK &&
        hvd_shutdown() == HVD_OK)
        return 0;
    fprintf(stderr, "bench_init: %s\n", hvd_last_error());
    return 1;
}
