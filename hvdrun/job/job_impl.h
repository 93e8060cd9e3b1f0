/** What the files of a job share: job.c (its life), jobio.c (output, input, signals),
 *  jobend.c (what went wrong, and stopping). Private to them. */
#ifndef HVI_HVDRUN_JOB_IMPL_H
#define HVI_HVDRUN_JOB_IMPL_H

#include "hvdrun/job/chan.h"
#include "hvdrun/io/input.h"
#include "hvdrun/job/job.h"
#include "hvdrun/io/outmux.h"
#include "hvdrun/job/proc.h"
#include "hvdrun/doctor/reach.h"
#include "hvdrun/job/report.h"
#include "hvdrun/job/rundir.h"
#include "hvdrun/io/sink.h"
#include "hvdrun/ssh/sshargv.h"
#include "hvdrun/job/verdict.h"
#include "proto/sec/handshake.h"

/* From the first sign of trouble to the verdict: the last output arrives, and what the
 * coordinator knows of the order of the deaths. */
#define HVI_JOB_VERDICT_MS 100
/* ... and to the stop: survivors see their calls fail and may end by themselves. */
#define HVI_JOB_SETTLE_MS 250
#define HVI_JOB_HOLD_MS 1000  /* for the own status of the rank that was lost first */
#define HVI_JOB_END_MS 3000   /* for our own processes to end once all is done */
#define HVI_JOB_DRAIN_MS 1000 /* for the last output of a job that was asked to end */
#define HVI_JOB_STUCK_MS                                                               \
    3000 /* after the grace time: the agent itself does not answer */
#define HVI_JOB_ACK_BYTES (64 * 1024)
#define HVI_JOB_SINK_HIGH_BYTES (4 * 1024 * 1024)
#define HVI_JOB_STDIN_WINDOW_BYTES (256 * 1024) /* PROTOCOL.md section 4 */

enum hvi_job_phase {
    HVI_JOB_UNSET = 0,
    HVI_JOB_RUNNING,
    HVI_JOB_ENDING, /* all ranks are gone; our own processes go */
    HVI_JOB_OVER
};

/* After the end of its frames a process of ours, or the ssh that leads to it, has this
 * long to end too, and to say why. */
#define HVI_JOB_LATE_MS 2000
#define HVI_JOB_OTHERS_MAX 8    /* addresses of this host beside own_addr */
#define HVI_JOB_SAID_BYTES 4096 /* the last of what an ssh wrote to stderr */

/** What ssh, and the agent behind it, write to stderr. */
struct hvi_job_words {
    uv_pipe_t pipe;
    bool open;
    char said[HVI_JOB_SAID_BYTES]; /* NUL terminated; the newest is kept */
    size_t n;
    size_t shown; /* of said: lines that were dealt with */
};

/** A process of ours with its frame pipes. */
struct hvi_job_peer {
    struct hvi_job *job;
    int host; /* index in the plan; -1: the coordinator */
    struct hvi_proc proc;
    struct hvi_chan chan;
    bool started, up, spec_sent, chan_ended, reaped;
    int wait_status;
    char why[160];    /* a damaged channel */
    bool lingered;    /* its frames had ended, it had not: we killed it */
    bool stopped;     /* by SIGSTOP, as far as we know: it is our child */
    bool remote;      /* proc is the ssh that leads to it */
    int tries;        /* of ssh so far */
    int nup_seen;     /* hosts that had answered at its last try */
    int64_t start_ms; /* not before; 0: at once */
    struct hvi_job_words words;
};

struct hvi_job_rank {
    int pid, host;
    int64_t age_ms;
    bool out_of_memory; /* as in Exited */
    bool started, over; /* over: exited, and no more output will come */
    int open_streams;
    uint64_t unacked[2];
    uint64_t stdin_acked;
};

/** --json-events. */
struct hvi_job_events {
    struct hvi_sink sink;
    struct hvi_buf text;
    int fd;
    bool begun, over; /* over: job_end is in text */
    int64_t begin_ms;
};

struct hvi_job {
    uv_loop_t loop;
    const struct hvi_opts *opts;
    const struct hvi_plan *plan;
    enum hvi_job_phase phase;
    uint8_t key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    char rundir[HVI_RUNDIR_MAX], endpoint[HVI_RUNDIR_MAX + 16];
    char agent_path[PATH_MAX], coord_path[PATH_MAX]; /* here */
    struct hvi_rshell rshell;
    char first_name[HVI_HOST_NAME_MAX + 1]; /* the address of the first remote host */
    bool tcp; /* some host is remote: the coordinator listens on own_addr */
    char listen[HVI_JOB_OTHERS_MAX * (HVI_ADDR_MAX + 3) + 16];
    char other_text[HVI_JOB_OTHERS_MAX][HVI_ADDR_MAX + 16], *other[HVI_JOB_OTHERS_MAX];
    size_t nothers;
    bool anywhere; /* it listens on all addresses */
    char named[HVI_JOB_OTHERS_MAX]
              [HVI_ADDR_MAX]; /* it listens on these, own_addr first */
    size_t nnamed;            /* of --network-interfaces; 0: not given */
    bool one_way;             /* to all remote hosts, by own_addr */
    char own_addr[HVI_ADDR_MAX], master_addr[HVI_HOST_NAME_MAX + 1];
    char cwd[4096];
    int master_port;
    struct hvi_job_peer coord, *agent; /* agent: [plan->nhosts] */
    struct hvi_job_rank *rank;         /* [np] */
    int nover, nstarted;
    /* output and input */
    struct hvi_outmux mux;
    struct hvi_sink sink[2];
    int nsinks;
    int (*file)[2]; /* [np] --output-filename, or NULL */
    char stamp[64];
    int file_error; /* the first of a file's, an errno; 0: none */
    char file_name[64];
    uint64_t file_lost_bytes;
    bool told_lost, told_lost_events;
    bool *hidden; /* [np] of mux, or NULL */
    struct hvi_job_events events;
    struct hvi_job_debug *debug; /* NULL: no rank is to be debugged */
    struct hvi_input input;
    uint64_t stdin_sent;
    /* timers and signals */
    uv_timer_t start_timer, limit_timer, settle_timer, stop_timer, line_timer,
        end_timer, suspend_timer, late_timer, try_timer;
    uv_signal_t signal[12];
    int nsignals;
    bool handles_open, impatient; /* impatient: HVI_JOB_END_MS have passed */
    /* what went wrong; texts are heap */
    struct hvi_verdict verdict;
    struct hvi_report report;
    char *coord_text, *fatal_text, *agent_text, *start_text;
    int start_status;
    uint64_t oom_kills; /* on this host, when the job began */
    int64_t trouble_ms; /* when it began; 0: not yet */
    bool concluded, stopping, killing;
    bool asked; /* to end, by a signal or the time limit */
    bool left;  /* without waiting for the end */
    int interrupts;
    int status; /* decided, or -1 */
};

/* jobio.c */
enum hvd_status hvi_job_io_init(struct hvi_job *j, struct hvi_err *err);
void hvi_job_io_close(struct hvi_job *j);
void hvi_job_io_fini(struct hvi_job *j);
bool hvi_job_io_idle(const struct hvi_job *j);
/** A line of ours among the output: "hvdrun: " + text. */
void hvi_job_say(struct hvi_job *j, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void hvi_job_output(struct hvi_job *j, const Hvi__Output *m);
/** Tells the agent what was taken of a debugged rank's output, if at_least bytes. */
void hvi_job_output_ack(struct hvi_job *j, int rank, uint64_t at_least);
void hvi_job_input_start(struct hvi_job *j);
void hvi_job_input_acked(struct hvi_job *j, int rank, uint64_t bytes);
void hvi_job_flush(struct hvi_job *j);
/** Names, once, what could not be written; then the status is not 0. */
void hvi_job_tell_lost(struct hvi_job *j);
/** The same of events, once their last one is written; the status stays: they are no
 * output of the job. */
void hvi_job_tell_lost_events(struct hvi_job *j);

/* jobend.c */
/** Something went wrong: the verdict follows once it has settled; now: at once. */
void hvi_job_trouble(struct hvi_job *j, bool now);
/** Decides and words what went wrong, if anything and not yet done. */
void hvi_job_conclude(struct hvi_job *j);
/** Asks all ranks to end; kills them after the grace time. */
void hvi_job_stop(struct hvi_job *j, int64_t grace_ms);
/** The job ends with this status because of something that is no rank's failure. */
void hvi_job_end_with(struct hvi_job *j, int status);
void hvi_job_signal(struct hvi_job *j, int signo); /* one that hvdrun got */
void hvi_job_settle_cb(uv_timer_t *t);
void hvi_job_stuck_cb(uv_timer_t *t);

/* jobssh.c */
/** Asks ssh for the first remote host, before it leads there: is it an old one? */
void hvi_job_ssh_ask(struct hvi_job *j);
/** Chooses own_addr and master_addr. HVD_EINVAL: the interfaces named have none. */
enum hvd_status hvi_job_ssh_reach(struct hvi_job *j, struct hvi_err *err);
/** The coordinator has its port: the endpoints by which the hosts reach it. */
void hvi_job_ssh_endpoints(struct hvi_job *j, int port);
/** Starts ssh for a remote host; its frame pipes are in peer->proc. */
enum hvd_status hvi_job_ssh_start(struct hvi_job_peer *p, struct hvi_err *err);
/** Its agent has answered: what a banner said before is forgotten. */
void hvi_job_ssh_up(struct hvi_job_peer *p);
/** Its server had too many connections: worth another try. */
bool hvi_job_ssh_busy(struct hvi_job_peer *p);
/** Its process has ended, or its agent's frames: what to tell the user. Heap. */
char *hvi_job_ssh_text(struct hvi_job_peer *p);
void hvi_job_ssh_close(struct hvi_job_peer *p);

/* jobdebug.c; without --debug and --wait-for-debugger they do nothing */
/** Before anything is started; j->opts may be replaced. HVD_EINVAL: no terminal. */
enum hvd_status hvi_job_debug_open(struct hvi_job *j, struct hvi_err *err);
/** Descriptors it may need. */
size_t hvi_job_debug_fds(const struct hvi_job *j);
/** Listens in the runtime directory. HVD_EIO. */
enum hvd_status hvi_job_debug_listen(struct hvi_job *j, struct hvi_err *err);
/** It runs under a debugger: its output is the debugger's terminal. */
bool hvi_job_debug_has(const struct hvi_job *j, int rank);
void hvi_job_debug_started(struct hvi_job *j, int rank);
/** false: whoever is attached has not read enough; the bytes are not acknowledged yet. */
bool hvi_job_debug_output(struct hvi_job *j, int rank, const void *data,
                          size_t size_bytes);
/** Its terminal has taken so much of its input. */
void hvi_job_debug_acked(struct hvi_job *j, int rank, uint64_t bytes);
void hvi_job_debug_over(struct hvi_job *j, int rank);
/** A child of ours has ended; it may be one of this file's. */
void hvi_job_debug_reaped(struct hvi_job *j, pid_t pid, int status);
/** Who is attached has been sent everything, or has had the time to take it. */
bool hvi_job_debug_idle(const struct hvi_job *j);
void hvi_job_debug_close(struct hvi_job *j);
/** After the loop: the terminal is as it was. Blocks for some seconds at most. */
void hvi_job_debug_end(struct hvi_job *j);
void hvi_job_debug_fini(struct hvi_job *j);

/* jobevents.c; without --json-events they do nothing */
/** Opens the file, before the job opens anything else. HVD_EINVAL, HVD_EIO. */
enum hvd_status hvi_job_events_open(struct hvi_job *j, struct hvi_err *err);
enum hvd_status hvi_job_events_begin(struct hvi_job *j, struct hvi_err *err);
void hvi_job_event_start(struct hvi_job *j);
void hvi_job_event_host(struct hvi_job *j, int host, int pid);
void hvi_job_event_rank(struct hvi_job *j, int rank, int pid);
void hvi_job_event_exit(struct hvi_job *j, const Hvi__Exited *m);
void hvi_job_event_message(struct hvi_job *j, const char *text);
/** Tells the end, once; true when all is written, or no longer worth waiting for. */
bool hvi_job_events_done(struct hvi_job *j);
void hvi_job_events_leave(struct hvi_job *j);
void hvi_job_events_close(struct hvi_job *j);
void hvi_job_events_fini(struct hvi_job *j);

/* job.c */
void hvi_job_send_all(struct hvi_job *j, uint32_t type, const void *body);
void hvi_job_check_over(struct hvi_job *j);
/** What was stopped (SIGSTOP) goes on, so that it can end. */
void hvi_job_wake_peers(struct hvi_job *j);
/** Ends hvdrun at once, whatever is still there. */
void hvi_job_leave(struct hvi_job *j);

#endif
