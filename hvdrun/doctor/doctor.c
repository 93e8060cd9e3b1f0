/*
 * Happy path: a listener here; one hvd-agent --check a host, started as for a job, a few
 * at a time; it is asked by its stdin, answers on its stdout, and calls the listener.
 * Failure: its process ends with nothing said (sshtext.h words that), or the time is
 * over. Nothing here runs beside a job, so one poll() loop is enough.
 */
#include "hvdrun/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "hvdrun/job/exitcode.h"
#include "hvdrun/doctor/facts.h"
#include "hvdrun/job/proc.h"
#include "hvdrun/doctor/reach.h"
#include "hvdrun/ssh/sshargv.h"
#include "hvdrun/ssh/sshask.h"
#include "hvdrun/ssh/sshtext.h"
#include "proto/base/buf.h"
#include "proto/base/clock.h"
#include "proto/base/listenall.h"
#include "proto/base/ports.h"
#include "proto/sec/handshake.h"

#define FANOUT_DEFAULT 32
#define ANSWER_MAX_BYTES ((size_t)256 << 10)
#define TRANSPORT_S 0.3 /* from the host's reading of its clock to ours */
#define CALLS_MAX 64    /* connections to the listener at a time */
#define NONCE_BYTES 16
#define ACCEPT_AGAIN_MS 100 /* after no descriptor was left for a call */

struct patient {
    const struct hvi_host *host;
    struct hvi_proc proc;
    bool started, over;
    int wait_status;
    int64_t start_ms, end_ms;
    double answer_s; /* the time here when its clock came */
    struct hvi_buf out, err;
    struct hvi_checks checks;
};

struct doctor {
    const struct hvi_opts *opts;
    struct hvi_rshell rshell;
    char agent[PATH_MAX], nonce[2 * NONCE_BYTES + 2], cwd[4096];
    struct patient *patient; /* [n] */
    size_t n;
    int listener[HVI_REACH_ADDRS],
        port; /* [nlisteners]; -1: of an address that has gone */
    size_t nlisteners;
    int call[CALLS_MAX];  /* -1: free */
    int64_t deaf_till_ms; /* the listeners are not looked at before */
    struct hvi_buf questions;
};

static double wall_s(void)
{
    struct timeval now;

    gettimeofday(&now, NULL);
    return (double)now.tv_sec + (double)now.tv_usec / 1e6;
}

/* ---- being called back */

static void open_listeners(struct doctor *d)
{
    const char *addr[HVI_REACH_ADDRS] = {hvi_reach_any()};
    char named[HVI_REACH_ADDRS][HVI_ADDR_MAX];
    size_t n = 0;

    if (d->opts->interfaces != NULL)
        n = hvi_netaddr_named(d->opts->interfaces, named, HVI_REACH_ADDRS);
    for (size_t i = 0; i < n; i++)
        addr[i] = named[i];
    n = n > 0 ? n : 1;
    if (hvi_listen_all(addr, n, d->opts->port, d->opts->port_last, d->listener,
                       &d->port) ||
        hvi_listen_all(addr, n, 0, 0, d->listener, &d->port))
        d->nlisteners = n;
}

static void take_call(struct doctor *d, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
        d->deaf_till_ms = hvi_now_ms() + ACCEPT_AGAIN_MS; /* it stays readable */
    for (size_t i = 0; fd >= 0 && i < CALLS_MAX; i++)
        if (d->call[i] < 0) {
            d->call[i] = fd;
            return;
        }
    if (fd >= 0)
        close(fd);
}

static void answer_call(int *fd, const char *nonce)
{
    char text[2 * NONCE_BYTES + 2] = "";
    ssize_t n = recv(*fd, text, sizeof text - 1, 0);

    if (n > 0 && strcmp(text, nonce) == 0)
        (void)!send(*fd, nonce, strlen(nonce), MSG_NOSIGNAL);
    close(*fd);
    *fd = -1;
}

/* ---- the questions */

static enum hvd_status ask(struct hvi_buf *b, const char *name, const char *value)
{
    enum hvd_status rc = hvi_buf_append(b, name, strlen(name));

    if (rc == HVD_OK && value[0] != '\0')
        rc = hvi_buf_append(b, " ", 1);
    if (rc == HVD_OK)
        rc = hvi_buf_append(b, value, strlen(value));
    return rc == HVD_OK ? hvi_buf_append(b, "\n", 1) : rc;
}

static void ask_addresses(struct doctor *d)
{
    char own[HVI_REACH_ADDRS][HVI_ADDR_MAX];
    const char *names = d->opts->interfaces;
    size_t n;

    if (d->opts->advertise != NULL) {
        (void)ask(&d->questions, "address", d->opts->advertise);
        return;
    }
    if (names == NULL)
        (void)ask(&d->questions, "ssh", "");
    n = names != NULL ? hvi_netaddr_named(names, own, HVI_REACH_ADDRS)
                      : hvi_netaddr_far(NULL, own, HVI_REACH_ADDRS);
    for (size_t i = 0; i < n; i++)
        (void)ask(&d->questions, "address", own[i]);
}

static enum hvd_status prepare(struct doctor *d, struct hvi_err *err)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t random[NONCE_BYTES];
    char port[16];
    enum hvd_status rc = hvi_random(random, sizeof random);

    if (rc != HVD_OK)
        return hvi_fail(err, rc, "the system has no random numbers");
    for (size_t i = 0; i < NONCE_BYTES; i++) {
        d->nonce[2 * i] = digits[random[i] >> 4];
        d->nonce[2 * i + 1] = digits[random[i] & 15];
    }
    if (getcwd(d->cwd, sizeof d->cwd) == NULL)
        return hvi_fail(err, HVD_EIO, "the working directory: %s", strerror(errno));
    open_listeners(d);
    snprintf(port, sizeof port, "%d", d->port);
    rc = ask(&d->questions, "nonce", d->nonce);
    if (rc == HVD_OK && d->port > 0)
        rc = ask(&d->questions, "port", port);
    if (rc == HVD_OK)
        rc = ask(&d->questions, "wdir", d->opts->wdir != NULL ? d->opts->wdir : d->cwd);
    if (rc == HVD_OK && d->opts->ncommand > 0)
        rc = ask(&d->questions, "program", d->opts->command[0]);
    if (rc == HVD_OK)
        ask_addresses(d);
    if (rc == HVD_OK)
        rc = hvi_buf_append(&d->questions, "\n", 1);
    d->nonce[2 * (size_t)NONCE_BYTES] = '\n';
    return rc == HVD_OK ? hvi_proc_find("hvd-agent", d->agent, err)
                        : hvi_fail(err, rc, "out of memory");
}

/* ---- a host */

/* Before the first ssh: is it an old one? */
static void ask_ssh(struct doctor *d)
{
    char name[HVI_HOST_NAME_MAX + 1];

    for (size_t i = 0; i < d->n; i++)
        if (d->patient[i].host->remote) {
            hvi_sshask(&d->rshell, d->patient[i].host, d->opts, name, sizeof name);
            return;
        }
}

static void start(struct doctor *d, struct patient *p)
{
    static char check[] = "--check";
    char *local[] = {d->agent, check, NULL};
    char **argv = p->host->remote ? hvi_sshargv_make(&d->rshell, p->host, d->opts,
                                                     d->opts->agent_path != NULL
                                                         ? d->opts->agent_path
                                                         : d->agent)
                                  : NULL;
    struct hvi_err err = {"out of memory"};
    enum hvd_status rc = HVD_ENOMEM;

    p->start_ms = p->end_ms = hvi_now_ms();
    if (argv != NULL || !p->host->remote)
        rc = hvi_proc_start_piped(p->host->remote ? argv : local, &p->proc, &err);
    hvi_sshargv_free(argv);
    if (rc != HVD_OK) {
        p->over = true;
        hvi_checks_add(&p->checks, "start", HVI_CHECK_FAILED, err.text,
                       "ranks on other hosts need ssh on PATH, or --rsh");
        return;
    }
    p->started = true;
    /* less than a pipe holds: this does not block */
    (void)!write(p->proc.to_fd, hvi_buf_peek(&d->questions),
                 hvi_buf_size(&d->questions));
    (void)fcntl(p->proc.from_fd, F_SETFL, O_NONBLOCK);
    (void)fcntl(p->proc.err_fd, F_SETFL, O_NONBLOCK);
}

/* false: the end. */
static bool take(int fd, struct hvi_buf *to)
{
    char bytes[8192];
    ssize_t n = read(fd, bytes, sizeof bytes);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n > 0 && hvi_buf_size(to) < ANSWER_MAX_BYTES)
        (void)hvi_buf_append(to, bytes, (size_t)n);
    return n > 0;
}

static const char *text_of(struct hvi_buf *b)
{
    if (hvi_buf_append(b, "", 1) != HVD_OK)
        return "";
    b->len--;
    return (const char *)hvi_buf_peek(b);
}

static void listen_to(struct patient *p)
{
    bool more = take(p->proc.from_fd, &p->out);

    (void)take(p->proc.err_fd, &p->err);
    if (p->answer_s <= 0 && strstr(text_of(&p->out), HVI_FACTS_MARK "time ") != NULL)
        p->answer_s = wall_s();
    if (more)
        return;
    while (take(p->proc.err_fd, &p->err) && errno != EAGAIN)
        continue;
    p->over = true;
    p->end_ms = hvi_now_ms();
}

static void finish(struct patient *p, bool late)
{
    if (!p->started)
        return;
    if (late)
        kill(p->proc.pid, SIGKILL);
    close(p->proc.to_fd);
    close(p->proc.from_fd);
    close(p->proc.err_fd);
    while (waitpid(p->proc.pid, &p->wait_status, 0) < 0 && errno == EINTR)
        continue;
}

/* ---- what it means */

static const char *way(const struct doctor *d, const struct patient *p)
{
    return !p->host->remote                    ? "start"
           : d->rshell.kind == HVI_RSHELL_SSH  ? "ssh"
           : d->rshell.kind == HVI_RSHELL_SRUN ? "srun"
                                               : "remote shell";
}

static void judge_start(const struct doctor *d, struct patient *p)
{
    char dest[2 * HVI_HOST_NAME_MAX + 2], text[HVI_SSHTEXT_MAX], gone[HVI_PORTS_TEXT];
    struct hvi_ssh_failure f = {
        .host = p->host->name,
        .dest = hvi_sshargv_destination(p->host, dest, sizeof dest),
        .shell = d->rshell.kind == HVI_RSHELL_SSH ? NULL : d->rshell.command,
        .agent = d->opts->agent_path != NULL ? d->opts->agent_path : d->agent,
        .agent_named = d->opts->agent_path != NULL,
        .said = text_of(&p->err),
        .printed = text_of(&p->out),
        .port = d->opts->ssh_port,
        .wait_status = p->wait_status,
        .no_port = hvi_ports_gone(EADDRNOTAVAIL, gone) != NULL};
    char *fix;

    if (!p->host->remote) {
        hvi_exit_words(p->wait_status, text, sizeof text);
        hvi_checks_add(&p->checks, "start", HVI_CHECK_FAILED, text,
                       "is hvd installed whole?");
        return;
    }
    hvi_sshtext(&f, text);
    fix = strchr(text, '\n'); /* its second line says what to do */
    if (fix != NULL) {
        if (fix > text && strchr(":;", fix[-1]) != NULL)
            fix[-1] = '\0';
        *fix++ = '\0';
        fix += strspn(fix, " ");
    }
    hvi_checks_add(&p->checks, way(d, p), HVI_CHECK_FAILED, text,
                   fix != NULL ? fix : "");
}

static void judge(const struct doctor *d, struct patient *p)
{
    struct hvi_checks found = {.n = 0};
    char text[64];
    bool whole;

    if (!p->started)
        return;
    whole = hvi_facts_judge(text_of(&p->out), p->answer_s, TRANSPORT_S, &found);
    if (found.n == 0) {
        judge_start(d, p);
        return;
    }
    snprintf(text, sizeof text, "%.2f s", (double)(p->end_ms - p->start_ms) / 1000);
    hvi_checks_add(&p->checks, way(d, p), whole ? HVI_CHECK_OK : HVI_CHECK_FAILED,
                   whole ? text : "it did not finish its answer",
                   whole ? "" : "look at that host's load and log");
    for (size_t i = 0; i < found.n; i++)
        hvi_checks_add(&p->checks, found.list[i].name, found.list[i].result,
                       found.list[i].detail, found.list[i].fix);
}

/* ---- the loop */

static size_t start_some(struct doctor *d)
{
    size_t room = d->opts->fanout > 0 ? (size_t)d->opts->fanout : FANOUT_DEFAULT;
    size_t running = 0;

    for (size_t i = 0; i < d->n; i++)
        running += d->patient[i].started && !d->patient[i].over;
    for (size_t i = 0; i < d->n && running < room; i++)
        if (!d->patient[i].started && !d->patient[i].over) {
            start(d, &d->patient[i]);
            running += d->patient[i].started;
        }
    return running;
}

static bool is_ready(const struct pollfd *p, const struct pollfd *end, int fd)
{
    while (p < end && p->fd != fd)
        p++;
    return p < end && p->revents != 0;
}

static void examine(struct doctor *d, int64_t deadline_ms)
{
    struct pollfd *p = calloc(2 * d->n + CALLS_MAX + HVI_REACH_ADDRS, sizeof *p);

    while (p != NULL && start_some(d) > 0 && hvi_ms_left(deadline_ms) > 0) {
        bool deaf = hvi_ms_left(d->deaf_till_ms) > 0;
        int64_t until_ms =
            deaf && d->deaf_till_ms < deadline_ms ? d->deaf_till_ms : deadline_ms;
        nfds_t n = 0;

        for (size_t i = 0; i < d->nlisteners; i++)
            p[n++] =
                (struct pollfd){.fd = deaf ? -1 : d->listener[i], .events = POLLIN};
        /* no place for a call that is not there: poll() takes no more than RLIMIT_NOFILE */
        for (size_t i = 0; i < CALLS_MAX; i++)
            if (d->call[i] >= 0)
                p[n++] = (struct pollfd){.fd = d->call[i], .events = POLLIN};
        for (size_t i = 0; i < d->n; i++)
            if (d->patient[i].started && !d->patient[i].over)
                p[n++] =
                    (struct pollfd){.fd = d->patient[i].proc.from_fd, .events = POLLIN};
        if (poll(p, n, hvi_ms_left(until_ms)) <= 0)
            continue;
        for (size_t i = 0; i < d->nlisteners; i++)
            if (p[i].revents != 0)
                take_call(d, d->listener[i]);
        for (size_t i = 0; i < CALLS_MAX; i++)
            if (d->call[i] >= 0 && is_ready(p + d->nlisteners, p + n, d->call[i]))
                answer_call(&d->call[i], d->nonce);
        for (size_t i = 0; i < d->n; i++)
            if (d->patient[i].started && !d->patient[i].over &&
                is_ready(p + d->nlisteners, p + n, d->patient[i].proc.from_fd))
                listen_to(&d->patient[i]);
    }
    free(p);
}

/* ---- the table */

static const char *word(enum hvi_check_result result)
{
    return result == HVI_CHECK_OK        ? "ok"
           : result == HVI_CHECK_WARNING ? "warning"
                                         : "FAILED";
}

static void print_table(const struct doctor *d)
{
    int width = 4;
    size_t bad = 0;

    for (size_t i = 0; i < d->n; i++) {
        int len = (int)strlen(d->patient[i].host->name);

        width = len > width ? len : width;
    }
    for (size_t i = 0; i < d->n; i++) {
        const struct patient *p = &d->patient[i];

        bad += hvi_checks_worst(&p->checks) == HVI_CHECK_FAILED;
        for (size_t k = 0; k < p->checks.n; k++) {
            const struct hvi_check *c = &p->checks.list[k];

            printf("%-*s  %-17s  %-7s  %s%s%s\n", width, p->host->name, c->name,
                   word(c->result), c->detail, c->fix[0] != '\0' ? "; fix: " : "",
                   c->fix);
        }
    }
    if (bad == 0)
        printf("%zu %s, all can take part in a job\n", d->n,
               d->n == 1 ? "host" : "hosts");
    else
        printf("%zu of %zu %s cannot take part in a job\n", bad, d->n,
               d->n == 1 ? "host" : "hosts");
}

static void print_json(const struct doctor *d)
{
    json_t *hosts = json_array();
    json_t *all = json_object();

    for (size_t i = 0; i < d->n; i++) {
        const struct patient *p = &d->patient[i];
        json_t *host = json_object();
        json_t *checks = json_array();

        for (size_t k = 0; k < p->checks.n; k++) {
            const struct hvi_check *c = &p->checks.list[k];
            json_t *check = json_object();

            json_object_set_new(check, "check", json_string(c->name));
            json_object_set_new(check, "result",
                                json_string(c->result == HVI_CHECK_FAILED
                                                ? "failed"
                                                : word(c->result)));
            json_object_set_new(check, "detail", json_string(c->detail));
            if (c->fix[0] != '\0')
                json_object_set_new(check, "fix", json_string(c->fix));
            json_array_append_new(checks, check);
        }
        json_object_set_new(host, "host", json_string(p->host->name));
        json_object_set_new(
            host, "ok", json_boolean(hvi_checks_worst(&p->checks) != HVI_CHECK_FAILED));
        json_object_set_new(host, "checks", checks);
        json_array_append_new(hosts, host);
    }
    json_object_set_new(all, "version", json_string(HVI_VERSION));
    json_object_set_new(all, "hosts", hosts);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

static int report(struct doctor *d)
{
    int status = HVI_EXIT_OK;

    for (size_t i = 0; i < d->n; i++) {
        struct patient *p = &d->patient[i];
        bool late = p->started && !p->over;

        finish(p, late);
        if (late && p->out.len == 0)
            hvi_checks_add(&p->checks, way(d, p), HVI_CHECK_FAILED,
                           "no answer within the start timeout",
                           "is it up, and does a login there end by itself?");
        else
            judge(d, p);
        if (hvi_checks_worst(&p->checks) == HVI_CHECK_FAILED)
            status = 1;
    }
    if (d->opts->json)
        print_json(d);
    else
        print_table(d);
    return status;
}

int hvi_doctor_run(const struct hvi_opts *opts, const struct hvi_hosts *hosts)
{
    static char here[] = "localhost";
    static const struct hvi_host localhost = {.name = here};
    struct doctor d = {.opts = opts, .n = hosts->n > 0 ? hosts->n : 1};
    struct hvi_err err = {"out of memory"};
    int64_t limit_ms = opts->start_timeout_ms > 0 ? opts->start_timeout_ms
                                                  : HVI_START_TIMEOUT_DEFAULT_MS;
    int status = HVI_EXIT_LAUNCHER;

    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < CALLS_MAX; i++)
        d.call[i] = -1;
    d.rshell = hvi_rshell_choose(opts);
    d.rshell.check = true;
    d.patient = calloc(d.n, sizeof *d.patient);
    if (d.patient == NULL || prepare(&d, &err) != HVD_OK) {
        fprintf(stderr, "hvdrun: %s\n", err.text);
        goto done;
    }
    for (size_t i = 0; i < d.n; i++)
        d.patient[i].host = hosts->n > 0 ? &hosts->list[i] : &localhost;
    ask_ssh(&d);
    examine(&d, hvi_now_ms() + limit_ms);
    status = report(&d);
done:
    for (size_t i = 0; d.patient != NULL && i < d.n; i++) {
        hvi_buf_fini(&d.patient[i].out);
        hvi_buf_fini(&d.patient[i].err);
    }
    for (size_t i = 0; i < CALLS_MAX; i++)
        if (d.call[i] >= 0)
            close(d.call[i]);
    for (size_t i = 0; i < d.nlisteners; i++)
        if (d.listener[i] >= 0)
            close(d.listener[i]);
    hvi_buf_fini(&d.questions);
    free(d.patient);
    return status;
}
