/*
 * A line between two ends that somebody sits on. The input is a script: each byte is a
 * step, its high bits a number. Whatever is done to the line, the receiver opens a
 * prefix of what was sealed, in order, and once it has refused something, nothing more.
 */
#include "tests/fuzz/session.h"

enum step {
    SEAL,      /* n bytes of text */
    SEAL_LAST, /* FINAL */
    OPEN,      /* as much as there is */
    RAW,       /* n bytes of the input go onto the line */
    FLIP,      /* a bit of the next byte's place */
    DROP,      /* n bytes from the front */
    TWICE,     /* what is on the line is there again */
    FULL,      /* sealing into a full buffer changes nothing */
    STEPS
};

#define RECORDS_MAX 64
#define LINE_MAX (1u << 18)

struct line {
    struct hvi_stream from, to;
    struct hvi_buf wire;
    uint8_t sizes[RECORDS_MAX]; /* of what was sealed; its text is its number */
    uint32_t sealed, opened;
    bool refused;
};

static void must(enum hvd_status rc)
{
    if (rc != HVD_OK)
        abort();
}

static void seal(struct line *l, size_t n, bool last)
{
    uint8_t text[32];
    enum hvd_status rc;

    if (l->sealed == RECORDS_MAX)
        return;
    memset(text, (int)l->sealed, sizeof text);
    rc = hvi_stream_seal(&l->from, text, n, last, &l->wire);
    FUZZ_CHECK(rc == HVD_OK || (rc == HVD_ESTATE && l->from.finished), "%d", rc);
    if (rc == HVD_OK)
        l->sizes[l->sealed++] = (uint8_t)n;
}

static void open_all(struct line *l)
{
    struct hvi_buf plain = {0};
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    while ((rc = hvi_stream_open(&l->to, &l->wire, &plain, &err)) == HVD_OK) {
        const uint8_t *text = hvi_buf_peek(&plain);
        size_t n = hvi_buf_size(&plain);

        FUZZ_CHECK(!l->refused, "a record after a refusal");
        FUZZ_CHECK(l->opened < l->sealed, "a record that nobody sealed");
        FUZZ_CHECK(n == l->sizes[l->opened], "record %u", l->opened);
        for (size_t i = 0; i < n; i++)
            FUZZ_CHECK(text[i] == l->opened, "record %u", l->opened);
        l->opened++;
    }
    FUZZ_CHECK(rc == HVD_INPROGRESS || rc == HVD_EAUTH || rc == HVD_EPROTO, "%d", rc);
    FUZZ_CHECK(!l->refused || rc == HVD_EAUTH, "%d after a refusal", rc);
    if (rc != HVD_INPROGRESS) {
        l->refused = true;
        fuzz_check_text(err.text, sizeof err.text);
    }
    FUZZ_CHECK(!l->to.ended || (l->from.finished && l->opened == l->sealed),
               "an end that nobody sealed");
    hvi_buf_fini(&plain);
}

static void twice(struct line *l)
{
    size_t n = hvi_buf_size(&l->wire);
    uint8_t *copy;

    if (n == 0 || n > LINE_MAX / 2)
        return;
    copy = malloc(n);
    if (copy == NULL)
        abort();
    memcpy(copy, hvi_buf_peek(&l->wire), n);
    must(hvi_buf_append(&l->wire, copy, n));
    free(copy);
}

static void full(struct line *l)
{
    struct hvi_buf tiny = {.max_bytes = 8};

    FUZZ_CHECK(hvi_stream_seal(&l->from, "0123456789", 10, false, &tiny) != HVD_OK);
    FUZZ_CHECK(hvi_buf_size(&tiny) == 0);
    hvi_buf_fini(&tiny);
}

/* Bytes of the input that the step takes with it. */
static size_t take_step(struct line *l, uint8_t byte, const uint8_t *rest, size_t left)
{
    size_t n = byte >> 3;
    size_t size = hvi_buf_size(&l->wire);

    switch ((enum step)(byte % STEPS)) {
    case SEAL:
    case SEAL_LAST:
        seal(l, n, byte % STEPS == SEAL_LAST);
        return 0;
    case OPEN:
        open_all(l);
        return 0;
    case RAW:
        n = n < left ? n : left;
        must(hvi_buf_append(&l->wire, rest, n));
        return n;
    case FLIP:
        if (size == 0 || left == 0)
            return 0;
        l->wire.data[l->wire.off + rest[0] % size] ^= (uint8_t)(1u << n % 8);
        return 1;
    case DROP:
        hvi_buf_consume(&l->wire, n < size ? n : size);
        return 0;
    case TWICE:
        twice(l);
        return 0;
    case FULL:
        full(l);
        return 0;
    case STEPS:
        break;
    }
    return 0;
}

/* The same two ends for every input: the handshake has a target of its own. */
static void start(struct line *l)
{
    static struct line ready;
    static bool made;
    uint8_t hello[HVI_HELLO_BYTES];
    uint8_t reply[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    enum hvi_role role;

    if (!made) {
        session_reset();
        must(hvi_hs_client_start(&hs, session_key, session_job, HVI_ROLE_WORKER, hello,
                                 NULL));
        must(hvi_hs_server(session_key, session_job, HVI_ROLE_COORDINATOR, hello, reply,
                           &ready.to, &role, NULL));
        must(hvi_hs_client_finish(&hs, reply, &ready.from, NULL));
        made = true;
    }
    *l = ready;
    session_reset(); /* sealing takes random bytes too */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct line l;

    start(&l);
    for (size_t i = 0; i < size && i < 4096; i++)
        i += take_step(&l, data[i], data + i + 1, size - i - 1);
    open_all(&l);
    hvi_buf_fini(&l.wire);
    return 0;
}
