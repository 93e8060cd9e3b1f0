#include "hvdrun/ssh/sshargv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/env.h"

#define OWN_WORDS 40 /* all but those of --ssh-arg and --rsh */

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

/* What would take away the agent's stdin, or the command that starts it. */
static void add_session(struct words *w, const struct hvi_rshell *shell)
{
    if (shell->old)
        return;
    add_option(w, "StdinNull=no");
    add_option(w, "SessionType=default");
    add_option(w, "ForkAfterAuthentication=no");
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

/* ---- which shell */

static size_t next_word(const char **at)
{
    *at += strspn(*at, " \t");
    return strcspn(*at, " \t");
}

static size_t count_words(const char *text)
{
    size_t n = 0;

    for (size_t len; (len = next_word(&text)) > 0; text += len)
        n++;
    return n;
}

/* The name of the program of the first word. */
static bool is_program(const char *command, const char *name)
{
    size_t n = next_word(&command);
    const char *base = command + n;

    while (base > command && base[-1] != '/')
        base--;
    return strlen(name) == (size_t)(command + n - base) &&
           memcmp(base, name, strlen(name)) == 0;
}

static bool on_path(const char *name)
{
    const char *path = getenv("PATH");
    char file[4096];

    while (path != NULL && *path != '\0') {
        size_t n = strcspn(path, ":");

        snprintf(file, sizeof file, "%.*s/%s", (int)n, path, name);
        if (n > 0 && access(file, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

static enum hvi_rshell_kind kind_of(const char *command)
{
    if (strstr(command, "%h") != NULL)
        return HVI_RSHELL_TEMPLATE;
    if (is_program(command, "srun"))
        return HVI_RSHELL_SRUN;
    return is_program(command, "ssh") ? HVI_RSHELL_SSH : HVI_RSHELL_RSH;
}

static const char *set(const char *value)
{
    return value != NULL && count_words(value) > 0 ? value : NULL;
}

struct hvi_rshell hvi_rshell_choose(const struct hvi_opts *opts)
{
    bool for_ssh =
        opts->ssh_port > 0 || opts->ssh_identity != NULL || opts->nssh_args > 0;
    const char *command = set(opts->rsh);

    if (command == NULL)
        command = set(hvi_env("RSH"));
    if (command == NULL && !for_ssh)
        command = set(getenv("OMPI_MCA_plm_rsh_agent"));
    if (command == NULL && !for_ssh && getenv("SLURM_JOB_ID") != NULL &&
        on_path("srun"))
        command = "srun";
    if (command == NULL)
        command = "ssh";
    return (struct hvi_rshell){.kind = kind_of(command), .command = command};
}

/* ---- the words */

static void add_ssh(struct words *w, const struct hvi_rshell *shell,
                    const struct hvi_opts *opts, bool settings_only)
{
    for (size_t i = 0; i < opts->nssh_args; i++)
        add(w, "%s", opts->ssh_args[i]);
    if (opts->ssh_port > 0) {
        add(w, "-p");
        add(w, "%d", opts->ssh_port);
    }
    if (opts->ssh_identity != NULL) {
        add(w, "-i");
        add(w, "%s", opts->ssh_identity);
    }
    if (settings_only)
        add(w, "-G");
    else
        add_settings(w);
    add_session(w, shell);
}

static void add_srun(struct words *w, const struct hvi_host *host)
{
    add(w, "--overlap"); /* the job's own resources, also those of running steps */
    add(w, "--nodes=1");
    add(w, "--ntasks=1");
    add(w, "--mpi=none");
    add(w, "--cpu-bind=none");
    add(w, "--kill-on-bad-exit=0");
    add(w, "--quiet");
    add(w, "--nodelist=%s", host->name);
}

/* The words of the command; %h, %u and %% are replaced. */
static void add_command(struct words *w, const struct hvi_rshell *shell,
                        const struct hvi_host *host)
{
    const char *at = shell->command;

    for (size_t len; (len = next_word(&at)) > 0; at += len) {
        char word[1024];
        size_t n = 0;

        for (size_t i = 0; i < len && n < sizeof word - 1; i++) {
            const char *with = NULL;

            if (shell->kind == HVI_RSHELL_TEMPLATE && at[i] == '%' && i + 1 < len)
                with = at[i + 1] == 'h'   ? host->name
                       : at[i + 1] == 'u' ? (host->user != NULL ? host->user : "")
                       : at[i + 1] == '%' ? "%"
                                          : NULL;
            if (with == NULL) {
                word[n++] = at[i];
                continue;
            }
            n += (size_t)snprintf(word + n, sizeof word - n, "%s", with);
            i++;
            if (n >= sizeof word)
                n = sizeof word - 1;
        }
        add(w, "%.*s", (int)n, word);
    }
}

/* The path is its $0. An absolute one that is not there: what PATH has; when that is
 * nothing either, the shell's own "not found", with the path. */
#define LOOK_AROUND                                                                    \
    "p=$0; [ -x \"$p\" ] || p=$(command -v hvd-agent) || p=$0; exec \"$p\" "
#define THIS_ONE "exec \"$0\" "

/* What starts the agent: one line for a login shell, or a program with its words. */
static void add_agent(struct words *w, const char *program, bool look, bool one_line,
                      bool check)
{
    const char *script = look    ? check ? LOOK_AROUND "--check" : LOOK_AROUND "--stdin"
                         : check ? THIS_ONE "--check"
                                 : THIS_ONE "--stdin";
    char *quoted = hvi_sshargv_quote(program);

    if (quoted == NULL) {
        w->failed = true;
    } else if (one_line) {
        add(w, "exec sh -c '%s' %s", script, quoted);
    } else {
        add(w, "sh");
        add(w, "-c");
        add(w, "%s", script);
        add(w, "%s", program);
    }
    free(quoted);
}

char **hvi_sshargv_make(const struct hvi_rshell *shell, const struct hvi_host *host,
                        const struct hvi_opts *opts, const char *program)
{
    struct words w = {.cap = OWN_WORDS + opts->nssh_args + count_words(shell->command)};
    char destination[2 * HVI_HOST_NAME_MAX + 2];

    if (program == NULL && shell->kind != HVI_RSHELL_SSH)
        return NULL;
    w.list = calloc(w.cap, sizeof *w.list);
    if (w.list == NULL)
        return NULL;
    add_command(&w, shell, host);
    if (shell->kind == HVI_RSHELL_SSH)
        add_ssh(&w, shell, opts, program == NULL);
    else if (shell->kind == HVI_RSHELL_SRUN)
        add_srun(&w, host);
    if (shell->kind == HVI_RSHELL_SSH || shell->kind == HVI_RSHELL_RSH)
        add(&w, "%s", hvi_sshargv_destination(host, destination, sizeof destination));
    if (program != NULL)
        add_agent(&w, program, opts->agent_path == NULL,
                  shell->kind == HVI_RSHELL_SSH || shell->kind == HVI_RSHELL_RSH,
                  shell->check);
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
