/*
 * Two requests of one name as two ranks may announce them: the first is built from the
 * input field by field, the second is the first with some fields changed. Each is
 * refused with a text or taken; and what is said of the two agrees with itself.
 */
#include "tests/fuzz/payload.h"

#include "proto/base/buf.h"

#define TENSORS 3

/* A message and all that it points to. */
struct wire {
    Hvi__Request m;
    Hvi__Tensor tensors[TENSORS];
    Hvi__Tensor *list[TENSORS];
    int64_t dims[TENSORS][HVD_NDIM_MAX + 1];
    char name[HVD_NAME_MAX + 4];
};

static const int64_t dim_values[] = {
    0, 1, 2, 3, 8, 300, 1 << 20, -1, INT64_MAX, INT64_MIN, 1ll << 31, 1ll << 62};
static const double scale_values[] = {
    0.0, -0.0, 1.0, 0.5, 1e-320, -1e308, __builtin_inf(), __builtin_nan("")};

#define PICK(c, table) ((table)[hvi_get_u8(c) % (sizeof(table) / sizeof((table)[0]))])

static void set_field(struct wire *w, struct hvi_cursor *in, uint8_t field)
{
    Hvi__Tensor *t = &w->tensors[hvi_get_u8(in) % TENSORS];
    uint8_t v;

    switch (field % 15) {
    case 0:
        w->m.kind = hvi_get_u8(in) % (HVD_KIND_COUNT + 1);
        return;
    case 1:
        w->m.reduce_op = hvi_get_u8(in) % (HVD_REDUCE_OP_COUNT + 1);
        return;
    case 2:
        w->m.pset = hvi_get_u8(in);
        return;
    case 3:
        w->m.root = (int8_t)hvi_get_u8(in) * 16;
        return;
    case 4:
        w->m.prescale = PICK(in, scale_values);
        return;
    case 5:
        w->m.postscale = PICK(in, scale_values);
        return;
    case 6:
        w->m.device = hvi_get_u8(in) % 3;
        return;
    case 7:
        w->m.n_tensors = hvi_get_u8(in) % (TENSORS + 1);
        return;
    case 8:
        w->m.grouped = hvi_get_u8(in) & 1;
        return;
    case 9:
        t->dtype = hvi_get_u8(in) % (HVD_DTYPE_COUNT + 2);
        return;
    case 10:
        t->n_dims = hvi_get_u8(in) % (HVD_NDIM_MAX + 2);
        return;
    case 11:
        v = hvi_get_u8(in) % (HVD_NDIM_MAX + 1);
        t->dims[v] = PICK(in, dim_values);
        return;
    case 12:
        w->m.priority = (int8_t)hvi_get_u8(in);
        return;
    case 13:
        w->m.instance = hvi_get_u8(in);
        return;
    default: /* its length: 0 to one too many */
        v = hvi_get_u8(in);
        memset(w->name, 'n', sizeof w->name);
        w->name[v < 250 ? v : HVD_NAME_MAX - 2 + (v - 250)] = '\0';
        return;
    }
}

/* `from` NULL: an allreduce of one scalar. */
static void make(struct wire *w, const struct wire *from, struct hvi_cursor *in)
{
    memset(w, 0, sizeof *w);
    hvi__request__init(&w->m);
    for (int i = 0; i < TENSORS; i++)
        hvi__tensor__init(&w->tensors[i]);
    if (from != NULL) {
        *w = *from;
    } else {
        w->m.kind = HVD_ALLREDUCE;
        w->m.reduce_op = HVD_SUM;
        w->m.n_tensors = 1;
        for (int i = 0; i < TENSORS; i++)
            w->tensors[i].dtype = HVD_FLOAT32;
        memcpy(w->name, "a\n\x1b%s", 6);
    }
    w->m.name = w->name;
    w->m.tensors = w->list;
    for (int i = 0; i < TENSORS; i++) {
        w->list[i] = &w->tensors[i];
        w->tensors[i].dims = w->dims[i];
    }
    for (uint8_t n = hvi_get_u8(in) % 32; n > 0; n--)
        set_field(w, in, hvi_get_u8(in));
}

static struct hvi_request *taken(const struct wire *w)
{
    struct hvi_request *r = NULL;
    struct hvi_err err = {{0}};
    enum hvd_status rc = hvi_request_from_msg(&w->m, &r, &err);

    FUZZ_CHECK((rc == HVD_OK) == (r != NULL));
    if (rc != HVD_OK)
        payload_refused(rc, &err);
    return r;
}

static void compare(const struct hvi_request *a, const struct hvi_request *b,
                    size_t cap)
{
    bool same = hvi_request_same(a, b);
    char text[2048];
    char cut[2048];

    FUZZ_CHECK(same == hvi_request_same(b, a));
    FUZZ_CHECK(same == (a->signature == b->signature));
    FUZZ_CHECK(hvi_request_fuses(a, b) == hvi_request_fuses(b, a));
    FUZZ_CHECK(!same || hvi_request_fuses(a, b) == hvi_request_fuses(a, a));
    hvi_request_explain(a, 0, b, 1, text, sizeof text);
    FUZZ_CHECK((text[0] == '\0') == same, "%s", text);
    if (!same) {
        fuzz_check_text(text, sizeof text);
        FUZZ_CHECK(strstr(text, "on rank 0, ") != NULL, "%s", text);
    }
    memset(cut, 0x5a, sizeof cut);
    hvi_request_explain(a, 0, b, 1, cut, cap);
    for (size_t i = cap; i < sizeof cut; i++)
        FUZZ_CHECK(cut[i] == 0x5a, "byte %zu, room %zu", i, cap);
    FUZZ_CHECK(cap == 0 || strnlen(cut, cap) < cap);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct wire first;
    static struct wire second;
    struct hvi_request *last = NULL;
    struct hvi_request *a;
    struct hvi_request *b;
    struct hvi_cursor in;
    size_t cap;

    hvi_cursor_init_ro(&in, data, size);
    cap = hvi_get_u8(&in);
    make(&first, NULL, &in);
    make(&second, &first, &in);
    check_request(&first.m, &last);
    check_request(&second.m, &last);
    a = taken(&first);
    b = taken(&second);
    if (a != NULL && b != NULL)
        compare(a, b, cap);
    if (a != NULL) {
        struct hvi_request *again = hvi_request_ref(a);

        FUZZ_CHECK(again == a && hvi_request_same(again, a));
        hvi_request_free(again);
    }
    hvi_request_free(last);
    hvi_request_free(a);
    hvi_request_free(b);
    return 0;
}
