#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "worker/core/datalink.h"
#include "worker/core/segment.h"

#define MAX 5

static const uint8_t key[HVI_KEY_BYTES] = {1, 2, 3};
static const uint8_t other_key[HVI_KEY_BYTES] = {9};
static const uint8_t job[HVI_JOB_ID_BYTES] = {7};

struct peer {
    int rank, size, pass_fd;
    uint32_t attempt;
    const uint8_t *key;
    bool tcp, astray;
    int hole; /* a listener by which rank 0 seems to be reached too; 0: none */
    struct hvi_listener *all; /* [size] */
    enum hvd_status rc;
    int fds[MAX], got_fd;
    int64_t timeout_ms;
    struct hvi_err err;
};

static bool never(void *arg)
{
    (void)arg;
    return false;
}

/* Behind the way that leads to the peer: one where somebody listens and says nothing. */
static void add_hole(struct hvi_target *t, int hole)
{
    struct sockaddr_in sa;
    socklen_t n = sizeof sa;

    cr_assert_eq(getsockname(hole, (struct sockaddr *)&sa, &n), 0);
    t->nways = 2;
    snprintf(t->where[1], sizeof t->where[1], "tcp:127.0.0.1:%d", ntohs(sa.sin_port));
}

static void *meet(void *arg)
{
    struct peer *p = arg;
    struct hvi_target targets[MAX];
    int holes[MAX];
    int n = p->tcp ? p->rank : p->rank > 0;
    struct hvi_meet m = {.epoch_key = p->key != NULL ? p->key : key,
                         .job_id = job,
                         .rank = p->rank,
                         .size = p->size,
                         .attempt = p->attempt,
                         .deadline_ms = hvi_now_ms() + p->timeout_ms,
                         .silence_ms = p->hole > 0 ? 50 : 0,
                         .pass_fd = p->pass_fd,
                         .keep = p->tcp,
                         .fds = p->fds,
                         .got_fd = -1,
                         .watch_fd = -1,
                         .on_watch = never};

    for (int i = 0; i < p->size; i++)
        p->fds[i] = -1;
    for (int i = 0; i < n; i++) {
        targets[i] = (struct hvi_target){.rank = i, .nways = 1};
        if (p->tcp)
            snprintf(targets[i].where[0], sizeof targets[i].where[0], "tcp:%s:%u",
                     p->all[i].ways.addr[0], p->all[i].port);
        if (p->tcp && p->astray && i == 0) { /* first to another rank than is meant */
            targets[i].nways = 2;
            targets[i].named[0] = targets[i].named[1] = true;
            memcpy(targets[i].where[1], targets[i].where[0],
                   sizeof targets[i].where[0]);
            snprintf(targets[i].where[0], sizeof targets[i].where[0], "tcp:%s:%u",
                     p->all[1].ways.addr[0], p->all[1].port);
        }
        if (p->tcp && p->hole > 0 && i == 0)
            add_hole(&targets[i], p->hole);
        if (p->tcp)
            continue;
        snprintf(targets[i].where[0], sizeof targets[i].where[0], "unix:%s",
                 p->all[i].path);
    }
    /* rank 0 is slow: it comes when the others have looked for another way */
    for (int i = 1; p->hole > 0 && p->rank == 0 && i < p->size; i++)
        holes[i] = accept(p->hole, NULL, NULL);
    p->rc = hvi_meet_run(
        &m, &p->all[p->rank], targets, n,
        p->tcp ? p->size - 1 - p->rank : (p->rank == 0 ? p->size - 1 : 0), &p->err);
    p->got_fd = m.got_fd;
    for (int i = 1; p->hole > 0 && p->rank == 0 && i < p->size; i++)
        close(holes[i]);
    return NULL;
}

static void run(struct peer *peers, int n)
{
    struct hvi_listener all[MAX];
    pthread_t threads[MAX];

    for (int i = 0; i < n; i++) {
        cr_assert_eq(hvi_listener_open(&all[i], -1, true, true, NULL), HVD_OK);
        peers[i].all = all;
        peers[i].rank = i;
        peers[i].size = n;
        if (peers[i].timeout_ms == 0)
            peers[i].timeout_ms = 10000;
    }
    for (int i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, meet, &peers[i]);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++)
        hvi_listener_close(&all[i]);
}

Test(datalink, a_mesh_connects_all_to_all, .timeout = 30)
{
    struct peer p[MAX] = {{0}};

    for (int i = 0; i < MAX; i++) {
        p[i].tcp = true;
        p[i].pass_fd = -1;
    }
    run(p, MAX);
    for (int i = 0; i < MAX; i++) {
        cr_assert_eq(p[i].rc, HVD_OK, "%s", p[i].err.text);
        for (int k = 0; k < MAX; k++) {
            char byte = (char)('0' + i);

            if (k == i)
                continue;
            cr_assert_geq(p[i].fds[k], 0);
            cr_assert_eq(write(p[i].fds[k], &byte, 1), 1);
        }
    }
    for (int i = 0; i < MAX; i++)
        for (int k = 0; k < MAX; k++) {
            char byte = 0;

            if (k == i)
                continue;
            cr_assert_eq(read(p[i].fds[k], &byte, 1), 1);
            cr_assert_eq(byte, '0' + k, "rank %d hears %c on the link to %d", i, byte,
                         k);
            close(p[i].fds[k]);
        }
}

Test(datalink, who_answers_for_another_rank_is_not_taken, .timeout = 30)
{
    struct peer p[MAX] = {{0}};

    for (int i = 0; i < MAX; i++) {
        p[i].tcp = true;
        p[i].astray = i > 1;
        p[i].pass_fd = -1;
    }
    run(p, MAX);
    for (int i = 0; i < MAX; i++) {
        char byte = (char)('0' + i);

        cr_assert_eq(p[i].rc, HVD_OK, "%s", p[i].err.text);
        for (int k = 0; k < MAX; k++)
            if (k != i)
                cr_assert_eq(write(p[i].fds[k], &byte, 1), 1);
    }
    for (int i = 0; i < MAX; i++)
        for (int k = 0; k < MAX; k++) {
            char byte = 0;

            if (k == i)
                continue;
            while (read(p[i].fds[k], &byte, 1) != 1)
                continue;
            cr_assert_eq(byte, '0' + k);
        }
    for (int i = 0; i < MAX; i++)
        for (int k = 0; k < MAX; k++)
            if (k != i)
                close(p[i].fds[k]);
}

Test(datalink, a_slow_peer_is_not_given_up_for_another_way, .timeout = 30)
{
    struct peer p[3] = {{0}};
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int hole = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(bind(hole, (struct sockaddr *)&sa, sizeof sa), 0);
    cr_assert_eq(listen(hole, 8), 0);
    for (int i = 0; i < 3; i++) {
        p[i].tcp = true;
        p[i].hole = hole;
        p[i].pass_fd = -1;
    }
    run(p, 3);
    close(hole);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(p[i].rc, HVD_OK, "%s", p[i].err.text);
        for (int k = 0; k < 3; k++)
            if (k != i)
                close(p[i].fds[k]);
    }
}

Test(datalink, the_segment_reaches_every_rank, .timeout = 30)
{
    struct peer p[3] = {{0}};
    struct hvi_segment mine = {0};
    int fd = -1;

    cr_assert_eq(hvi_segment_create(&mine, 3, false, 1 << 20, &fd, NULL), HVD_OK);
    for (int i = 0; i < 3; i++)
        p[i].pass_fd = i == 0 ? fd : -1;
    run(p, 3);
    ((char *)mine.plane)[100] = 'x';
    for (int i = 0; i < 3; i++) {
        struct hvi_segment theirs = {0};

        cr_assert_eq(p[i].rc, HVD_OK, "%s", p[i].err.text);
        if (i == 0)
            continue;
        cr_assert_geq(p[i].got_fd, 0);
        cr_assert_eq(hvi_segment_map(&theirs, 4, p[i].got_fd, NULL), HVD_EPROTO,
                     "another number of ranks is another layout");
        cr_assert_eq(hvi_segment_map(&theirs, 3, p[i].got_fd, NULL), HVD_OK);
        cr_assert_eq(((char *)theirs.plane)[100], 'x');
        cr_assert_neq(ftruncate(p[i].got_fd, 1), 0, "it is sealed");
        hvi_segment_fini(&theirs);
        close(p[i].got_fd);
    }
    hvi_segment_fini(&mine);
    close(fd);
}

Test(datalink, another_key_is_refused_and_the_missing_named, .timeout = 30)
{
    struct peer p[2] = {{0}};

    p[0].pass_fd = p[1].pass_fd = -1;
    p[0].tcp = p[1].tcp = true;
    p[1].key = other_key;
    p[0].timeout_ms = 500;
    run(p, 2);
    cr_assert_eq(p[0].rc, HVD_ETIMEDOUT);
    cr_assert_not_null(strstr(p[0].err.text, "rank 1"), "%s", p[0].err.text);
    cr_assert_lt(p[1].rc, 0, "the client must not take an unproven peer");
}

Test(datalink, another_attempt_is_refused, .timeout = 30)
{
    struct peer p[2] = {{0}};

    p[0].pass_fd = p[1].pass_fd = -1;
    p[0].tcp = p[1].tcp = true;
    p[1].attempt = 2;
    p[0].timeout_ms = 500;
    run(p, 2);
    cr_assert_eq(p[0].rc, HVD_ETIMEDOUT);
    cr_assert_lt(p[1].rc, 0);
}

/* Strangers on the listener: nothing, half a hello, rubbish. */
Test(datalink, strangers_do_not_disturb, .timeout = 30)
{
    struct peer p[2] = {{0}};
    struct hvi_listener all[2];
    pthread_t threads[2];
    int fds[12];

    for (int i = 0; i < 2; i++) {
        cr_assert_eq(hvi_listener_open(&all[i], -1, true, true, NULL), HVD_OK);
        p[i].all = all;
        p[i].rank = i;
        p[i].size = 2;
        p[i].pass_fd = -1;
        p[i].tcp = true;
        p[i].timeout_ms = 10000;
    }
    for (int i = 0; i < 12; i++) {
        struct sockaddr_un sa = {.sun_family = AF_UNIX};
        char rubbish[300];

        memset(rubbish, 'A' + i, sizeof rubbish);
        memcpy(sa.sun_path, all[0].path, strlen(all[0].path));
        fds[i] = socket(AF_UNIX, SOCK_STREAM, 0);
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&sa, sizeof sa), 0);
        if (i % 3 > 0)
            cr_assert_gt(send(fds[i], rubbish, i % 3 == 1 ? 64 : 300, MSG_NOSIGNAL), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, meet, &p[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(p[i].rc, HVD_OK, "%s", p[i].err.text);
        close(p[i].fds[1 - i]);
        hvi_listener_close(&all[i]);
    }
    for (int i = 0; i < 12; i++)
        close(fds[i]);
}

static bool always(void *arg)
{
    (void)arg;
    return true;
}

/* A verdict that was read together with the message before it. */
Test(datalink, a_verdict_that_is_there_already_ends_the_meeting, .timeout = 10)
{
    struct hvi_listener l;
    int quiet[2];
    int fds[2] = {-1, -1};
    struct hvi_target nobody = {
        .rank = 1, .nways = 1, .where = {"unix:/nobody/listens/there"}};
    struct hvi_meet m = {.epoch_key = key,
                         .job_id = job,
                         .size = 2,
                         .deadline_ms = hvi_now_ms() + 5000,
                         .pass_fd = -1,
                         .fds = fds,
                         .got_fd = -1,
                         .on_watch = always};

    cr_assert_eq(pipe(quiet), 0); /* never readable */
    m.watch_fd = quiet[0];
    cr_assert_eq(hvi_listener_open(&l, -1, true, false, NULL), HVD_OK);
    cr_assert_eq(hvi_meet_run(&m, &l, NULL, 0, 1, NULL), HVD_INPROGRESS);
    cr_assert_eq(hvi_meet_run(&m, &l, &nobody, 1, 0, NULL), HVD_INPROGRESS);
    cr_assert_gt(hvi_ms_left(m.deadline_ms), 0);
    hvi_listener_close(&l);
    close(quiet[0]);
    close(quiet[1]);
}

Test(datalink, listener_leaves_nothing_behind, .timeout = 10)
{
    struct hvi_listener l;

    cr_assert_eq(hvi_listener_open(&l, -1, true, false, NULL), HVD_OK);
    cr_assert_eq(l.ways.n, 0);
    cr_assert_eq(access(l.path, F_OK), 0);
    {
        char path[128];
        char dir[128];

        snprintf(path, sizeof path, "%s", l.path);
        snprintf(dir, sizeof dir, "%s", l.dir);
        hvi_listener_close(&l);
        cr_assert_neq(access(path, F_OK), 0);
        if (dir[0] != '\0')
            cr_assert_neq(access(dir, F_OK), 0);
    }
}
