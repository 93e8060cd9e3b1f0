#include "hvdrun/doctor/facts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/err.h"

#define NOFILE_MIN 1024
#define SHM_MIN_BYTES (256.0 * 1024 * 1024)
#define MEMLOCK_MIN_BYTES (64.0 * 1024 * 1024)
#define CLOCK_MAX_S 2.0
#define LINE_MAX_BYTES 512
#define MIB (1024.0 * 1024)

void hvi_checks_add(struct hvi_checks *c, const char *name,
                    enum hvi_check_result result, const char *detail, const char *fix)
{
    struct hvi_check *k;

    if (c->n == HVI_CHECKS_MAX)
        return;
    k = &c->list[c->n++];
    k->name = name;
    k->result = result;
    hvi_escape(k->detail, sizeof k->detail, detail, strlen(detail));
    snprintf(k->fix, sizeof k->fix, "%s", fix);
}

enum hvi_check_result hvi_checks_worst(const struct hvi_checks *c)
{
    enum hvi_check_result worst = HVI_CHECK_OK;

    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].result > worst)
            worst = c->list[i].result;
    return worst;
}

static void add(struct hvi_checks *c, const char *name, bool good,
                enum hvi_check_result else_result, const char *fix, const char *fmt,
                ...) __attribute__((format(printf, 6, 7)));
static void add(struct hvi_checks *c, const char *name, bool good,
                enum hvi_check_result else_result, const char *fix, const char *fmt,
                ...)
{
    char detail[HVI_CHECK_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    hvi_checks_add(c, name, good ? HVI_CHECK_OK : else_result, detail, good ? "" : fix);
}

/* Of lines that come several times. */
struct seen {
    char nics[HVI_CHECK_TEXT_MAX];
    char back[HVI_CHECK_TEXT_MAX]; /* the address that answered */
    char tried[HVI_CHECK_TEXT_MAX];
    bool any_back, end;
};

static void list(char out[HVI_CHECK_TEXT_MAX], const char *text)
{
    size_t n = strlen(out);

    snprintf(out + n, HVI_CHECK_TEXT_MAX - n, "%s%s", n > 0 ? ", " : "", text);
}

static void judge_clock(struct hvi_checks *c, const char *value, double now_s,
                        double late_s)
{
    double off = strtod(value, NULL) - now_s;
    double unsure = late_s > 0 ? late_s : 0;

    /* the answer was written at some moment of late_s before now */
    off = off < -unsure ? off + unsure : off > 0 ? off : 0;
    add(c, "clock", fabs(off) <= CLOCK_MAX_S, HVI_CHECK_WARNING,
        "let chrony or ntpd keep the time there: logs and traces of hosts are compared "
        "by it",
        fabs(off) <= CLOCK_MAX_S ? "as here, within %.1f s" : "off by %.1f s",
        fabs(off) <= CLOCK_MAX_S ? fabs(off) + unsure : off);
}

static void judge_limits(struct hvi_checks *c, const char *name, const char *value)
{
    double soft, hard, adapters;
    char *end;
    bool files = strcmp(name, "nofile") == 0;

    soft = strtod(value, &end);
    hard = strtod(end, &end);
    adapters = strtod(end, NULL); /* what needs locked memory */
    if (soft < 0)
        add(c, files ? "open files" : "locked memory", true, HVI_CHECK_OK, "",
            "no limit");
    else if (files)
        add(c, "open files", hard < 0 || hard >= NOFILE_MIN, HVI_CHECK_WARNING,
            "raise nofile in /etc/security/limits.conf there", "%.0f (hard limit %.0f)",
            soft, hard);
    else
        add(c, "locked memory", soft >= MEMLOCK_MIN_BYTES || adapters < 1,
            HVI_CHECK_WARNING,
            "InfiniBand needs more: raise memlock in /etc/security/limits.conf there",
            "%.0f MiB", soft / MIB);
}

static void judge_shm(struct hvi_checks *c, const char *value)
{
    char *end;
    double size = strtod(value, &end);
    double left = strtod(end, NULL);

    if (end == value) {
        add(c, "/dev/shm", false, HVI_CHECK_WARNING,
            "mount a tmpfs there: data loaders and NCCL use it", "%s", value);
        return;
    }
    add(c, "/dev/shm", size >= SHM_MIN_BYTES && left > size / 16, HVI_CHECK_WARNING,
        "data loaders and NCCL need more; in a container: --shm-size=1g",
        "%.0f MiB, %.0f free", size / MIB, left / MIB);
}

static void judge_back(struct seen *s, const char *value)
{
    char address[64] = "", how[16] = "";
    const char *rest;

    if (sscanf(value, "%63s %15s", address, how) != 2)
        return;
    s->any_back = true;
    rest = value + strlen(address) + 1 + strlen(how);
    if (strcmp(how, "ok") == 0 && s->back[0] == '\0') {
        snprintf(s->back, sizeof s->back, "%s answers%s ms", address, rest);
    } else if (strcmp(how, "ok") != 0) {
        char text[192];

        snprintf(text, sizeof text, "%s:%.100s", address, rest);
        list(s->tried, text);
    }
}

/* "ok DETAIL" or "failed DETAIL" */
static void judge_plain(struct hvi_checks *c, const char *name, const char *value,
                        enum hvi_check_result else_result, const char *fix)
{
    bool good = strncmp(value, "ok", 2) == 0;
    const char *detail = strchr(value, ' ');

    add(c, name, good, else_result, fix, "%s", detail != NULL ? detail + 1 : "");
}

static void judge_line(struct hvi_checks *c, struct seen *s, const char *name,
                       const char *value, double now_s, double late_s)
{
    if (strcmp(name, "version") == 0)
        add(c, "version", strcmp(value, HVI_VERSION) == 0, HVI_CHECK_FAILED,
            "install the same version on all hosts", "%s, here %s", value, HVI_VERSION);
    else if (strcmp(name, "time") == 0)
        judge_clock(c, value, now_s, late_s);
    else if (strcmp(name, "cores") == 0)
        add(c, "cores", true, HVI_CHECK_OK, "", "%s", value);
    else if (strcmp(name, "nofile") == 0 || strcmp(name, "memlock") == 0)
        judge_limits(c, name, value);
    else if (strcmp(name, "shm") == 0)
        judge_shm(c, value);
    else if (strcmp(name, "rundir") == 0)
        judge_plain(c, "runtime directory", value, HVI_CHECK_FAILED,
                    "set XDG_RUNTIME_DIR or TMPDIR to a directory that can be written");
    else if (strcmp(name, "wdir") == 0)
        judge_plain(c, "working directory", value, HVI_CHECK_FAILED,
                    "share it with that host, or name another one with --wdir");
    else if (strcmp(name, "program") == 0)
        judge_plain(c, "program", value, HVI_CHECK_FAILED,
                    "copy or build it there, at the same path");
    else if (strcmp(name, "gpus") == 0)
        add(c, "GPUs", strncmp(value, "none usable", 11) != 0, HVI_CHECK_WARNING,
            "load the NVIDIA driver there (nvidia-smi has to work), or give the "
            "container its GPUs",
            "%s", value);
    else if (strcmp(name, "nccl") == 0)
        judge_plain(c, "NCCL", value, HVI_CHECK_WARNING,
                    "a framework may bring its own; else install libnccl2");
    else if (strcmp(name, "nic") == 0)
        list(s->nics, value);
    else if (strcmp(name, "back") == 0)
        judge_back(s, value);
    else if (strcmp(name, "end") == 0)
        s->end = true;
}

bool hvi_facts_judge(const char *text, double now_s, double late_s,
                     struct hvi_checks *out)
{
    struct seen s = {.end = false};
    char line[LINE_MAX_BYTES];

    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        char *value;

        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line),
                 text);
        text += n + (text[n] == '\n');
        line[strcspn(line, "\r")] = '\0';
        if (strncmp(line, HVI_FACTS_MARK, strlen(HVI_FACTS_MARK)) != 0)
            continue;
        value = line + strlen(HVI_FACTS_MARK);
        value += strcspn(value, " ");
        if (*value != '\0')
            *value++ = '\0';
        judge_line(out, &s, line + strlen(HVI_FACTS_MARK), value, now_s, late_s);
    }
    if (s.nics[0] != '\0')
        add(out, "networks", true, HVI_CHECK_OK, "", "%s", s.nics);
    if (s.any_back)
        add(out, "call back", s.back[0] != '\0', HVI_CHECK_FAILED,
            "a firewall between the hosts has to let it through (--port fixes the "
            "port), or name the way: --network-interfaces, --advertise-address",
            "%s", s.back[0] != '\0' ? s.back : s.tried);
    return s.end;
}
