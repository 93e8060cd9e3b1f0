/** The NVIDIA GPUs of a host and those that a program there may use, learned from files
 * alone: CUDA is not loaded. */
#ifndef HVI_TOPO_GPUS_H
#define HVI_TOPO_GPUS_H

#include <stdbool.h>

#define HVI_GPUS_MAX 128
#define HVI_GPU_NAME_MAX 96 /* "MIG-GPU-<uuid>/13/12" and the zero */
#define HVI_GPU_PCI_MAX 16  /* "0000:3b:00.0" */

struct hvi_gpu {
    char name[HVI_GPU_NAME_MAX]; /* as CUDA_VISIBLE_DEVICES has it; else its index */
    char pci[HVI_GPU_PCI_MAX];   /* "": not known */
    char uuid[HVI_GPU_NAME_MAX]; /* "GPU-..."; "": not known */
    int minor;                   /* of /dev/nvidiaN; -1: not known */
};

struct hvi_gpus {
    struct hvi_gpu list[HVI_GPUS_MAX];
    int n;
};

/**
 * GPUs with a driver, in the order of their PCI addresses: of /proc/driver/nvidia/gpus,
 * those whose /dev/nvidiaN this process may open; without that directory as many as there
 * are such files, with the addresses of /sys/bus/pci if those are as many.
 *
 * @param root  what stands before these paths, "" for this host; tests have a tree
 */
void hvi_gpus_find(const char *root, struct hvi_gpus *out);
/** GPUs that /sys/bus/pci has, with a driver or not. */
int hvi_gpus_on_bus(const char *root);
/**
 * What CUDA would show of them, pure: mask is CUDA_VISIBLE_DEVICES (NULL: not set), with
 * indices, GPU-... and MIG-... entries; names and order stay as they are there. As with
 * CUDA the first entry that names nothing ends the list. Where no GPU was found (all->n is
 * 0) every entry is believed.
 */
void hvi_gpus_visible(const struct hvi_gpus *all, const char *mask,
                      struct hvi_gpus *out);

#endif
