#include <hvd/hvd.h>
#include <stdio.h>
#include <unistd.h>

/* Allreduces until there is a file "enough". Each rank says its pid, rank 0 when they run. */
int main(void)
{
    static float x[1024];
    enum hvd_status rc = HVD_OK;
    float end = 0, any = 0;

    if (hvd_init(NULL) != HVD_OK)
        return 9;
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    for (long i = 0; rc == HVD_OK && any == 0; i++) {
        end = access("enough", F_OK) == 0;
        rc = hvd_allreduce(x, x, 1024, HVD_FLOAT32, HVD_SUM, "t");
        if (rc == HVD_OK)
            rc = hvd_allreduce(&end, &any, 1, HVD_FLOAT32, HVD_MAX, "end");
        if (i == 10 && hvd_rank() == 0) {
            printf("running\n");
            fflush(stdout);
        }
        usleep(1000);
    }
    hvd_shutdown();
    return rc == HVD_OK ? 0 : 4;
}
