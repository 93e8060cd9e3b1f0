#include "hvdrun/topo/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL;
         slash++) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    f = fopen(full, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

static void begin(void)
{
    snprintf(root, sizeof root, "/tmp/hvd-test-gpus-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void end(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r '%s'", root);
    cr_assert_eq(system(command), 0);
}

static void put_driver(const char *pci, int minor, const char *uuid)
{
    char path[128], text[256];

    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", pci);
    snprintf(text, sizeof text,
             "Model: \t\t NVIDIA H200\nIRQ:   \t\t 33\nGPU UUID: \t %s\n"
             "Bus Location: \t %s\nDevice Minor: \t %d\n",
             uuid, pci, minor);
    put(path, text);
}

static void put_bus(const char *pci, const char *vendor, const char *class)
{
    char path[128];

    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", pci);
    put(path, vendor);
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/class", pci);
    put(path, class);
}

Test(gpus, are_those_of_the_driver_in_bus_order, .timeout = 20)
{
    static struct hvi_gpus g;

    begin();
    hvi_gpus_find(root, &g);
    cr_assert_eq(g.n, 0);
    put_driver("0000:B3:00.0", 0, "GPU-bbbb");
    put_driver("0000:17:00.0", 1, "GPU-1111");
    hvi_gpus_find(root, &g); /* device files come with the first use */
    cr_assert_eq(g.n, 2);
    cr_assert_str_eq(g.list[0].pci, "0000:17:00.0");
    cr_assert_str_eq(g.list[0].name, "0");
    cr_assert_eq(g.list[0].minor, 1);
    cr_assert_str_eq(g.list[1].pci, "0000:b3:00.0");
    cr_assert_str_eq(g.list[1].uuid, "GPU-bbbb");
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
    put("/dev/nvidia0", "");
    hvi_gpus_find(root, &g); /* the other one is not of this container */
    cr_assert_eq(g.n, 1);
    cr_assert_str_eq(g.list[0].pci, "0000:b3:00.0");
    end();
}

Test(gpus, are_found_without_the_drivers_directory, .timeout = 20)
{
    static struct hvi_gpus g;

    begin();
    put_bus("0000:17:00.0", "0x10de\n", "0x030200\n");
    put_bus("0000:b3:00.0", "0x10de\n", "0x030000\n");
    put_bus("0000:b3:00.1", "0x10de\n", "0x040300\n"); /* its sound */
    put_bus("0000:00:02.0", "0x8086\n", "0x030000\n"); /* somebody else's */
    cr_assert_eq(hvi_gpus_on_bus(root), 2);
    hvi_gpus_find(root, &g);
    cr_assert_eq(g.n, 0); /* no driver */
    put("/dev/nvidia0", "");
    hvi_gpus_find(root, &g);
    cr_assert_eq(g.n, 1); /* which of the two is not known */
    cr_assert_str_eq(g.list[0].pci, "");
    put("/dev/nvidia1", "");
    hvi_gpus_find(root, &g);
    cr_assert_eq(g.n, 2);
    cr_assert_str_eq(g.list[1].pci, "0000:b3:00.0");
    end();
}

static void four(struct hvi_gpus *g)
{
    static const char *const uuid[] = {"GPU-aaaa-1", "GPU-bbbb-1", "GPU-cccc-1",
                                       "GPU-dddd-1"};

    memset(g, 0, sizeof *g);
    g->n = 4;
    for (int i = 0; i < 4; i++) {
        snprintf(g->list[i].name, sizeof g->list[i].name, "%d", i);
        snprintf(g->list[i].pci, sizeof g->list[i].pci, "0000:%d0:00.0", i);
        snprintf(g->list[i].uuid, sizeof g->list[i].uuid, "%s", uuid[i]);
    }
}

Test(gpus, are_visible_as_the_mask_says, .timeout = 20)
{
    static const struct {
        const char *mask, *names, *bus; /* bus: a digit each, - where not known */
    } row[] = {
        {NULL, "0 1 2 3 ", "0123"},
        {"", "", ""},
        {"-1", "", ""},
        {"NoDevFiles", "", ""},
        {"3,1", "3 1 ", "31"},
        {" 2 , 0", "2 0 ", "20"},
        {"0,7,1", "0 ", "0"}, /* as CUDA: the first that names nothing ends it */
        {"1,-1,2", "1 ", "1"},
        {"0,,1", "0 ", "0"},
        {"GPU-cccc,GPU-aaaa-1", "GPU-cccc GPU-aaaa-1 ", "20"},
        {"GPU-eeee,0", "", ""},
        {"MIG-GPU-bbbb-1/1/0,MIG-5b2c", "MIG-GPU-bbbb-1/1/0 MIG-5b2c ", "1-"},
    };
    static struct hvi_gpus all;
    static struct hvi_gpus got;

    four(&all);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char names[256] = "", bus[16] = "";

        hvi_gpus_visible(&all, row[i].mask, &got);
        for (int k = 0; k < got.n; k++) {
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s ",
                     got.list[k].name);
            bus[k] = got.list[k].pci[0] != '\0' ? got.list[k].pci[5] : '-';
        }
        cr_assert_str_eq(names, row[i].names, "mask %zu: %s", i, names);
        cr_assert_str_eq(bus, row[i].bus, "mask %zu: %s", i, bus);
    }
    all.n = 0; /* nothing found: what it says is believed */
    hvi_gpus_visible(&all, "5,GPU-eeee", &got);
    cr_assert_eq(got.n, 2);
    cr_assert_str_eq(got.list[0].name, "5");
}
