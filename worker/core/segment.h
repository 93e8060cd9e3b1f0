/**
 * The shared segment of a host group: a sealed memfd that holds doorbells, host board
 * and the shm plane's slots. One rank makes it, the others map the descriptor they were
 * sent. No names in /dev/shm: nothing stale, no limit of a container's 64 MiB.
 */
#ifndef HVI_CORE_SEGMENT_H
#define HVI_CORE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"
#include "worker/plane/cpu/cpu.h"

struct hvi_segment {
    void *mem;
    size_t size_bytes;
    struct hvi_bells *bells;
    void *board, *plane; /* their memory */
};

/** HVD_SHM_SLOT_KIB, 0: not set. HVD_EINVAL. */
enum hvd_status hvi_segment_slot_kib(int64_t *kib, struct hvi_err *err);
/** Private memory for a host with one rank; its board forwards. */
enum hvd_status hvi_segment_private(struct hvi_segment *s, struct hvi_err *err);
/** Make, format, seal and map one for nlocal ranks; several_hosts: the board forwards
 * (board.h). *out_fd is the caller's. HVD_ENOMEM (memory, the cgroup's limit), HVD_ELIMIT
 * (descriptors, file size limit).
 */
enum hvd_status hvi_segment_create(struct hvi_segment *s, int nlocal,
                                   bool several_hosts, uint64_t fusion_bytes,
                                   int *out_fd, struct hvi_err *err);
/** Map what the leader sent; fd stays the caller's. HVD_EPROTO: another layout. */
enum hvd_status hvi_segment_map(struct hvi_segment *s, int nlocal, int fd,
                                struct hvi_err *err);
void hvi_segment_fini(struct hvi_segment *s); /* also of an all-zero one */

#endif
