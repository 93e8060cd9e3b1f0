/* A rank to be debugged: says what `answer` is, and sums once. */
#include <stdio.h>

#include <hvd/hvd.h>

int answer = 42;

int main(void)
{
    float x = 1;

    puts("begins");
    if (hvd_init(NULL) != HVD_OK ||
        hvd_allreduce(&x, &x, 1, HVD_FLOAT32, HVD_SUM, "x") != HVD_OK) {
        fprintf(stderr, "debugged: %s\n", hvd_last_error());
        return 1;
    }
    printf("answer %d, sum %g\n", answer, (double)x);
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
