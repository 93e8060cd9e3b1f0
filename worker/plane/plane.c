#include "worker/plane/plane.h"

enum hvd_status hvi_plane_run(struct hvi_plane *p, const struct hvi_group *group,
                              struct hvi_err *err)
{
    enum hvd_status rc = p->ops->start(p, group, err);

    if (rc != HVD_OK)
        return rc;
    while ((rc = p->ops->progress(p, err)) == HVD_INPROGRESS)
        p->ops->wait(p, -1);
    return rc;
}
