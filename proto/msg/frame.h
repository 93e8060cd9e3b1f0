/** Frames, PROTOCOL.md section 4. Encode and decode, no sockets. */
#ifndef HVI_MSG_FRAME_H
#define HVI_MSG_FRAME_H

#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/err.h"

#define HVI_FRAME_HEADER_BYTES 12
#define HVI_FRAME_MAX_BYTES (1024 * 1024) /* payload */
#define HVI_FRAME_MAGIC 0x4856
#define HVI_FRAME_VERSION 1

/** X(NAME, number, protobuf type in lower case with underscores, protobuf struct). */
#define HVI_MSG_LIST(X)                                                                \
    X(HELLO, 1, hello, Hello)                                                          \
    X(FORMED, 2, formed, Formed)                                                       \
    X(ANNOUNCE, 3, announce, Announce)                                                 \
    X(JOIN, 6, join, Join)                                                             \
    X(PSET_ADD, 7, pset_add, PsetAdd)                                                  \
    X(PSET_REMOVE, 8, pset_remove, PsetRemove)                                         \
    X(BYE, 9, bye, Bye)                                                                \
    X(STALLED, 10, stalled, Stalled)                                                   \
    X(PROBE_REPLY, 11, probe_reply, ProbeReply)                                        \
    X(TIMELINE_CHUNK, 12, timeline_chunk, TimelineChunk)                               \
    X(TIMELINE_CTL, 13, timeline_ctl, TimelineCtl)                                     \
    X(SUSPECT, 14, suspect, Suspect)                                                   \
    X(REFUSED, 32, refused, Refused)                                                   \
    X(WELCOME, 33, welcome, Welcome)                                                   \
    X(GO, 34, go, Go)                                                                  \
    X(ASSIGN, 35, assign, Assign)                                                      \
    X(EVICT, 37, evict, Evict)                                                         \
    X(FAIL, 38, fail, Fail)                                                            \
    X(JOIN_DONE, 39, join_done, JoinDone)                                              \
    X(PSET_REPLY, 40, pset_reply, PsetReply)                                           \
    X(PEER_BYE, 41, peer_bye, PeerBye)                                                 \
    X(CLOSED, 42, closed, Closed)                                                      \
    X(PROBE, 43, probe, Probe)                                                         \
    X(MARK, 44, mark, Mark)                                                            \
    X(AGENT_HELLO, 64, agent_hello, AgentHello)                                        \
    X(RANK_STARTED, 65, rank_started, RankStarted)                                     \
    X(RANK_EXITED, 66, rank_exited, RankExited)                                        \
    X(HEARTBEAT, 67, heartbeat, Heartbeat)                                             \
    X(PROC_PROBE, 68, proc_probe, ProcProbe)                                           \
    X(PROC_STATE, 69, proc_state, ProcState)                                           \
    X(COORD_CONFIG, 96, coord_config, CoordConfig)                                     \
    X(COORD_UP, 97, coord_up, CoordUp)                                                 \
    X(COORD_NOTE, 98, coord_note, CoordNote)                                           \
    X(JOB_SPEC, 112, job_spec, JobSpec)                                                \
    X(AGENT_UP, 113, agent_up, AgentUp)                                                \
    X(STARTED, 114, started, Started)                                                  \
    X(OUTPUT, 115, output, Output)                                                     \
    X(EXITED, 116, exited, Exited)                                                     \
    X(AGENT_ERROR, 117, agent_error, AgentError)                                       \
    X(STDIN_DATA, 118, stdin_data, StdinData)                                          \
    X(SIGNAL, 119, signal, Signal)                                                     \
    X(STOP, 120, stop, Stop)                                                           \
    X(OUTPUT_ACK, 121, output_ack, OutputAck)                                          \
    X(TERM_SIZE, 122, term_size, TermSize)                                             \
    X(ATTACH, 123, attach, Attach)                                                     \
    X(ATTACHED, 124, attached, Attached)

enum hvi_msg_type {
    HVI_MSG_UNSET = 0,
#define HVI_MSG_ENUM_(name, number, lower, type) HVI_MSG_##name = (number),
    HVI_MSG_LIST(HVI_MSG_ENUM_)
#undef HVI_MSG_ENUM_
        HVI_MSG_READY = 4, /* binary, ready.h */
    HVI_MSG_ORDER = 36
};

/** "HELLO"; "type 200" style numbers become "?". */
const char *hvi_msg_name(uint32_t type);

/** Appends header and payload. HVD_ELIMIT above the maximum, HVD_ENOMEM. */
enum hvd_status hvi_frame_put(struct hvi_buf *out, uint32_t type, const void *payload,
                              size_t size_bytes);

/** As hvi_frame_put, but the payload's room is handed back to be filled at once (NULL
 * when size_bytes is 0); borrowed until the next change of out. */
enum hvd_status hvi_frame_room(struct hvi_buf *out, uint32_t type, size_t size_bytes,
                               uint8_t **payload);

/**
 * Looks at the front of size_bytes of data, consumes nothing.
 *
 * Returns  HVD_OK: type, and payload inside data (borrowed), and how many bytes the
 * whole frame takes. HVD_INPROGRESS: more bytes are needed. HVD_EPROTO.
 */
enum hvd_status hvi_frame_peek(const uint8_t *data, size_t size_bytes, uint32_t *type,
                               const uint8_t **payload, size_t *payload_bytes,
                               size_t *frame_bytes, struct hvi_err *err);

#endif
