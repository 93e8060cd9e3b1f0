"""TensorFlow's tensors on a GPU through libhvd: right in any order, and what a step costs more.

    [SHARE=1] hvdrun -np N python tf_step.py [SECONDS]
A kernel that takes long makes what is reduced and gathered, and another reads the result at once:
a missing wait shows as wrong numbers. Then plain steps and steps that reduce 40 gradients take
turns; of each the median counts. Prints "PLAIN ms WITH ms PERCENT"; status 77 with a reason where
TensorFlow has no GPU.
"""

import os
import statistics
import sys
import time

SIDE, LAYERS, BATCH, ROUNDS = 2048, 20, 256, 30


def right(tf, hvd):
    rank, size = hvd.rank(), hvd.size()
    ones = tf.ones([SIDE, SIDE]) / SIDE

    def slow(x):
        for _ in range(20):  # the mean of every row, again and again
            x = tf.matmul(x, ones)
        return x

    def one(x):
        total = hvd.allreduce(slow(x), op=hvd.Sum, name="sum") * 2.0
        rows = hvd.allgather(slow(x)[: rank + 1], name="rows") * 2.0
        return tf.reduce_max(total), tf.reduce_min(total), tf.reduce_sum(rows) / SIDE

    for call in (one, tf.function(one)):
        for i in range(ROUNDS):
            high, low, rows = (float(v) for v in call(tf.fill([SIDE, SIDE], float(rank + i + 1))))
            total = 2.0 * sum(r + i + 1 for r in range(size))
            gathered = 2.0 * sum((r + i + 1) * (r + 1) for r in range(size))
            if abs(high - total) + abs(low - total) > 1e-2 or abs(rows - gathered) > 1e-2:
                print("rank %d, round %d: %g to %g, not %g; rows %g, not %g"
                      % (rank, i, low, high, total, rows, gathered))
                return False
    return True


def trials(tf, hvd):
    x = tf.random.normal([BATCH, SIDE])
    weights = [tf.Variable(tf.random.normal([SIDE, SIDE], stddev=SIDE ** -0.5)) for _ in range(LAYERS)]
    weights += [tf.Variable(tf.zeros([SIDE])) for _ in range(LAYERS)]

    def step(reduces):
        with tf.GradientTape() as tape:
            y = x
            for i in range(LAYERS):
                y = tf.nn.relu(tf.matmul(y, weights[i]) + weights[LAYERS + i])
            loss = tf.reduce_mean(tf.square(y))
        gradients = tape.gradient(loss, weights)
        if reduces:
            gradients = [hvd.allreduce(g, name="g%d" % i) for i, g in enumerate(gradients)]
        for weight, gradient in zip(weights, gradients):
            weight.assign_sub(1e-4 * gradient)
        return loss

    return {"plain": tf.function(lambda: step(False)), "with": tf.function(lambda: step(True))}


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError as error:
        print("no TensorFlow: %s" % error)
        return 77
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        print("TensorFlow %s sees no GPU%s" % (
            tf.__version__, "" if tf.test.is_built_with_cuda() else ": it is built without CUDA"))
        return 77
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    import horovod.tensorflow as hvd

    hvd.init()
    mine = 0 if "SHARE" in os.environ else hvd.local_rank() % len(gpus)
    tf.config.set_visible_devices(gpus[mine], "GPU")
    if not right(tf, hvd):
        return 1
    if seconds <= 0:
        print("%d rounds right" % (2 * ROUNDS))
        return 0
    calls = trials(tf, hvd)
    times = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    while len(times["with"]) < 5 or (hvd.size() == 1 and time.perf_counter() < until):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(5):
                loss = call()
            float(loss)
            times[name].append((time.perf_counter() - began) / 5)
    plain, other = (statistics.median(times[name]) * 1e3 for name in ("plain", "with"))
    print("%.2f ms %.2f ms %+.1f" % (plain, other, 100 * (other / plain - 1)))
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
