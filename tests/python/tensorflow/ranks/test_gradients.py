"""Tapes and v1 optimizers: the gradients of all ranks, and when they travel."""

import json

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("no_leak")

MODES = [pytest.param(lambda f: f, id="eager"), pytest.param(tf.function, id="function")]


def variables():
    return [tf.Variable(tf.ones([n])) for n in (2, 3, 4, 5)]


def gradient_of(hvd, v, wrap, make=None, **kwargs):
    """What a tape gives on this rank for a loss whose gradient for v[i] is rank + 1 + i."""
    rank = hvd.rank()

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(x) * float(rank + 1 + i) for i, x in enumerate(v)])
        tape = (make or hvd.DistributedGradientTape)(tape, **kwargs)
        return tape.gradient(loss, v)

    return [float(g[0]) for g in step()]


@pytest.mark.parametrize("wrap", MODES)
def test_tape_and_its_arguments(hvd, wrap):
    v = variables()
    size = hvd.size()
    mean = [(size + 1) / 2 + i for i in range(4)]
    for kwargs in ({}, {"groups": 2}, {"groups": 9}, {"groups": [[v[0], v[2]]]},
                   {"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 2.0}):
        np.testing.assert_allclose(gradient_of(hvd, v, wrap, **kwargs), mean, rtol=1e-6)
    np.testing.assert_allclose(gradient_of(hvd, v, wrap, op=hvd.Sum), np.array(mean) * size)
    tape = tf.GradientTape()
    for bad in ({"groups": -1}, {"groups": "x"}, {"groups": [1]},
                {"gradient_predivide_factor": 2.0, "op": hvd.Sum}):
        with pytest.raises(ValueError):
            hvd.DistributedGradientTape(tape, **bad)


@pytest.mark.parametrize("wrap", MODES)
def test_nests_and_missing_gradients(hvd, wrap):
    a, b, c = tf.Variable(1.0), tf.Variable(2.0), tf.Variable(3.0)

    @wrap
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            loss = a * float(hvd.rank() + 1) + c
        return (tape.gradient(loss, {"a": a, "more": [b, c]}), tape.gradient(loss, a),
                tape.gradient(loss, [b], unconnected_gradients=tf.UnconnectedGradients.ZERO))

    nest, single, zero = step()
    assert nest["more"][0] is None and float(nest["more"][1]) == 1.0
    assert float(nest["a"]) == float(single) == (hvd.size() + 1) / 2
    assert float(zero[0]) == 0.0


@pytest.mark.parametrize("wrap", MODES)
def test_local_sources(hvd, wrap):
    size = hvd.size()
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    other = tf.Variable([[1.0], [1.0]])
    sources = [layer.trainable_weights[0], other]
    for scale in (True, False):
        @wrap
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(tf.ones([1, 2])) + other) * float(hvd.rank() + 1)
            tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer,
                                                      scale_local_gradients=scale)
            return tape.gradient(loss, sources)

        here, everywhere = step()
        assert float(here[0, 0]) == pytest.approx(
            2 * (hvd.rank() + 1) / (size if scale else 1))
        assert float(everywhere[0, 0]) == pytest.approx((size + 1) / 2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(other) * float(hvd.rank() + 1)
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(other)
    local, reduced = tape.get_local_and_global_gradients(loss, [other])
    assert len(local) == 1 and reduced == []
    with pytest.raises(ValueError):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])


@pytest.mark.parametrize("wrap", MODES)
@pytest.mark.parametrize("dense", [False, True])
def test_embeddings(hvd, wrap, dense):
    table = tf.Variable(tf.ones([8, 2]))
    rank, size = hvd.rank(), hvd.size()

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 7])) * float(rank + 1)
        grad = hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(loss, table)
        assert isinstance(grad, tf.IndexedSlices) != dense
        return tf.convert_to_tensor(grad)

    want = np.zeros(8)
    want[:size] = (np.arange(size) + 1) / size
    want[7] += (size + 1) / 2
    np.testing.assert_allclose(step().numpy()[:, 0], want, rtol=1e-6)


def test_gradients_travel_while_backward_runs(hvd, tmp_path):
    """The timeline: the last layers' gradients are reduced before the first layer has one."""
    weights = [tf.Variable(tf.random.normal([512, 512]) * 0.03) for _ in range(6)]
    x = tf.random.normal([768, 512])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            h = x
            for w in weights:
                h = tf.tanh(h @ w)
            loss = tf.reduce_mean(h)
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)

    step(x)
    step(x)
    path = hvd.broadcast_object(str(tmp_path / "trace.json"))
    best = 0
    for attempt in range(5):
        if best >= 3:
            break
        hvd.start_timeline(path + str(attempt))
        hvd.allreduce(tf.constant(0.0), name="started")  # a rank records from rank 0's word on
        step(x)
        hvd.stop_timeline()
        hvd.allreduce(tf.constant(0.0), name="written")
        best = max(best, _reduced_before_first(path + str(attempt), hvd.size()))
    # one gradient of the six is the first layer's
    assert best >= 3


def _reduced_before_first(path, size):
    """How many gradients a rank had reduced when its first layer's came; the best rank's.

    That is the slowest rank: the others wait for it. 0 when a rank was ahead of the start of
    the timeline.
    """
    with open(path) as f:
        events = json.load(f)
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    counts = []
    for rank in range(size):
        def of(index):
            return [e for e in events if e.get("tid") == rank
                    and names.get(e.get("pid"), "").endswith("Tape.6.%d" % index)]

        came = [e["ts"] for e in of(0) if e["name"].endswith("ready")]
        ends = [[e["ts"] + e["dur"] for e in of(i) if e["name"] == "ALLREDUCE"]
                for i in range(1, 6)]
        if len(came) != 1 or any(len(e) != 1 for e in ends):
            return 0
        counts.append(sum(e[0] <= came[0] for e in ends))
    return max(counts)


def v1_training(hvd, make, steps, hook):
    """Weights after training w to minimise (w - rank)^2 from different starts."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        w = tf1.get_variable("w", initializer=tf.fill([2], 10.0 * (hvd.rank() + 1)))
        loss = tf.reduce_sum((w - float(hvd.rank())) ** 2)
        step = tf1.train.get_or_create_global_step()
        train = make(tf1).minimize(loss, global_step=step)
        if hook:
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
            with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for _ in range(steps):
                    session.run(train)
                return session.run([w, step])
        send = hvd.broadcast_global_variables(0)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(send)
            for _ in range(steps):
                session.run(train)
            return session.run([w, step])


@pytest.mark.parametrize("hook", [True, False], ids=["hook", "session"])
def test_v1_optimizer(hvd, hook):
    target = (hvd.size() - 1) / 2

    def expected(start, steps):
        for _ in range(steps):
            start -= 0.1 * 2 * (start - target)
        return start

    w, step = v1_training(hvd, lambda tf1: hvd.DistributedOptimizer(
        tf1.train.GradientDescentOptimizer(0.1)), 4, hook)
    np.testing.assert_allclose(w, expected(10.0, 4), rtol=1e-5)
    assert step == 4
    w, step = v1_training(hvd, lambda tf1: hvd.DistributedOptimizer(
        tf1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2,
        average_aggregated_gradients=True), 5, hook)
    np.testing.assert_allclose(w, expected(10.0, 2), rtol=1e-5)
    assert step == 2


def test_v1_adasum(hvd):
    def make(tf1):
        return hvd.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1), op=hvd.Adasum)

    if hvd.size() & (hvd.size() - 1):
        with pytest.raises(NotImplementedError):
            v1_training(hvd, make, 1, False)
        return
    w, step = v1_training(hvd, make, 3, False)
    assert step == 3 and (w < 10).all()
    assert all((o == w).all() for o in hvd.allgather_object(w))
