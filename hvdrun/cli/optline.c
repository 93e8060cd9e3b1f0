#include "hvdrun/cli/optline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/debug/debugwords.h"
#include "hvdrun/cli/opttab.h"

static bool is_name(const char *word, size_t n, const char *name)
{
    return name != NULL && strlen(name) == n && memcmp(word, name, n) == 0;
}

/* The row that is spelled by the whole word, with one dash or two; NULL: none. */
static const struct hvi_opt *find_long(const char *word)
{
    bool two = word[1] == '-';
    const char *name = word + 1 + two;
    size_t n = strcspn(name, "=");

    for (size_t i = 0; i < hvi_opt_count; i++) {
        const struct hvi_opt *o = &hvi_opt_table[i];

        if (is_name(name, n, o->single) ||
            (two && (is_name(name, n, o->name) || is_name(name, n, o->also))))
            return o;
    }
    return NULL;
}

static bool takes_word(const struct hvi_opt *o)
{
    return o->arg != HVI_ARG_NONE && !o->optional;
}

/* The last letter of a word like -vn wants the next word. */
static bool letter_wants(const char *letters)
{
    for (const char *p = letters; *p != '\0'; p++)
        for (size_t i = 0; i < hvi_opt_count; i++)
            if (hvi_opt_table[i].letter == *p && takes_word(&hvi_opt_table[i]))
                return p[1] == '\0';
    return false;
}

static bool wants_next(const char *word, const struct hvi_opt *row)
{
    if (row != NULL)
        return takes_word(row) && strchr(word, '=') == NULL;
    return word[1] != '-' && letter_wants(word + 1);
}

static void put(struct hvi_optline *l, const char *word)
{
    l->words[l->n++] = word;
}

/* Behind --debug stands the word at argv[at], if any. How many words were taken: -1: a
 * refusal. */
static int take_debugger(struct hvi_optline *l, int argc, char **argv, int at,
                         struct hvi_err *err)
{
    if (at >= argc)
        return 0;
    if (hvi_debugwords_doubtful(argv[at])) {
        (void)hvi_fail(err, HVD_EINVAL,
                       "--debug %.40s: what runs the program is named by --debugger "
                       "COMMAND ('--debugger %.40s'); before a program of that name "
                       "write '--'",
                       argv[at],
                       strcmp(argv[at], "pdb") == 0 ? "python3 -m pdb" : argv[at]);
        return -1;
    }
    if (!hvi_debugwords_known(argv[at]))
        return 0;
    put(l, "--debugger");
    put(l, argv[at]);
    return at + 1 < argc && strcmp(argv[at + 1], "--args") == 0 ? 2 : 1;
}

static const char *with_all(const struct hvi_opt *row)
{
    return row->id == HVI_OPT_DEBUG ? "--debug=" HVI_DEBUG_ALL
                                    : "--wait-for-debugger=" HVI_DEBUG_ALL;
}

enum hvd_status hvi_optline_make(int argc, char **argv, struct hvi_optline *out,
                                 struct hvi_err *err)
{
    int i = 1;

    memset(out, 0, sizeof *out);
    out->words = calloc(2 * (size_t)argc + 2, sizeof *out->words);
    if (out->words == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    put(out, argv[0]);
    while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0' && !out->dashes) {
        const char *word = argv[i++];
        const struct hvi_opt *row = find_long(word);
        bool bare = row != NULL && row->optional && strchr(word, '=') == NULL;
        int taken;

        put(out, bare ? with_all(row) : word);
        out->dashes = strcmp(word, "--") == 0;
        if (strcmp(word, "--blacklist-cooldown-range") == 0 && i + 1 < argc) {
            snprintf(out->pair, sizeof out->pair, "%s %s", argv[i], argv[i + 1]);
            put(out, out->pair);
            i += 2;
        } else if (!out->dashes && wants_next(word, row) && i < argc) {
            put(out, argv[i++]);
        } else if (row != NULL && row->id == HVI_OPT_DEBUG) {
            taken = take_debugger(out, argc, argv, i, err);
            if (taken < 0)
                return HVD_EINVAL;
            i += taken;
        }
    }
    while (i < argc)
        put(out, argv[i++]);
    return HVD_OK;
}

void hvi_optline_fini(struct hvi_optline *l)
{
    free(l->words);
    l->words = NULL;
}
