#!/bin/bash
# deadline: 300
# The order of TensorFlow's stream and libhvd's, held by the fakes: what a mutation of the binding
# would break must be seen. The mutations stand between libhvd_tf.so and libhvd.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/tf.sh"
tensorflow tf-current || tensorflow tf-keras2 || { echo "no TensorFlow: $(tail -n 1 err)"; exit 77; }
cat >mutate.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <hvd/hvd.h>

static int is(const char *what)
{
    return strcmp(getenv("MUTATE"), what) == 0;
}

/* libhvd was loaded for Python alone */
static void *real(const char *name)
{
    return dlsym(dlopen(getenv("HVD_LIBRARY"), RTLD_NOW | RTLD_NOLOAD), name);
}

/* Used before it is ready; let go of before the device is done. */
static struct hvd_op mutated(const struct hvd_op *op)
{
    struct hvd_op other = *op;

    if (is("ready"))
        other.ready.kind = HVD_READY_NONE;
    if (is("input"))
        other.done = NULL;
    return other;
}

enum hvd_status hvd_enqueue(const struct hvd_op *op, hvd_handle *out)
{
    enum hvd_status (*f)(const struct hvd_op *, hvd_handle *) = real("hvd_enqueue");
    struct hvd_op other = mutated(op);
    enum hvd_status rc = f(&other, out);

    if (rc == HVD_OK && is("input"))
        op->done(op->arg, *out, HVD_OK);
    return rc;
}

/* The result is read before it is there. */
enum hvd_status hvd_ctx_wait(hvd_handle handle, void *context)
{
    enum hvd_status (*f)(hvd_handle, void *) = real("hvd_ctx_wait");

    return is("wait") ? HVD_OK : f(handle, context);
}

/* Its memory is freed while it is read. */
void hvd_buffer_free_after(void *data, const struct hvd_ready *last_use)
{
    void (*f)(void *, const struct hvd_ready *) = real("hvd_buffer_free_after");
    struct hvd_ready none = {HVD_READY_NONE, NULL};

    f(data, is("result") ? &none : last_use);
}
C
# shellcheck disable=SC2086
gcc $HVD_E2E_CFLAGS -Wall -Wextra -Werror -shared -fPIC -I"$HVD_SRC/worker/include" mutate.c -o mutate.so || die "mutate.c"
export LD_PRELOAD=$T/mutate.so LATE=0.3

# $1 = mutation, $2 = how it shows
mutation() {
    MUTATE=$1 tensors 2 order
    [ "$status" != 0 ] || die "the mutation '$1' went unseen"
    expect_line err "$2"
}
MUTATE=none tensors 2 order
expect_status 0
mutation ready "held: .*, not "
mutation wait "held: .*, not "
mutation input SIGSEGV
mutation result SIGSEGV
