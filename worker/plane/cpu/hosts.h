/**
 * The plane of several hosts: shared memory inside a host, TCP between hosts. Made of a
 * shm plane over the ranks of this host and a tcp plane over all ranks of the job.
 *
 * allreduce  every host folds into K lanes (K = the smallest number of members on a
 * host); the lane's owner folds its range with the same lane's owners of the other
 *            hosts, in host order; the host's ranks collect the lanes. The fold is that
 * of DESIGN.md section 4: over local ranks first (16-bit types rounded once), then over
 * hosts. broadcast  root to one rank of every other host, then inside the hosts.
 * barrier    hosts, then one rank of each, then hosts.
 * The rest, Adasum, and groups with one member a host go over tcp alone; groups inside
 * one host over shm alone.
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
