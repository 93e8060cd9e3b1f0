/* Sums the ranks' numbers, and says where this rank is. */
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>

#define N 200000

int main(void)
{
    static float x[N];
    const char *host = getenv("HVD_HOSTNAME");

    if (hvd_init(NULL) != HVD_OK) {
        fprintf(stderr, "hvd_init: %s\n", hvd_last_error());
        return 1;
    }
    for (int i = 0; i < N; i++)
        x[i] = (float)hvd_rank();
    if (hvd_allreduce(x, x, N, HVD_FLOAT32, HVD_SUM, "x") != HVD_OK) {
        fprintf(stderr, "hvd_allreduce: %s\n", hvd_last_error());
        return 1;
    }
    printf("sum %g of %d on %s\n", (double)x[N - 1], hvd_size(),
           host != NULL ? host : "?");
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
