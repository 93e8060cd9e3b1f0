/* The life of an entry and of a run: made in submit.c and negotiate.c, ended here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/names.h"
#include "worker/core/ctx.h"

void hvi_entry_free(struct hvi_entry *e)
{
    if (e == NULL)
        return;
    hvi_request_free(e->req);
    if (e->in_op) {
        hvi_op_unref(e->ops[0]); /* and with it, one day, e */
        return;
    }
    for (uint32_t i = 0; i < e->nops; i++)
        hvi_op_unref(e->ops[i]);
    free(e);
}

void hvi_entry_finish(struct hvi_entry *e, enum hvd_status status, const char *text)
{
    char full[HVD_ERROR_TEXT_MAX];

    if (status != HVD_OK)
        snprintf(full, sizeof full, "%s '%.200s': %.700s", hvi_kind_name(e->req->kind),
                 e->req->name, text != NULL ? text : hvi_status_text(status));
    for (uint32_t i = 0; i < e->nops; i++) {
        struct hvi_op *op = e->ops[i];

        if (status == HVD_OK && op->late != HVD_OK)
            hvi_op_complete(op, op->late, op->error);
        else
            hvi_op_complete(op, status, status != HVD_OK ? full : NULL);
    }
    hvi_entry_free(e);
}

struct hvi_run *hvi_run_new(struct hvi_pset *set, uint64_t seq, uint32_t nitems)
{
    struct hvi_run *run = calloc(1, sizeof *run + nitems * sizeof(struct hvi_run_item));

    if (run == NULL)
        return NULL;
    hvi_list_init(&run->link);
    run->seq = seq;
    run->pset = set;
    run->nitems = nitems;
    return run;
}

void hvi_run_free(struct hvi_run *run)
{
    hvi_list_remove(&run->link);
    for (uint32_t i = 0; i < run->nitems; i++)
        if (run->items[i].entry == NULL)
            hvi_request_free(run->items[i].req);
    free(run->device_text);
    free(run);
}
