"""Collectives of horovod.tensorflow on a GPU that the fakes stand for (t4012, t4013).

MODE            nccl, staged (ranks share a GPU), blocking (a driver without events of a
                context), copied (HVD_TF_GPU=host), order (only who waits for whom), host
                (memory that is no GPU's), keras (3)
LATE            seconds that a held stream stays held: what comes too early then does so
FAKE_TF_DEVICE  tests/fake/tf_device.c, built
"""

import ctypes
import os
import time
import warnings

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import load_library

load_library.load_pluggable_device_library(os.environ["FAKE_TF_DEVICE"])
import horovod.tensorflow as hvd
from horovod.tensorflow import _library

plugin = ctypes.CDLL(os.environ["FAKE_TF_DEVICE"])
hvd.init()
rank, size, mode = hvd.rank(), hvd.size(), os.environ["MODE"]
gpus = tf.config.list_physical_devices("GPU")
# as scripts for Horovod do: TensorFlow's only GPU is then "/GPU:0", whichever it is
tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
everyone = range(size)


def same(got, want, what):
    assert "GPU" in got.device, "%s: the result is on %s" % (what, got.device)
    assert got.numpy().tolist() == want, "%s: %s, not %s" % (what, got.numpy().tolist(), want)


def late(values):
    """The values, from a kernel that may still run."""
    return tf.constant([float(v) for v in values]) * 1.0


def collectives():
    mine = late([rank, 1, 2])
    same(hvd.allreduce(mine, op=hvd.Sum, name="sum") * 2.0,
         [2.0 * sum(everyone), 2.0 * size, 4.0 * size], "allreduce")
    same(hvd.allreduce(mine, op=hvd.Average, name="mean"), [(size - 1) / 2, 1.0, 2.0], "average")
    same(hvd.allreduce(mine, op=hvd.Max, name="max"), [size - 1.0, 1.0, 2.0], "max")
    group = hvd.grouped_allreduce([mine * float(i) for i in range(20)], op=hvd.Sum, name="group")
    for i, one in enumerate(group):
        same(one, [float(i * sum(everyone)), float(i * size), 2.0 * i * size], "grouped allreduce")
    rows = tf.ones([rank + 1, 2]) * float(rank)
    same(hvd.allgather(rows, name="rows") * 1.0,
         [[float(r)] * 2 for r in everyone for _ in range(r + 1)], "allgatherv")
    even = hvd.grouped_allgather([mine, mine * 2.0], name="even")
    same(even[1], [v for r in everyone for v in (2.0 * r, 2.0, 4.0)], "grouped allgather")
    same(hvd.allgather(tf.zeros([0 if rank == 0 else 1, 3]), name="none") + 1.0,
         [[1.0] * 3] * (size - 1), "allgather of no rows")
    same(hvd.broadcast(mine, root_rank=size - 1, name="root"), [size - 1.0, 1.0, 2.0], "broadcast")
    out, received = hvd.alltoall(late([10 * rank + to for to in everyone for _ in range(to + 1)]),
                                 splits=[to + 1 for to in everyone], name="splits")
    same(out + 1.0, [10.0 * r + rank + 1 for r in everyone for _ in range(rank + 1)], "alltoallv")
    assert received.numpy().tolist() == [rank + 1] * size, received
    same(hvd.alltoall(late(everyone), name="spread") * 1.0, [float(rank)] * size, "alltoall")
    part = hvd.reducescatter(late(range(2 * size)), op=hvd.Sum, name="part")
    same(part, [2.0 * rank * size, (2.0 * rank + 1) * size], "reducescatter")
    parts = hvd.grouped_reducescatter([late(everyone), late(everyone) * 3.0], op=hvd.Sum)
    same(parts[1], [3.0 * rank * size], "grouped reducescatter")


def types():
    for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.int16, tf.uint8):
        got = hvd.allreduce(tf.constant([rank, 3], dtype), op=hvd.Sum, name=dtype.name)
        same(tf.identity(got), [sum(everyone), 3 * size], dtype.name)
    same(hvd.broadcast(tf.constant([rank == 0, True]), root_rank=0, name="bool"), [True, True], "bool")
    same(hvd.allreduce(tf.zeros([0, 4]), name="empty"), [], "no elements")
    deep = hvd.allgather(tf.ones([2] + [1] * 17) * 3.0, name="deep")
    assert deep.shape == [2 * size] + [1] * 17 and float(tf.reduce_sum(deep)) == 6.0 * size
    if size == 2:  # NCCL has no Adasum: through the host
        same(hvd.allreduce(late([1, 0] if rank == 0 else [0, 1]), op=hvd.Adasum, name="adasum"),
             [1.0, 1.0], "adasum")


@tf.function
def in_function():
    total = late([rank, 1])
    for i in range(3):
        total = hvd.allreduce(total * 2.0, op=hvd.Sum, name="f%d" % i) + 1.0
    count = hvd.allreduce(tf.constant([rank]), op=hvd.Sum, name="f.count")
    rows = hvd.allgather(tf.ones([rank + 1]) * 2.0, name="f.rows")
    out, received = hvd.alltoall(late(everyone), splits=[1] * size, name="f.spread")
    return total, count, rows * 1.0, out + 0.0, received


def functions():
    steps = [sum(everyone), size]
    total = [float(sum(everyone)), float(size)]
    first = [2.0 * v + 1 for v in total]
    second = [2.0 * size * v + 1 for v in first]
    third = [2.0 * size * v + 1 for v in second]
    before = _library.library.hvd_tf_in_place()
    for _ in range(5):
        total, count, rows, out, received = in_function()
        same(total, third, "in a function")
        same(rows, [2.0] * sum(r + 1 for r in everyone), "allgather in a function")
        same(out, [float(rank)] * size, "alltoall in a function")
        assert count.numpy().tolist() == [steps[0]] and received.numpy().tolist() == [1] * size
    assert _library.library.hvd_tf_in_place() >= before + 10, "no gradient's memory was taken over"


def training():
    w, b = tf.Variable([1.0 + rank, 2.0]), tf.Variable([3.0])
    hvd.broadcast_variables([w, b], root_rank=0)
    assert w.numpy().tolist() == [1.0, 2.0]

    def gradients():
        with tf.GradientTape() as tape:
            y = w * tf.constant([1.0 + rank, 1.0]) + b
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(y, [w, b])

    for step in (gradients, tf.function(gradients)):
        for _ in range(3):
            dw, db = step()
            same(dw, [(size + 1) / 2, 1.0], "gradient")
            same(db, [2.0], "gradient of the bias")
    x = late([rank, 1])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.allreduce(x * 2.0, op=hvd.Sum, name="through") * (rank + 1.0)
    same(tape.gradient(y, x), [2.0 * sum(r + 1 for r in everyone)] * 2, "through allreduce")


def memory():
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.fake_cuda_in_use.restype = ctypes.c_size_t
    used = []
    for _ in range(4):
        for _ in range(20):
            got = hvd.allgather(tf.fill([100000 * (rank + 1)], 2.0) * 1.0, name="rows") * 1.0
        assert got.numpy().sum() == 200000.0 * sum(r + 1 for r in everyone)
        used.append(cuda.fake_cuda_in_use())
    # of 40 results, whose memory libhvd keeps for the next
    assert used[3] <= used[1] + 10 * 400000 * sum(r + 1 for r in everyone), "GPU memory grows: %s" % used


def refused(call, *parts):
    try:
        call()
    except tf.errors.OpError as error:
        assert all(part in error.message for part in parts), error.message
    else:
        raise AssertionError("not refused: " + ", ".join(parts))


def placement():
    ops = _library.ops
    with tf.device("/CPU:0"):
        handles, buffers = ops.hvd_start_over(tensors=[tf.ones([2])], N=1, tensor_name="apart", kind=1)
    refused(lambda: ops.hvd_wait(handles=handles, buffers=buffers),
            "started on the CPU and is waited for on a GPU")
    if size > 1:
        refused(lambda: hvd.allreduce(late([0] * (rank + 1)), name="unequal"), "unequal")
    with tf.device("/CPU:0"):
        host = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="on the host")
    assert "CPU" in host.device and host.numpy().tolist() == [size]
    with tf.device(None):  # where nobody says anything
        same(hvd.allreduce(tf.constant([2.0]), op=hvd.Sum, name="anywhere"), [2.0 * size], "no device")
        values = [tf.Variable(rank), tf.Variable([1.0 + rank]), tf.Variable([[rank]], dtype=tf.int64)]
        hvd.broadcast_variables(values, root_rank=0)
        assert [v.numpy().tolist() for v in values] == [0, [1.0], [[0]]]


def order():
    """With a compute stream held: nothing may be too early, and nobody may wait for it."""
    two, ranks, rows = tf.constant(2.0), late([rank, 1]), late([rank])

    @tf.function
    def gather(x):  # lets go of what it gathers as soon as that has begun
        return hvd.allgather(x * two, name="f.late rows") * two

    def hold():
        same(ranks * two, [2.0 * rank, 2.0], "before")  # what was queued is over
        if rank == size - 1:  # its gradient comes late
            plugin.fake_tf_hold()

    def go():
        time.sleep(float(os.environ.get("LATE", 0)))  # for what comes too early to do so
        plugin.fake_tf_go()

    gather(rows)
    for _ in range(3):
        hold()
        total = hvd.allreduce(ranks * two, op=hvd.Sum, name="late") * two
        go()
        same(total, [4.0 * sum(everyone), 4.0 * size], "allreduce, held")
        hold()
        gathered = hvd.allgather(rows * two, name="late rows") * two
        go()
        same(gathered, [4.0 * r for r in everyone], "allgather, held")
        hold()
        gathered = gather(rows)
        go()
        same(gathered, [4.0 * r for r in everyone], "allgather in a function, held")
        gathered = hvd.allgather(rows, name="last use")
        same(gathered * two, [2.0 * r for r in everyone], "before the last use")
        plugin.fake_tf_hold()
        used = gathered * two
        del gathered
        go()
        same(used, [2.0 * r for r in everyone], "last use, held")


def keras_compiles():
    """With a GPU Keras 3 compiles by XLA where nobody has said otherwise."""
    import keras
    import horovod.tensorflow.keras as hvdk

    def model():
        net = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        net.compile(optimizer=hvdk.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        assert net.jit_compile is True
        return net

    x, y = np.ones([8, 3], "float32"), np.ones([8, 1], "float32")
    with tf.device("/CPU:0"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        net = model()
        net.fit(x, y, verbose=0, callbacks=[hvdk.callbacks.BroadcastGlobalVariablesCallback(0)])
        assert any("jit_compile is now False" in str(one.message) for one in said), said
        refused(lambda: model().fit(x, y, verbose=0), "give jit_compile=False to model.compile()")


with tf.device("/GPU:0"):
    if mode == "host":
        refused(lambda: hvd.allreduce(tf.ones([3]), name="elsewhere"), "elsewhere: ", "is not GPU memory")
    elif mode == "keras":
        keras_compiles()
    elif mode == "copied":
        collectives()
    elif mode != "order":
        collectives()
        types()
        functions()
        training()
        memory()
        placement()
    if mode in ("nccl", "order"):
        order()
hvd.shutdown()
print("rank %d of %d fine" % (rank, size))
