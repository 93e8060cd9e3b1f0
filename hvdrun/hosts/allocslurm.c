/**
 * Slurm says which hosts in one variable and how many tasks (or cores) each has in
 * another, in the same order: SLURM_JOB_NODELIST=n[1-3], SLURM_TASKS_PER_NODE=4(x2),3.
 * A job step has numbers for its own hosts only; where they cannot be those of the whole
 * job, the next variable is asked.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/alloc_impl.h"

/* "4(x2),3": out[i] for host i of n. count: how many numbers there are in all. */
static enum hvd_status numbers(struct hvi_alloc_find *f, const char *name,
                               const char *text, int *out, size_t n, size_t *count)
{
    const char *p = text;

    *count = 0;
    for (;;) {
        char *end = NULL;
        long value = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        long times = 1;

        if (value < 1 || value > 1000000)
            return hvi_alloc_bad(f, name, (size_t)(p - text),
                                 "a number from 1 on belongs here, as in 4(x2),3");
        if (strncmp(end, "(x", 2) == 0) {
            const char *digits = end + 2;

            times = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : 0;
            if (times < 1 || times > 1000000 || *end != ')')
                return hvi_alloc_bad(f, name, (size_t)(digits - text),
                                     "a repetition is written 4(x2)");
            end++;
        }
        for (; times > 0; times--, ++*count)
            if (*count < n)
                out[*count] = (int)value;
        if (*end == '\0')
            return HVD_OK;
        if (*end != ',')
            return hvi_alloc_bad(f, name, (size_t)(end - text),
                                 "a ',' belongs between the numbers, as in 4(x2),3");
        p = end + 1;
    }
}

/* true in *set: out has one number for each host. */
static enum hvd_status per_host(struct hvi_alloc_find *f, const char *name, int *out,
                                size_t n, bool *set)
{
    const char *text = hvi_alloc_get(f, name);
    size_t count;
    enum hvd_status rc;

    *set = false;
    if (text == NULL)
        return HVD_OK;
    rc = numbers(f, name, text, out, n, &count);
    if (rc != HVD_OK)
        return rc;
    *set = count == n;
    if (!*set && hvi_alloc_get(f, "SLURM_STEP_NODELIST") == NULL)
        return hvi_fail(f->err, HVD_EINVAL,
                        "%s: '%.60s' has numbers for %zu hosts, the list of hosts has "
                        "%zu",
                        name, text, count, n);
    if (*set)
        hvi_alloc_used(f, name);
    return HVD_OK;
}

/* One number that holds for all hosts. */
static enum hvd_status for_all(struct hvi_alloc_find *f, const char *name, int *value,
                               bool *set)
{
    const char *text = hvi_alloc_get(f, name);
    size_t count = 0;
    enum hvd_status rc = HVD_OK;

    *set = text != NULL;
    if (*set)
        rc = numbers(f, name, text, value, 1, &count);
    if (rc == HVD_OK && *set && count != 1)
        rc = hvi_alloc_bad(f, name, 0, "one number belongs here");
    if (rc == HVD_OK && *set)
        hvi_alloc_used(f, name);
    return rc;
}

static enum hvd_status by_cores(struct hvi_alloc_find *f, int *slots, size_t n)
{
    int each = 1;
    bool set;
    enum hvd_status rc = per_host(f, "SLURM_JOB_CPUS_PER_NODE", slots, n, &set);

    if (rc != HVD_OK || !set)
        return rc;
    rc = for_all(f, "SLURM_CPUS_PER_TASK", &each, &set);
    for (size_t i = 0; i < n && rc == HVD_OK; i++)
        slots[i] = slots[i] > each ? slots[i] / each : 1;
    return rc;
}

static enum hvd_status find_slots(struct hvi_alloc_find *f, int *slots, size_t n)
{
    bool set;
    int all = 0;
    enum hvd_status rc = per_host(f, "SLURM_TASKS_PER_NODE", slots, n, &set);

    if (rc != HVD_OK || set)
        return rc;
    memset(slots, 0, n * sizeof *slots);
    rc = for_all(f, "SLURM_NTASKS_PER_NODE", &all, &set);
    if (rc != HVD_OK)
        return rc;
    if (!set)
        return by_cores(f, slots, n);
    for (size_t i = 0; i < n; i++)
        slots[i] = all;
    return HVD_OK;
}

enum hvd_status hvi_alloc_slurm(struct hvi_alloc_find *f)
{
    const char *name = "SLURM_JOB_NODELIST";
    const char *list = hvi_alloc_get(f, name);
    struct hvi_err why = {""};
    size_t at = 0;
    int *slots;
    enum hvd_status rc;

    if (list == NULL) {
        name = "SLURM_NODELIST"; /* before Slurm 2 */
        list = hvi_alloc_get(f, name);
    }
    if (list == NULL && hvi_alloc_get(f, "SLURM_JOB_ID") == NULL)
        return HVD_OK;
    f->out->key = "slurm";
    f->out->title = "Slurm";
    if (list == NULL)
        return hvi_fail(f->err, HVD_EINVAL,
                        "SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not");
    hvi_alloc_used(f, name);
    f->out->own = hvi_alloc_get(f, "SLURMD_NODENAME");
    rc = hvi_hosts_parse_at(f->hosts, list, &at, &why);
    if (rc == HVD_EINVAL)
        return hvi_alloc_bad(f, name, at, why.text);
    if (rc != HVD_OK)
        return hvi_fail(f->err, rc, "%s: %s", name, why.text);
    slots = calloc(f->hosts->n, sizeof *slots);
    if (slots == NULL)
        return hvi_fail(f->err, HVD_ENOMEM, "out of memory");
    rc = find_slots(f, slots, f->hosts->n);
    for (size_t i = 0; i < f->hosts->n && rc == HVD_OK; i++)
        f->hosts->list[i].slots = slots[i];
    free(slots);
    return rc;
}
