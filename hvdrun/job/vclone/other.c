#include "hvdrun/job/vclone.h"

#include <errno.h>

long hvi_vclone(int cgroup_fd, void (*fn)(void *), void *arg)
{
    (void)cgroup_fd;
    (void)fn;
    (void)arg;
    return -ENOSYS;
}
