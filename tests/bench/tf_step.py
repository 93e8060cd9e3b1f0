"""Time the exchange of one training step's gradients in TensorFlow; see bench_gradients.c.

    hvdrun -np N python tf_step.py [SECONDS]

A tf.function makes 161 tensors with the shapes of ResNet-50's gradients and reduces them as
DistributedGradientTape does; another only makes them. The two take turns. Rank 0 prints the
median of the difference, and both.
"""

import statistics
import sys
import time

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.gradients import reduce_gradients


def shapes():
    found = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, inputs), (width, width, 3, 3), (width * 4, width)):
                found += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                found += [(width * 4, inputs), (width * 4,), (width * 4,)]
            inputs = width * 4
    return found + [(1000, 2048), (1000,)]


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    hvd.init()
    made = [tf.Variable(tf.ones(s)) for s in shapes()]

    @tf.function
    def only_make(factor):
        return [v * factor for v in made]

    @tf.function
    def exchange(factor):
        return reduce_gradients("bench", [v * factor for v in made])

    def timed(function):
        began = time.perf_counter()
        result = function(factor)
        result[-1].numpy()
        return (time.perf_counter() - began) * 1e3

    factor = tf.constant(1.5)
    for _ in range(3):
        timed(only_make)
        timed(exchange)
    with_it, without, ends = [], [], time.perf_counter() + seconds
    more = tf.constant(1)
    while int(more):
        without.append(timed(only_make))
        hvd.allreduce(tf.constant(0.0), name="together")
        with_it.append(timed(exchange))
        more = hvd.broadcast(tf.constant(int(time.perf_counter() < ends)), 0, name="more")
    whole, rest = statistics.median(with_it), statistics.median(without)
    if hvd.rank() == 0:
        print("step tensorflow np=%d tensors=%d %.2f ms (%.2f with, %.2f without)"
              % (hvd.size(), len(made), whole - rest, whole, rest), flush=True)


if __name__ == "__main__":
    main()
