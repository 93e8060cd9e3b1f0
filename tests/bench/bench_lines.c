/* Writes so many lines of 100 bytes, for the throughput of a launcher's output:
 * bench_lines COUNT */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 1000;

    for (long i = 0; i < n; i++)
        if (printf("%020ld the quick brown fox jumps over the lazy dog and runs on, "
                   "and on, to the end of line\n",
                   i) < 0)
            return 1;
    return fflush(stdout) != 0;
}
