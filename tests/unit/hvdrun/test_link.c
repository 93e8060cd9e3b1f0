#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "hvdrun/agent/link.h"
#include "proto/base/clock.h"

/* A coordinator in a thread: one connection, one behaviour. */
enum behaviour { SERVE, SILENT_CLOSE, FINAL_CLOSE, GARBAGE, OTHER_VERSION };

static const uint8_t key[HVI_KEY_BYTES] = {1, 2, 3};
static const uint8_t job_id[HVI_JOB_ID_BYTES] = {4, 5};
static char dir[] = "/tmp/hvi-link-XXXXXX";
static char path[64], endpoint[80];
static int listener;
static enum behaviour behaviour;
static char from_agent[64]; /* names of the messages the coordinator got */

static bool read_exactly(int fd, void *data, size_t n)
{
    uint8_t *p = data;

    while (n > 0) {
        ssize_t got = read(fd, p, n);

        if (got <= 0)
            return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

static void send_sealed(int fd, struct hvi_stream *s, uint32_t type, const void *body,
                        bool last)
{
    struct hvi_buf frame = {0}, out = {0};

    if (body != NULL)
        (void)hvi_msg_put(&frame, type, body);
    (void)hvi_stream_seal(s, hvi_buf_peek(&frame), hvi_buf_size(&frame), last, &out);
    (void)!write(fd, hvi_buf_peek(&out), hvi_buf_size(&out));
    hvi_buf_fini(&frame);
    hvi_buf_fini(&out);
}

/* Reads one record; its message's name is noted. false: end of file. */
static bool take_record(int fd, struct hvi_stream *s, struct hvi_buf *in)
{
    struct hvi_buf plain = {0};
    struct hvi_err err;
    enum hvd_status rc;

    while ((rc = hvi_stream_open(s, in, &plain, &err)) == HVD_INPROGRESS) {
        uint8_t bytes[4096];
        ssize_t n = read(fd, bytes, sizeof bytes);

        if (n <= 0)
            break;
        (void)hvi_buf_append(in, bytes, (size_t)n);
    }
    if (rc == HVD_OK && hvi_buf_size(&plain) >= 12) {
        uint32_t type =
            (uint32_t)(hvi_buf_peek(&plain)[4] | hvi_buf_peek(&plain)[5] << 8);

        snprintf(from_agent + strlen(from_agent),
                 sizeof from_agent - strlen(from_agent), "%s ", hvi_msg_name(type));
    }
    hvi_buf_fini(&plain);
    return rc == HVD_OK && !s->ended;
}

static void *coordinator(void *unused)
{
    uint8_t hello[HVI_HELLO_BYTES], reply[HVI_HELLO_BYTES];
    static struct hvi_stream s;
    struct hvi_buf in = {0};
    enum hvi_role role = HVI_ROLE_UNSET;
    Hvi__ProcProbe probe = HVI__PROC_PROBE__INIT;
    int fd = accept(listener, NULL, NULL);

    (void)unused;
    memset(&s, 0, sizeof s);
    if (fd < 0 || !read_exactly(fd, hello, sizeof hello))
        goto done;
    if (behaviour == OTHER_VERSION)
        hello[8] = 9;
    if (hvi_hs_server(key, job_id, HVI_ROLE_COORDINATOR, hello, reply, &s, &role,
                      NULL) == HVD_EVERSION)
        reply[8] = 9; /* what a coordinator of version 9 would say of itself */
    else if (role != HVI_ROLE_AGENT)
        goto done;
    (void)!write(fd, reply, sizeof reply);
    if (behaviour == OTHER_VERSION || !take_record(fd, &s, &in))
        goto done;
    if (behaviour == GARBAGE)
        (void)!write(fd, "0123456789012345678901234567890123456789", 40);
    probe.probe = 42;
    if (behaviour == SERVE || behaviour == FINAL_CLOSE)
        send_sealed(fd, &s, HVI_MSG_PROC_PROBE, &probe, false);
    if (behaviour == FINAL_CLOSE)
        send_sealed(fd, &s, 0, NULL, true);
    while (behaviour == SERVE && take_record(fd, &s, &in))
        ;
done:
    if (fd >= 0)
        close(fd);
    hvi_stream_fini(&s);
    hvi_buf_fini(&in);
    return NULL;
}

static uv_loop_t loop;
static struct hvi_agent_link link_;
static int ups, frames, downs;
static bool down_lease;
static char down_why[256];

static void on_up(void *data)
{
    Hvi__AgentHello hello = HVI__AGENT_HELLO__INIT;

    (void)data;
    ups++;
    hvi_link_send(&link_, HVI_MSG_AGENT_HELLO, &hello);
}

static void on_frame(void *data, const struct hvi_msg *msg)
{
    (void)data;
    frames += msg->type == HVI_MSG_PROC_PROBE &&
              ((const Hvi__ProcProbe *)msg->body)->probe == 42;
}

static void on_down(void *data, bool lease, const char *why)
{
    (void)data;
    downs++;
    down_lease = lease;
    snprintf(down_why, sizeof down_why, "%s", why);
}

static const struct hvi_link_ops ops = {on_up, on_frame, on_down};

static void listen_here(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/coord", dir);
    snprintf(endpoint, sizeof endpoint, "unix:%s", path);
    memcpy(a.sun_path, path, strlen(path));
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(listener, 4), 0);
}

static void nothing(uv_timer_t *t)
{
    (void)t;
}

static void await(const int *count, const char *what)
{
    int64_t deadline = hvi_now_ms() + 10000;
    uv_timer_t tick;

    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, nothing, 5, 5);
    while (*count == 0 && hvi_now_ms() < deadline)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_gt(*count, 0, "did not come: %s", what);
}

/* One connection against one behaviour, until it is down or `count` has come. */
static void play(enum behaviour what, const uint8_t *with_key, const int *count)
{
    pthread_t thread;
    struct hvi_err err = {""};

    ups = frames = downs = 0;
    down_why[0] = from_agent[0] = '\0';
    behaviour = what;
    listen_here();
    cr_assert_eq(pthread_create(&thread, NULL, coordinator, NULL), 0);
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(
        hvi_link_open(&link_, &loop, endpoint, with_key, job_id, &ops, NULL, &err),
        HVD_OK, "%s", err.text);
    await(count, "the event");
    hvi_link_close(&link_);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
    hvi_link_fini(&link_);
    pthread_join(thread, NULL);
    close(listener);
    unlink(path);
    rmdir(dir);
    memcpy(dir, "/tmp/hvi-link-XXXXXX", sizeof dir);
}

Test(link, comes_up_carries_messages_and_says_goodbye, .timeout = 30)
{
    play(SERVE, key, &frames);
    cr_assert_eq(ups, 1);
    cr_assert_eq(downs, 0); /* closing is not told */
    cr_assert_str_eq(from_agent, "AGENT_HELLO ");
}

Test(link, an_end_without_goodbye_is_told_once, .timeout = 30)
{
    play(SILENT_CLOSE, key, &downs);
    cr_assert_eq(ups, 1);
    cr_assert_eq(downs, 1);
    cr_assert_not(down_lease);
    cr_assert_str_eq(down_why, "connection closed");
}

Test(link, a_wanted_end_is_told_apart, .timeout = 30)
{
    play(FINAL_CLOSE, key, &downs);
    cr_assert_eq(frames, 1);
    cr_assert_str_eq(down_why, "the coordinator ended the connection");
}

Test(link, forged_records_end_it, .timeout = 30)
{
    play(GARBAGE, key, &downs);
    cr_assert_eq(frames, 0);
    cr_assert_neq(down_why[0], '\0');
}

Test(link, another_key_never_comes_up, .timeout = 30)
{
    static const uint8_t other[HVI_KEY_BYTES] = {9};

    play(SERVE, other, &downs);
    cr_assert_eq(ups, 0);
}

Test(link, another_version_is_named, .timeout = 30)
{
    play(OTHER_VERSION, key, &downs);
    cr_assert_eq(ups, 0);
    cr_assert(strstr(down_why, "version") != NULL, "%s", down_why);
}

Test(link, endpoints_that_are_none_are_refused, .timeout = 30)
{
    static const char *const bad[] = {"",
                                      "unixx:/a",
                                      "tcp:",
                                      "tcp:host:1",
                                      "tcp:1.2.3.4",
                                      "tcp:1.2.3.4:0",
                                      "tcp:1.2.3.4:70000",
                                      "tcp:[::1:5"};
    struct hvi_err err;

    cr_assert_eq(uv_loop_init(&loop), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(
            hvi_link_open(&link_, &loop, bad[i], key, job_id, &ops, NULL, &err),
            HVD_EINVAL, "'%s'", bad[i]);
        uv_run(&loop, UV_RUN_DEFAULT);
        hvi_link_fini(&link_);
    }
    cr_assert_eq(uv_loop_close(&loop), 0);
}

Test(link, nobody_there_is_down_not_up, .timeout = 30)
{
    struct hvi_err err;

    ups = downs = 0;
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(hvi_link_open(&link_, &loop, "unix:/nonexistent/coord", key, job_id,
                               &ops, NULL, &err),
                 HVD_OK);
    await(&downs, "down");
    cr_assert_eq(ups, 0);
    hvi_link_close(&link_);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
    hvi_link_fini(&link_);
}
