/* The server over real sockets, in a thread of its own; see peer.h for the other side. */
#include "peer.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <uv.h>

#include "coordinator/net/server.h"

struct served {
    uv_loop_t loop;
    uv_async_t stop;
    struct hvi_server *server;
    pthread_t thread;
    uint8_t key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    char where[128], dir[64];
    char notes[4096]; /* read after served_end() */
    int status;
    bool over;
};

static void on_note(void *data, enum hvi_note_kind kind, int32_t rank, const char *text)
{
    struct served *s = data;
    size_t n = strlen(s->notes);

    (void)rank;
    if (kind == HVI_NOTE_BYE)
        return;
    snprintf(s->notes + n, sizeof s->notes - n, "%d: %s\n", (int)kind, text);
}

static void on_finished(void *data, int status)
{
    struct served *s = data;

    s->status = status;
    s->over = true;
    hvi_server_close(s->server);
    uv_close((uv_handle_t *)&s->stop, NULL);
}

static const struct hvi_server_ops ops = {on_note, on_finished};

static void stop_cb(uv_async_t *a)
{
    struct served *s = a->data;

    hvi_server_stop(s->server, "the test is over");
}

static void *serve(void *arg)
{
    struct served *s = arg;

    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0)
        continue;
    return NULL;
}

/* where: NULL: a Unix socket in a fresh directory. */
static struct served *served_new(const char *where,
                                 const struct hvi_core_config *config)
{
    struct served *s = calloc(1, sizeof *s);
    struct hvi_err err = {""};
    struct hvi_core_config cfg = *config;

    signal(SIGPIPE, SIG_IGN); /* as the program does */
    cfg.version = HVI_VERSION;
    cfg.linger_ms = -1;
    snprintf(s->dir, sizeof s->dir, "/tmp/hvd-test-XXXXXX");
    cr_assert_not_null(mkdtemp(s->dir));
    if (where == NULL)
        snprintf(s->where, sizeof s->where, "unix:%s/sock", s->dir);
    else
        snprintf(s->where, sizeof s->where, "%s", where);
    memset(s->key, 7, sizeof s->key);
    hvi_key_job_id(s->key, s->job_id);
    uv_loop_init(&s->loop);
    uv_async_init(&s->loop, &s->stop, stop_cb);
    s->stop.data = s;
    cr_assert_eq(
        hvi_server_new(&s->loop, &cfg, s->key, s->job_id, &ops, s, &s->server, &err),
        HVD_OK);
    cr_assert_eq(hvi_server_listen(s->server, s->where, &err), HVD_OK, "%s", err.text);
    snprintf(s->where, sizeof s->where, "%s", hvi_server_endpoint(s->server));
    cr_assert_eq(pthread_create(&s->thread, NULL, serve, s), 0);
    return s;
}

/* Stops it if need be; the notes may be read then. */
static void served_end(struct served *s)
{
    uv_async_send(&s->stop);
    pthread_join(s->thread, NULL);
    cr_assert(s->over);
    cr_assert_eq(uv_loop_close(&s->loop), 0, "a handle is still open");
    hvi_server_free(s->server);
    s->server = NULL;
}

static void served_free(struct served *s)
{
    rmdir(s->dir);
    free(s);
}

static void join_all(struct served *s, struct peer *p, int np, uint32_t epoch)
{
    struct hvi_err err = {""};

    for (int i = 0; i < np; i++) {
        cr_assert_eq(
            peer_open(&p[i], s->where, s->key, s->job_id, HVI_ROLE_WORKER, &err),
            HVD_OK, "%s", err.text);
        peer_hello(&p[i], i, "here", 0);
    }
    for (int i = 0; i < np; i++) {
        cr_assert(peer_expect(&p[i], HVI_MSG_WELCOME), "no WELCOME for rank %d", i);
        cr_assert_eq(((Hvi__Welcome *)p[i].msg.body)->epoch, epoch);
        peer_formed(&p[i], epoch, 1);
    }
    for (int i = 0; i < np; i++)
        cr_assert(peer_expect(&p[i], HVI_MSG_GO), "no GO for rank %d", i);
}

static void leave_all(struct peer *p, int np, uint32_t epoch)
{
    for (int i = 0; i < np; i++)
        peer_bye(&p[i], epoch);
    for (int i = 0; i < np; i++) {
        cr_assert(peer_expect(&p[i], HVI_MSG_PEER_BYE), "no echo of BYE for rank %d",
                  i);
        peer_final(&p[i]);
        peer_close(&p[i]);
    }
}

static void whole_life(const char *where)
{
    struct served *s = served_new(where, &(struct hvi_core_config){.np = 4});
    struct peer p[4];

    for (uint32_t epoch = 1; epoch <= 20; epoch++) {
        join_all(s, p, 4, epoch);
        for (int i = 0; i < 4; i++)
            peer_announce(&p[i], epoch, "x", 5);
        for (int i = 0; i < 4; i++)
            cr_assert(peer_expect(&p[i], HVI_MSG_ASSIGN), "no ASSIGN for rank %d", i);
        leave_all(p, 4, epoch);
    }
    served_end(s);
    cr_assert_str_eq(s->notes, "");
    served_free(s);
}

Test(net, serves_epochs_over_a_unix_socket, .timeout = 30)
{
    whole_life(NULL);
}

Test(net, listens_on_each_address_of_a_list_and_no_other, .timeout = 30)
{
    struct served *s =
        served_new("tcp:127.0.0.2,127.0.0.3:0", &(struct hvi_core_config){.np = 2});
    char *last = strstr(s->where, "127.0.0.2") + 8;
    struct hvi_err err = {""};
    struct peer p[2];

    for (int i = 0; i < 2; i++) {
        *last = (char)('2' + i);
        cr_assert_eq(
            peer_open(&p[i], s->where, s->key, s->job_id, HVI_ROLE_WORKER, &err),
            HVD_OK, "%s: %s", s->where, err.text);
        peer_hello(&p[i], i, "here", 0);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert(peer_expect(&p[i], HVI_MSG_WELCOME), "no WELCOME for rank %d", i);
        peer_formed(&p[i], 1, 1);
    }
    leave_all(p, 2, 1);
    *last = '1';
    cr_assert_neq(peer_open(&p[0], s->where, s->key, s->job_id, HVI_ROLE_WORKER, &err),
                  HVD_OK);
    served_end(s);
    served_free(s);
}

Test(net, serves_epochs_over_tcp, .timeout = 30)
{
    whole_life("tcp:127.0.0.1:0");
}

Test(net, a_lost_connection_closes_the_epoch_for_all, .timeout = 30)
{
    struct served *s = served_new(NULL, &(struct hvi_core_config){.np = 3});
    struct peer p[3];

    join_all(s, p, 3, 1);
    peer_close(&p[1]);
    for (int i = 0; i < 3; i += 2) {
        cr_assert(peer_expect(&p[i], HVI_MSG_CLOSED), "no CLOSED for rank %d", i);
        cr_assert_eq(((Hvi__Closed *)p[i].msg.body)->rank, 1);
    }
    peer_close(&p[0]);
    peer_close(&p[2]);
    served_end(s);
    cr_assert_not_null(
        strstr(s->notes, "5: rank 1 (host here, pid 1001): connection lost"));
    served_free(s);
}

Test(net, stopping_tells_everybody, .timeout = 30)
{
    struct served *s =
        served_new("tcp:127.0.0.1:0", &(struct hvi_core_config){.np = 2});
    struct peer p[2];

    join_all(s, p, 2, 1);
    uv_async_send(&s->stop);
    for (int i = 0; i < 2; i++) {
        cr_assert(peer_expect(&p[i], HVI_MSG_CLOSED), "no CLOSED for rank %d", i);
        cr_assert_str_eq(((Hvi__Closed *)p[i].msg.body)->cause, "the test is over");
        cr_assert_eq(peer_next(&p[i], PEER_WAIT_MS), HVD_ESHUTDOWN);
        cr_assert(p[i].sec.ended, "the end is not sealed");
        peer_close(&p[i]);
    }
    served_end(s);
    served_free(s);
}

/* ---- strangers; rank 0 sits in the job and must notice nothing */

static void still_well(struct served *s, struct peer *p, const char *name)
{
    peer_announce(&p[0], 1, name, 5);
    peer_announce(&p[1], 1, name, 5);
    for (int i = 0; i < 2; i++)
        cr_assert(peer_expect(&p[i], HVI_MSG_ASSIGN), "%s: the job is disturbed", name);
    (void)s;
}

/* Sends and wants the connection closed, without a byte of answer but `answer` bytes. */
static void turned_away(struct served *s, const char *what, const void *data, size_t n,
                        size_t answer)
{
    uint8_t got[1024];
    size_t total = 0;
    ssize_t k;
    int fd = peer_dial(s->where);

    cr_assert_geq(fd, 0);
    peer_write_all(fd, data, n);
    while ((k = peer_read_some(fd, got, sizeof got, PEER_WAIT_MS + 2000)) > 0)
        total += (size_t)k;
    cr_assert_eq(k, 0, "%s: not closed", what);
    cr_assert_eq(total, answer, "%s: %zu bytes of answer", what, total);
    close(fd);
}

static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n"
                           "User-Agent: something rather long that fills the hello "
                           "0123456789012345678901234567\r\n"
                           "\r\n";

Test(net, strangers_are_turned_away_and_harm_nobody, .timeout = 60)
{
    struct served *s =
        served_new("tcp:127.0.0.1:0", &(struct hvi_core_config){.np = 2});
    uint8_t noise[4096], hello[HVI_HELLO_BYTES], other[HVI_KEY_BYTES] = {9};
    struct hvi_hs_client hs;
    struct peer p[2], bad;
    struct hvi_err err;

    join_all(s, p, 2, 1);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)(i * 37 + i / 5);
    turned_away(s, "noise", noise, sizeof noise, 0);
    still_well(s, p, "noise");
    turned_away(s, "http", http, sizeof http - 1, 0);
    /* another key: of an old job, say */
    cr_assert_eq(peer_open(&bad, s->where, other, s->job_id, HVI_ROLE_WORKER, &err),
                 HVD_EIO);
    peer_close(&bad);
    /* right key, other job */
    cr_assert_eq(peer_open(&bad, s->where, s->key, other, HVI_ROLE_WORKER, &err),
                 HVD_EIO);
    peer_close(&bad);
    /* a data peer has nothing to say here */
    cr_assert_eq(peer_open(&bad, s->where, s->key, s->job_id, HVI_ROLE_DATA, &err),
                 HVD_EIO);
    peer_close(&bad);
    /* another version hears which one this is */
    cr_assert_eq(
        hvi_hs_client_start(&hs, s->key, s->job_id, HVI_ROLE_WORKER, hello, &err),
        HVD_OK);
    hello[8] = 99;
    turned_away(s, "version", hello, sizeof hello, HVI_HELLO_BYTES);
    hvi_hs_fini(&hs);
    /* one bit off */
    cr_assert_eq(
        hvi_hs_client_start(&hs, s->key, s->job_id, HVI_ROLE_WORKER, hello, &err),
        HVD_OK);
    hello[90] ^= 1;
    turned_away(s, "flipped", hello, sizeof hello, 0);
    hvi_hs_fini(&hs);
    /* a truncated hello, then silence */
    turned_away(s, "truncated", hello, 60, 0);
    still_well(s, p, "strangers");
    leave_all(p, 2, 1);
    served_end(s);
    cr_assert_str_eq(s->notes, "");
    served_free(s);
}

Test(net, a_replayed_hello_gets_no_further, .timeout = 30)
{
    struct served *s = served_new(NULL, &(struct hvi_core_config){.np = 1});
    uint8_t hello[HVI_HELLO_BYTES], reply[HVI_HELLO_BYTES], byte;
    struct hvi_hs_client hs;
    struct hvi_err err;
    int fd;

    cr_assert_eq(
        hvi_hs_client_start(&hs, s->key, s->job_id, HVI_ROLE_WORKER, hello, &err),
        HVD_OK);
    hvi_hs_fini(&hs);
    for (int i = 0; i < 3; i++) {
        uint8_t record[64] = {40, 0, 0, 0, 1, 2, 3};

        fd = peer_dial(s->where);
        peer_write_all(fd, hello, sizeof hello);
        cr_assert(peer_read_all(fd, reply, sizeof reply, PEER_WAIT_MS));
        peer_write_all(fd, record, sizeof record); /* without the secret: rubbish */
        peer_write_all(fd, record, sizeof record);
        cr_assert_eq(peer_read_some(fd, &byte, 1, PEER_WAIT_MS), 0, "not closed");
        close(fd);
    }
    served_end(s);
    served_free(s);
}

/* ---- members that break the rules */

Test(net, damaged_frames_end_the_one_who_sent_them, .timeout = 60)
{
    static const struct {
        const char *what;
        uint8_t bytes[16];
        size_t n;
    } cases[] = {
        {"no frame", {1, 2, 3, 4, 5}, 5},
        {"wrong magic", {0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0}, 12},
        {"unknown type", {0x56, 0x48, 1, 0, 0xff, 0x7f, 0, 0, 0, 0, 0, 0}, 12},
        {"half a frame", {0x56, 0x48, 1, 0, 3, 0, 0, 0, 50, 0, 0, 0, 9, 9}, 14},
        {"oversized", {0x56, 0x48, 1, 0, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f}, 12},
        {"bad protobuf",
         {0x56, 0x48, 1, 0, 3, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 0xff},
         15},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct served *s = served_new(NULL, &(struct hvi_core_config){.np = 2});
        struct peer p[2];

        join_all(s, p, 2, 1);
        peer_seal(&p[1], cases[i].bytes, cases[i].n, false);
        cr_assert(peer_expect(&p[0], HVI_MSG_CLOSED), "%s: rank 0 hears nothing",
                  cases[i].what);
        cr_assert_eq(((Hvi__Closed *)p[0].msg.body)->rank, 1);
        while (peer_next(&p[1], PEER_WAIT_MS) == HVD_OK)
            continue;
        peer_close(&p[0]);
        peer_close(&p[1]);
        served_end(s);
        served_free(s);
    }
}

Test(net, a_broken_record_ends_the_connection, .timeout = 30)
{
    struct served *s = served_new(NULL, &(struct hvi_core_config){.np = 2});
    struct peer p[2];
    uint8_t huge[4] = {0xff, 0xff, 0xff, 0x7f};

    join_all(s, p, 2, 1);
    peer_write_all(p[1].fd, huge, sizeof huge);
    cr_assert(peer_expect(&p[0], HVI_MSG_CLOSED));
    peer_close(&p[0]);
    peer_close(&p[1]);
    served_end(s);
    served_free(s);
}

Test(net, who_does_not_read_is_lost_not_waited_for, .timeout = 60)
{
    struct served *s = served_new(NULL, &(struct hvi_core_config){.np = 2});
    Hvi__TimelineChunk chunk = HVI__TIMELINE_CHUNK__INIT;
    struct peer p[2];
    int64_t give_up;
    char name[1000];
    bool closed = false;

    join_all(s, p, 2, 1);
    /* chunks to rank 0 may be dropped: they never end it */
    chunk.epoch = 1;
    chunk.events.data = calloc(1, 512 * 1024);
    chunk.events.len = 512 * 1024;
    for (int i = 0; i < 40; i++)
        peer_send(&p[1], HVI_MSG_TIMELINE_CHUNK, &chunk);
    free(chunk.events.data);
    /* FAILs must not be: rank 1 announces what rank 0 contradicts; rank 0 never reads */
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    give_up = hvi_now_ms() + 40000;
    for (int i = 0; !closed; i++) {
        cr_assert_lt(hvi_now_ms(), give_up, "rank 0 does not read and is kept");
        for (int d = 0, v = i; d < 6; d++, v /= 10)
            name[d] = (char)('0' + v % 10);
        peer_announce(&p[0], 1, name, 4);
        peer_announce(&p[1], 1, name, 5);
        while (!closed && peer_next(&p[1], 0) == HVD_OK)
            closed = p[1].msg.type == HVI_MSG_CLOSED;
    }
    cr_assert_eq(((Hvi__Closed *)p[1].msg.body)->rank, 0);
    cr_assert_not_null(strstr(((Hvi__Closed *)p[1].msg.body)->cause, "does not read"));
    peer_close(&p[0]);
    peer_close(&p[1]);
    served_end(s);
    served_free(s);
}

/* ---- crowds */

Test(net, idle_strangers_make_room_for_a_rank, .timeout = 60)
{
    struct served *s =
        served_new("tcp:127.0.0.1:0", &(struct hvi_core_config){.np = 1});
    int fds[300];
    struct peer p;
    int64_t t0;

    for (int i = 0; i < 300; i++) {
        fds[i] = peer_dial(s->where);
        cr_assert_geq(fds[i], 0);
        peer_write_all(fds[i], "HVD", 3);
    }
    t0 = hvi_now_ms();
    join_all(s, &p, 1, 1);
    cr_assert_lt(hvi_now_ms() - t0, 2000, "it took %d ms", (int)(hvi_now_ms() - t0));
    leave_all(&p, 1, 1);
    for (int i = 0; i < 300; i++)
        close(fds[i]);
    served_end(s);
    served_free(s);
}

Test(net, two_hundred_ranks_come_at_once, .timeout = 60)
{
    struct served *s = served_new(NULL, &(struct hvi_core_config){.np = 200});
    struct peer *p = calloc(200, sizeof *p);

    join_all(s, p, 200, 1);
    leave_all(p, 200, 1);
    free(p);
    served_end(s);
    served_free(s);
}

/* ---- listening */

Test(net, a_port_in_use_is_one_clear_line, .timeout = 30)
{
    struct served *s = served_new("127.0.0.1:0", &(struct hvi_core_config){.np = 1});
    struct hvi_core_config cfg = {.np = 1, .version = HVI_VERSION};
    struct hvi_server *second = NULL;
    struct hvi_err err = {""};
    uv_loop_t loop;

    uv_loop_init(&loop);
    cr_assert_eq(
        hvi_server_new(&loop, &cfg, s->key, s->job_id, &ops, NULL, &second, &err),
        HVD_OK);
    cr_assert_eq(hvi_server_listen(second, s->where, &err), HVD_EIO);
    cr_assert_not_null(strstr(err.text, "cannot listen on 127.0.0.1:"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "address already in use"), "%s", err.text);
    hvi_server_close(second);
    uv_run(&loop, UV_RUN_DEFAULT);
    hvi_server_free(second);
    cr_assert_eq(uv_loop_close(&loop), 0);
    served_end(s);
    served_free(s);
}

Test(net, endpoints_that_are_none_are_refused, .timeout = 30)
{
    static const char *const bad[] = {
        "",      "nothing",         "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999",
        "unix:", "127.0.0.1:123456"};
    uint8_t key[HVI_KEY_BYTES] = {1}, job[HVI_JOB_ID_BYTES] = {1};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct hvi_core_config cfg = {.np = 1, .version = HVI_VERSION};
        struct hvi_server *s = NULL;
        struct hvi_err err = {""};
        uv_loop_t loop;

        uv_loop_init(&loop);
        cr_assert_eq(hvi_server_new(&loop, &cfg, key, job, &ops, NULL, &s, &err),
                     HVD_OK);
        cr_assert_eq(hvi_server_listen(s, bad[i], &err), HVD_EINVAL, "'%s'", bad[i]);
        cr_assert_gt(strlen(err.text), 0);
        hvi_server_close(s);
        uv_run(&loop, UV_RUN_DEFAULT);
        hvi_server_free(s);
        uv_loop_close(&loop);
    }
}

Test(net, a_socket_left_by_a_dead_coordinator_is_taken_over, .timeout = 30)
{
    char dir[] = "/tmp/hvd-test-XXXXXX", where[64];
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct served *s;
    int fd;

    cr_assert_not_null(mkdtemp(dir));
    snprintf(un.sun_path, sizeof un.sun_path, "%s/sock", dir);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&un, sizeof un), 0);
    close(fd);
    snprintf(where, sizeof where, "unix:%s/sock", dir);
    s = served_new(where, &(struct hvi_core_config){.np = 1});
    served_end(s);
    served_free(s);
    cr_assert_neq(access(un.sun_path, F_OK), 0, "the socket is left behind");
    rmdir(dir);
}
