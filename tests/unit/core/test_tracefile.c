#include "test.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/core/tracefile.h"

static char dir[64];
static char path[96];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/hvd-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/trace.json", dir);
}

static void remove_dir(void)
{
    unlink(path);
    rmdir(dir);
}

static struct hvi_trace_op sample(const char *name, int rank)
{
    struct hvi_trace_op op = {.rank = rank,
                              .kind = HVD_ALLREDUCE,
                              .dtype = HVD_FLOAT32,
                              .bytes = 64,
                              .submit_us = 1000,
                              .sealed_us = 1010,
                              .begin_us = 1020,
                              .end_us = 1050,
                              .seq = 3,
                              .name = name,
                              .name_bytes = strlen(name)};

    return op;
}

static json_t *load(void)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);

    cr_assert_not_null(root, "line %d: %s", error.line, error.text);
    cr_assert(json_is_array(root));
    return root;
}

/* How many events have this name. */
static int count(const json_t *root, const char *name)
{
    size_t i;
    json_t *e;
    int n = 0;

    json_array_foreach(root, i, e)
    {
        n += strcmp(json_string_value(json_object_get(e, "name")), name) == 0;
    }
    return n;
}

Test(tracefile, is_valid_json_after_every_flush, .timeout = 20, .init = make_dir,
     .fini = remove_dir)
{
    struct hvi_trace *t = NULL;

    cr_assert_eq(hvi_trace_open(path, 1 << 20, &t, NULL), HVD_OK);
    json_decref(load());
    for (int i = 0; i < 5; i++) {
        struct hvi_trace_op op = sample("grad/w1", i % 2);
        json_t *root;

        hvi_trace_op(t, &op);
        cr_assert_eq(hvi_trace_flush(t, NULL), HVD_OK);
        root = load();
        cr_assert_eq(count(root, "ALLREDUCE"), i + 1);
        cr_assert_eq(count(root, "NEGOTIATE_ALLREDUCE"), i + 1);
        cr_assert_eq(count(root, "QUEUE"), i + 1);
        cr_assert_eq(count(root, "process_name"), 1, "one process a tensor");
        json_decref(root);
    }
    hvi_trace_free(t);
}

static int64_t number(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(event, key));
}

Test(tracefile, copies_lie_inside_the_collective, .timeout = 20, .init = make_dir,
     .fini = remove_dir)
{
    struct hvi_trace *t = NULL;
    struct hvi_trace_op op = sample("copied", 0);
    json_t *root;
    json_t *e;
    size_t i;

    cr_assert_eq(hvi_trace_open(path, 1 << 20, &t, NULL), HVD_OK);
    op.copy_in_us = 7;
    op.copy_out_us = 100; /* more than is left of 30 us */
    hvi_trace_op(t, &op);
    op = sample("not copied", 0);
    hvi_trace_op(t, &op);
    hvi_trace_free(t);
    root = load();
    cr_assert_eq(count(root, "MEMCPY_IN_FUSION_BUFFER"), 1);
    cr_assert_eq(count(root, "MEMCPY_OUT_FUSION_BUFFER"), 1);
    json_array_foreach(root, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));

        if (strcmp(name, "MEMCPY_IN_FUSION_BUFFER") == 0)
            cr_assert(number(e, "ts") == 1020 && number(e, "dur") == 7);
        if (strcmp(name, "MEMCPY_OUT_FUSION_BUFFER") == 0)
            cr_assert(number(e, "ts") == 1027 && number(e, "dur") == 23);
    }
    json_decref(root);
}

Test(tracefile, names_are_escaped, .timeout = 20, .init = make_dir, .fini = remove_dir)
{
    static const char *names[] = {
        "say \"hi\"",         "back\\slash", "new\nline", "\xff\xfe",
        "gr\xc3\xbc\xc3\x9f", "\x01\x1f",    ""};
    struct hvi_trace *t = NULL;
    json_t *root;

    cr_assert_eq(hvi_trace_open(path, 1 << 20, &t, NULL), HVD_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct hvi_trace_op op = sample(names[i], 0);

        hvi_trace_op(t, &op);
    }
    hvi_trace_free(t);
    root = load();
    cr_assert_eq(count(root, "process_name"), (int)(sizeof names / sizeof *names));
    json_decref(root);
}

Test(tracefile, stays_bounded_and_keeps_the_newest, .timeout = 30, .init = make_dir,
     .fini = remove_dir)
{
    struct hvi_trace *t = NULL;
    struct stat st;
    json_t *root;
    json_t *last;

    cr_assert_eq(hvi_trace_open(path, 64 * 1024, &t, NULL), HVD_OK);
    for (int i = 0; i < 2000; i++) {
        struct hvi_trace_op op = sample("tensor", 0);

        op.seq = (uint64_t)i;
        hvi_trace_op(t, &op);
        cr_assert_eq(hvi_trace_flush(t, NULL), HVD_OK);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_leq(st.st_size, 80 * 1024);
    }
    hvi_trace_free(t);
    root = load();
    last = json_array_get(root, json_array_size(root) - 1);
    cr_assert_eq(
        json_integer_value(json_object_get(json_object_get(last, "args"), "seq")),
        1999);
    cr_assert_eq(count(root, "process_name"), 1, "names survive the cut");
    json_decref(root);
}

Test(tracefile, a_path_that_cannot_be_written_is_named, .timeout = 10)
{
    struct hvi_trace *t = NULL;
    struct hvi_err err = {{0}};

    cr_assert_eq(hvi_trace_open("/nonexistent/dir/t.json", 1 << 20, &t, &err), HVD_EIO);
    cr_assert_not_null(strstr(err.text, "/nonexistent/dir/t.json"), "%s", err.text);
}

Test(tracefile, what_is_no_file_is_refused_and_nothing_waits, .timeout = 10)
{
    struct hvi_trace *t = NULL;
    struct hvi_err err = {""};

    make_dir();
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(hvi_trace_open(path, 65536, &t, &err),
                 HVD_EINVAL); /* would wait here */
    cr_assert(strstr(err.text, "not a regular file") != NULL, "%s", err.text);
    cr_assert_eq(hvi_trace_open("/dev/null", 65536, &t, &err), HVD_EINVAL);
    cr_assert_neq(hvi_trace_open(dir, 65536, &t, &err), HVD_OK);
    cr_assert_null(t);
    remove_dir();
}
