"""Collectives and their gradients, eagerly and in tf.function. Also run with HVD_TF_FALLBACK=1."""

import threading

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("no_leak")

MODES = [pytest.param(lambda f: f, id="eager"), pytest.param(tf.function, id="function")]
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
SUMMED = FLOATS + [tf.uint8, tf.int8, tf.int32, tf.int64]
MOVED = SUMMED + [tf.uint16, tf.int16, tf.uint32, tf.uint64, tf.bool]


def of_rank(rank, shape, dtype):
    """A tensor of small whole numbers that differs between ranks."""
    values = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + rank + 1) % 7
    return tf.cast(tf.constant(values), dtype)


def array(tensor):
    tensor = tf.convert_to_tensor(tensor)
    return tf.cast(tensor, tf.float64).numpy() if tensor.dtype == tf.bfloat16 else tensor.numpy()


def all_ranks(hvd, shape, dtype):
    return np.stack([array(of_rank(r, shape, dtype)) for r in range(hvd.size())])


@pytest.mark.parametrize("wrap", MODES)
@pytest.mark.parametrize("dtype", SUMMED, ids=lambda d: d.name)
def test_allreduce_sums_each_type(hvd, wrap, dtype):
    shape = (3, 5)
    call = wrap(lambda t: hvd.allreduce(t, op=hvd.Sum, name="sum." + dtype.name))
    got = call(of_rank(hvd.rank(), shape, dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(array(got), all_ranks(hvd, shape, dtype).sum(0))


@pytest.mark.parametrize("wrap", MODES)
def test_allreduce_operations_and_factors(hvd, wrap):
    x = of_rank(hvd.rank(), (4,), tf.float32)
    every = all_ranks(hvd, (4,), tf.float32)

    @wrap
    def call(t):
        return [
            hvd.allreduce(t), hvd.allreduce(t, op=hvd.Min), hvd.allreduce(t, op=hvd.Max),
            hvd.allreduce(t, op=hvd.Product),
            hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
            hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.0),
            hvd.allreduce(t, average=False),
        ]

    want = [every.mean(0), every.min(0), every.max(0), every.prod(0), every.sum(0) * 1.5,
            0 * every[0], every.sum(0)]
    for got, expected in zip(call(x), want):
        np.testing.assert_allclose(array(got), expected, rtol=1e-6)
    with pytest.raises(ValueError):
        hvd.allreduce(x, average=True, op=hvd.Sum)


@pytest.mark.parametrize("wrap", MODES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 20, (100003,)])
def test_shapes(hvd, wrap, shape):
    x = of_rank(hvd.rank(), shape, tf.float32)
    got = wrap(lambda t: hvd.allreduce(t, op=hvd.Sum, name="shape%d" % len(shape)))(x)
    assert got.shape == shape
    np.testing.assert_array_equal(array(got), all_ranks(hvd, shape, tf.float32).sum(0))
    if shape:
        gathered = wrap(lambda t: hvd.allgather(t, name="gather%d" % len(shape)))(x)
        np.testing.assert_array_equal(
            array(gathered), np.concatenate(list(all_ranks(hvd, shape, tf.float32))))


@pytest.mark.parametrize("wrap", MODES)
@pytest.mark.parametrize("dtype", MOVED, ids=lambda d: d.name)
def test_gathers_and_broadcasts_of_each_type(hvd, wrap, dtype):
    rank, size = hvd.rank(), hvd.size()
    x = of_rank(rank, (rank + 1, 2), dtype)
    y = of_rank(rank, (size, 3), dtype)

    @wrap
    def call(x, y):
        return hvd.allgather(x), hvd.broadcast(y, size - 1), hvd.alltoall(y)

    gathered, sent, turned = call(x, y)
    np.testing.assert_array_equal(
        array(gathered), np.concatenate([array(of_rank(r, (r + 1, 2), dtype)) for r in range(size)]))
    np.testing.assert_array_equal(array(sent), array(of_rank(size - 1, (size, 3), dtype)))
    np.testing.assert_array_equal(
        array(turned), np.stack([array(of_rank(r, (size, 3), dtype))[rank] for r in range(size)]))
    assert gathered.dtype == sent.dtype == turned.dtype == dtype


@pytest.mark.parametrize("wrap", MODES)
def test_alltoall_with_splits(hvd, wrap):
    rank, size = hvd.rank(), hvd.size()
    splits = [r + 1 for r in range(size)]
    x = tf.fill([sum(splits), 2], float(rank))
    got, received = wrap(lambda t: hvd.alltoall(t, splits=splits))(x)
    assert received.dtype == tf.int32
    np.testing.assert_array_equal(received.numpy(), [rank + 1] * size)
    np.testing.assert_array_equal(got.numpy()[:, 0], np.repeat(np.arange(size), rank + 1))


@pytest.mark.parametrize("wrap", MODES)
def test_reducescatter(hvd, wrap):
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    x = of_rank(rank, (rows, 2), tf.float32)
    total = all_ranks(hvd, (rows, 2), tf.float32).sum(0)
    mine = np.array_split(total, size)[rank]

    @wrap
    def call(t):
        return ([hvd.reducescatter(t, op=hvd.Sum), hvd.reducescatter(t)]
                + hvd.grouped_reducescatter([t, t * 2], op=hvd.Sum))

    for got, factor in zip(call(x), (1, 1 / size, 1, 2)):
        np.testing.assert_allclose(array(got), mine * factor, rtol=1e-6)
    with pytest.raises(NotImplementedError):
        hvd.reducescatter(x, op=hvd.Max)


@pytest.mark.parametrize("wrap", MODES)
def test_groups(hvd, wrap):
    tensors = [of_rank(hvd.rank(), (n,), tf.float32) for n in (1, 4, 7)]

    @wrap
    def call(*tensors):
        return (hvd.grouped_allreduce(list(tensors), op=hvd.Sum, name="group"),
                hvd.grouped_allgather(list(tensors)))

    sums, gathered = call(*tensors)
    for n, one, other in zip((1, 4, 7), sums, gathered):
        every = all_ranks(hvd, (n,), tf.float32)
        np.testing.assert_array_equal(one.numpy(), every.sum(0))
        np.testing.assert_array_equal(other.numpy(), every.reshape(-1))
    assert hvd.grouped_allreduce([]) == []


@pytest.mark.parametrize("wrap", MODES)
def test_gradients_are_horovods(hvd, wrap):
    rank, size = hvd.rank(), hvd.size()
    x = of_rank(rank, (2,), tf.float32)
    total = all_ranks(hvd, (2,), tf.float32).sum(0)

    @wrap
    def call(x):
        rows = tf.tile(x[tf.newaxis], [size + 1, 1])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([x, rows])
            losses = [
                tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 2),
                tf.reduce_sum(hvd.allreduce(x) * float(rank + 1)),
                tf.reduce_sum(hvd.allgather(x) * float(rank + 1)),
                tf.reduce_sum(hvd.broadcast(x, size - 1) * float(rank + 1)),
                tf.add_n([tf.reduce_sum(t) for t in hvd.grouped_allreduce([x, 2 * x])]),
                tf.add_n([tf.reduce_sum(t) for t in hvd.grouped_allgather([x, 3 * x])]),
            ]
            turned, _ = hvd.alltoall(rows, splits=[1] * size)
            row_losses = [
                tf.reduce_sum(turned * float(rank + 1)),
                tf.reduce_sum(hvd.reducescatter(rows, op=hvd.Sum)),
                tf.reduce_sum(hvd.reducescatter(rows)),
            ]
        return ([tape.gradient(loss, x) for loss in losses],
                [tape.gradient(loss, rows) for loss in row_losses])

    ones = np.ones(2)
    mean = (size + 1) / 2
    grads, row_grads = call(x)
    for got, want in zip(grads, [2 * total * size, mean * ones, mean * ones,
                                 mean * ones * (rank == size - 1), 3 * ones, 4 * ones]):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
    sent = np.array([[r + 1.0] * 2 for r in range(size)] + [[0.0, 0.0]])
    scattered = np.ones((size + 1, 2))
    for got, want in zip(row_grads, [sent, size * scattered, scattered]):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("wrap", MODES)
def test_exact_gradients_are_those_of_all_losses(hvd, wrap):
    rank, size = hvd.rank(), hvd.size()
    before = hvd.exact_gradients(True)
    try:
        x = of_rank(rank, (3,), tf.float32) + 1.0
        every = all_ranks(hvd, (3,), tf.float32) + 1.0

        @wrap
        def call(x):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                losses = [
                    tf.reduce_sum(hvd.broadcast(x, 0) * float(rank + 1)),
                    tf.reduce_sum(hvd.allreduce(x, op=hvd.Product)),
                    tf.reduce_sum(hvd.allreduce(x, op=hvd.Max)),
                ]
            return [tape.gradient(loss, x) for loss in losses]

        peak = every == every.max(0)
        want = [np.ones(3) * (size + 1) * size / 2 * (rank == 0),
                size * every.prod(0) / every[rank],
                size * peak[rank] / peak.sum(0)]
        for got, expected in zip(call(x), want):
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)
    finally:
        hvd.exact_gradients(before)


def test_second_order_gradient(hvd):
    x = tf.constant([2.0, 3.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x) ** 3)
        first = inner.gradient(y, x)
    np.testing.assert_allclose(outer.gradient(first, x).numpy(), 6 * x.numpy())


@pytest.mark.parametrize("wrap", MODES)
def test_sparse(hvd, wrap):
    rank, size = hvd.rank(), hvd.size()

    @wrap
    def call():
        slices = tf.IndexedSlices(tf.fill([rank + 1, 2], float(rank)), tf.range(rank + 1), [9, 2])
        done = [hvd.allreduce(slices, op=hvd.Sum), hvd.allreduce(slices)]
        return [(d.values, d.indices) for d in done]

    indices = np.concatenate([np.arange(r + 1) for r in range(size)])
    values = np.repeat(np.arange(size), np.arange(size) + 1)
    for (got, at), factor in zip(call(), (1, 1 / size)):
        np.testing.assert_array_equal(at.numpy(), indices)
        np.testing.assert_allclose(got.numpy()[:, 0], values * factor, rtol=1e-6)
    with pytest.raises(NotImplementedError):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1, 1]), [0], [1, 1]), op=hvd.Max)


def test_compression(hvd):
    x = of_rank(hvd.rank(), (5,), tf.float32)
    for way in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        got = hvd.allreduce(x, op=hvd.Sum, compression=way)
        assert got.dtype == tf.float32
        np.testing.assert_array_equal(got.numpy(), all_ranks(hvd, (5,), tf.float32).sum(0))
    small, ctx = hvd.Compression.fp16.compress(x)
    assert small.dtype == tf.float16 and hvd.Compression.fp16.decompress(small, ctx).dtype == x.dtype


@pytest.mark.parametrize("wrap", MODES)
def test_facts(hvd, wrap):
    got = wrap(lambda: [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(),
                        hvd.process_set_included_op()])()
    assert [int(v) for v in got] == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), 1]


@pytest.mark.parametrize("wrap", MODES)
def test_process_sets(hvd, wrap):
    if hvd.size() < 2:
        pytest.skip("needs two ranks")
    members = [0, hvd.size() - 1] if hvd.size() > 2 else [1]
    some = hvd.add_process_set(members)
    try:
        assert int(hvd.process_set_included_op(some.process_set_id)) == int(some.included())
        if some.included():
            x = of_rank(hvd.rank(), (3,), tf.float32)
            got, gathered = wrap(lambda t: (hvd.allreduce(t, op=hvd.Sum, process_set=some),
                                            hvd.allgather(t, process_set=some)))(x)
            ends = all_ranks(hvd, (3,), tf.float32)[members]
            np.testing.assert_array_equal(got.numpy(), ends.sum(0))
            np.testing.assert_array_equal(gathered.numpy(), ends.reshape(-1))
            assert int(hvd.size_op(some.process_set_id)) == len(members)
    finally:
        assert hvd.remove_process_set(some)


@pytest.mark.parametrize("wrap", MODES)
def test_broadcast_variables(hvd, wrap):
    last = hvd.size() - 1
    variables = [tf.Variable(of_rank(hvd.rank(), (2, i + 1), t))
                 for i, t in enumerate((tf.float32, tf.int64, tf.uint32, tf.bool))]
    wrap(lambda: hvd.broadcast_variables(variables, last))()
    for i, v in enumerate(variables):
        np.testing.assert_array_equal(
            v.numpy(), array(of_rank(last, (2, i + 1), v.dtype)))
    other = tf.Variable([float(hvd.rank())])
    assert float(hvd.broadcast_([other], 0)[0][0]) == 0.0 == float(other[0])
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_objects(hvd):
    mine = {"rank": hvd.rank(), "list": list(range(hvd.rank()))}
    assert hvd.broadcast_object(mine, hvd.size() - 1)["rank"] == hvd.size() - 1
    assert hvd.broadcast_object_fn(root_rank=0)(mine)["rank"] == 0
    assert [o["rank"] for o in hvd.allgather_object(mine)] == list(range(hvd.size()))


def test_objects_that_cannot_be_pickled(hvd):
    last = hvd.size() - 1
    mine = threading.Lock() if hvd.rank() == last else [1]
    for call in (lambda: hvd.broadcast_object(mine, last), lambda: hvd.allgather_object(mine),
                 lambda: hvd.broadcast_object_fn(last)(mine)):
        with pytest.raises(ValueError, match="rank %d cannot pickle its object: TypeE" % last):
            call()
    assert hvd.broadcast_object([hvd.rank()], last) == [last]


@pytest.mark.parametrize("wrap", MODES)
def test_join(hvd, wrap):
    x = tf.ones([4])
    rank, size = hvd.rank(), hvd.size()
    for step in range(rank + 1):
        # ranks that have joined bring zeros
        got = wrap(lambda t: hvd.allreduce(t, op=hvd.Sum, name="join"))(x)
        np.testing.assert_array_equal(got.numpy(), (size - step) * np.ones(4))
    assert int(wrap(hvd.join)()) == size - 1


# ---- graphs


def test_ranks_trace_differently_often(hvd):
    @tf.function
    def call(x):
        return hvd.allreduce(x * 2, op=hvd.Sum)

    for n in range(1, 1 + 3 * (hvd.rank() % 2)):
        call.get_concrete_function(tf.TensorSpec([n + 50]))
    np.testing.assert_array_equal(call(tf.ones([3])).numpy(), 2 * hvd.size() * np.ones(3))


def test_functions_in_functions(hvd):
    @tf.function
    def inner(x):
        return hvd.allreduce(x + 1, op=hvd.Sum)

    @tf.function
    def outer(x):
        return inner(inner(x)) + hvd.allreduce(x, op=hvd.Sum, name="same") * 0

    size = hvd.size()
    np.testing.assert_array_equal(outer(tf.ones([2])).numpy(), (2 * size + 1) * size * np.ones(2))


def test_loops_and_conditions(hvd):
    size = hvd.size()

    @tf.function
    def call(x, rounds):
        for _ in tf.range(rounds):
            if tf.reduce_sum(x) > 0:
                x = hvd.allreduce(x) + 1
            else:
                x = hvd.allreduce(x, op=hvd.Sum)
        return x

    x = tf.fill([2], float(hvd.rank() + 1))
    np.testing.assert_allclose(call(x, tf.constant(5)).numpy(), (size + 1) / 2 + 5, rtol=1e-6)


def test_one_name_twice_in_a_function(hvd):
    @tf.function
    def call(x):
        return hvd.allreduce(x, name="twice") + hvd.allreduce(2 * x, name="twice")

    np.testing.assert_allclose(call(tf.ones([2])).numpy(), 3 * np.ones(2))


def test_saved_model(hvd, tmp_path):
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x):
            return hvd.allreduce(x, op=hvd.Sum)

    from horovod.tensorflow import _library

    if _library.ops is None:
        pytest.skip("a numpy_function cannot be saved")
    tf.saved_model.save(Module(), str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded(tf.ones([3])).numpy(), hvd.size() * np.ones(3))


def test_results_take_over_memory_only_where_nobody_looks(hvd):
    from horovod.tensorflow import _library

    if _library.ops is None:
        pytest.skip("there is no op library")
    v = tf.Variable(tf.ones([1000]))

    @tf.function
    def computed(x):
        return hvd.allreduce(tf.exp(x), op=hvd.Sum)

    @tf.function
    def seen(x):
        y = tf.exp(x)
        z = hvd.allreduce(y, op=hvd.Sum), hvd.allreduce(v, op=hvd.Sum), hvd.allreduce(x, op=hvd.Sum)
        return z, y

    x = tf.zeros([1000])
    before = _library.library.hvd_tf_in_place()
    computed(x)
    assert _library.library.hvd_tf_in_place() == before + 1
    _, y = seen(x)
    np.testing.assert_array_equal(y.numpy(), np.ones(1000))
    np.testing.assert_array_equal(v.numpy(), np.ones(1000))
    np.testing.assert_array_equal(x.numpy(), np.zeros(1000))


def test_v1_graph_and_session(hvd):
    rank, size = hvd.rank(), hvd.size()
    with tf.Graph().as_default():
        w = tf.compat.v1.get_variable("w", initializer=tf.fill([2], float(rank)))
        total = hvd.allreduce(tf.constant([1.0, 2.0]) * (rank + 1), op=hvd.Sum)
        grad = tf.compat.v1.gradients(tf.reduce_sum(hvd.allreduce(w, op=hvd.Sum)), w)[0]
        send = hvd.broadcast_global_variables(size - 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(send)
            got = session.run([total, grad, w, hvd.rank_op()])
    np.testing.assert_allclose(got[0], np.array([1.0, 2.0]) * size * (size + 1) / 2)
    np.testing.assert_array_equal(got[1], [size, size])
    np.testing.assert_array_equal(got[2], [size - 1, size - 1])
    assert got[3] == rank
