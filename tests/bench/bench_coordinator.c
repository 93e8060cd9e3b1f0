/**
 * What a step costs the coordinator: simulated ranks, 8 to a host (of 8: 4), whose tensors all
 * have ids, without host aggregation (plane tcp: every rank sends READY and gets ORDER)
 * and with it (plane hosts: one of each per host). Opens and seals the records of all
 * messages, as the coordinator does; no sockets. One JSON line per size and way: messages
 * of a step in and out, time of a step on one core.
 *
 *     bench_coordinator [STEPS [TENSORS [ROUNDS]]]
 *
 * A step has TENSORS (161) tensors; they become ready in ROUNDS (4) portions.
 */
#include "coordinator/core/core.h"
#include "proto/sec/handshake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

#define PER_HOST 8
#define TENSORS_MAX 4096

struct sim {
    struct hvi_core *core;
    struct hvi_actions actions;
    int64_t now;
    int32_t np;
    bool hosts; /* with aggregation */
    uint32_t tensors, rounds;
    struct hvi_stream to, from; /* one channel stands for all */
    struct hvi_buf sealed, plain, out, frame;
    uint64_t nin, nout; /* messages of the steps */
};

/* A single host would not need the coordinator. */
static int32_t per_host(const struct sim *s)
{
    return s->np > PER_HOST ? PER_HOST : PER_HOST / 2;
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "bench_coordinator: %s\n", what);
    exit(1);
}

static void open_channel(struct sim *s)
{
    uint8_t key[HVI_KEY_BYTES] = {1}, job[HVI_JOB_ID_BYTES] = {2};
    uint8_t hello[HVI_HELLO_BYTES], reply[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    enum hvi_role role;

    must(hvi_hs_client_start(&hs, key, job, HVI_ROLE_WORKER, hello, NULL) == HVD_OK &&
             hvi_hs_server(key, job, HVI_ROLE_COORDINATOR, hello, reply, &s->to, &role,
                           NULL) == HVD_OK &&
             hvi_hs_client_finish(&hs, reply, &s->from, NULL) == HVD_OK,
         "no channel");
}

/* Performs what the core wants sent. */
static void perform(struct sim *s)
{
    for (uint32_t i = 0; i < s->actions.count; i++) {
        const struct hvi_action *a = &s->actions.list[i];

        if (a->kind != HVI_ACT_SEND)
            continue;
        hvi_buf_consume(&s->frame, hvi_buf_size(&s->frame));
        hvi_buf_consume(&s->out, hvi_buf_size(&s->out));
        must(hvi_out_flatten(a->frame, &s->frame) == HVD_OK &&
                 hvi_stream_seal(&s->to, hvi_buf_peek(&s->frame),
                                 hvi_buf_size(&s->frame), false, &s->out) == HVD_OK,
             "out of memory");
        s->nout++;
    }
}

static void step(struct sim *s, const struct hvi_event *ev)
{
    must(hvi_core_step(s->core, ev, s->now, &s->actions) == HVD_OK, "out of memory");
    perform(s);
}

static void say(struct sim *s, int32_t rank, uint32_t type, void *body)
{
    struct hvi_msg msg = {type, body};
    struct hvi_event ev = {
        .kind = HVI_EV_MESSAGE, .conn = (uint64_t)rank + 1, .msg = &msg};

    step(s, &ev);
}

static void hello(struct sim *s, int32_t rank)
{
    uint8_t entropy[HVI_EPOCH_KEY_BYTES] = {3};
    struct hvi_event ev = {
        .kind = HVI_EV_OPENED, .conn = (uint64_t)rank + 1, .entropy = entropy};
    Hvi__Hello m = HVI__HELLO__INIT;
    struct hvi_buf buf = {0};
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    struct hvi_msg msg;
    char host[16];
    uint32_t type;

    step(s, &ev);
    snprintf(host, sizeof host, "h%d", rank / per_host(s));
    m.version = (char *)"bench";
    m.want_rank = rank;
    m.host = m.host_id = host;
    m.pid = 100 + rank;
    m.cpu_plane = s->hosts ? 0 : 2;
    must(hvi_msg_put(&buf, HVI_MSG_HELLO, &m) == HVD_OK &&
             hvi_frame_peek(hvi_buf_peek(&buf), hvi_buf_size(&buf), &type, &payload,
                            &payload_bytes, &frame_bytes, NULL) == HVD_OK &&
             hvi_msg_get(type, payload, payload_bytes, &msg, NULL) == HVD_OK,
         "HELLO");
    ev = (struct hvi_event){
        .kind = HVI_EV_MESSAGE, .conn = (uint64_t)rank + 1, .msg = &msg};
    step(s, &ev);
    hvi_buf_fini(&buf);
}

/* From HELLO to an id for every tensor. */
static void form(struct sim *s)
{
    static Hvi__Request reqs[TENSORS_MAX], *list[TENSORS_MAX];
    static char names[TENSORS_MAX][24];
    Hvi__Formed formed = HVI__FORMED__INIT;
    Hvi__Announce announce = HVI__ANNOUNCE__INIT;
    Hvi__Tensor t = HVI__TENSOR__INIT, *tensors = &t;
    int64_t count = 1000;

    formed.epoch = formed.attempt = 1;
    formed.text = (char *)"";
    for (int32_t r = 0; r < s->np; r++)
        hello(s, r);
    for (int32_t r = 0; r < s->np; r++)
        say(s, r, HVI_MSG_FORMED, &formed);
    t.dtype = HVD_FLOAT32;
    t.n_dims = 1;
    t.dims = &count;
    for (uint32_t i = 0; i < s->tensors; i++) {
        hvi__request__init(&reqs[i]);
        snprintf(names[i], sizeof names[i], "gradient.%u", i);
        reqs[i].name = names[i];
        reqs[i].kind = HVD_ALLREDUCE;
        reqs[i].reduce_op = HVD_SUM;
        reqs[i].n_tensors = 1;
        reqs[i].tensors = &tensors;
        list[i] = &reqs[i];
    }
    announce.epoch = 1;
    announce.n_requests = s->tensors;
    announce.requests = list;
    for (int32_t r = 0; r < s->np; r++)
        say(s, r, HVI_MSG_ANNOUNCE, &announce);
}

/* One READY, from a sealed record to the actions performed. Returns the time in us. */
static double take_ready(struct sim *s, int32_t rank, const struct hvi_ready_id *ids,
                         uint32_t n)
{
    struct hvi_event ev = {.kind = HVI_EV_READY, .conn = (uint64_t)rank + 1};
    struct hvi_buf buf = {0};
    struct hvi_ready_id *got = NULL;
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    uint32_t type;
    double began_us;

    must(hvi_ready_put(&buf, 1, ids, n) == HVD_OK &&
             hvi_stream_seal(&s->from, hvi_buf_peek(&buf), hvi_buf_size(&buf), false,
                             &s->sealed) == HVD_OK,
         "out of memory");
    hvi_buf_fini(&buf);
    s->nin++;
    began_us = bench_now_us();
    must(hvi_stream_open(&s->to, &s->sealed, &s->plain, NULL) == HVD_OK &&
             hvi_frame_peek(hvi_buf_peek(&s->plain), hvi_buf_size(&s->plain), &type,
                            &payload, &payload_bytes, &frame_bytes, NULL) == HVD_OK &&
             hvi_ready_get(payload, payload_bytes, &ev.epoch, &got, &ev.nids, NULL) ==
                 HVD_OK,
         "READY");
    ev.ids = got;
    step(s, &ev);
    free(got);
    return bench_now_us() - began_us;
}

static double run_step(struct sim *s)
{
    static struct hvi_ready_id ids[TENSORS_MAX];
    uint32_t portion = (s->tensors + s->rounds - 1) / s->rounds;
    double us = 0;

    for (uint32_t at = 0; at < s->tensors; at += portion) {
        uint32_t n = s->tensors - at < portion ? s->tensors - at : portion;

        for (uint32_t i = 0; i < n; i++)
            ids[i] = (struct hvi_ready_id){at + i, 1};
        for (int32_t r = 0; r < s->np; r += s->hosts ? per_host(s) : 1)
            us += take_ready(s, r, ids, n);
    }
    s->now++;
    return us;
}

/* Median and 99th percentile of a step in us; messages of one step. */
static void measure(struct sim *s, uint32_t steps, double *p50_us, double *p99_us)
{
    struct hvi_core_config cfg = {
        .version = "bench", .np = (uint32_t)s->np, .linger_ms = -1};
    double *us = calloc(steps, sizeof *us);

    must(us != NULL, "out of memory");
    open_channel(s);
    s->core = hvi_core_new(&cfg);
    must(s->core != NULL, "out of memory");
    form(s);
    run_step(s);
    s->nin = s->nout = 0;
    for (uint32_t i = 0; i < steps; i++)
        us[i] = run_step(s);
    must(s->nin > 0 && s->nout > 0, "nothing was ordered");
    s->nin /= steps;
    s->nout /= steps;
    qsort(us, steps, sizeof *us, bench_compare);
    *p50_us = us[steps / 2];
    *p99_us = us[steps - 1 - steps / 100];
    free(us);
    hvi_core_free(s->core);
    hvi_actions_fini(&s->actions);
    hvi_stream_fini(&s->to);
    hvi_stream_fini(&s->from);
    hvi_buf_fini(&s->sealed);
    hvi_buf_fini(&s->plain);
    hvi_buf_fini(&s->out);
    hvi_buf_fini(&s->frame);
}

int main(int argc, char **argv)
{
    static const int32_t sizes[] = {8, 64, 256, 1000, 4096, 16384};
    uint32_t steps = argc > 1 ? (uint32_t)atoi(argv[1]) : 100;
    uint32_t tensors = argc > 2 ? (uint32_t)atoi(argv[2]) : 161;
    uint32_t rounds = argc > 3 ? (uint32_t)atoi(argv[3]) : 4;

    must(steps > 0 && tensors > 0 && tensors <= TENSORS_MAX && rounds > 0,
         "usage: bench_coordinator [STEPS [TENSORS [ROUNDS]]]");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int k = 0; k < 2; k++) {
            struct sim s;
            double p50, p99;

            memset(&s, 0, sizeof s);
            s.np = sizes[i];
            s.hosts = k == 1;
            s.tensors = tensors;
            s.rounds = rounds;
            s.now = 1;
            measure(&s, steps, &p50, &p99);
            printf("{\"peer\": \"%s\", \"np\": %d, \"control\": \"%u in %u\", "
                   "\"in\": %lu, \"out\": %lu, \"med_us\": %.1f, \"p99_us\": %.1f}\n",
                   s.hosts ? "a host" : "a rank", s.np, tensors, rounds,
                   (unsigned long)s.nin, (unsigned long)s.nout, p50, p99);
            fflush(stdout);
        }
    return 0;
}
