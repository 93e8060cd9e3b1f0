#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "proto/msg/msg.h"
#include "proto/msg/request.h"

/* A group of two with every field away from its default. */
static struct hvi_request *sample(void)
{
    struct hvi_request *r = hvi_request_new("grad/w1", 2);

    cr_assert_not_null(r);
    r->kind = HVD_ALLREDUCE;
    r->reduce_op = HVD_SUM;
    r->pset = 3;
    r->device = HVD_CUDA;
    r->root = 5;
    r->priority = -7;
    r->prescale = 0.1;
    r->postscale = 3.0;
    r->grouped = true;
    r->instance = 1ull << 40;
    r->shapes[0] = (struct hvi_shape){HVD_FLOAT32, 2, {2, 3}};
    r->shapes[1] = (struct hvi_shape){HVD_BFLOAT16, 0, {0}};
    hvi_request_seal(r);
    return r;
}

/* Through bytes: to a message, packed, decoded, back to a request. */
static enum hvd_status resend(const struct hvi_request *r, struct hvi_request **out,
                              struct hvi_err *err)
{
    Hvi__Announce announce = HVI__ANNOUNCE__INIT;
    Hvi__Request *m = hvi_request_to_msg(r);
    struct hvi_msg back = {0};
    struct hvi_buf buf = {0};
    enum hvd_status rc;

    cr_assert_not_null(m);
    announce.requests = &m;
    announce.n_requests = 1;
    rc = hvi_msg_put(&buf, HVI_MSG_ANNOUNCE, &announce);
    hvi_request_msg_free(m);
    if (rc == HVD_OK)
        rc = hvi_msg_get(HVI_MSG_ANNOUNCE, hvi_buf_peek(&buf) + HVI_FRAME_HEADER_BYTES,
                         hvi_buf_size(&buf) - HVI_FRAME_HEADER_BYTES, &back, err);
    if (rc == HVD_OK)
        rc = hvi_request_from_msg(((Hvi__Announce *)back.body)->requests[0], out, err);
    hvi_msg_free(&back);
    hvi_buf_fini(&buf);
    return rc;
}

/* ---- there and back */

/* A copy of its own, for changing. */
static struct hvi_request *copy_of(const struct hvi_request *r)
{
    struct hvi_request *copy = hvi_request_new(r->name, r->ntensors);
    char *name;
    struct hvi_shape *shapes;

    if (copy == NULL)
        return NULL;
    name = copy->name;
    shapes = copy->shapes;
    *copy = *r;
    atomic_init(&copy->refs, 1);
    copy->name = name;
    copy->shapes = shapes;
    if (r->ntensors > 0)
        memcpy(shapes, r->shapes, r->ntensors * sizeof *shapes);
    return copy;
}

Test(request, every_field_survives_the_wire, .timeout = 10)
{
    struct hvi_request *r = sample();
    struct hvi_request *back = NULL;

    cr_assert_eq(resend(r, &back, NULL), HVD_OK);
    cr_assert_str_eq(back->name, "grad/w1");
    cr_assert_eq(back->kind, r->kind);
    cr_assert_eq(back->reduce_op, r->reduce_op);
    cr_assert_eq(back->pset, r->pset);
    cr_assert_eq(back->device, r->device);
    cr_assert_eq(back->root, r->root);
    cr_assert_eq(back->priority, r->priority);
    cr_assert(memcmp(&back->prescale, &r->prescale, sizeof(double)) == 0);
    cr_assert(memcmp(&back->postscale, &r->postscale, sizeof(double)) == 0);
    cr_assert_eq(back->grouped, r->grouped);
    cr_assert_eq(back->instance, r->instance);
    cr_assert_eq(back->ntensors, 2);
    cr_assert_eq(back->shapes[0].dtype, HVD_FLOAT32);
    cr_assert_eq(back->shapes[0].ndim, 2);
    cr_assert_eq(back->shapes[0].dims[1], 3);
    cr_assert_eq(back->shapes[1].ndim, 0);
    cr_assert_eq(back->signature, r->signature);
    cr_assert(hvi_request_same(back, r));
    hvi_request_free(back);
    hvi_request_free(r);
}

Test(request, the_largest_group_and_shape_survive, .timeout = 10)
{
    struct hvi_request *r;
    struct hvi_request *back = NULL;
    struct hvi_err err;
    char name[HVD_NAME_MAX + 1];

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    r = hvi_request_new(name, HVD_GROUP_MAX);
    r->kind = HVD_ALLREDUCE;
    r->grouped = true;
    for (uint32_t i = 0; i < HVD_GROUP_MAX; i++)
        r->shapes[i] = (struct hvi_shape){HVD_FLOAT64, 1, {i}};
    r->shapes[7].ndim = HVD_NDIM_MAX;
    for (int i = 0; i < HVD_NDIM_MAX; i++)
        r->shapes[7].dims[i] = i % 5 == 0 ? 2 : 1;
    hvi_request_seal(r);
    cr_assert_eq(resend(r, &back, &err), HVD_OK, "%s", err.text);
    cr_assert(hvi_request_same(back, r));
    cr_assert_str_eq(back->name, name);
    hvi_request_free(back);
    hvi_request_free(r);
}

Test(request, unset_scales_are_one, .timeout = 10)
{
    static const double zeros[] = {0.0, -0.0};

    for (int i = 0; i < 2; i++) {
        struct hvi_request *r = sample();
        struct hvi_request *back = NULL;

        r->prescale = zeros[i];
        r->postscale = zeros[i];
        cr_assert_eq(resend(r, &back, NULL), HVD_OK);
        cr_assert_float_eq(back->prescale, 1.0, 0);
        cr_assert_float_eq(back->postscale, 1.0, 0);
        hvi_request_free(back);
        hvi_request_free(r);
    }
}

Test(request, a_barrier_without_tensors_passes, .timeout = 10)
{
    struct hvi_request *r = hvi_request_new("barrier", 0);
    struct hvi_request *back = NULL;

    r->kind = HVD_BARRIER;
    hvi_request_seal(r);
    cr_assert_eq(resend(r, &back, NULL), HVD_OK);
    cr_assert_eq(back->ntensors, 0);
    cr_assert_eq(hvi_request_bytes(back), 0);
    cr_assert(hvi_request_same(back, r));
    hvi_request_free(back);
    hvi_request_free(r);
}

/* ---- what differs, and in which words */

static void set_kind(struct hvi_request *r)
{
    r->kind = HVD_BROADCAST;
}
static void set_op(struct hvi_request *r)
{
    r->reduce_op = HVD_MAX;
}
static void set_dtype(struct hvi_request *r)
{
    r->shapes[1].dtype = HVD_FLOAT16;
}
static void set_dim(struct hvi_request *r)
{
    r->shapes[0].dims[1] = 4;
}
static void set_ndim(struct hvi_request *r)
{
    r->shapes[0].ndim = 1;
}
static void set_count(struct hvi_request *r)
{
    r->ntensors = 1;
}
static void set_root(struct hvi_request *r)
{
    r->root = 6;
}
static void set_prescale(struct hvi_request *r)
{
    r->prescale = nextafter(0.1, 1.0);
}
static void set_postscale(struct hvi_request *r)
{
    r->postscale = 2.0;
}
static void set_device(struct hvi_request *r)
{
    r->device = HVD_CPU;
}
static void set_grouped(struct hvi_request *r)
{
    r->grouped = false;
}
static void set_pset(struct hvi_request *r)
{
    r->pset = 0;
}

Test(request, every_difference_is_found_and_worded, .timeout = 10)
{
    static const struct {
        void (*change)(struct hvi_request *r);
        const char *words;
    } cases[] = {
        {set_kind, "operation allreduce on rank 0, broadcast on rank 3"},
        {set_op, "reduce op sum on rank 0, max on rank 3"},
        {set_dtype, "tensor 2 of 2: dtype bfloat16 on rank 0, float16 on rank 3"},
        {set_count, "number of tensors 2 on rank 0, 1 on rank 3"},
        {set_dim, "tensor 1 of 2: shape [2, 3] on rank 0, [2, 4] on rank 3"},
        {set_ndim, "tensor 1 of 2: shape [2, 3] on rank 0, [2] on rank 3"},
        {set_root, "root 5 on rank 0, 6 on rank 3"},
        {set_prescale,
         "prescale 0.10000000000000001 on rank 0, 0.10000000000000002 on rank 3"},
        {set_postscale, "postscale 3 on rank 0, 2 on rank 3"},
        {set_device, "device cuda on rank 0, cpu on rank 3"},
        {set_grouped, "submitted in a group on rank 0, alone on rank 3"},
        {set_pset, "process set 3 on rank 0, 0 on rank 3"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hvi_request *a = sample();
        struct hvi_request *b = sample();
        char text[512];

        hvi_request_explain(a, 0, b, 3, text, sizeof text);
        cr_assert_str_eq(text, "");
        cases[i].change(b);
        hvi_request_seal(b);
        cr_assert_neq(a->signature, b->signature, "%s", cases[i].words);
        cr_assert_not(hvi_request_same(a, b), "%s", cases[i].words);
        b->signature = a->signature; /* as if the hashes had met */
        cr_assert_not(hvi_request_same(a, b), "%s", cases[i].words);
        hvi_request_explain(a, 0, b, 3, text, sizeof text);
        cr_assert_str_eq(text, cases[i].words);
        b->ntensors = 2;
        hvi_request_free(a);
        hvi_request_free(b);
    }
}

Test(request, name_priority_and_instance_are_not_compared, .timeout = 10)
{
    struct hvi_request *a = sample();
    struct hvi_request *b = sample();
    char another[] = "another";
    char text[64];

    b->name = another;
    b->priority = 1;
    b->instance = 2;
    hvi_request_seal(b);
    cr_assert_eq(a->signature, b->signature);
    cr_assert(hvi_request_same(a, b));
    hvi_request_explain(a, 0, b, 1, text, sizeof text);
    cr_assert_str_eq(text, "");
    hvi_request_free(a);
    hvi_request_free(b);
}

Test(request, dims_beyond_ndim_are_not_compared, .timeout = 10)
{
    struct hvi_request *a = sample();
    struct hvi_request *b = sample();

    b->shapes[0].dims[9] = 77;
    hvi_request_seal(b);
    cr_assert_eq(a->signature, b->signature);
    cr_assert(hvi_request_same(a, b));
    hvi_request_free(a);
    hvi_request_free(b);
}

Test(request, a_free_first_dimension_is_shown_as_a_star, .timeout = 10)
{
    struct hvi_request *a = hvi_request_new("g", 1);
    struct hvi_request *b = hvi_request_new("g", 1);
    char text[256];

    a->kind = b->kind = HVD_ALLGATHER;
    a->shapes[0] = (struct hvi_shape){HVD_INT32, 2, {0, 3}};
    b->shapes[0] = (struct hvi_shape){HVD_INT32, 2, {0, 4}};
    hvi_request_seal(a);
    hvi_request_seal(b);
    hvi_request_explain(a, 1, b, 2, text, sizeof text);
    cr_assert_str_eq(text, "shape [*, 3] on rank 1, [*, 4] on rank 2");
    hvi_request_free(a);
    hvi_request_free(b);
}

Test(request, explanations_are_cut_to_their_room, .timeout = 10)
{
    struct hvi_request *a = hvi_request_new("g", 1);
    struct hvi_request *b = hvi_request_new("g", 1);
    char whole[1024];

    a->kind = b->kind = HVD_ALLREDUCE;
    a->shapes[0] = (struct hvi_shape){HVD_INT32, HVD_NDIM_MAX, {0}};
    b->shapes[0] = a->shapes[0];
    for (int i = 0; i < HVD_NDIM_MAX; i++)
        a->shapes[0].dims[i] = INT64_MAX - i;
    hvi_request_explain(a, 1, b, 2, whole, sizeof whole);
    cr_assert_not_null(strstr(whole, "9223372036854775807"));
    cr_assert_not_null(strstr(whole, "0] on rank 2"), "%s", whole);
    for (size_t cap = 0; cap < strlen(whole) + 2; cap++) {
        char text[1024];

        memset(text, '#', sizeof text);
        hvi_request_explain(a, 1, b, 2, text, cap);
        cr_assert_eq(text[cap], '#', "room of %zu", cap);
        cr_assert(cap == 0 || strlen(text) < cap, "room of %zu", cap);
    }
    hvi_request_free(a);
    hvi_request_free(b);
}

/* ---- refused */

static struct {
    Hvi__Request m;
    Hvi__Tensor t[2];
    Hvi__Tensor *list[HVD_GROUP_MAX + 1];
    int64_t dims[HVD_NDIM_MAX + 1];
} wire;

/* A good message, to be spoiled. */
static Hvi__Request *good(void)
{
    hvi__request__init(&wire.m);
    for (int i = 0; i < 2; i++)
        hvi__tensor__init(&wire.t[i]);
    for (int i = 0; i <= HVD_GROUP_MAX; i++)
        wire.list[i] = &wire.t[0];
    for (int i = 0; i <= HVD_NDIM_MAX; i++)
        wire.dims[i] = 1;
    wire.m.name = (char *)"x";
    wire.m.kind = HVD_ALLREDUCE;
    wire.m.reduce_op = HVD_SUM;
    wire.m.tensors = wire.list;
    wire.m.n_tensors = 1;
    wire.t[0].dtype = HVD_FLOAT32;
    wire.t[0].dims = wire.dims;
    wire.t[0].n_dims = 1;
    return &wire.m;
}

static void refused(const Hvi__Request *m, const char *words)
{
    struct hvi_request *out = NULL;
    struct hvi_err err = {{0}};

    cr_assert_eq(hvi_request_from_msg(m, &out, &err), HVD_EPROTO, "%s", words);
    cr_assert_null(out);
    cr_assert_not_null(strstr(err.text, words), "'%s' is not in '%s'", words, err.text);
}

Test(request, what_is_out_of_range_is_refused_and_named, .timeout = 10)
{
    static char name[HVD_NAME_MAX + 2];
    struct hvi_request *out = NULL;
    Hvi__Request *m = good();

    cr_assert_eq(hvi_request_from_msg(m, &out, NULL), HVD_OK);
    hvi_request_free(out);

    good()->name = (char *)"";
    refused(m, "a name of 0 bytes");
    memset(name, 'n', sizeof name - 1);
    good()->name = name;
    refused(m, "a name of 1024 bytes");
    good()->kind = HVD_KIND_UNSET;
    refused(m, "unknown operation 0");
    good()->kind = HVD_JOIN;
    refused(m, "unknown operation 7");
    good()->kind = UINT32_MAX;
    refused(m, "unknown operation 4294967295");
    good()->reduce_op = HVD_REDUCE_OP_COUNT;
    refused(m, "unknown reduce op 6");
    good()->device = 2;
    refused(m, "unknown device 2");
    good()->prescale = NAN;
    refused(m, "not finite");
    good()->postscale = -INFINITY;
    refused(m, "not finite");
    good()->kind = HVD_BROADCAST;
    m->root = -1;
    refused(m, "root -1");
    m->root = HVD_RANKS_MAX;
    refused(m, "root 1024");
    good()->n_tensors = 0;
    refused(m, "0 tensors");
    good()->n_tensors = 2;
    refused(m, "2 tensors outside a group");
    good()->n_tensors = HVD_GROUP_MAX + 1;
    m->grouped = 1;
    refused(m, "4097 tensors");
    good();
    wire.t[0].dtype = HVD_DTYPE_UNSET;
    refused(m, "unknown dtype 0");
    wire.t[0].dtype = HVD_DTYPE_COUNT;
    refused(m, "unknown dtype 12");
    good();
    wire.t[0].n_dims = HVD_NDIM_MAX + 1;
    refused(m, "17 dimensions, at most 16");
    good();
    wire.dims[0] = -1;
    refused(m, "dimension 0 is -1");
    good();
    wire.t[0].n_dims = 2;
    wire.dims[0] = INT64_MAX;
    wire.dims[1] = 2;
    refused(m, "more than 2^63 bytes");
    wire.dims[1] = 1; /* elements fit, bytes do not */
    refused(m, "more than 2^63 bytes");
}

Test(request, a_group_that_overflows_only_in_sum_is_refused, .timeout = 10)
{
    Hvi__Request *m = good();

    wire.dims[0] = INT64_MAX / 4;
    m->grouped = 1;
    m->n_tensors = 2;
    refused(m, "more than 2^63 bytes");
}

Test(request, hostile_names_are_shown_escaped, .timeout = 10)
{
    Hvi__Request *m = good();

    m->name = (char *)"a\n\x1b[31m%s%n";
    m->kind = 99;
    refused(m, "request 'a\\x0a\\x1b[31m%s%n': unknown operation 99");
}

/* ---- sizes */

Test(shape, counts_elements_and_bytes, .timeout = 10)
{
    static const struct {
        struct hvi_shape s;
        enum hvd_status rc;
        int64_t count, bytes;
    } cases[] = {
        {{HVD_FLOAT32, 0, {0}}, HVD_OK, 1, 4}, /* a scalar */
        {{HVD_FLOAT64, 2, {2, 3}}, HVD_OK, 6, 48},
        {{HVD_BOOL, 3, {2, 0, 3}}, HVD_OK, 0, 0},
        {{HVD_INT8, 1, {INT64_MAX}}, HVD_OK, INT64_MAX, INT64_MAX},
        {{HVD_INT16, 1, {INT64_MAX}}, HVD_ELIMIT, 0, 0},
        {{HVD_INT8, 2, {INT64_MAX, 2}}, HVD_ELIMIT, 0, 0},
        /* empty, but no other rank could have its rows */
        {{HVD_INT8, 3, {0, INT64_MAX, 2}}, HVD_ELIMIT, 0, 0},
        {{HVD_INT8, 3, {INT64_MAX, 2, 0}}, HVD_ELIMIT, 0, 0},
        {{HVD_INT8, 1, {-1}}, HVD_EINVAL, 0, 0},
        {{HVD_INT8, 2, {0, -1}}, HVD_EINVAL, 0, 0},
        {{HVD_INT8, HVD_NDIM_MAX + 1, {1}}, HVD_EINVAL, 0, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t count = -5;
        int64_t bytes = -6;
        enum hvd_status rc = hvi_shape_count(&cases[i].s, &count, &bytes);

        cr_assert_eq(rc, cases[i].rc, "case %zu: %d", i, rc);
        cr_assert_eq(count, rc == HVD_OK ? cases[i].count : -5, "case %zu", i);
        cr_assert_eq(bytes, rc == HVD_OK ? cases[i].bytes : -6, "case %zu", i);
    }
}

Test(request, bytes_are_summed_and_saturate, .timeout = 10)
{
    struct hvi_request *r = sample();

    cr_assert_eq(hvi_request_bytes(r), 2 * 3 * 4 + 2);
    r->shapes[0] = (struct hvi_shape){HVD_INT8, 1, {INT64_MAX - 1}};
    cr_assert_eq(hvi_request_bytes(r), INT64_MAX);
    r->shapes[0].dims[0] = -1;
    cr_assert_eq(hvi_request_bytes(r), INT64_MAX);
    hvi_request_free(r);
}

/* ---- fusing */

static struct hvi_request *single(uint32_t kind, uint32_t op, uint32_t dtype)
{
    struct hvi_request *r = hvi_request_new("t", 1);

    cr_assert_not_null(r);
    r->kind = kind;
    r->reduce_op = op;
    r->shapes[0] = (struct hvi_shape){dtype, 1, {8}};
    hvi_request_seal(r);
    return r;
}

Test(request, what_fuses_and_what_does_not, .timeout = 10)
{
    static const struct {
        uint32_t kind, op, dtype;
        bool with_itself;
    } cases[] = {
        {HVD_ALLREDUCE, HVD_SUM, HVD_FLOAT32, true},
        {HVD_ALLREDUCE, HVD_AVERAGE, HVD_FLOAT32, true},
        {HVD_ALLREDUCE, HVD_SUM, HVD_FLOAT16, true},
        {HVD_ALLREDUCE, HVD_ADASUM, HVD_FLOAT32, false},
        {HVD_BROADCAST, HVD_SUM, HVD_FLOAT32, true},
        {HVD_ALLGATHER, HVD_SUM, HVD_FLOAT32, false},
        {HVD_ALLTOALL, HVD_SUM, HVD_FLOAT32, false},
        {HVD_REDUCESCATTER, HVD_SUM, HVD_FLOAT32, false},
        {HVD_BARRIER, HVD_SUM, HVD_FLOAT32, false},
    };
    size_t n = sizeof cases / sizeof cases[0];

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            struct hvi_request *a = single(cases[i].kind, cases[i].op, cases[i].dtype);
            struct hvi_request *b = single(cases[k].kind, cases[k].op, cases[k].dtype);

            b->shapes[0].dims[0] = 9; /* other sizes do fuse */
            cr_assert_eq(hvi_request_fuses(a, b), i == k && cases[i].with_itself,
                         "%zu with %zu", i, k);
            hvi_request_free(a);
            hvi_request_free(b);
        }
}

Test(request, other_sets_scales_devices_roots_and_mixed_groups_do_not_fuse,
     .timeout = 10)
{
    static void (*const changes[])(struct hvi_request *) = {set_pset, set_prescale,
                                                            set_postscale, set_device};
    struct hvi_request *a = single(HVD_BROADCAST, HVD_SUM, HVD_FLOAT32);
    struct hvi_request *b = copy_of(a);
    struct hvi_request *mixed = sample();

    b->root = 1;
    cr_assert_not(hvi_request_fuses(a, b));
    a->kind = b->kind = HVD_ALLREDUCE;
    cr_assert(hvi_request_fuses(a, b), "an allreduce has no root");
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct hvi_request *c = copy_of(a);

        c->pset = 4;
        c->device = HVD_CUDA;
        b->pset = 4;
        b->device = HVD_CUDA;
        cr_assert(hvi_request_fuses(b, c));
        changes[i](c);
        cr_assert_not(hvi_request_fuses(b, c), "change %zu", i);
        hvi_request_free(c);
    }
    cr_assert_not(hvi_request_fuses(mixed, mixed), "two dtypes in one group");
    mixed->shapes[1].dtype = HVD_FLOAT32;
    cr_assert(hvi_request_fuses(mixed, mixed));
    hvi_request_free(mixed);
    hvi_request_free(a);
    hvi_request_free(b);
}

/* ---- memory */

Test(request, out_of_memory_anywhere_is_an_error_without_a_leak, .timeout = 10)
{
    struct hvi_request *r = sample();
    long tried = 0;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    for (int what = 0; what < 4; what++) {
        bool all = false;

        for (long k = 0; !all; k++) {
            long blocks = hvi_fault_live_blocks();
            Hvi__Request *m = good();
            struct hvi_request *made = NULL;
            enum hvd_status rc = HVD_OK;

            hvi_fault_malloc_after(k);
            if (what == 0)
                made = hvi_request_new("name", 3);
            else if (what == 1)
                made = copy_of(r);
            else if (what == 2)
                rc = hvi_request_from_msg(m, &made, NULL);
            else
                m = hvi_request_to_msg(r);
            all = !hvi_fault_malloc_off();
            if (what == 2)
                cr_assert_eq(rc, all ? HVD_OK : HVD_ENOMEM, "allocation %ld", k);
            if (what == 3)
                cr_assert_eq(m == NULL, !all);
            else
                cr_assert_eq(made == NULL, !all, "%d, allocation %ld", what, k);
            hvi_request_free(made);
            if (what == 3)
                hvi_request_msg_free(m);
            cr_assert_eq(hvi_fault_live_blocks(), blocks, "%d, allocation %ld: a leak",
                         what, k);
            tried += !all;
        }
    }
    cr_assert_geq(tried, 1 + 1 + 1 + 1);
    hvi_request_free(r);
}

Test(request, an_equal_one_may_stand_for_another, .timeout = 10)
{
    struct hvi_request *a = sample();
    struct hvi_request *b = sample();
    int64_t dim = b->shapes[0].dims[0];

    b->signature = 0; /* as before it is sealed */
    cr_assert(hvi_request_equal(a, b));
    b->priority++;
    cr_assert_not(hvi_request_equal(a, b));
    b->priority--;
    b->instance++;
    cr_assert_not(hvi_request_equal(a, b));
    b->instance--;
    b->shapes[0].dims[0] = dim + 1;
    cr_assert_not(hvi_request_equal(a, b));
    b->shapes[0].dims[0] = dim;
    cr_assert(hvi_request_equal(a, b));
    cr_assert_eq(hvi_request_ref(a), a);
    hvi_request_free(a);
    cr_assert(hvi_request_equal(a, b), "one reference is left");
    hvi_request_free(a);
    hvi_request_free(b);
}
