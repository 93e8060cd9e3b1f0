"""horovod.tensorflow.keras and horovod.keras in fit(), with the Keras of this TensorFlow."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from horovod._keras.callbacks import _value, _variables_of

KERAS3 = getattr(keras, "__version__", "2").startswith("3")
LEGACY = [] if KERAS3 else ["legacy"]


@pytest.fixture
def hvdk(hvd):
    import horovod.tensorflow.keras as hvdk

    return hvdk


@pytest.fixture
def mixed():
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def data(rank, rows=64):
    rng = np.random.RandomState(100 + rank)
    x = rng.randn(rows, 6).astype(np.float32)
    return x, x.sum(1, keepdims=True).astype(np.float32)


def model(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


def same_everywhere(hvd, net):
    values = hvd.allgather_object([_value(v) for v in net.trainable_variables])
    return all((a == b).all() for one in values for a, b in zip(one, values[0]))


def optimizer(kind, rate=0.05):
    if kind == "legacy":
        return keras.optimizers.legacy.SGD(rate, momentum=0.5)
    return keras.optimizers.SGD(rate, momentum=0.5)


def trained(hvdk, opt, epochs=2, callbacks=(), rank=None, **compile_args):
    net = model(hvdk.rank())
    net.compile(optimizer=opt, loss="mse", **compile_args)
    x, y = data(hvdk.rank() if rank is None else rank)
    history = net.fit(
        x, y, batch_size=16, epochs=epochs, verbose=0, shuffle=False,
        callbacks=[hvdk.callbacks.BroadcastGlobalVariablesCallback(0)] + list(callbacks))
    return net, history.history


@pytest.mark.parametrize("kind", ["new"] + LEGACY)
@pytest.mark.parametrize("how", [
    {}, {"steps_per_execution": 2}, {"run_eagerly": True}, {"jit_compile": False}],
    ids=lambda h: "-".join(h) or "plain")
def test_fit(hvdk, kind, how):
    net, history = trained(hvdk, hvdk.DistributedOptimizer(optimizer(kind)), 3, **how)
    assert same_everywhere(hvdk, net)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize("kind", ["new"] + LEGACY)
def test_fit_does_what_one_rank_does_with_all_data(hvdk, kind):
    """From equal starts: the averaged gradient is the gradient of all data."""
    size = hvdk.size()
    net = model(0)
    opt = hvdk.DistributedOptimizer(optimizer(kind))
    net.compile(optimizer=opt, loss="mse")
    x, y = data(hvdk.rank())
    net.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    alone, plain = model(0), optimizer("new")
    parts = [data(r) for r in range(size)]
    for i in list(range(0, 64, 16)) * 2:
        bx, by = (np.concatenate([p[k][i : i + 16] for p in parts]) for k in (0, 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((alone(bx) - by) ** 2)
        plain.apply_gradients(zip(tape.gradient(loss, alone.trainable_variables),
                                  alone.trainable_variables))
    for a, b in zip(net.trainable_variables, alone.trainable_variables):
        np.testing.assert_allclose(_value(a), _value(b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["new"] + LEGACY)
def test_arguments_of_the_optimizer(hvdk, kind):
    v = [tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([2]))]
    rank, size = hvdk.rank(), hvdk.size()
    grads = [tf.ones([3]) * float(rank + 1), tf.ones([2]) * float(rank + 2)]

    def moved(**kwargs):
        for one in v:
            one.assign(tf.zeros_like(one))
        plain = keras.optimizers.legacy.SGD(1.0) if kind == "legacy" else keras.optimizers.SGD(1.0)
        opt = hvdk.DistributedOptimizer(plain, **kwargs)
        for _ in range(kwargs.get("backward_passes_per_step", 1)):
            opt.apply_gradients(zip(grads, v))
        return [-float(one[0]) for one in v]

    mean = np.array([(size + 1) / 2, (size + 3) / 2])
    np.testing.assert_allclose(moved(), mean, rtol=1e-6)
    np.testing.assert_allclose(moved(op=hvdk.Sum), mean * size, rtol=1e-6)
    np.testing.assert_allclose(moved(groups=1), mean, rtol=1e-6)
    np.testing.assert_allclose(moved(groups=[v]), mean, rtol=1e-6)
    np.testing.assert_allclose(moved(gradient_predivide_factor=2.0), mean, rtol=1e-6)
    np.testing.assert_allclose(moved(compression=hvdk.Compression.fp16), mean, rtol=1e-6)
    np.testing.assert_allclose(moved(backward_passes_per_step=3), 3 * mean, rtol=1e-6)
    np.testing.assert_allclose(
        moved(backward_passes_per_step=3, average_aggregated_gradients=True), mean, rtol=1e-6)
    with pytest.raises(ValueError):
        moved(gradient_predivide_factor=2.0, op=hvdk.Sum)
    named = hvdk.DistributedOptimizer(optimizer(kind), name="mine")
    assert type(named).__name__ == "SGD" and isinstance(named, type(optimizer(kind)))


def test_sparse_gradients(hvdk):
    for dense in (False, True):
        table = tf.Variable(tf.zeros([6, 2]))
        opt = hvdk.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense)
        grad = tf.IndexedSlices(tf.ones([1, 2]), [hvdk.rank()], [6, 2])
        opt.apply_gradients([(grad, table)])
        want = np.zeros(6)
        want[: hvdk.size()] = -1 / hvdk.size()
        np.testing.assert_allclose(table.numpy()[:, 0], want, rtol=1e-6)


def test_passes_in_a_function(hvdk):
    net, history = trained(
        hvdk, hvdk.DistributedOptimizer(optimizer("new"), backward_passes_per_step=2,
                                        average_aggregated_gradients=True), 4)
    assert same_everywhere(hvdk, net)
    assert history["loss"][-1] < history["loss"][0]
    assert int(_value(net.optimizer.iterations)) == 8


def test_partial_optimizer(hvdk):
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros") for _ in range(2)]
    net = keras.Sequential(layers)
    net.build((None, 2))
    opt = hvdk.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[layers[0]])
    variables = net.trainable_variables
    opt.apply_gradients([(tf.ones_like(v) * float(hvdk.rank() + 1), v) for v in variables])
    assert float(_value(variables[0])[0, 0]) == pytest.approx(-(hvdk.rank() + 1) / hvdk.size())
    assert float(_value(variables[1])[0, 0]) == pytest.approx(-(hvdk.size() + 1) / 2)


def test_mixed_precision(hvdk, mixed):
    net, history = trained(hvdk, hvdk.DistributedOptimizer(keras.optimizers.SGD(0.02)), 4)
    assert same_everywhere(hvdk, net)
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize("outside", [False, True], ids=["scale(distributed)", "distributed(scale)"])
def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(hvdk, outside):
    scale = keras.mixed_precision.LossScaleOptimizer
    v = tf.Variable(tf.ones([2])) if not KERAS3 else keras.Variable(np.ones(2, np.float32))
    sgd = keras.optimizers.SGD(1.0)
    opt = (hvdk.DistributedOptimizer(scale(sgd)) if outside
           else scale(hvdk.DistributedOptimizer(sgd)))
    factor = 2.0**15 if KERAS3 else 1.0

    @tf.function
    def step(bad):
        grad = tf.ones([2]) * factor
        opt.apply_gradients([(tf.where(bad, tf.fill([2], np.float32("inf")), grad), v)])

    for bad_rank in range(hvdk.size()):
        step(tf.constant(hvdk.rank() == bad_rank))
    np.testing.assert_array_equal(_value(v), np.ones(2))
    step(tf.constant(False))
    moved = 1 - _value(v)
    assert (moved > 0).all()
    assert all((o == moved).all() for o in hvdk.allgather_object(moved))


def test_broadcast_callback_includes_what_the_optimizer_holds(hvdk):
    net, _ = trained(hvdk, hvdk.DistributedOptimizer(keras.optimizers.Adam(0.01)), 1)
    mine = [_value(v) for v in _variables_of(net) + _variables_of(net.optimizer)]
    assert len(mine) > len(net.trainable_variables) * 2
    every = hvdk.allgather_object(mine)
    assert all((a == b).all() for one in every for a, b in zip(one, every[0]))
    local = tf.Variable(1.0)
    assert hvdk.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])


def test_metrics_are_averaged(hvdk):
    seen = {}

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.update(logs)

    net = model(1)
    net.compile(optimizer="sgd", loss="mse")
    x = np.ones((4, 6), np.float32)
    callback = hvdk.callbacks.MetricAverageCallback()
    net.fit(x, x[:, :1] * (hvdk.rank() + 1), verbose=0, callbacks=[callback, Look()])
    assert all(o == seen for o in hvdk.allgather_object(seen))
    logs = {"loss": float(hvdk.rank()), "text": "not a number"}
    callback.on_epoch_end(0, logs)
    assert logs["loss"] == pytest.approx((hvdk.size() - 1) / 2)


@pytest.mark.parametrize("kind", ["new"] + LEGACY)
def test_learning_rate_callbacks(hvdk, kind):
    size = hvdk.size()
    rates = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(_value(self.model.optimizer.learning_rate)))

    net, history = trained(
        hvdk, hvdk.DistributedOptimizer(optimizer(kind)), 4,
        [hvdk.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, verbose=1),
         hvdk.callbacks.LearningRateScheduleCallback(0.08, multiplier=0.5, start_epoch=2, end_epoch=3),
         hvdk.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: 0.1 * epoch, start_epoch=3),
         Look()])
    assert len(rates) == 16
    warm = [0.08 / size * ((i + 1) / 4 * (size - 1) / 2 + 1) for i in range(8)]
    np.testing.assert_allclose(rates[:8], warm, rtol=1e-5)
    np.testing.assert_allclose(rates[8:12], 0.04, rtol=1e-5)
    np.testing.assert_allclose(rates[12:], 0.024, rtol=1e-5)
    np.testing.assert_allclose(history["lr"][-1], 0.024, rtol=1e-5)
    with pytest.raises(ValueError):
        hvdk.callbacks.LearningRateScheduleCallback(None, 1.0)


def test_load_model(hvdk, tmp_path):
    net, _ = trained(hvdk, hvdk.DistributedOptimizer(keras.optimizers.Adam(0.01)), 1)
    path = str(tmp_path / "model.keras")
    net.save(path)
    # a saved model is one of plain Keras
    plain = keras.models.load_model(path).optimizer
    assert not hasattr(plain, "_hvd_settings")
    loaded = hvdk.load_model(path)
    assert hasattr(loaded.optimizer, "_hvd_settings")
    # by this programs know an optimizer that is distributed already
    for opt in (net.optimizer, loaded.optimizer):
        assert opt.__module__.startswith("horovod") and type(opt).__module__ == plain.__module__
    for a, b in zip(_variables_of(net.optimizer), _variables_of(loaded.optimizer)):
        np.testing.assert_array_equal(_value(a), _value(b))
    x, y = data(hvdk.rank())
    loaded.fit(x, y, verbose=0)
    assert same_everywhere(hvdk, loaded)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_an_optimizer_is_distributed(hvdk, how):
    if not KERAS3 and how == "pickle":
        pytest.skip("Keras 2 keeps what cannot be pickled in the configuration's objects")
    opt = hvdk.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvdk.Sum)
    made = copy.deepcopy(opt) if how == "deepcopy" else pickle.loads(pickle.dumps(opt))
    v = tf.Variable([0.0])
    made.apply_gradients([(tf.constant([1.0 + hvdk.rank()]), v)])
    assert float(v[0]) == -hvdk.size() * (hvdk.size() + 1) / 2
    opt.register_local_var(v)
    with pytest.raises(TypeError, match="local"):
        copy.deepcopy(opt)


def test_best_model_checkpoint(hvdk, tmp_path):
    best = hvdk.callbacks.BestModelCheckpoint(monitor="loss")
    # the ModelCheckpoint of Keras 2.13 cannot write .keras
    name = "best.keras" if KERAS3 else "best"
    best.filepath = str(tmp_path / name)
    trained(hvdk, hvdk.DistributedOptimizer(optimizer("new")), 1, [best])
    assert (tmp_path / name).exists()


def test_elastic_names_and_states(hvdk):
    net, _ = trained(hvdk, hvdk.DistributedOptimizer(optimizer("new")), 1)
    state = hvdk.elastic.KerasState(net, batch=0, epoch=0)
    before = [_value(v).copy() for v in net.trainable_variables]
    net.trainable_variables[0].assign(_value(net.trainable_variables[0]) + hvdk.rank() + 1)
    state.restore()
    np.testing.assert_array_equal(_value(net.trainable_variables[0]), before[0])
    net.trainable_variables[0].assign(before[0] + hvdk.rank())
    state.sync()
    np.testing.assert_array_equal(_value(net.trainable_variables[0]), before[0])
    x, y = data(hvdk.rank())
    net.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[
        hvdk.elastic.UpdateBatchStateCallback(state), hvdk.elastic.UpdateEpochStateCallback(state),
        hvdk.elastic.CommitStateCallback(state, batches_per_commit=3)])
    assert (state.epoch, state.batch) == (2, 0)

    import horovod.tensorflow as hvd

    v = tf.Variable([1.0])
    plain = hvd.elastic.TensorFlowState([v], step=3)
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        v.assign([float(len(calls))])
        if len(calls) == 1:
            raise hvd.elastic.HorovodInternalError("lost")
        return float(v[0])

    assert train(plain) == 2.0 and calls == [3, 3]


def test_values(hvdk):
    rank, size = hvdk.rank(), hvdk.size()
    assert float(hvdk.allreduce(float(rank), name="value")) == (size - 1) / 2
    assert list(np.asarray(hvdk.allgather(np.array([rank])))) == list(range(size))
    assert float(hvdk.broadcast(float(rank), 0)) == 0.0
    assert np.asarray(hvdk.reducescatter(np.ones((size, 2), np.float32), op=hvdk.Sum)).shape == (1, 2)


def test_sync_batch_normalization(hvdk):
    """Like batch normalization over the batches of all ranks, also when they differ in size."""
    import horovod.tensorflow as hvd

    size = hvdk.size()
    parts = [np.random.RandomState(r).randn(4 + r, 5, 3).astype(np.float32) * (r + 1)
             for r in range(size)]
    sync, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    mine, whole = tf.constant(parts[hvdk.rank()]), tf.constant(np.concatenate(parts))

    @tf.function
    def both():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([mine, whole])
            one, other = sync(mine, training=True), plain(whole, training=True)
            losses = tf.reduce_sum(one**3), tf.reduce_sum(other**3)
        return one, other, tape.gradient(losses[0], mine), tape.gradient(losses[1], whole)

    one, other, got, want = (t.numpy() for t in both())
    first = sum(len(p) for p in parts[: hvdk.rank()])
    share = slice(first, first + len(mine))
    np.testing.assert_allclose(one, other[share], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got, want[share], rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(_value(sync.moving_mean), _value(plain.moving_mean), atol=1e-4)
    with pytest.raises(ValueError):
        hvd.SyncBatchNormalization(fused=True)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_sync_batch_normalization_of_ranks_that_built_more(hvd, wrap):
    for _ in range(1 + hvd.rank()):
        first = hvd.SyncBatchNormalization()
    second, rank = hvd.SyncBatchNormalization(), float(hvd.rank())
    x = tf.constant([[rank, 2 * rank]])

    @wrap
    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = second(first(x, training=True) + 5.0, training=True)
        return tape.gradient(y, x)

    assert run().shape == x.shape
    mean = (hvd.size() - 1) / 2
    np.testing.assert_allclose(_value(first.moving_mean), [0.01 * mean, 0.02 * mean], rtol=1e-4)
    np.testing.assert_allclose(_value(second.moving_mean), [0.05, 0.05], rtol=1e-4)


def test_jit_compile_is_switched_off(hvdk):
    with pytest.warns(UserWarning, match="jit_compile"):
        net, _ = trained(hvdk, hvdk.DistributedOptimizer(optimizer("new")), 1, jit_compile=True)
    assert same_everywhere(hvdk, net)


def test_jit_compile_without_a_callback_of_ours(hvdk):
    net = model(0)
    net.compile(optimizer=hvdk.DistributedOptimizer(optimizer("new")), loss="mse",
                jit_compile=True)
    x, y = data(hvdk.rank())
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA"):
        net.fit(x, y, verbose=0)


def test_the_package_keras(hvd):
    import horovod.keras as hvdk

    net, _ = trained(hvdk, hvdk.DistributedOptimizer(keras.optimizers.SGD(0.05)), 1)
    assert same_everywhere(hvdk, net)
    assert float(hvdk.allreduce(1.0)) == 1.0
