/**
 * The plane of several hosts: shared memory inside a host, TCP between hosts. Made of a
 * shm plane over the ranks of this host and a tcp plane over all ranks of the job.
 *
 * What goes between two hosts goes once, in K lanes (K = the smallest number of members
 * on a host, at most 4): allreduce, reducescatter, allgather, Adasum, broadcast and
 * barrier. The fold is that of DESIGN.md section 4: over local ranks first (16-bit types
 * rounded once), then over hosts. alltoall goes from every rank to every rank of other
 * hosts, and over shm inside a host. Groups with one member a host go over tcp alone;
 * groups inside one host over shm alone.
 */
#ifndef HVI_PLANE_CPU_HOSTS_H
#define HVI_PLANE_CPU_HOSTS_H

#include "worker/plane/plane.h"

/**
 * @param local    shm plane of this host's ranks; taken over on success
 * @param mesh     tcp plane of all ranks; taken over on success
 * @param host_of  [size] host index of every rank, equal on all ranks; copied
 *
 * Returns  HVD_OK, HVD_ENOMEM.
 */
enum hvd_status hvi_hosts_new(int rank, int size, const int32_t *host_of,
                              struct hvi_plane *local, struct hvi_plane *mesh,
                              struct hvi_plane **out, struct hvi_err *err);

#endif
