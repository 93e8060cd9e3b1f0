#include "hvdrun/topo/gpus.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NVIDIA "0x10de"
#define CLASS_VGA "0x0300"
#define CLASS_3D "0x0302"

/* "00000000:3B:00.0" and "0000:3b:00.0" are one address. */
static void take_pci(const char *text, char out[HVI_GPU_PCI_MAX])
{
    size_t n;

    if (strlen(text) > 12 && strncmp(text, "0000", 4) == 0 && text[4] != ':')
        text += 4;
    snprintf(out, HVI_GPU_PCI_MAX, "%.*s", HVI_GPU_PCI_MAX - 1, text);
    n = strlen(out);
    for (size_t i = 0; i < n; i++)
        out[i] = (char)tolower((unsigned char)out[i]);
}

static int by_pci(const void *a, const void *b)
{
    return strcmp(((const struct hvi_gpu *)a)->pci, ((const struct hvi_gpu *)b)->pci);
}

static struct hvi_gpu *add(struct hvi_gpus *g)
{
    struct hvi_gpu *one;

    if (g->n == HVI_GPUS_MAX)
        return NULL;
    one = &g->list[g->n++];
    memset(one, 0, sizeof *one);
    one->minor = -1;
    return one;
}

/* In order, each by its index. */
static void put_in_order(struct hvi_gpus *g)
{
    qsort(g->list, (size_t)g->n, sizeof g->list[0], by_pci);
    for (int i = 0; i < g->n; i++)
        snprintf(g->list[i].name, sizeof g->list[i].name, "%d", i);
}

/* The information file of the driver: "GPU UUID: \t GPU-...", "Device Minor: \t 0". */
static void read_information(const char *root, const char *dir, struct hvi_gpu *g)
{
    char path[PATH_MAX], line[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, dir);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        (void)sscanf(line, "GPU UUID: %95s", g->uuid);
        (void)sscanf(line, "Device Minor: %d", &g->minor);
    }
    if (f != NULL)
        fclose(f);
}

static bool may_open(const char *root, int minor)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/dev/nvidia%d", root, minor);
    return access(path, R_OK | W_OK) == 0;
}

static int device_files(const char *root)
{
    char path[PATH_MAX];
    int n = 0;
    DIR *d;

    snprintf(path, sizeof path, "%s/dev", root);
    d = opendir(path);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += strncmp(e->d_name, "nvidia", 6) == 0 && e->d_name[6] != '\0' &&
             strspn(e->d_name + 6, "0123456789") == strlen(e->d_name + 6) &&
             may_open(root, atoi(e->d_name + 6));
    if (d != NULL)
        closedir(d);
    return n;
}

static bool begins(const char *root, const char *device, const char *file,
                   const char *with)
{
    char path[PATH_MAX], text[16] = "";
    FILE *f;

    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/%s", root, device, file);
    f = fopen(path, "re");
    if (f != NULL && fscanf(f, "%15s", text) != 1)
        text[0] = '\0';
    if (f != NULL)
        fclose(f);
    return strncmp(text, with, strlen(with)) == 0;
}

static void list_bus(const char *root, struct hvi_gpus *out)
{
    char path[PATH_MAX];
    DIR *d;

    out->n = 0;
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
    d = opendir(path);
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        struct hvi_gpu *g;

        if (e->d_name[0] == '.' || !begins(root, e->d_name, "vendor", NVIDIA) ||
            (!begins(root, e->d_name, "class", CLASS_3D) &&
             !begins(root, e->d_name, "class", CLASS_VGA)))
            continue;
        g = add(out);
        if (g != NULL)
            take_pci(e->d_name, g->pci);
    }
    if (d != NULL)
        closedir(d);
    put_in_order(out);
}

int hvi_gpus_on_bus(const char *root)
{
    static struct hvi_gpus found;

    list_bus(root, &found);
    return found.n;
}

/* false: the driver has no such directory. */
static bool list_driver(const char *root, bool files, struct hvi_gpus *out)
{
    char path[PATH_MAX];
    DIR *d;

    out->n = 0;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    d = opendir(path);
    if (d == NULL)
        return false;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        struct hvi_gpu *g = e->d_name[0] != '.' ? add(out) : NULL;

        if (g == NULL)
            continue;
        take_pci(e->d_name, g->pci);
        read_information(root, e->d_name, g);
        if (files && g->minor >= 0 && !may_open(root, g->minor))
            out->n--; /* another job's, or not of this container */
    }
    closedir(d);
    put_in_order(out);
    return true;
}

void hvi_gpus_find(const char *root, struct hvi_gpus *out)
{
    int files = device_files(root);

    if (list_driver(root, files > 0, out))
        return;
    list_bus(root, out);
    if (out->n == files)
        return;
    out->n = 0;
    for (int i = 0; i < files && i < HVI_GPUS_MAX; i++)
        (void)add(out);
    put_in_order(out);
}

static bool is_index(const char *entry)
{
    return entry[0] != '\0' && strlen(entry) < 6 &&
           strspn(entry, "0123456789") == strlen(entry);
}

/* UUIDs may be cut short: "GPU-8932f937". */
static const struct hvi_gpu *by_uuid(const struct hvi_gpus *all, const char *uuid,
                                     size_t n)
{
    for (int i = 0; i < all->n; i++)
        if (n > 4 && strncmp(all->list[i].uuid, uuid, n) == 0)
            return &all->list[i];
    return NULL;
}

/* One entry of the mask; false: it names nothing. */
static bool take_entry(const struct hvi_gpus *all, const char *entry, struct hvi_gpu *g)
{
    const struct hvi_gpu *is = NULL;
    bool known_uuids = all->n > 0 && all->list[0].uuid[0] != '\0';

    if (is_index(entry)) {
        if (all->n > 0 && atoi(entry) >= all->n)
            return false;
        is = all->n > 0 ? &all->list[atoi(entry)] : NULL;
    } else if (strncmp(entry, "GPU-", 4) == 0) {
        is = by_uuid(all, entry, strlen(entry));
        if (is == NULL && known_uuids)
            return false;
    } else if (strncmp(entry, "MIG-GPU-", 8) == 0) {
        is = by_uuid(all, entry + 4, strcspn(entry + 4, "/"));
    } else if (strncmp(entry, "MIG-", 4) != 0) {
        return false;
    }
    if (is != NULL)
        *g = *is;
    snprintf(g->name, sizeof g->name, "%s", entry);
    return true;
}

void hvi_gpus_visible(const struct hvi_gpus *all, const char *mask,
                      struct hvi_gpus *out)
{
    if (mask == NULL) {
        *out = *all;
        return;
    }
    out->n = 0;
    while (out->n < HVI_GPUS_MAX) {
        size_t skip = strspn(mask, " \t");
        size_t n = strcspn(mask, ",");
        size_t end = n;
        char entry[HVI_GPU_NAME_MAX];

        while (end > skip && (mask[end - 1] == ' ' || mask[end - 1] == '\t'))
            end--;
        if (skip >= end || end - skip >= sizeof entry)
            return;
        snprintf(entry, sizeof entry, "%.*s", (int)(end - skip), mask + skip);
        if (!take_entry(all, entry, add(out))) {
            out->n--;
            return;
        }
        if (mask[n] == '\0')
            return;
        mask += n + 1;
    }
}
