#include "hvdrun/sshargv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_WORDS 32 /* all but those of --ssh-arg */

/* Words under construction; failed: out of memory at some point. */
struct words {
    char **list; /* [cap] */
    size_t n, cap;
    bool failed;
};

static void add(struct words *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void add(struct words *w, const char *fmt, ...)
{
    va_list ap;

    if (w->failed || w->n + 1 >= w->cap)
        return;
    va_start(ap, fmt);
    if (vasprintf(&w->list[w->n], fmt, ap) < 0) {
        w->list[w->n] = NULL;
        w->failed = true;
    } else {
        w->n++;
    }
    va_end(ap);
}

static void add_option(struct words *w, const char *setting)
{
    add(w, "-o");
    add(w, "%s", setting);
}

void hvi_sshargv_free(char **argv)
{
    for (size_t i = 0; argv != NULL && argv[i] != NULL; i++)
        free(argv[i]);
    free(argv);
}

char *hvi_sshargv_destination(const struct hvi_host *host, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s%s", host->user != NULL ? host->user : "",
             host->user != NULL ? "@" : "", host->name);
    return out;
}

char *hvi_sshargv_quote(const char *word)
{
    char *out = malloc(4 * strlen(word) + 3);
    char *p = out;

    if (out == NULL)
        return NULL;
    *p++ = '\'';
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            memcpy(p, "'\\''", 4);
            p += 4;
        } else {
            *p++ = *word;
        }
    }
    *p++ = '\'';
    *p = '\0';
    return out;
}

static void add_settings(struct words *w)
{
    char text[64];

    add(w, "-T");
    add(w, "-x");
    add_option(w, "BatchMode=yes");
    snprintf(text, sizeof text, "ConnectTimeout=%d", HVI_SSH_CONNECT_S);
    add_option(w, text);
    snprintf(text, sizeof text, "ServerAliveInterval=%d", HVI_SSH_ALIVE_S);
    add_option(w, text);
    snprintf(text, sizeof text, "ServerAliveCountMax=%d", HVI_SSH_ALIVE_COUNT);
    add_option(w, text);
    add_option(w, "ClearAllForwardings=yes");
    /* an existing master is used; one of our own would wait for other users of it */
    add_option(w, "ControlMaster=no");
    add_option(w, "RemoteCommand=none");
}

char **hvi_sshargv_make(const struct hvi_host *host, const struct hvi_opts *opts,
                        const char *program)
{
    struct words w = {.cap = OWN_WORDS + opts->nssh_args};
    char destination[2 * HVI_HOST_NAME_MAX + 2];
    char *quoted = NULL;

    w.list = calloc(w.cap, sizeof *w.list);
    if (w.list == NULL)
        return NULL;
    add(&w, "ssh");
    for (size_t i = 0; i < opts->nssh_args; i++)
        add(&w, "%s", opts->ssh_args[i]);
    if (opts->ssh_port > 0) {
        add(&w, "-p");
        add(&w, "%d", opts->ssh_port);
    }
    if (opts->ssh_identity != NULL) {
        add(&w, "-i");
        add(&w, "%s", opts->ssh_identity);
    }
    if (program == NULL)
        add(&w, "-G");
    else
        add_settings(&w);
    add(&w, "%s", hvi_sshargv_destination(host, destination, sizeof destination));
    if (program != NULL) {
        quoted = hvi_sshargv_quote(program);
        w.failed = w.failed || quoted == NULL;
        add(&w, "exec %s --stdin", quoted);
    }
    free(quoted);
    if (!w.failed)
        return w.list;
    hvi_sshargv_free(w.list);
    return NULL;
}

bool hvi_sshargv_setting(const char *text, const char *name, char *out, size_t cap)
{
    size_t name_bytes = strlen(name);

    while (*text != '\0') {
        size_t line = strcspn(text, "\n");

        if (line > name_bytes + 1 && memcmp(text, name, name_bytes) == 0 &&
            text[name_bytes] == ' ' && line - name_bytes - 1 < cap) {
            snprintf(out, cap, "%.*s", (int)(line - name_bytes - 1),
                     text + name_bytes + 1);
            return true;
        }
        text += line + (text[line] == '\n');
    }
    return false;
}
