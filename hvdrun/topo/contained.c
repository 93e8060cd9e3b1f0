/*
 * What hwloc's archive wants of two libraries that nothing else here needs, so that no
 * program has to load them: libudev, which it asks for the names of disks and without which
 * it names none, and one function of libm. Linked where hwloc is contained.
 */
#include <math.h>
#include <stddef.h>

struct udev;
struct udev_device;

struct udev *udev_new(void);
struct udev *udev_unref(struct udev *u);
struct udev_device *udev_device_new_from_subsystem_sysname(struct udev *u,
                                                           const char *subsystem,
                                                           const char *name);
struct udev_device *udev_device_unref(struct udev_device *d);
const char *udev_device_get_property_value(struct udev_device *d, const char *key);

struct udev *udev_new(void)
{
    return NULL; /* as where there is no memory for it */
}

struct udev *udev_unref(struct udev *u)
{
    return u;
}

struct udev_device *udev_device_new_from_subsystem_sysname(struct udev *u,
                                                           const char *subsystem,
                                                           const char *name)
{
    (void)u;
    (void)subsystem;
    (void)name;
    return NULL;
}

struct udev_device *udev_device_unref(struct udev_device *d)
{
    return d;
}

const char *udev_device_get_property_value(struct udev_device *d, const char *key)
{
    (void)d;
    (void)key;
    return NULL;
}

float modff(float x, float *whole)
{
    /* from 2^23 on there is no fraction; NaN stays one */
    *whole = x > -8388608.0F && x < 8388608.0F ? (float)(int)x : x;
    return isinf(x) ? 0.0F : x - *whole;
}
