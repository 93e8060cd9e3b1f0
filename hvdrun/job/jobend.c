/*
 * What went wrong, decided once. Signs of one event come on different ways: the agent's
 * EXITED, the coordinator's note, the end of its pipe. So the first sign only starts a
 * short time in which the others may come (and survivors of a lost rank see their calls
 * fail); then the strongest is worded, and the ranks are stopped: the coordinator is
 * dead > its fatal note > an agent's error > no rank could start > a rank failed.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/job/exitcode.h"
#include "hvdrun/job/job_impl.h"
#include "proto/base/clock.h"

#define SUSPEND_MS 20 /* the ranks' SIGTSTP goes out before we stop ourselves */

static int alive(const struct hvi_job *j)
{
    return j->plan->np - j->verdict.exited;
}

void hvi_job_stop(struct hvi_job *j, int64_t grace_ms)
{
    Hvi__Stop msg = HVI__STOP__INIT;

    if (j->phase != HVI_JOB_RUNNING || j->killing)
        return;
    j->stopping = true;
    j->killing = grace_ms == 0;
    msg.grace_ms = (uint32_t)grace_ms;
    hvi_job_wake_peers(j);
    hvi_job_send_all(j, HVI_MSG_STOP, &msg);
    uv_timer_start(&j->stop_timer, hvi_job_stuck_cb,
                   (uint64_t)grace_ms + HVI_JOB_STUCK_MS, 0);
    /* one that was not asked to start anything has nothing to say either */
    hvi_job_check_over(j);
}

void hvi_job_stuck_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;

    for (size_t i = 0; i < j->plan->nhosts; i++)
        if (j->agent[i].started && !j->agent[i].reaped)
            kill(j->agent[i].proc.pid, SIGKILL); /* its keeper does the rest */
}

static void say_failure(struct hvi_job *j, int cause)
{
    const struct hvi_verdict_rank *v = &j->verdict.rank[cause];
    const struct hvi_job_rank *r = &j->rank[cause];
    struct hvi_failure f = {.rank = cause,
                            .pid = r->pid,
                            .host = j->plan->host[r->host].name,
                            .wait_status = v->wait_status,
                            .exited = v->exited,
                            .no_bye = v->no_bye,
                            .out_of_memory = r->out_of_memory,
                            .age_ms = r->age_ms};
    struct hvi_buf text = {0};

    f.also_failed = j->verdict.failed - (v->exited && v->wait_status != 0 && !v->by_us);
    f.stopped = alive(j) - !v->exited;
    if (hvi_report_failure(&j->report, &f, &text) == HVD_OK &&
        hvi_buf_append(&text, "", 1) == HVD_OK) {
        text.data[text.len - 2] = '\0'; /* say adds the last newline */
        (void)hvi_outmux_say(&j->mux, (const char *)hvi_buf_peek(&text));
    }
    hvi_buf_fini(&text);
    hvi_job_flush(j);
}

static const char *strongest_text(const struct hvi_job *j)
{
    if (j->fatal_text != NULL)
        return j->fatal_text;
    return j->coord_text != NULL ? j->coord_text : j->agent_text;
}

/* false: the verdict is worth waiting for. */
static bool judge(struct hvi_job *j)
{
    bool settled;
    int cause;

    if (j->coord_text != NULL || j->fatal_text != NULL || j->agent_text != NULL) {
        j->status = HVI_EXIT_LAUNCHER;
        hvi_job_say(j, "%s", strongest_text(j));
        return true;
    }
    if (j->start_text != NULL) {
        j->status = j->start_status;
        hvi_job_say(j, "%s", j->start_text);
        return true;
    }
    if (!hvi_verdict_bad(&j->verdict))
        return true;
    cause = hvi_verdict_cause(&j->verdict, &settled);
    if (!settled && j->phase == HVI_JOB_RUNNING &&
        hvi_now_ms() - j->trouble_ms < HVI_JOB_HOLD_MS)
        return false;
    say_failure(j, cause);
    j->status = hvi_verdict_status(&j->verdict);
    return true;
}

void hvi_job_conclude(struct hvi_job *j)
{
    if (!j->concluded && judge(j))
        j->concluded = true;
}

void hvi_job_settle_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;
    bool at_once = j->start_text != NULL; /* nobody survives that was never started */
    int64_t wait_ms = HVI_JOB_SETTLE_MS;

    hvi_job_conclude(j);
    if (!j->concluded && j->verdict.lost < 0)
        wait_ms = HVI_JOB_HOLD_MS; /* our SIGTERM would hide how the one awaited ends */
    if (!j->stopping && (at_once || hvi_now_ms() - j->trouble_ms >= wait_ms))
        hvi_job_stop(j, j->opts->grace_ms);
    if (j->phase == HVI_JOB_RUNNING && (!j->concluded || !j->stopping))
        uv_timer_start(&j->settle_timer, hvi_job_settle_cb, HVI_JOB_VERDICT_MS / 2, 0);
}

void hvi_job_trouble(struct hvi_job *j, bool now)
{
    if (j->concluded || j->phase == HVI_JOB_OVER)
        return;
    if (j->trouble_ms == 0)
        j->trouble_ms = hvi_now_ms();
    if (now)
        hvi_job_settle_cb(&j->settle_timer);
    else if (!uv_is_active((uv_handle_t *)&j->settle_timer))
        uv_timer_start(&j->settle_timer, hvi_job_settle_cb, HVI_JOB_VERDICT_MS, 0);
}

void hvi_job_end_with(struct hvi_job *j, int status)
{
    if (!j->concluded)
        j->status = status;
    j->concluded = true;
    uv_timer_stop(&j->settle_timer);
}

/* ---- signals */

static void forward(struct hvi_job *j, int signo)
{
    Hvi__Signal msg = HVI__SIGNAL__INIT;

    msg.signo = signo;
    msg.rank = -1;
    hvi_job_send_all(j, HVI_MSG_SIGNAL, &msg);
}

/* Half of the grace time for the signal itself, then SIGTERM, then SIGKILL. */
static void insist_cb(uv_timer_t *t)
{
    struct hvi_job *j = t->data;

    hvi_job_stop(j, j->opts->grace_ms - j->opts->grace_ms / 2);
}

static void suspend_cb(uv_timer_t *t)
{
    (void)t;
    raise(SIGSTOP);
}

static const char *ranks_text(int n, char out[32])
{
    snprintf(out, 32, "%d %s", n, n == 1 ? "rank" : "ranks");
    return out;
}

static void interrupt(struct hvi_job *j, int signo)
{
    char text[32];

    if (++j->interrupts == 2) {
        hvi_job_say(j, "interrupted again: killing %s", ranks_text(alive(j), text));
        hvi_job_stop(j, 0);
        return;
    }
    if (j->interrupts > 2) { /* the lifelines clean up behind us */
        hvi_job_leave(j);
        return;
    }
    hvi_job_say(j, "interrupted: asking %s to end; once more kills them at once",
                ranks_text(alive(j), text));
    hvi_job_end_with(j, HVI_EXIT_SIGNAL + signo);
    if (j->stopping)
        return;
    j->stopping = true;
    forward(j, signo);
    uv_timer_start(&j->stop_timer, insist_cb, (uint64_t)(j->opts->grace_ms / 2), 0);
    hvi_job_check_over(j);
}

static bool ends_the_job(int signo)
{
    return signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT;
}

void hvi_job_signal(struct hvi_job *j, int signo)
{
    char text[32];

    if (ends_the_job(signo)) {
        j->asked = true;
        if (j->phase ==
            HVI_JOB_ENDING) { /* the ranks are gone: only output is awaited */
            if (!j->concluded)
                hvi_job_end_with(j, HVI_EXIT_SIGNAL + signo);
            hvi_job_leave(j);
        }
    }
    if (j->phase != HVI_JOB_RUNNING)
        return;
    switch (signo) {
    case SIGINT:
        interrupt(j, signo);
        break;
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT:
        hvi_job_say(j, "%s: asking %s to end", hvi_signal_name(signo),
                    ranks_text(alive(j), text));
        hvi_job_end_with(j, HVI_EXIT_SIGNAL + signo);
        if (signo == SIGQUIT)
            forward(j, signo);
        hvi_job_stop(j, j->opts->grace_ms);
        break;
    case SIGTSTP:
        forward(j, SIGTSTP);
        uv_timer_start(&j->suspend_timer, suspend_cb, SUSPEND_MS, 0);
        break;
    default:
        forward(j, signo);
    }
}
