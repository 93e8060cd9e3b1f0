/**
 * One unit of negotiation as a plain, owned struct: a tensor, or a user group (all or
 * nothing). Made by the worker, compared by the coordinator, remembered by both.
 */
#ifndef HVI_MSG_REQUEST_H
#define HVI_MSG_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"
#include "proto/msg/hvd.pb-c.h"

struct hvi_shape {
    uint32_t dtype; /* enum hvd_dtype */
    uint32_t ndim;
    int64_t
        dims[HVD_NDIM_MAX]; /* dims[0] = 0 where it may differ (allgather, alltoall) */
};

struct hvi_request {
    _Atomic uint32_t refs;
    uint32_t kind, reduce_op, pset, device;
    int32_t root, priority;
    double prescale, postscale; /* never 0: 1.0 when unset */
    bool grouped;
    uint64_t instance; /* not part of the signature */
    uint32_t ntensors;
    char *name;               /* NUL-terminated; it and shapes lie behind the struct */
    struct hvi_shape *shapes; /* [ntensors] */
    uint64_t
        signature; /* XXH3 of all but name, priority, instance; hvi_request_seal() */
};

/** Allocates shapes (zeroed) and copies name; one reference. NULL: out of memory. */
struct hvi_request *hvi_request_new(const char *name, uint32_t ntensors);
/** A reference more, to a request that nobody changes any more. Any thread. */
struct hvi_request *hvi_request_ref(struct hvi_request *r);
/** Drops a reference. */
void hvi_request_free(struct hvi_request *r); /* NULL allowed */
/** Computes the signature; call after the last change. */
void hvi_request_seal(struct hvi_request *r);

/** true when both would run as one operation (signature and all fields but name equal).
 */
bool hvi_request_same(const struct hvi_request *a, const struct hvi_request *b);
/** The same for requests of one name that need not be sealed, and nothing else differs:
 *  one may stand for the other. */
bool hvi_request_equal(const struct hvi_request *a, const struct hvi_request *b);
/** Words the first difference for people: "shape [2, 3] on rank 0, [2, 4] on rank 1".
 *  rank_a, rank_b are global ranks. "" when the same. Fields in order: kind, op, dtype,
 *  number of tensors, shape, root, scales, device, grouping, process set. */
void hvi_request_explain(const struct hvi_request *a, int rank_a,
                         const struct hvi_request *b, int rank_b, char *out,
                         size_t cap);

/** Elements and bytes; HVD_ELIMIT when they (without zero dims) overflow int64,
 * HVD_EINVAL: negative or too many dims. */
enum hvd_status hvi_shape_count(const struct hvi_shape *s, int64_t *count,
                                int64_t *bytes);
/** Payload bytes of all tensors, saturating. */
int64_t hvi_request_bytes(const struct hvi_request *r);
/** true when a and b may be fused into one sealed group: allreduce (not Adasum) or
 *  broadcast of one root..., same pset, kind, op, dtype of all tensors, scales, device.
 */
bool hvi_request_fuses(const struct hvi_request *a, const struct hvi_request *b);

/** From the wire: validates ranges (kind, op, dtype, ndim, dims >= 0, name length > 0,
 *  finite scales, ntensors 1..HVD_GROUP_MAX (a barrier: 0 too), overflow). Seals.
 *  HVD_EPROTO, HVD_ENOMEM. */
enum hvd_status hvi_request_from_msg(const Hvi__Request *m, struct hvi_request **out,
                                     struct hvi_err *err);
/** To the wire: a message whose pointers are borrowed from r where possible; release
 * with hvi_request_msg_free(). NULL: out of memory. */
Hvi__Request *hvi_request_to_msg(const struct hvi_request *r);
void hvi_request_msg_free(Hvi__Request *m);

#endif
