#include "coordinator/core/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "proto/base/names.h"

void hvi_text_add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, ap);
    va_end(ap);
    if (n > 0)
        t->n += (size_t)n;
    if (t->n > sizeof t->s - 1)
        t->n = sizeof t->s - 1;
}

void hvi_text_add_peer(struct text *t, const char *s)
{
    char safe[256];

    hvi_text_add(t, "%s", hvi_escape(safe, sizeof safe, s, strlen(s)));
}

void hvi_text_sep(struct text *t, int32_t i, int32_t n)
{
    if (i > 0)
        hvi_text_add(t, "%s", i == n - 1 ? " and " : ", ");
}

void hvi_text_wait_status(struct text *t, int wait_status)
{
    if (WIFSIGNALED(wait_status)) {
        const char *name = sigabbrev_np(WTERMSIG(wait_status));

        if (name != NULL)
            hvi_text_add(t, "killed by SIG%s", name);
        else
            hvi_text_add(t, "killed by signal %d", WTERMSIG(wait_status));
        if (WCOREDUMP(wait_status))
            hvi_text_add(t, " (core dumped)");
    } else {
        hvi_text_add(t, "exited with status %d", WEXITSTATUS(wait_status));
    }
}

void hvi_text_op(struct text *t, uint32_t kind, const char *name, uint32_t pset)
{
    hvi_text_add(t, "%s '", hvi_kind_name(kind));
    hvi_text_add_peer(t, name);
    hvi_text_add(t, "'");
    if (pset != 0)
        hvi_text_add(t, " in process set %u", pset);
}

void hvi_text_member(struct text *t, const struct hvi_core *core, int32_t rank)
{
    const struct member *m = &core->members[rank];

    hvi_text_add(t, "rank %d (host ", rank);
    hvi_text_add_peer(t, m->host);
    hvi_text_add(t, ", pid %d)", m->pid);
}
