#include "proto/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/env.h"

#define MAX_RULES 16

struct rule {
    char subsystem[24];
    enum hvi_log_level level;
};

static struct {
    const char *program;
    _Atomic int level; /* of subsystems without a rule of their own */
    _Atomic int nrules;
    struct rule rules[MAX_RULES];
    _Atomic int rank;
    _Atomic int timed;
    const char *variable; /* that was read */
    char unknown[64];     /* a part of it without a level, "": none */
    struct hvi_err hide;  /* what is wrong with HVD_LOG_HIDE_TIME */
} g = {.program = "hvd", .rank = -1};

static const char *const level_names[] = {"off",  "error", "warn",
                                          "info", "debug", "trace"};

/* Horovod's words too: warning, fatal. */
static int parse_level(const char *word, size_t n)
{
    for (int i = 0; i <= HVI_LOG_TRACE; i++)
        if (strlen(level_names[i]) == n && strncasecmp(word, level_names[i], n) == 0)
            return i;
    if (n == 7 && strncasecmp(word, "warning", n) == 0)
        return HVI_LOG_WARN;
    if (n == 5 && strncasecmp(word, "fatal", n) == 0)
        return HVI_LOG_ERROR;
    return -1;
}

static void parse_item(const char *item, size_t n)
{
    const char *colon = memchr(item, ':', n);
    const char *word = colon != NULL ? colon + 1 : item;
    int level = parse_level(word, n - (size_t)(word - item));
    int i = atomic_load(&g.nrules);

    if (level < 0)
        snprintf(g.unknown, sizeof g.unknown, "%.*s", (int)n, item);
    if (colon == NULL) {
        if (level >= 0)
            atomic_store(&g.level, level);
        return;
    }
    if (level < 0 || i >= MAX_RULES ||
        (size_t)(colon - item) >= sizeof g.rules[0].subsystem)
        return;
    memcpy(g.rules[i].subsystem, item, (size_t)(colon - item));
    g.rules[i].subsystem[colon - item] = '\0';
    g.rules[i].level = (enum hvi_log_level)level;
    atomic_store(&g.nrules, i + 1);
}

void hvi_log_setup(const char *program, enum hvi_log_level default_level)
{
    const char *text = getenv("HVD_LOG");
    int hide = 1;

    g.hide.text[0] = g.unknown[0] = '\0';
    g.variable = "HVD_LOG";
    (void)hvi_env_bool("LOG_HIDE_TIME", 1, &hide, &g.hide);
    atomic_store(&g.timed, !hide);
    if (text == NULL || text[0] == '\0') {
        text = getenv("HOROVOD_LOG_LEVEL");
        g.variable = "HOROVOD_LOG_LEVEL";
    }
    g.program = program;
    atomic_store(&g.nrules, 0);
    atomic_store(&g.level, (int)default_level);
    while (text != NULL && *text != '\0') {
        size_t n = strcspn(text, ",");

        parse_item(text, n);
        text += n + (text[n] == ',');
    }
}

enum hvd_status hvi_log_check(struct hvi_err *err)
{
    char shown[128];

    if (g.unknown[0] != '\0')
        return hvi_fail(
            err, HVD_EINVAL,
            "%s: '%s' names no level: write off, error, warn, info, debug or "
            "trace, of a part of it PART:LEVEL",
            g.variable, hvi_escape(shown, sizeof shown, g.unknown, strlen(g.unknown)));
    if (g.hide.text[0] != '\0')
        return hvi_fail(err, HVD_EINVAL, "%s", g.hide.text);
    return HVD_OK;
}

void hvi_log_set_rank(int rank)
{
    atomic_store(&g.rank, rank);
}

int hvi_log_wants(enum hvi_log_level level, const char *subsystem)
{
    int n = atomic_load_explicit(&g.nrules, memory_order_acquire);

    for (int i = 0; i < n; i++)
        if (strcmp(g.rules[i].subsystem, subsystem) == 0)
            return (int)level <= (int)g.rules[i].level;
    return (int)level <= atomic_load_explicit(&g.level, memory_order_relaxed);
}

/* "2026-12-03 00:01:02.123456 ", of the wall clock here; "": not asked for. */
static int put_time(char *line, size_t cap)
{
    struct timespec now;
    struct tm tm;
    size_t n;

    if (!atomic_load(&g.timed) || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
        localtime_r(&now.tv_sec, &tm) == NULL)
        return 0;
    n = strftime(line, cap, "%Y-%m-%d %H:%M:%S", &tm);
    return (int)n + snprintf(line + n, cap - n, ".%06ld ", now.tv_nsec / 1000);
}

void hvi_log_write(enum hvi_log_level level, const char *subsystem, const char *fmt,
                   ...)
{
    char line[2048];
    int rank = atomic_load(&g.rank);
    int n = put_time(line, 64);
    va_list ap;

    n += snprintf(line + n, sizeof line - (size_t)n, "%s: %s %s: ", g.program,
                  level_names[level], subsystem);
    if (rank >= 0)
        n += snprintf(line + n, sizeof line - (size_t)n, "rank=%d ", rank);
    va_start(ap, fmt);
    n += vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* nobody left to tell */
}
