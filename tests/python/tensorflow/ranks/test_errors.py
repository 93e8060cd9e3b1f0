"""What goes wrong is a TensorFlow error with one line of ours, and the process lives on."""

import numpy as np
import pytest
import tensorflow as tf

MODES = [pytest.param(lambda f: f, id="eager"), pytest.param(tf.function, id="function")]


@pytest.fixture(autouse=True)
def lives_on(hvd, no_leak):
    yield
    got = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="lives.on")
    np.testing.assert_array_equal(got.numpy(), hvd.size() * np.ones(2))


@pytest.mark.parametrize("wrap", MODES)
def test_mismatched_shapes(hvd, wrap):
    if hvd.size() < 2:
        pytest.skip("needs two ranks")
    with pytest.raises(tf.errors.FailedPreconditionError, match="the ranks disagree") as caught:
        wrap(lambda t: hvd.allreduce(t, name="shape"))(tf.ones([hvd.rank() + 1]))
    payloads = {str(k): v for k, v in caught.value.experimental_payloads.items()}
    assert any("hvd.status" in k for k in payloads)


@pytest.mark.parametrize("wrap", MODES)
def test_mismatch_in_a_gradient(hvd, wrap):
    if hvd.size() < 2:
        pytest.skip("needs two ranks")
    v = [tf.Variable(tf.ones([3])), tf.Variable(tf.ones([hvd.rank() + 1]))]

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v[0]) + tf.reduce_sum(v[1])
        return hvd.DistributedGradientTape(tape).gradient(loss, v)

    for _ in range(3):
        with pytest.raises(tf.errors.FailedPreconditionError, match="the ranks disagree"):
            step()


def test_mismatched_types_roots_and_kinds(hvd):
    if hvd.size() < 2:
        pytest.skip("needs two ranks")
    first = hvd.rank() == 0
    with pytest.raises(tf.errors.OpError, match="the ranks disagree"):
        hvd.allreduce(tf.ones([2], tf.float32 if first else tf.float64), name="type")
    with pytest.raises(tf.errors.OpError, match="the ranks disagree"):
        hvd.broadcast(tf.ones([2]), 0 if first else 1, name="root")
    with pytest.raises(tf.errors.OpError, match="the ranks disagree"):
        (hvd.allreduce if first else hvd.allgather)(tf.ones([2]), name="kind")


@pytest.mark.parametrize("wrap", MODES)
def test_unsupported_types(hvd, wrap):
    for value in (tf.constant(1j), tf.constant("text"), tf.constant(1, tf.uint32)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not supported"):
            wrap(lambda t: hvd.allreduce(t))(value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not supported"):
        wrap(lambda t: hvd.allgather(t))(tf.constant(["text"]))


@pytest.mark.parametrize("wrap", MODES)
def test_bad_arguments(hvd, wrap):
    for call in (
        lambda: hvd.broadcast(tf.ones([2]), hvd.size()),
        lambda: hvd.allgather(tf.constant(1.0)),
        lambda: hvd.alltoall(tf.ones([2, 2]), splits=[5] * hvd.size()),
        lambda: hvd.alltoall(tf.ones([2, 2]), splits=[1] * (hvd.size() + 1)),
        lambda: hvd.alltoall(tf.ones([hvd.size()]), splits=[[1]] * hvd.size()),
        lambda: hvd.alltoall(tf.ones([hvd.size()]), splits=[1.0] * hvd.size()),
        lambda: hvd.allreduce(tf.ones([2]), process_set=hvd.ProcessSet([0])),
        lambda: hvd.allreduce(tf.ones([2]), name="x" * 2000),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            wrap(call)()


def test_jit_compile(hvd):
    @tf.function(jit_compile=True)
    def compiled(x):
        return hvd.allreduce(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be compiled by XLA"):
        compiled(tf.ones([2]))

    @tf.function(jit_compile=True)
    def around(x):
        return inner(x)

    @tf.function
    def inner(x):
        return hvd.allreduce(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be compiled by XLA"):
        around(tf.ones([2]))


def test_a_step_that_fails_before_its_wait(hvd):
    """Handles that no Wait came for do not pile up and do not block their names."""
    from horovod.tensorflow import _library

    if hvd.size() > 1 or _library.library is None:
        # which Starts of such a step have run differs between ranks
        pytest.skip("one rank, with the op library")

    @tf.function
    def step(x, good):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x * x)
        grad = hvd.DistributedGradientTape(tape).gradient(y, x)
        tf.debugging.Assert(good, ["not good"])
        return grad + hvd.allreduce(x, name="behind")

    for _ in range(12):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not good"):
            step(tf.ones([3]), tf.constant(False))
    np.testing.assert_allclose(step(tf.ones([3]), tf.constant(True)).numpy(), 3 * np.ones(3))
    assert _library.library.hvd_tf_live() <= 8
    hvd.shutdown()
    hvd.init()
    assert _library.library.hvd_tf_live() == 0
