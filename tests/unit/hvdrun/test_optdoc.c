#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/cli/optdoc.h"
#include "hvdrun/cli/opttab.h"

static char *made(void (*make)(FILE *))
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    make(f);
    cr_assert_eq(fclose(f), 0);
    return text;
}

Test(optdoc, every_option_is_in_all_three_texts, .timeout = 5)
{
    char *help = made(hvi_optdoc_help);
    char *man = made(hvi_optdoc_man);
    char *completion = made(hvi_optdoc_completion);

    for (size_t i = 0; i < hvi_opt_count; i++) {
        char plain[96], roff[192] = "";

        if (hvi_opt_table[i].hidden)
            continue;
        snprintf(plain, sizeof plain, "--%s", hvi_opt_table[i].name);
        for (size_t from = 0, to = 0; plain[from] != '\0'; from++) {
            if (plain[from] == '-')
                roff[to++] = '\\';
            roff[to++] = plain[from];
        }
        cr_assert(strstr(help, plain) != NULL, "help lacks %s", plain);
        cr_assert(strstr(man, roff) != NULL, "man page lacks %s", roff);
        cr_assert(strstr(completion, plain) != NULL, "completion lacks %s", plain);
    }
    free(help);
    free(man);
    free(completion);
}

Test(optdoc, help_fits_a_terminal, .timeout = 5)
{
    char *help = made(hvi_optdoc_help);

    for (char *line = strtok(help, "\n"); line != NULL; line = strtok(NULL, "\n"))
        cr_assert_leq(strlen(line), 90u, "%s", line);
    free(help);
}

Test(optdoc, man_page_lines_do_not_begin_as_requests_by_accident, .timeout = 5)
{
    char *man = made(hvi_optdoc_man);

    for (char *line = strtok(man, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (line[0] == '.')
            cr_assert(strncmp(line, ".TH", 3) == 0 || strncmp(line, ".S", 2) == 0 ||
                          strncmp(line, ".TP", 3) == 0 || strncmp(line, ".B", 2) == 0 ||
                          strncmp(line, ".R", 2) == 0 || strncmp(line, ".I", 2) == 0 ||
                          strncmp(line, ".PP", 3) == 0 || strcmp(line, ".nf") == 0 ||
                          strcmp(line, ".fi") == 0,
                      "%s", line);
    free(man);
}
