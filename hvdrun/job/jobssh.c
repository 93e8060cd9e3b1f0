/*
 * Remote hosts. Happy path: the address that they can call is chosen by asking the
 * kernel for the way to the first of them; one ssh a host starts hvd-agent there, whose
 * stdin and stdout are then the frame pipes, as on this machine. What ssh and the shell
 * there write to stderr is kept until the agent has answered, and then forgotten.
 * Failure: ssh ends. Its status and its words become one text that names the host and
 * the fix (sshtext.h). The end of the connection is the end of ssh.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/job/job_impl.h"
#include "hvdrun/ssh/sshargv.h"
#include "hvdrun/ssh/sshask.h"
#include "hvdrun/ssh/sshtext.h"
#include "hvdrun/io/tail.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/ports.h"

#define WAYS_MAX 16 /* hosts whose way from here is looked at */
#define DESTINATION_MAX (2 * HVI_HOST_NAME_MAX + 2)

/* ---- addresses */

/* --network-interfaces: their addresses, first the one that was found to lead to the hosts
 * when it is among them. */
static enum hvd_status take_interfaces(struct hvi_job *j, struct hvi_err *err)
{
    if (j->opts->interfaces == NULL)
        return HVD_OK;
    j->nnamed = hvi_netaddr_named(j->opts->interfaces, j->named, HVI_JOB_OTHERS_MAX);
    if (j->nnamed == 0)
        return hvi_fail(err, HVD_EINVAL,
                        "--network-interfaces: no interface of this host with an "
                        "address is named '%s'",
                        j->opts->interfaces);
    for (size_t i = 1; i < j->nnamed; i++)
        if (strcmp(j->named[i], j->own_addr) == 0) {
            memcpy(j->named[i], j->named[0], sizeof j->named[0]);
            memcpy(j->named[0], j->own_addr, sizeof j->named[0]);
        }
    memcpy(j->own_addr, j->named[0], sizeof j->own_addr);
    return HVD_OK;
}

void hvi_job_ssh_ask(struct hvi_job *j)
{
    for (size_t i = 0; i < j->plan->nhosts && j->first_name[0] == '\0'; i++)
        if (j->plan->host[i].remote)
            hvi_sshask(&j->rshell, &j->plan->host[i], j->opts, j->first_name,
                       sizeof j->first_name);
}

/* The way to a host: our address on it and the host's; false: none is known. To ask ssh
 * takes a process, so that only the first host is asked about, and after an alias all; of
 * the others those only that do not lead where the ones before did. */
struct way {
    char name[HVI_HOST_NAME_MAX + 1], own[HVI_ADDR_MAX], peer[HVI_ADDR_MAX];
    bool ask, first;
};

static bool find_way(struct hvi_job *j, const struct hvi_host *host, struct way *way)
{
    if (!way->ask) {
        snprintf(way->name, sizeof way->name, "%s", host->name);
        if (hvi_reach_toward(way->name, way->own, way->peer) &&
            strcmp(way->own, j->own_addr) == 0)
            return true;
    }
    if (way->first) /* asked about before the logins began */
        memcpy(way->name, j->first_name, sizeof way->name);
    else
        hvi_sshask(&j->rshell, host, j->opts, way->name, sizeof way->name);
    way->first = false;
    way->ask = strcmp(way->name, host->name) != 0;
    return hvi_reach_toward(way->name, way->own, way->peer);
}

enum hvd_status hvi_job_ssh_reach(struct hvi_job *j, struct hvi_err *err)
{
    struct way way = {.ask = true, .first = true};
    bool found = false; /* good: also for other machines than this one */
    bool good = false;
    int looked = 0;
    enum hvd_status rc;

    j->one_way = true;
    for (size_t i = 0; i < j->plan->nhosts; i++) {
        bool leads;

        if (!j->plan->host[i].remote)
            continue;
        if (++looked > WAYS_MAX) {
            j->one_way = false;
            break;
        }
        leads = find_way(j, &j->plan->host[i], &way);
        if (i == 0)
            snprintf(j->master_addr, sizeof j->master_addr, "%s",
                     leads ? way.peer : way.name);
        j->one_way =
            j->one_way && leads && (!found || strcmp(way.own, j->own_addr) == 0);
        if (leads && !good)
            memcpy(j->own_addr, way.own, sizeof way.own);
        found = found || leads;
        good = good || (leads && !hvi_netaddr_loopback(way.own));
        if (good && !j->one_way)
            break;
    }
    if (!found && !hvi_reach_own(j->own_addr)) /* ssh will say what it thinks of them */
        snprintf(j->own_addr, sizeof j->own_addr, "127.0.0.1");
    rc = take_interfaces(j, err);
    if (rc != HVD_OK)
        return rc;
    if (j->opts->advertise != NULL)
        snprintf(j->own_addr, sizeof j->own_addr, "%s", j->opts->advertise);
    if (!j->plan->host[0].remote)
        snprintf(j->master_addr, sizeof j->master_addr, "%s", j->own_addr);
    hvi_log_debug("job", "own_addr=%s master_addr=%s", j->own_addr, j->master_addr);
    return HVD_OK;
}

static void add_endpoint(struct hvi_job *j, const char *address, int port)
{
    if (strcmp(address, j->own_addr) == 0)
        return;
    j->other[j->nothers] = j->other_text[j->nothers];
    hvi_reach_endpoint(address, port, j->other[j->nothers], sizeof j->other_text[0]);
    j->nothers++;
}

void hvi_job_ssh_endpoints(struct hvi_job *j, int port)
{
    char all[HVI_JOB_OTHERS_MAX][HVI_ADDR_MAX];
    size_t n = 0;

    hvi_reach_endpoint(j->own_addr, port, j->endpoint, sizeof j->endpoint);
    if (j->opts->advertise != NULL)
        return;
    if (j->anywhere)
        n = hvi_netaddr_far(NULL, all, HVI_JOB_OTHERS_MAX);
    for (size_t i = 0; i < n; i++)
        add_endpoint(j, all[i], port);
    for (size_t i = 0; i < j->nnamed; i++)
        add_endpoint(j, j->named[i], port);
}

/* ---- what ssh says */

static void keep(struct hvi_job_words *w, const char *bytes, size_t n)
{
    size_t drop = hvi_tail_add(w->said, sizeof w->said, &w->n, bytes, n);

    w->shown = w->shown > drop ? w->shown - drop : 0;
}

/* Lines of the agent's log are for the user; those of ssh only when it fails. */
static void show(struct hvi_job_peer *p)
{
    struct hvi_job_words *w = &p->words;
    char text[1024];

    for (;;) {
        char *line = w->said + w->shown;
        const char *end = strchr(line, '\n');
        size_t n = end != NULL ? (size_t)(end - line) : 0;

        if (end == NULL)
            return;
        w->shown += n + 1;
        while (n > 0 && line[n - 1] == '\r')
            n--;
        if (p->job->opts->verbose || (p->up && memmem(line, n, "hvd-agent", 9) != NULL))
            hvi_job_say(p->job, "%s: %s", p->job->plan->host[p->host].name,
                        hvi_escape(text, sizeof text, line, n));
    }
}

static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    static char room[HVI_JOB_SAID_BYTES]; /* consumed before the next allocation */

    (void)h;
    (void)hint;
    *out = uv_buf_init(room, sizeof room);
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hvi_job_peer *p = s->data;

    if (n > 0) {
        keep(&p->words, buf->base, (size_t)n);
        show(p);
    } else if (n < 0) {
        hvi_job_ssh_close(p);
    }
}

/* ssh has ended: all its words are in the pipe, though somebody may hold it open. */
static void drain(struct hvi_job_peer *p)
{
    char bytes[HVI_JOB_SAID_BYTES];
    ssize_t n;
    int fd;

    if (!p->words.open || uv_fileno((uv_handle_t *)&p->words.pipe, &fd) != 0)
        return;
    while ((n = read(fd, bytes, sizeof bytes)) > 0) /* it is non-blocking */
        keep(&p->words, bytes, (size_t)n);
}

void hvi_job_ssh_close(struct hvi_job_peer *p)
{
    if (!p->words.open)
        return;
    p->words.open = false;
    uv_close((uv_handle_t *)&p->words.pipe, NULL);
}

void hvi_job_ssh_up(struct hvi_job_peer *p)
{
    drain(p);
    show(p);
    p->words.n = p->words.shown = 0;
    p->words.said[0] = '\0';
}

/* ---- its life */

static const char *remote_agent(const struct hvi_job *j)
{
    return j->opts->agent_path != NULL ? j->opts->agent_path : j->agent_path;
}

enum hvd_status hvi_job_ssh_start(struct hvi_job_peer *p, struct hvi_err *err)
{
    struct hvi_job *j = p->job;
    char **argv =
        hvi_sshargv_make(&j->rshell, &j->plan->host[p->host], j->opts, remote_agent(j));
    enum hvd_status rc;

    if (argv == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = hvi_proc_start_piped(argv, &p->proc, err);
    if (rc != HVD_OK && err->text[0] != '\0') {
        char why[HVD_ERROR_TEXT_MAX];

        snprintf(why, sizeof why, "%.300s", err->text);
        rc = j->rshell.kind == HVI_RSHELL_SSH
                 ? hvi_fail(err, rc, "%s: %s; ranks on other hosts need ssh on PATH",
                            j->plan->host[p->host].name, why)
                 : hvi_fail(err, rc, "%s: %s", j->plan->host[p->host].name, why);
    }
    hvi_sshargv_free(argv);
    if (rc != HVD_OK)
        return rc;
    uv_pipe_init(&j->loop, &p->words.pipe, 0);
    p->words.pipe.data = p;
    p->words.open = true;
    if (uv_pipe_open(&p->words.pipe, p->proc.err_fd) != 0)
        close(p->proc.err_fd);
    else
        uv_read_start((uv_stream_t *)&p->words.pipe, alloc_cb, read_cb);
    return HVD_OK;
}

static struct hvi_ssh_failure failure_of(struct hvi_job_peer *p)
{
    const struct hvi_job *j = p->job;

    drain(p);
    return (struct hvi_ssh_failure){
        .host = j->plan->host[p->host].name,
        .shell = j->rshell.kind == HVI_RSHELL_SSH ? NULL : j->rshell.command,
        .agent = remote_agent(j),
        .agent_named = j->opts->agent_path != NULL,
        .said = p->words.said,
        .printed = p->chan.banner,
        .port = j->opts->ssh_port,
        .wait_status = p->wait_status,
        .lingered = p->lingered,
        .up = p->up};
}

bool hvi_job_ssh_busy(struct hvi_job_peer *p)
{
    struct hvi_ssh_failure f = failure_of(p);

    return hvi_sshtext_busy(&f);
}

char *hvi_job_ssh_text(struct hvi_job_peer *p)
{
    const struct hvi_host *host = &p->job->plan->host[p->host];
    char dest[DESTINATION_MAX], text[HVI_SSHTEXT_MAX], gone[HVI_PORTS_TEXT];
    struct hvi_ssh_failure f = failure_of(p);

    f.no_port = hvi_ports_gone(EADDRNOTAVAIL, gone) != NULL;
    f.dest = hvi_sshargv_destination(host, dest, sizeof dest);
    return strdup(hvi_sshtext(&f, text));
}
