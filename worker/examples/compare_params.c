/**
 * compare_params - how far two files of raw float32 (from train_mnist) are apart.
 *
 *     compare_params A B [LIMIT]
 *
 * Prints the largest difference, the largest value of A, and their ratio. Status 0: no
 * more than LIMIT (or no LIMIT); 1: more; 2: the files cannot be compared.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_floats(const char *path)
{
    FILE *f = fopen(path, "rbe");

    if (f == NULL) {
        fprintf(stderr, "compare_params: %s: %s\n", path, strerror(errno));
        exit(2);
    }
    return f;
}

int main(int argc, char **argv)
{
    double limit = INFINITY;
    double largest = 0;
    double difference = 0;
    long long count = 0;
    char *end = NULL;

    if (argc == 4)
        limit = strtod(argv[3], &end);
    if (argc < 3 || argc > 4 || (argc == 4 && (end == argv[3] || *end != '\0'))) {
        fprintf(stderr, "usage: compare_params A B [LIMIT]\n");
        return 2;
    }
    FILE *a = open_floats(argv[1]);
    FILE *b = open_floats(argv[2]);
    for (;; count++) {
        float x[2];
        size_t got_a = fread(&x[0], sizeof x[0], 1, a);
        size_t got_b = fread(&x[1], sizeof x[1], 1, b);

        if (got_a != got_b) {
            fprintf(stderr, "compare_params: %s and %s differ in length\n", argv[1],
                    argv[2]);
            return 2;
        }
        if (got_a == 0)
            break;
        if (!isfinite(x[0]) || !isfinite(x[1])) {
            fprintf(stderr, "compare_params: value %lld is not finite\n", count);
            return 2;
        }
        largest = fmax(largest, fabs((double)x[0]));
        difference = fmax(difference, fabs((double)x[0] - (double)x[1]));
    }
    if (count == 0 || ferror(a) || ferror(b)) {
        fprintf(stderr, "compare_params: nothing to compare, or a read error\n");
        return 2;
    }
    double ratio = largest > 0 ? difference / largest : difference > 0 ? INFINITY : 0;
    printf("%lld values, largest difference %.3g, largest value %.3g, ratio %.3g\n",
           count, difference, largest, ratio);
    fclose(a);
    fclose(b);
    return ratio <= limit ? 0 : 1;
}
