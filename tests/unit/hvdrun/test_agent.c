#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/agent.h"
#include "hvdrun/job/rundir.h"
#include "proto/base/clock.h"
#include "proto/msg/msg.h"
#include "proto/sec/handshake.h"

/*
 * An agent in a child process; the test is its hvdrun (two pipes) and, in a thread, its
 * coordinator (accepts one connection and reads it to its end).
 */
static uint8_t key[HVI_KEY_BYTES] = {7}, job_id[HVI_JOB_ID_BYTES] = {8};
static char rundir[HVI_RUNDIR_MAX], endpoint[HVI_RUNDIR_MAX + 16];
static int to_agent, from_agent, listener;
static pid_t agent_pid;
static pthread_t coordinator_thread;
static struct hvi_buf received;

static void *coordinator(void *unused)
{
    uint8_t hello[HVI_HELLO_BYTES], reply[HVI_HELLO_BYTES], rest[4096];
    static struct hvi_stream s;
    enum hvi_role role;
    size_t n = 0;
    int fd = accept(listener, NULL, NULL);

    (void)unused;
    memset(&s, 0, sizeof s);
    while (fd >= 0 && n < sizeof hello) {
        ssize_t got = read(fd, hello + n, sizeof hello - n);

        if (got <= 0)
            break;
        n += (size_t)got;
    }
    if (n == sizeof hello && hvi_hs_server(key, job_id, HVI_ROLE_COORDINATOR, hello,
                                           reply, &s, &role, NULL) == HVD_OK) {
        (void)!write(fd, reply, sizeof reply);
        while (read(fd, rest, sizeof rest) > 0)
            ;
    }
    if (fd >= 0)
        close(fd);
    hvi_stream_fini(&s);
    return NULL;
}

static void begin(void)
{
    int in[2], out[2];
    struct hvi_err err = {""};
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(hvi_rundir_make(rundir, &err), HVD_OK, "%s", err.text);
    snprintf(endpoint, sizeof endpoint, "unix:%s/coord", rundir);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", endpoint + 5);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(listener, 4), 0);
    cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    agent_pid = fork();
    if (agent_pid == 0) {
        struct hvi_keeper keeper = {0, -1, 0};

        close(in[1]);
        close(out[0]);
        if (hvi_keeper_start(in[0], rundir, 0, &keeper, &err) != HVD_OK)
            _exit(9);
        _exit(hvi_agent_run(in[0], out[1], rundir, &keeper));
    }
    close(in[0]);
    close(out[1]);
    to_agent = in[1];
    from_agent = out[0];
    memset(&received, 0, sizeof received);
    cr_assert_eq(pthread_create(&coordinator_thread, NULL, coordinator, NULL), 0);
}

static void tell(uint32_t type, const void *body)
{
    struct hvi_buf frame = {0};

    cr_assert_eq(hvi_msg_put(&frame, type, body), HVD_OK);
    cr_assert_eq(write(to_agent, hvi_buf_peek(&frame), hvi_buf_size(&frame)),
                 (ssize_t)hvi_buf_size(&frame));
    hvi_buf_fini(&frame);
}

/* Next message of the agent; false: end of file, or nothing within limit_ms. */
static bool hear_within(struct hvi_msg *msg, int limit_ms)
{
    int64_t deadline = hvi_now_ms() + limit_ms;

    for (;;) {
        uint32_t type;
        const uint8_t *payload;
        size_t payload_bytes, frame_bytes;
        struct hvi_err err = {""};
        struct pollfd p = {.fd = from_agent, .events = POLLIN};
        uint8_t *room;
        ssize_t n;
        enum hvd_status rc =
            hvi_frame_peek(hvi_buf_peek(&received), hvi_buf_size(&received), &type,
                           &payload, &payload_bytes, &frame_bytes, &err);

        if (rc == HVD_OK) {
            cr_assert_eq(hvi_msg_get(type, payload, payload_bytes, msg, &err), HVD_OK);
            hvi_buf_consume(&received, frame_bytes);
            return true;
        }
        cr_assert_eq(rc, HVD_INPROGRESS, "%s", err.text);
        if (poll(&p, 1, hvi_ms_left(deadline)) <= 0)
            return false;
        room = hvi_buf_reserve(&received, 65536);
        cr_assert_not_null(room);
        n = read(from_agent, room, 65536);
        if (n <= 0)
            return false;
        hvi_buf_commit(&received, (size_t)n);
    }
}

static bool hear(struct hvi_msg *msg)
{
    return hear_within(msg, 10000);
}

/* What ranks said and how they ended, collected until `exits` have ended. */
struct heard {
    char output[1000];
    size_t output_bytes;
    int exits, starts, start_status[4], wait_status[4], pid[4];
    bool by_us[4];
    char error[256], start_text[256];
};

static void note(struct heard *h, const struct hvi_msg *msg)
{
    if (msg->type == HVI_MSG_OUTPUT) {
        const Hvi__Output *m = msg->body;

        if (m->data.len > 0 && h->output_bytes + m->data.len < sizeof h->output)
            memcpy(h->output + h->output_bytes, m->data.data, m->data.len);
        h->output_bytes += m->data.len;
    } else if (msg->type == HVI_MSG_STARTED) {
        const Hvi__Started *m = msg->body;

        h->starts++;
        h->start_status[m->rank] = m->status;
        h->pid[m->rank] = m->pid;
        snprintf(h->start_text, sizeof h->start_text, "%s", m->text);
    } else if (msg->type == HVI_MSG_EXITED) {
        const Hvi__Exited *m = msg->body;

        h->exits++;
        h->wait_status[m->rank] = m->wait_status;
        h->by_us[m->rank] = m->by_us;
    } else if (msg->type == HVI_MSG_AGENT_ERROR) {
        snprintf(h->error, sizeof h->error, "%s",
                 ((const Hvi__AgentError *)msg->body)->text);
    }
}

static void listen_until(struct heard *h, const int *count, int want, const char *what)
{
    while (*count < want) {
        struct hvi_msg msg;

        cr_assert(hear(&msg), "did not come: %s", what);
        note(h, &msg);
        hvi_msg_free(&msg);
    }
}

static void listen_for_bytes(struct heard *h, size_t want)
{
    while (h->output_bytes < want) {
        struct hvi_msg msg;

        cr_assert(hear(&msg), "%zu bytes of output did not come", want);
        note(h, &msg);
        hvi_msg_free(&msg);
    }
}

/* n ranks that run a shell command. */
static void start_ranks(int n, const char *shell, const char *where)
{
    Hvi__JobSpec spec = HVI__JOB_SPEC__INIT;
    Hvi__RankSpec rank[4] = {HVI__RANK_SPEC__INIT, HVI__RANK_SPEC__INIT,
                             HVI__RANK_SPEC__INIT, HVI__RANK_SPEC__INIT};
    Hvi__RankSpec *ranks[4] = {&rank[0], &rank[1], &rank[2], &rank[3]};
    Hvi__EnvVar path = HVI__ENV_VAR__INIT;
    Hvi__EnvVar number[4] = {HVI__ENV_VAR__INIT, HVI__ENV_VAR__INIT, HVI__ENV_VAR__INIT,
                             HVI__ENV_VAR__INIT};
    Hvi__EnvVar *vars[5] = {&path, &number[0], &number[1], &number[2], &number[3]};
    const char *words[3] = {"sh", "-c", shell};
    static const char *const digits[4] = {"0", "1", "2", "3"};
    ProtobufCBinaryData argv[3];

    for (int i = 0; i < 3; i++) {
        argv[i].data = (uint8_t *)(uintptr_t)words[i];
        argv[i].len = strlen(words[i]);
    }
    path.name.data = (uint8_t *)(uintptr_t) "PATH";
    path.name.len = 4;
    path.value.data = (uint8_t *)(uintptr_t) "/usr/bin:/bin";
    path.value.len = 13;
    for (int i = 0; i < n; i++) {
        number[i].name.data = (uint8_t *)(uintptr_t) "N";
        number[i].name.len = 1;
        number[i].value.data = (uint8_t *)(uintptr_t)digits[i];
        number[i].value.len = 1;
        rank[i].rank = rank[i].local_rank = i;
        rank[i].env = &vars[1 + i];
        rank[i].n_env = 1;
    }
    spec.version = (char *)(uintptr_t)HVI_VERSION;
    spec.key.data = key;
    spec.key.len = sizeof key;
    spec.job_id.data = job_id;
    spec.job_id.len = sizeof job_id;
    spec.coordinator = (char *)(uintptr_t)where;
    spec.host = (char *)(uintptr_t) "localhost";
    spec.argv = argv;
    spec.n_argv = 3;
    spec.cwd.data = (uint8_t *)(uintptr_t) "/";
    spec.cwd.len = 1;
    spec.env = vars;
    spec.n_env = 1;
    spec.ranks = ranks;
    spec.n_ranks = (size_t)n;
    spec.stdin_rank = 0;
    tell(HVI_MSG_JOB_SPEC, &spec);
}

static void expect_up(void)
{
    struct hvi_msg msg;

    cr_assert(hear(&msg), "AGENT_UP did not come");
    cr_assert_eq(msg.type, (uint32_t)HVI_MSG_AGENT_UP);
    cr_assert_str_eq(((const Hvi__AgentUp *)msg.body)->version, HVI_VERSION);
    hvi_msg_free(&msg);
}

/* Closes its stdin and waits for its end; its wait status. */
static int end(void)
{
    int64_t deadline = hvi_now_ms() + 10000;
    int status = -1;
    pid_t pid = 0;

    if (to_agent >= 0)
        close(to_agent);
    while (hvi_now_ms() < deadline && pid == 0) {
        struct hvi_msg msg;

        if (hear_within(&msg, 5))
            hvi_msg_free(&msg);
        pid = waitpid(agent_pid, &status, WNOHANG);
    }
    cr_assert_eq(pid, agent_pid, "the agent did not end");
    shutdown(listener, SHUT_RDWR); /* wakes a coordinator that nobody called */
    close(listener);
    pthread_join(coordinator_thread, NULL);
    close(from_agent);
    hvi_buf_fini(&received);
    hvi_rundir_remove(rundir);
    return status;
}

static bool gone(int pid)
{
    int64_t deadline = hvi_now_ms() + 5000;

    while (hvi_now_ms() < deadline) {
        if (kill(pid, 0) != 0 && errno == ESRCH)
            return true;
        poll(NULL, 0, 2);
    }
    return false;
}

Test(agent, runs_ranks_and_tells_their_output_and_ends, .timeout = 30)
{
    struct heard h = {.error = ""};

    begin();
    expect_up();
    start_ranks(3,
                "echo rank $N; test -r \"$HVD_KEY_FILE\" || exit 99; exit $((N * 3))",
                endpoint);
    listen_until(&h, &h.exits, 3, "three ends");
    cr_assert_eq(h.starts, 3);
    for (int i = 0; i < 3; i++) {
        cr_assert_geq(h.start_status[i], 0);
        cr_assert_eq(h.wait_status[i], i * 3 << 8, "rank %d: 0x%x", i,
                     h.wait_status[i]);
        cr_assert_not(h.by_us[i]);
    }
    cr_assert_eq(end(), 0);
}

Test(agent, kills_its_ranks_when_hvdrun_is_gone, .timeout = 30)
{
    struct heard h = {.error = ""};

    begin();
    expect_up();
    start_ranks(2, "trap '' TERM; echo up; while :; do sleep 1; done", endpoint);
    listen_until(&h, &h.starts, 2, "two starts");
    cr_assert_eq(kill(h.pid[0], 0), 0);
    cr_assert_eq(end(), 0);
    cr_assert(gone(h.pid[0]), "rank 0 lives");
    cr_assert(gone(h.pid[1]), "rank 1 lives");
}

Test(agent, stops_with_sigterm_then_sigkill_and_says_it_was_us, .timeout = 30)
{
    struct heard h = {.error = ""};
    Hvi__Stop stop = HVI__STOP__INIT;
    int64_t begun;

    begin();
    expect_up();
    start_ranks(2, "[ $N = 0 ] && trap '' TERM; echo up; while :; do sleep 0.05; done",
                endpoint);
    listen_until(&h, &h.starts, 2, "two starts");
    listen_for_bytes(&h, 6); /* both have set their traps */
    stop.grace_ms = 300;
    begun = hvi_now_ms();
    tell(HVI_MSG_STOP, &stop);
    listen_until(&h, &h.exits, 2, "two ends");
    cr_assert_geq(hvi_now_ms() - begun, 290);
    cr_assert_eq(h.wait_status[0], SIGKILL);
    cr_assert_eq(h.wait_status[1], SIGTERM);
    cr_assert(h.by_us[0] && h.by_us[1]);
    cr_assert_eq(end(), 0);
}

Test(agent, a_coordinator_that_is_not_there_is_told_and_nothing_starts, .timeout = 30)
{
    struct heard h = {.error = ""};

    begin();
    expect_up();
    start_ranks(2, "echo ran", "unix:/nonexistent/coord");
    listen_until(&h, &h.exits, 2, "two ends");
    cr_assert(strstr(h.error, "cannot reach the coordinator") != NULL, "%s", h.error);
    cr_assert_eq(h.starts, 0);
    cr_assert(h.by_us[0] && h.by_us[1]);
    cr_assert_eq(h.output_bytes, 0u);
    cr_assert_eq(end(), 0);
}

Test(agent, holds_a_rank_back_whose_output_nobody_takes, .timeout = 30)
{
    struct heard h = {.error = ""};
    struct hvi_msg msg;
    size_t before;
    Hvi__OutputAck ack = HVI__OUTPUT_ACK__INIT;

    begin();
    expect_up();
    start_ranks(1, "yes", endpoint);
    while (hear_within(&msg, 500)) { /* until it is silent */
        note(&h, &msg);
        hvi_msg_free(&msg);
    }
    before = h.output_bytes;
    cr_assert_gt(before, 100000u);
    cr_assert_leq(before, 1024u * 1024, "%zu bytes unacknowledged", before);
    ack.rank = 0;
    ack.stream = 1;
    ack.bytes = 300000;
    tell(HVI_MSG_OUTPUT_ACK, &ack);
    listen_for_bytes(&h, before + 300000);
    cr_assert_eq(end(), 0);
}

Test(agent, passes_stdin_on_and_acknowledges_it, .timeout = 30)
{
    struct heard h = {.error = ""};
    Hvi__StdinData data = HVI__STDIN_DATA__INIT;

    begin();
    expect_up();
    start_ranks(1, "cat", endpoint);
    listen_until(&h, &h.starts, 1, "the start");
    data.rank = 0;
    data.data.data = (uint8_t *)(uintptr_t) "hello\n";
    data.data.len = 6;
    tell(HVI_MSG_STDIN_DATA, &data);
    data.data.len = 0;
    tell(HVI_MSG_STDIN_DATA, &data);
    listen_until(&h, &h.exits, 1, "the end");
    cr_assert_eq(h.wait_status[0], 0);
    cr_assert_eq(h.output_bytes, 6u);
    cr_assert_eq(end(), 0);
}

Test(agent, an_incomplete_specification_is_refused, .timeout = 30)
{
    struct heard h = {.error = ""};
    Hvi__JobSpec spec = HVI__JOB_SPEC__INIT;
    struct hvi_msg msg;

    begin();
    expect_up();
    tell(HVI_MSG_JOB_SPEC, &spec);
    cr_assert(hear(&msg));
    note(&h, &msg);
    hvi_msg_free(&msg);
    cr_assert(strstr(h.error, "not complete") != NULL, "%s", h.error);
    cr_assert_eq(end(), 0);
}

Test(agent, garbage_from_hvdrun_ends_it_and_its_ranks, .timeout = 30)
{
    struct heard h = {.error = ""};

    begin();
    expect_up();
    start_ranks(1, "sleep 100", endpoint);
    listen_until(&h, &h.starts, 1, "the start");
    cr_assert_eq(write(to_agent, "garbage garbage garbage", 23), 23);
    cr_assert_eq(end(), 0);
    cr_assert(gone(h.pid[0]), "the rank lives");
}

Test(agent, its_keeper_dies_and_all_ranks_go, .timeout = 30)
{
    struct heard h = {.error = ""};
    char path[64], text[256] = "";
    int fd;

    begin();
    expect_up();
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)agent_pid,
             (int)agent_pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_gt(read(fd, text, sizeof text - 1),
                 0); /* no rank yet: the keeper alone */
    close(fd);
    start_ranks(2, "sleep 100", endpoint);
    listen_until(&h, &h.starts, 2, "two starts");
    kill((pid_t)atoi(text), SIGKILL);
    listen_until(&h, &h.exits, 2, "two ends");
    cr_assert_eq(h.wait_status[0], SIGKILL);
    for (struct hvi_msg msg; h.error[0] == '\0' && hear(&msg); hvi_msg_free(&msg))
        note(&h, &msg);
    cr_assert(strstr(h.error, "keeper") != NULL, "%s", h.error);
    cr_assert_eq(end(), 0);
}
