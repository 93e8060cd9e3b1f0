#include "hvdrun/cli/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <yaml.h>

#include "hvdrun/cli/optnear.h"
#include "hvdrun/cli/textfile.h"

#define DEPTH_MAX 2 /* section: key: value */

/* Where the parser stands. Aliases and anchors are refused: a small file could grow. */
struct walk {
    const char *name;
    struct hvi_opts *o;
    const struct hvi_opts *line; /* what the command line gave */
    char section[64], key[64];
    int depth;
    bool have_key;
};

static enum hvd_status at(const struct walk *w, const yaml_event_t *e,
                          struct hvi_err *err, const char *fmt, const char *a)
{
    char text[256];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, fmt, a);
#pragma GCC diagnostic pop
    return hvi_fail(err, HVD_EINVAL, "%s:%zu: %s", w->name, e->start_mark.line + 1,
                    text);
}

static bool is_no(const char *v)
{
    return strcasecmp(v, "false") == 0 || strcasecmp(v, "no") == 0 ||
           strcasecmp(v, "off") == 0 || strcmp(v, "0") == 0;
}

static bool is_yes(const char *v)
{
    return strcasecmp(v, "true") == 0 || strcasecmp(v, "yes") == 0 ||
           strcasecmp(v, "on") == 0 || strcmp(v, "1") == 0;
}

/* The line named this option, or another that sets the same variable. */
static bool on_the_line(const struct walk *w, const struct hvi_opt *row)
{
    for (size_t i = 0; i < hvi_opt_count; i++)
        if (w->line->given[i] && (&hvi_opt_table[i] == row ||
                                  (row->env != NULL && hvi_opt_table[i].env != NULL &&
                                   strcmp(row->env, hvi_opt_table[i].env) == 0)))
            return true;
    return false;
}

/* One row of the table; "!section.key": the option says the opposite of the key. */
static enum hvd_status use(struct walk *w, const yaml_event_t *e,
                           const struct hvi_opt *row, const char *value,
                           struct hvi_err *err)
{
    bool inverse = row->config[0] == '!';
    struct hvi_err why = {""};
    char shown[64];
    enum hvd_status rc;
    bool on;

    if (on_the_line(w, row))
        return HVD_OK;
    if (row->arg == HVI_ARG_NONE) {
        if (!is_yes(value) && !is_no(value))
            return at(w, e, err, "'%s' is neither true nor false",
                      hvi_escape(shown, sizeof shown, value, strlen(value)));
        on = is_yes(value) != inverse;
        if (!on)
            return HVD_OK;
        value = NULL;
    }
    rc = hvi_opts_apply(w->o, row, value, &why);
    if (rc == HVD_ENOMEM)
        return hvi_fail(err, rc, "%s: %s", w->name, why.text);
    return rc == HVD_OK ? rc : at(w, e, err, "%s", why.text);
}

/* The name of a row's key, without the '!'. */
static const char *key_of(const struct hvi_opt *row)
{
    return row->config == NULL ? "" : row->config + (row->config[0] == '!');
}

static bool is_section(const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < hvi_opt_count; i++)
        if (strncmp(key_of(&hvi_opt_table[i]), name, n) == 0 &&
            key_of(&hvi_opt_table[i])[n] == '.')
            return true;
    return false;
}

/* The section or key that was meant by a word of this section ("": the top); "": none. */
static void nearest(const char *section, const char *word, char *out, size_t cap)
{
    const char *top = section[0] == '\0' ? word : "";
    int best = HVI_OPT_FAR;

    out[0] = '\0';
    for (size_t i = 0; i < hvi_opt_count; i++) {
        const char *key = key_of(&hvi_opt_table[i]);
        size_t n = strcspn(key, ".");
        char name[64];
        int far;

        if (key[n] == '\0')
            continue;
        snprintf(name, sizeof name, "%.*s", (int)n, key);
        far = hvi_opt_farness(top, strlen(top), name);
        if (far < best) {
            best = far;
            snprintf(out, cap, "%s", name);
        }
        far = hvi_opt_farness(word, strlen(word), key + n + 1);
        if (far < best) {
            best = far;
            snprintf(out, cap, "%s", key);
        }
    }
}

static enum hvd_status unknown(const struct walk *w, const yaml_event_t *e,
                               struct hvi_err *err)
{
    char near[64], shown[160], key[80];

    hvi_escape(key, sizeof key, w->key, strlen(w->key));
    snprintf(shown, sizeof shown, "%s%s%s", w->section,
             w->section[0] != '\0' ? "." : "", key);
    nearest(w->section, w->key, near, sizeof near);
    if (near[0] == '\0')
        return at(w, e, err, "unknown key '%s'", shown);
    return hvi_fail(err, HVD_EINVAL, "%s:%zu: unknown key '%s'; did you mean %s?",
                    w->name, e->start_mark.line + 1, shown, near);
}

/* Of Horovod's two controllers neither is here: said as for --gloo and --mpi. */
static enum hvd_status controller(struct walk *w, const yaml_event_t *e,
                                  const char *value, struct hvi_err *err)
{
    char shown[64];

    if (strcmp(value, "gloo") != 0 && strcmp(value, "mpi") != 0)
        return at(w, e, err, "controller: '%s' is neither gloo nor mpi",
                  hvi_escape(shown, sizeof shown, value, strlen(value)));
    for (size_t i = 0; i < hvi_opt_count; i++)
        if (strcmp(hvi_opt_table[i].name, value) == 0)
            return w->line->given[i]
                       ? HVD_OK
                       : hvi_opts_apply(w->o, &hvi_opt_table[i], NULL, err);
    return HVD_OK;
}

static bool is_null(const yaml_event_t *e)
{
    const char *v = (const char *)e->data.scalar.value;

    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (v[0] == '\0' || strcmp(v, "~") == 0 || strcasecmp(v, "null") == 0);
}

/* What stands at the top: sections, and the controller. */
static enum hvd_status assign_top(struct walk *w, const yaml_event_t *e,
                                  const char *value, struct hvi_err *err)
{
    bool is_controller = strcmp(w->key, "controller") == 0;

    if (!is_controller && !is_section(w->key))
        return unknown(w, e, err);
    if (is_null(e)) /* "section:" with nothing in it */
        return HVD_OK;
    if (is_controller)
        return controller(w, e, value, err);
    return at(w, e, err, "'%s' is a section: its keys stand below it, indented",
              w->key);
}

/* A key without a value leaves everything as it is. */
static enum hvd_status assign(struct walk *w, const yaml_event_t *e, const char *value,
                              struct hvi_err *err)
{
    char full[160];
    bool known = false;

    if (w->depth == 1)
        return assign_top(w, e, value, err);
    snprintf(full, sizeof full, "%s.%s", w->section, w->key);
    for (size_t i = 0; i < hvi_opt_count; i++) {
        const struct hvi_opt *row = &hvi_opt_table[i];
        enum hvd_status rc;

        if (strcmp(key_of(row), full) != 0)
            continue;
        known = true;
        if (is_null(e))
            continue;
        rc = use(w, e, row, value, err);
        if (rc != HVD_OK)
            return rc;
    }
    return known ? HVD_OK : unknown(w, e, err);
}

static enum hvd_status scalar(struct walk *w, const yaml_event_t *e,
                              struct hvi_err *err)
{
    const char *value = (const char *)e->data.scalar.value;
    char shown[64];

    hvi_escape(shown, sizeof shown, value, e->data.scalar.length);
    if (e->data.scalar.anchor != NULL)
        return at(w, e, err, "anchors are not allowed%s", "");
    if (w->depth == 0)
        return e->data.scalar.length == 0
                   ? HVD_OK
                   : at(w, e, err, "'%s' is not 'section:'", shown);
    if (!w->have_key) {
        if (e->data.scalar.length >= sizeof w->key)
            return at(w, e, err, "unknown key '%s'", shown);
        memcpy(w->key, value, e->data.scalar.length + 1);
        w->have_key = true;
        return HVD_OK;
    }
    w->have_key = false;
    return assign(w, e, value, err);
}

static enum hvd_status begin_mapping(struct walk *w, const yaml_event_t *e,
                                     struct hvi_err *err)
{
    char shown[80];

    if (e->data.mapping_start.anchor != NULL)
        return at(w, e, err, "anchors are not allowed%s", "");
    if (w->depth > 0 && !w->have_key)
        return at(w, e, err, "a mapping is not a key%s", "");
    hvi_escape(shown, sizeof shown, w->key, strlen(w->key));
    if (w->depth == DEPTH_MAX || (w->depth == 1 && strcmp(w->key, "controller") == 0))
        return at(w, e, err, "'%s' has one value, not a mapping", shown);
    if (w->depth == 1 && !is_section(w->key))
        return unknown(w, e, err);
    if (w->depth == 1)
        memcpy(w->section, w->key, sizeof w->section);
    w->depth++;
    w->have_key = false;
    return HVD_OK;
}

static enum hvd_status step(struct walk *w, const yaml_event_t *e, struct hvi_err *err)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return scalar(w, e, err);
    case YAML_MAPPING_START_EVENT:
        return begin_mapping(w, e, err);
    case YAML_MAPPING_END_EVENT:
        w->depth--;
        w->section[0] = '\0';
        w->have_key = false;
        return HVD_OK;
    case YAML_SEQUENCE_START_EVENT:
        return at(w, e, err, "a list is not expected here%s", "");
    case YAML_ALIAS_EVENT:
        return at(w, e, err, "aliases are not allowed%s", "");
    default:
        return HVD_OK;
    }
}

static enum hvd_status walk_all(struct walk *w, yaml_parser_t *parser,
                                struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    bool end = false;

    while (rc == HVD_OK && !end) {
        yaml_event_t e;

        if (!yaml_parser_parse(parser, &e) && parser->error == YAML_MEMORY_ERROR)
            return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", w->name);
        if (parser->error != YAML_NO_ERROR)
            return hvi_fail(err, HVD_EINVAL, "%s:%zu: %s", w->name,
                            parser->problem_mark.line + 1,
                            parser->problem != NULL ? parser->problem : "not YAML");
        rc = step(w, &e, err);
        end = e.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
    }
    return rc;
}

enum hvd_status hvi_config_parse(const char *name, const char *text, size_t size_bytes,
                                 struct hvi_opts *o, struct hvi_err *err)
{
    yaml_parser_t parser;
    struct hvi_opts line = *o; /* `given` as it was before the file */
    struct walk w = {.name = name, .o = o, .line = &line};
    enum hvd_status rc;

    line.given = calloc(hvi_opt_count, sizeof *line.given);
    if (line.given == NULL || !yaml_parser_initialize(&parser)) {
        free(line.given);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    memcpy(line.given, o->given, hvi_opt_count * sizeof *line.given);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size_bytes);
    rc = walk_all(&w, &parser, err);
    yaml_parser_delete(&parser);
    free(line.given);
    return rc;
}

enum hvd_status hvi_config_load(const char *path, struct hvi_opts *o,
                                struct hvi_err *err)
{
    char *text = NULL;
    char shown[256];
    size_t n = 0;
    enum hvd_status rc = hvi_textfile_read("configuration file", path, &text, &n, err);

    hvi_escape(shown, sizeof shown, path, strlen(path));
    if (rc == HVD_OK)
        rc = hvi_config_parse(shown, text, n, o, err);
    free(text);
    return rc;
}
