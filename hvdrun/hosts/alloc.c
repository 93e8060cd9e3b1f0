#include "hvdrun/hosts/alloc.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hvdrun/hosts/alloc_impl.h"
#include "proto/base/env.h"

#define POD_HOSTFILE "/etc/mpi/hostfile" /* where the MPI operator puts it */
#define BLANKS " \t\r"

const char *hvi_alloc_get(const struct hvi_alloc_find *f, const char *name)
{
    const char *value = f->sys->get(f->sys->data, name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

void hvi_alloc_used(struct hvi_alloc_find *f, const char *name)
{
    size_t n = strlen(f->out->from);

    snprintf(f->out->from + n, sizeof f->out->from - n, "%s%s", n > 0 ? ", " : "",
             name);
}

enum hvd_status hvi_alloc_bad(struct hvi_alloc_find *f, const char *name, size_t at,
                              const char *why)
{
    return hvi_fail(f->err, HVD_EINVAL, "%s, character %zu: %s", name, at + 1, why);
}

static void found(struct hvi_alloc_find *f, const char *key, const char *title,
                  const char *name)
{
    f->out->key = key;
    f->out->title = title;
    hvi_alloc_used(f, name);
}

/* Hosts from the file that a variable names, in a host file's forms. */
static enum hvd_status take_file(struct hvi_alloc_find *f, const char *name,
                                 const char *path)
{
    struct hvi_err why = {""};
    char *text = NULL;
    size_t size = 0;
    enum hvd_status rc = f->sys->read(f->sys->data, path, &text, &size, &why);

    if (rc == HVD_OK)
        rc = hvi_hosts_parse_file(f->hosts, path, text, size, &why);
    free(text);
    return rc == HVD_OK ? rc : hvi_fail(f->err, rc, "%s: %.900s", name, why.text);
}

static enum hvd_status no_host(struct hvi_alloc_find *f, const char *name)
{
    return f->hosts->n > 0 ? HVD_OK
                           : hvi_fail(f->err, HVD_EINVAL, "%s names no host", name);
}

/* ---- PBS, Torque */

static enum hvd_status find_pbs(struct hvi_alloc_find *f)
{
    const char *path = hvi_alloc_get(f, "PBS_NODEFILE");
    const char *ppn = hvi_alloc_get(f, "PBS_NUM_PPN");
    int64_t each = 1;
    enum hvd_status rc;

    if (path == NULL && hvi_alloc_get(f, "PBS_JOBID") == NULL)
        return HVD_OK;
    f->out->key = "pbs";
    f->out->title = "PBS";
    if (path == NULL)
        return hvi_fail(f->err, HVD_EINVAL,
                        "PBS_JOBID is set, but PBS_NODEFILE is not");
    hvi_alloc_used(f, "PBS_NODEFILE");
    rc = take_file(f, "PBS_NODEFILE", path);
    if (rc == HVD_OK)
        rc = no_host(f, "PBS_NODEFILE");
    for (size_t i = 0; i < f->hosts->n; i++)
        if (f->hosts->list[i].slots > 0)
            ppn = NULL; /* a line a slot: the lines are the truth */
    if (rc == HVD_OK && ppn != NULL) {
        hvi_alloc_used(f, "PBS_NUM_PPN");
        rc = hvi_parse_int("PBS_NUM_PPN", ppn, 1, HVD_RANKS_MAX, &each, f->err);
    }
    for (size_t i = 0; i < f->hosts->n && rc == HVD_OK; i++)
        if (f->hosts->list[i].slots == 0)
            f->hosts->list[i].slots = (int)each;
    return rc;
}

/* ---- LSF */

/* Cuts words out of text; at: where the last one stood. */
static size_t take_word(const char *text, size_t *at, const char **word)
{
    size_t n;

    *at += strspn(text + *at, BLANKS);
    *word = text + *at;
    n = strcspn(*word, BLANKS);
    return n;
}

/* A word of n bytes as a host with so many slots; inside: where in it an error is. */
static enum hvd_status add_word(struct hvi_alloc_find *f, const char *word, size_t n,
                                int slots, size_t *inside, struct hvi_err *why)
{
    struct hvi_hosts one = {0};
    char *copy = strndup(word, n);
    enum hvd_status rc = copy == NULL ? hvi_fail(why, HVD_ENOMEM, "out of memory")
                                      : hvi_hosts_parse_at(&one, copy, inside, why);

    for (size_t i = 0; i < one.n && rc == HVD_OK; i++)
        rc = hvi_hosts_add(f->hosts, one.list[i].name, one.list[i].user, slots, why);
    free(copy);
    hvi_hosts_fini(&one);
    return rc;
}

static enum hvd_status take_host(struct hvi_alloc_find *f, const char *name, size_t at,
                                 const char *word, size_t n, int slots)
{
    struct hvi_err why = {""};
    size_t inside = 0;
    enum hvd_status rc = add_word(f, word, n, slots, &inside, &why);

    if (rc == HVD_EINVAL)
        return hvi_alloc_bad(f, name, at + inside, why.text);
    return rc == HVD_OK ? rc : hvi_fail(f->err, rc, "%s: %s", name, why.text);
}

/* "hostA 4 hostB 2" */
static enum hvd_status take_pairs(struct hvi_alloc_find *f, const char *name,
                                  const char *text)
{
    enum hvd_status rc = HVD_OK;
    size_t at = 0;

    while (rc == HVD_OK) {
        const char *host;
        const char *digits;
        size_t n = take_word(text, &at, &host);
        size_t host_at = at;
        size_t width;
        char *end;
        long slots;

        if (n == 0)
            break;
        at += n;
        width = take_word(text, &at, &digits);
        slots = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : 0;
        if (slots < 1 || slots > 1000000 || end != digits + width)
            return hvi_alloc_bad(f, name, at,
                                 "a number of slots belongs behind each host");
        at += width;
        rc = take_host(f, name, host_at, host, n, (int)slots);
    }
    return rc;
}

/* "hostA hostA hostB" */
static enum hvd_status take_words(struct hvi_alloc_find *f, const char *name,
                                  const char *text)
{
    enum hvd_status rc = HVD_OK;
    size_t at = 0;

    while (rc == HVD_OK) {
        const char *host;
        size_t n = take_word(text, &at, &host);

        if (n == 0)
            break;
        rc = take_host(f, name, at, host, n, 1);
        at += n;
    }
    return rc;
}

/* Clusters with CSM list the launch node first, with one slot; no rank belongs there. */
static void drop_launch_node(struct hvi_alloc_find *f)
{
    struct hvi_hosts *h = f->hosts;

    if (hvi_alloc_get(f, "CSM_ALLOCATION_ID") == NULL || h->n < 2 ||
        h->list[0].slots > 1)
        return;
    for (size_t i = 1; i < h->n; i++)
        if (h->list[i].slots <= 1)
            return;
    free(h->list[0].name);
    free(h->list[0].user);
    h->n--;
    memmove(h->list, h->list + 1, h->n * sizeof *h->list);
    hvi_alloc_used(f, "CSM_ALLOCATION_ID");
}

static enum hvd_status find_lsf(struct hvi_alloc_find *f)
{
    static const char *const names[] = {"LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS",
                                        "LSB_HOSTS"};
    const char *value = NULL;
    enum hvd_status rc;
    size_t i = 0;

    while (i < 3 && (value = hvi_alloc_get(f, names[i])) == NULL)
        i++;
    if (value == NULL && hvi_alloc_get(f, "LSB_JOBID") == NULL)
        return HVD_OK;
    f->out->key = "lsf";
    f->out->title = "LSF";
    if (value == NULL)
        return hvi_fail(f->err, HVD_EINVAL,
                        "LSB_JOBID is set, but LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS and "
                        "LSB_HOSTS are not");
    hvi_alloc_used(f, names[i]);
    rc = i == 0   ? take_file(f, names[i], value)
         : i == 1 ? take_pairs(f, names[i], value)
                  : take_words(f, names[i], value);
    if (rc == HVD_OK)
        rc = no_host(f, names[i]);
    if (rc != HVD_OK)
        return rc;
    for (size_t k = 0; k < f->hosts->n; k++)
        if (f->hosts->list[k].slots == 0)
            f->hosts->list[k].slots = 1;
    drop_launch_node(f);
    return HVD_OK;
}

/* ---- SGE */

/* "host n queue range": the first two words count. at: where an error is. */
static enum hvd_status take_pe_line(struct hvi_alloc_find *f, const char *line,
                                    size_t *at, struct hvi_err *why)
{
    const char *host;
    const char *digits;
    size_t n = take_word(line, at, &host);
    size_t inside = 0;
    size_t width;
    char *end = NULL;
    long slots;
    enum hvd_status rc;

    if (n == 0)
        return HVD_OK;
    *at += n;
    width = take_word(line, at, &digits);
    slots = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : 0;
    if (slots < 1 || slots > 1000000 || end != digits + width)
        return hvi_fail(why, HVD_EINVAL,
                        "a number of slots belongs here: HOST SLOTS QUEUE RANGE");
    rc = add_word(f, host, n, (int)slots, &inside, why);
    *at = (size_t)(host - line) + inside;
    return rc;
}

static enum hvd_status find_sge(struct hvi_alloc_find *f)
{
    const char *path = hvi_alloc_get(f, "PE_HOSTFILE");
    struct hvi_err why = {""};
    char *text = NULL;
    size_t size = 0;
    enum hvd_status rc;
    int number = 0;

    if (path == NULL)
        return HVD_OK;
    found(f, "sge", "SGE", "PE_HOSTFILE");
    rc = f->sys->read(f->sys->data, path, &text, &size, &why);
    if (rc != HVD_OK)
        return hvi_fail(f->err, rc, "PE_HOSTFILE: %.900s", why.text);
    for (char *line = text, *next; line != NULL && rc == HVD_OK; line = next) {
        size_t at = 0;

        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        number++;
        rc = take_pe_line(f, line, &at, &why);
        if (rc != HVD_OK)
            rc = hvi_fail(f->err, rc, "PE_HOSTFILE: %.400s:%d:%zu: %.400s", path,
                          number, at + 1, why.text);
    }
    free(text);
    return rc == HVD_OK ? no_host(f, "PE_HOSTFILE") : rc;
}

/* ---- Kubernetes: the MPI operator's variables and file */

static enum hvd_status find_kubernetes(struct hvi_alloc_find *f)
{
    static const char *const names[] = {"OMPI_MCA_orte_default_hostfile",
                                        "PRTE_MCA_prte_default_hostfile",
                                        "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"};
    const char *name = NULL;
    const char *path = NULL;
    enum hvd_status rc;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && path == NULL; i++) {
        name = names[i];
        path = hvi_alloc_get(f, name);
    }
    if (path == NULL) {
        struct hvi_err unused;
        char *text = NULL;
        size_t size;

        if (hvi_alloc_get(f, "KUBERNETES_SERVICE_HOST") == NULL ||
            f->sys->read(f->sys->data, POD_HOSTFILE, &text, &size, &unused) != HVD_OK)
            return HVD_OK;
        free(text);
        name = path = POD_HOSTFILE;
    }
    rc = take_file(f, name, path);
    /* MPI libraries take a file without hosts for none */
    if (rc == HVD_OK && f->hosts->n == 0)
        return HVD_OK;
    found(f, "kubernetes", "Kubernetes", name);
    return rc;
}

enum hvd_status hvi_alloc_find(const struct hvi_alloc_sys *sys, struct hvi_hosts *hosts,
                               struct hvi_alloc *out, struct hvi_err *err)
{
    static enum hvd_status (*const readers[])(struct hvi_alloc_find *) = {
        hvi_alloc_flux, hvi_alloc_slurm, find_pbs, find_lsf, find_sge, find_kubernetes};
    struct hvi_err why = {""};
    struct hvi_alloc_find f = {.sys = sys, .hosts = hosts, .out = out, .err = &why};
    enum hvd_status rc = HVD_OK;

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        rc = readers[i](&f);
        if (rc != HVD_OK || out->key != NULL)
            break;
    }
    if (rc == HVD_OK || rc == HVD_ENOMEM)
        return rc == HVD_OK ? rc : hvi_fail(err, rc, "%s", why.text);
    return hvi_fail(err, rc, "%.900s; name the hosts with -H, or use --no-allocation",
                    why.text);
}

bool hvi_alloc_is_local(const struct hvi_alloc *a, const char *name,
                        const char *own_name)
{
    size_t n = strlen(own_name);

    if (hvi_host_is_local(name, own_name))
        return true;
    if (a->own != NULL && strcasecmp(name, a->own) == 0)
        return true;
    return n > 0 && strchr(own_name, '.') == NULL &&
           strncasecmp(name, own_name, n) == 0 && name[n] == '.';
}
