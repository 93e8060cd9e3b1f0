"""Images per second of a network on random images, with the ranks exchanging gradients.

    hvdrun -np 2 python tensorflow2_synthetic_benchmark.py [--model small|ResNet50|...]
                                        [--batch-size 8] [--fp16-allreduce] [--num-iters 5]

Models: "small" is a network of this file; any other name is one of tf.keras.applications.
"""

import argparse
import timeit

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def network(name):
    """(model, side of its images)"""
    if name != "small":
        return getattr(tf.keras.applications, name)(weights=None), 224
    layers = tf.keras.layers
    return tf.keras.Sequential([
        layers.Conv2D(32, 3, strides=2, activation="relu"),
        layers.Conv2D(64, 3, strides=2, activation="relu"),
        layers.Conv2D(128, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(1000, activation="softmax"),
    ]), 64


def main():
    parser = argparse.ArgumentParser(
        description="Speed of training on random images",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="small")
    parser.add_argument("--batch-size", type=int, default=8, help="of each rank")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--num-warmup-batches", type=int, default=5)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="without tf.function")
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    model, side = network(args.model)
    optimizer = tf.keras.optimizers.SGD(0.01)
    images = tf.random.uniform([args.batch_size, side, side, 3])
    labels = tf.random.uniform([args.batch_size], maxval=1000, dtype=tf.int64)
    loss = tf.keras.losses.SparseCategoricalCrossentropy()
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    def step(first):
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        if first:
            held = optimizer.variables
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(held() if callable(held) else held, root_rank=0)

    if not args.eager:
        step = tf.function(step)

    def say(text):
        if hvd.rank() == 0:
            print(text, flush=True)

    say("Model: %s, batch size %d, %d ranks" % (args.model, args.batch_size, hvd.size()))
    step(True)
    timeit.timeit(lambda: step(False), number=args.num_warmup_batches)
    speeds = []
    for i in range(args.num_iters):
        seconds = timeit.timeit(lambda: step(False), number=args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        say("Iter #%d: %.1f img/sec per rank" % (i, speeds[-1]))
    say("Img/sec per rank: %.1f +-%.1f" % (np.mean(speeds), 1.96 * np.std(speeds)))
    say("Total img/sec on %d rank(s): %.1f +-%.1f" % (
        hvd.size(), hvd.size() * np.mean(speeds), hvd.size() * 1.96 * np.std(speeds)))


if __name__ == "__main__":
    main()
