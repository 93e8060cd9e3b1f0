#include "hvdrun/debug/debugwords.h"

#include <stdlib.h>
#include <string.h>

#include "hvdrun/cli/opts.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned through an array inside a struct */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#define BLANKS " \t"

static bool listed(const char *const *list, size_t n, const char *word)
{
    const char *slash = strrchr(word, '/');

    if (slash != NULL)
        word = slash + 1;
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], word) == 0)
            return true;
    return false;
}

bool hvi_debugwords_known(const char *word)
{
    static const char *const names[] = {"gdb", "cuda-gdb", "rocgdb", "gdb-multiarch",
                                        "lldb"};

    return listed(names, sizeof names / sizeof names[0], word);
}

bool hvi_debugwords_doubtful(const char *word)
{
    static const char *const names[] = {"valgrind", "rr",     "pdb",    "ipdb", "pudb",
                                        "ddd",      "strace", "ltrace", "perf"};

    return listed(names, sizeof names / sizeof names[0], word);
}

/* NULL: the program follows as it is. */
static const char *before_program(const char *debugger)
{
    const char *slash = strrchr(debugger, '/');

    if (!hvi_debugwords_known(debugger))
        return NULL;
    return strcmp(slash != NULL ? slash + 1 : debugger, "lldb") == 0 ? "--" : "--args";
}

void hvi_debugwords_free(char **words)
{
    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        free(words[i]);
    free(words);
}

enum hvd_status hvi_debugwords_split(const char *command, char ***out, size_t *n,
                                     struct hvi_err *err)
{
    char **words = calloc(strlen(command) / 2 + 3, sizeof *words);
    const char *last;
    size_t count = 0;

    for (const char *at = command; words != NULL; count++) {
        size_t bytes;

        at += strspn(at, BLANKS);
        bytes = strcspn(at, BLANKS);
        if (bytes == 0)
            break;
        words[count] = strndup(at, bytes);
        if (words[count] == NULL)
            goto no_memory;
        at += bytes;
    }
    if (words == NULL)
        goto no_memory;
    if (count == 0) {
        hvi_debugwords_free(words);
        return hvi_fail(err, HVD_EINVAL, "--debugger: there is no command");
    }
    last = before_program(words[0]);
    if (last != NULL && strcmp(words[count - 1], last) != 0) {
        words[count] = strdup(last);
        if (words[count++] == NULL)
            goto no_memory;
    }
    *out = words;
    *n = count;
    return HVD_OK;
no_memory:
    hvi_debugwords_free(words);
    return hvi_fail(err, HVD_ENOMEM, "out of memory");
}

enum hvd_status hvi_debugwords_ranks(const char *what, const char *list, int np,
                                     bool *out, struct hvi_err *err)
{
    memset(out, 0, (size_t)np * sizeof *out);
    if (list == NULL)
        return HVD_OK;
    if (strcmp(list, HVI_DEBUG_ALL) != 0)
        return hvi_opts_ranks(what, list, np, out, err);
    memset(out, true, (size_t)np * sizeof *out);
    return HVD_OK;
}
