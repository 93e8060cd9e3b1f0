"""Time the exchange of one training step's gradients in TensorFlow, and the same from C.

    hvdrun -np N python tf_step.py LIBSTEP [SECONDS]

Three functions take turns in the same processes: a tf.function that makes 161 tensors with
the shapes of ResNet-50's gradients; one that makes and reduces them, as
DistributedGradientTape does; and bench_exchange() of LIBSTEP (libstep.c) over 161 arrays of
these shapes. Rank 0 prints two JSON lines: what the second takes longer than the first, as
the peer "tensorflow", and the third, as the peer "c beside tensorflow". Medians.
"""

import ctypes
import json
import statistics
import sys
import time

import numpy as np
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


def from_c(path):
    """A function that exchanges arrays of the same shapes through libhvd."""
    library = ctypes.CDLL(path)
    arrays = [np.zeros(s, np.float32) for s in shapes()]
    count = len(arrays)
    pointers = (ctypes.c_void_p * count)(*[a.ctypes.data for a in arrays])
    elems = (ctypes.c_int64 * count)(*[a.size for a in arrays])

    def exchange():
        status = library.bench_exchange(pointers, elems, count)
        if status != 0:
            sys.exit("tf_step.py: bench_exchange: status %d" % status)
        return arrays

    return exchange


def from_tensorflow():
    """Functions that make the tensors, and that make and exchange them."""
    variables = [tf.Variable(tf.ones(s)) for s in shapes()]
    factor = tf.constant(1.5)

    @tf.function
    def make(x):
        return [v * x for v in variables]

    @tf.function
    def exchange(x):
        return reduce_gradients("bench", [v * x for v in variables], op=hvd.Sum)

    return (lambda: make(factor)[-1].numpy()), (lambda: exchange(factor)[-1].numpy())


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 3.0
    hvd.init()
    functions = [*from_tensorflow(), from_c(sys.argv[1])]
    for function in functions * 3:
        function()
    times, ends, more = [[] for _ in functions], time.perf_counter() + seconds, True
    while more:
        for function, taken in zip(functions, times):
            hvd.allreduce(tf.constant(0.0), name="together")
            began = time.perf_counter()
            function()
            taken.append((time.perf_counter() - began) * 1e6)
        more = bool(hvd.broadcast(tf.constant(int(time.perf_counter() < ends)), 0, name="more"))
    without, whole, c = (statistics.median(t) for t in times)
    if hvd.rank() == 0:
        worst = [sorted(t)[int(0.99 * (len(t) - 1) + 0.5)] for t in times]
        for peer, median, p99 in (("tensorflow", whole - without, worst[1] - without),
                                  ("c beside tensorflow", c, worst[2])):
            print(json.dumps({"peer": peer, "np": hvd.size(), "step": "tensorflow resnet50",
                              "n": len(times[0]), "med_us": median, "p99_us": p99}), flush=True)


if __name__ == "__main__":
    main()
