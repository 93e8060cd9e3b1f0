/* Every rank contributes its number + 1; every rank gets the average and the sum.
 *     hvdrun -np 4 build/examples/allreduce */
#include <stdio.h>
#include <hvd/hvd.h>

int main(void)
{
    if (hvd_init(NULL) != HVD_OK) {
        fprintf(stderr, "hvd_init: %s\n", hvd_last_error());
        return 1;
    }

    float mine[3] = {1, 10, 100};
    float average[3], sum[3];
    for (int i = 0; i < 3; i++)
        mine[i] *= (float)(hvd_rank() + 1);

    if (hvd_allreduce(mine, average, 3, HVD_FLOAT32, HVD_AVERAGE, "a") != HVD_OK ||
        hvd_allreduce(mine, sum, 3, HVD_FLOAT32, HVD_SUM, "s") != HVD_OK) {
        fprintf(stderr, "rank %d: %s\n", hvd_rank(), hvd_last_error());
        return 1;
    }

    printf("rank %d of %d: average %g %g %g, sum %g %g %g\n", hvd_rank(), hvd_size(),
           (double)average[0], (double)average[1], (double)average[2], (double)sum[0],
           (double)sum[1], (double)sum[2]);
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
