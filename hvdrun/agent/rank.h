/** One worker process under the agent: from its fork to the last byte of its output. */
#ifndef HVI_AGENT_RANK_H
#define HVI_AGENT_RANK_H

#include <stdbool.h>
#include <uv.h>

#include "hvdrun/agent/jobenv.h"
#include "hvdrun/agent/keeper.h"
#include "hvdrun/agent/spawn.h"
#include "hvdrun/agent/wstream.h"

struct hvi_rank;

struct hvi_rank_ops {
    /** Exec has happened, or not: failure.stage is 0 or tells where. Once. */
    void (*on_started)(struct hvi_rank *r, const struct hvi_spawn_failure *failure);
    /** The process has been reaped, its group killed. Once. */
    void (*on_exited)(struct hvi_rank *r);
    /** Both output streams have ended. Once. */
    void (*on_output_end)(struct hvi_rank *r);
};

struct hvi_rank {
    const struct hvi_rank_ops *ops;
    void *owner;
    struct hvi_keeper *keeper;
    int rank, local_rank;
    struct hvi_jobenv env; /* this rank's own additions */
    const cpu_set_t *cpus; /* to be bound to, borrowed; NULL: as the agent is */
    char *note;            /* for its stderr, owned; NULL: none */
    pid_t pid;             /* 0: not forked */
    int pidfd;
    int fail_fd;
    uv_poll_t exit_poll, start_poll;
    bool exit_poll_open, start_poll_open;
    struct hvi_wout out[2];
    struct hvi_win in;
    int open_streams;
    int64_t started_ms;
    bool exited, by_us;
    int wait_status;
};

/** What all ranks of the host have in common. */
struct hvi_rank_common {
    uv_loop_t *loop;
    struct hvi_chan *chan;
    struct hvi_keeper *keeper;
    const struct hvi_rank_ops *ops;
    void *owner;
    char **argv;
    const char *cwd;
    const struct hvi_jobenv *env;
    int null_fd, cgroup_fd;
    uint64_t window_bytes;
};

/** Forks the worker and lets it go once the keeper knows it. On failure nothing runs;
 *  failure then says where. HVD_EIO, HVD_ENOMEM. */
enum hvd_status hvi_rank_start(struct hvi_rank *r, const struct hvi_rank_common *c,
                               bool with_stdin, struct hvi_spawn_failure *failure,
                               struct hvi_err *err);
/** To its process group; nothing when it has ended. */
void hvi_rank_signal(const struct hvi_rank *r, int signo);
/** Notices an end that the loop has not seen yet. */
void hvi_rank_check(struct hvi_rank *r);
void hvi_rank_close(
    struct hvi_rank *r); /* all handles; the struct must outlive the loop's run */
void hvi_rank_fini(struct hvi_rank *r);

#endif
