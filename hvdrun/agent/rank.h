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

/** As RankSpec.debug. */
enum hvi_rank_debug {
    HVI_RANK_PLAIN = 0,
    HVI_RANK_TERMINAL = 1, /* under a debugger, on a terminal of its own */
    HVI_RANK_HELD = 2      /* stopped before its first instruction */
};

struct hvi_rank {
    const struct hvi_rank_ops *ops;
    void *owner;
    struct hvi_keeper *keeper;
    int rank, local_rank;
    struct hvi_jobenv env; /* this rank's own additions */
    const cpu_set_t *cpus; /* to be bound to, borrowed; NULL: as the agent is */
    char *note;            /* for its stderr, owned; NULL: none */
    enum hvi_rank_debug debug;
    uint16_t rows, columns; /* of its terminal; 0: not known yet */
    pid_t pid;              /* 0: not forked */
    int pidfd;
    int fail_fd;
    uv_poll_t exit_poll, start_poll;
    uv_timer_t hold_timer;
    bool exit_poll_open, start_poll_open, hold_timer_open;
    struct hvi_wout out[2]; /* a terminal: only the first */
    struct hvi_win in;
    struct {
        int in[2], out[2], err[2];
    } fds; /* between hvi_rank_fork() and hvi_rank_watch() */
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
    char **debug_argv; /* with the debugger's words before it */
    const char *cwd;
    const struct hvi_jobenv *env;
    int null_fd, cgroup_fd;
    uint64_t window_bytes;
};

/** Starts the worker, of which the keeper knows before it execs; hvi_rank_watch() has to
 *  follow. On failure nothing runs; failure then says where. HVD_EIO, HVD_ENOMEM.
 *  Threads  any; it dies with the one that calls. One that is debugged: the loop's. */
enum hvd_status hvi_rank_fork(struct hvi_rank *r, const struct hvi_rank_common *c,
                              bool with_stdin, struct hvi_spawn_failure *failure,
                              struct hvi_err *err);
/** Hands a started worker to the loop; may call on_started. On failure it is killed. */
enum hvd_status hvi_rank_watch(struct hvi_rank *r, const struct hvi_rank_common *c,
                               struct hvi_err *err);
/** To its process group; nothing when it has ended. To a debugger only what shall end it
 *  comes, as SIGTERM: the rest would be the end of the debugger too. */
void hvi_rank_signal(const struct hvi_rank *r, int signo);
/** The size of its terminal, at once or when it has one. */
void hvi_rank_resize(struct hvi_rank *r, uint16_t rows, uint16_t columns);
/** Notices an end that the loop has not seen yet. */
void hvi_rank_check(struct hvi_rank *r);
void hvi_rank_close(
    struct hvi_rank *r); /* all handles; the struct must outlive the loop's run */
void hvi_rank_fini(struct hvi_rank *r);

#endif
