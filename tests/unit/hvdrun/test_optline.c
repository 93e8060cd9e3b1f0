#include "test.h"

#include <stdio.h>
#include <string.h>

#include "hvdrun/debug/debugwords.h"
#include "hvdrun/cli/optline.h"

#define WORDS_MAX 16

/* line: words separated by blanks; the first is the program's name. Returns the words
 * that come out, joined again; "" and a text in err: refused. */
static const char *made(const char *line, struct hvi_err *err)
{
    static char room[256], out[256];
    struct hvi_optline l;
    char *argv[WORDS_MAX] = {NULL};
    int argc = 0;

    snprintf(room, sizeof room, "%s", line);
    for (char *w = strtok(room, " "); w != NULL; w = strtok(NULL, " "))
        argv[argc++] = w;
    out[0] = err->text[0] = '\0';
    if (hvi_optline_make(argc, argv, &l, err) == HVD_OK)
        for (int i = 0; i < l.n; i++) {
            strcat(out, i > 0 ? " " : "");
            strcat(out, l.words[i]);
        }
    hvi_optline_fini(&l);
    return out;
}

Test(optline, names_the_debugger_and_leaves_the_program_alone, .timeout = 5)
{
    static const struct {
        const char *line, *out;
    } rows[] = {
        {"hvdrun --debug ./t", "hvdrun --debug=all ./t"},
        {"hvdrun --debug gdb ./t -x", "hvdrun --debug=all --debugger gdb ./t -x"},
        {"hvdrun --debug=1 /opt/bin/lldb -np 2 ./t",
         "hvdrun --debug=1 --debugger /opt/bin/lldb -np 2 ./t"},
        {"hvdrun --debug gdb --args ./t --args",
         "hvdrun --debug=all --debugger gdb ./t --args"},
        {"hvdrun --debug -- gdb", "hvdrun --debug=all -- gdb"},
        {"hvdrun --wait-for-debugger gdb", "hvdrun --wait-for-debugger=all gdb"},
        {"hvdrun ./t --debug gdb", "hvdrun ./t --debug gdb"},
        {"hvdrun -x --debug ./t --debug", "hvdrun -x --debug ./t --debug"},
        {"hvdrun -np 2 t --debug", "hvdrun -np 2 t --debug"},
        {"hvdrun -hn 2 t --debug", "hvdrun -hn 2 t --debug"},
        {"hvdrun -n2 --debug t", "hvdrun -n2 --debug=all t"},
        {"hvdrun --hosts a --debug", "hvdrun --hosts a --debug=all"},
        {"hvdrun -- --debug", "hvdrun -- --debug"},
        {"hvdrun --blacklist-cooldown-range 1 2 t",
         "hvdrun --blacklist-cooldown-range 1 2 t"},
    };
    struct hvi_err err;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_str_eq(made(rows[i].line, &err), rows[i].out, "%s", rows[i].line);
    cr_assert_str_eq(made("hvdrun --debug rr ./t", &err), "");
    cr_assert(strstr(err.text, "--debugger COMMAND") != NULL, "%s", err.text);
}

Test(optline, splits_a_debuggers_command, .timeout = 5)
{
    struct hvi_err err;
    char **words = NULL;
    size_t n = 0;

    cr_assert_eq(hvi_debugwords_split("  gdb -q  -nx ", &words, &n, &err), HVD_OK);
    cr_assert_eq(n, 4);
    cr_assert_str_eq(words[3], "--args");
    hvi_debugwords_free(words);
    cr_assert_eq(hvi_debugwords_split("gdb --args", &words, &n, &err), HVD_OK);
    cr_assert_eq(n, 2);
    hvi_debugwords_free(words);
    cr_assert_eq(hvi_debugwords_split("/x/lldb", &words, &n, &err), HVD_OK);
    cr_assert_str_eq(words[1], "--");
    hvi_debugwords_free(words);
    cr_assert_eq(hvi_debugwords_split("python3 -m pdb", &words, &n, &err), HVD_OK);
    cr_assert_eq(n, 3);
    hvi_debugwords_free(words);
    cr_assert_eq(hvi_debugwords_split(" \t", &words, &n, &err), HVD_EINVAL);
}
