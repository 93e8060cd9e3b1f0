"""Train a small network on real handwritten digits with a graph and a session (TensorFlow 1).

    hvdrun -np 2 python tensorflow_mnist.py [--steps 400] [--batch-size 64] [--lr 0.001]
                                            [--checkpoint-dir DIR] [--data DIR]

Prints the loss as it goes, and at the end the accuracy on digits that were not seen.
"""

import numpy as np
import tensorflow.compat.v1 as tf

import digits
import horovod.tensorflow as hvd


def network(images):
    """The scores of 10 digits."""

    def weights(name, shape):
        return tf.get_variable(name, shape, initializer=tf.glorot_uniform_initializer())

    x = tf.nn.relu(tf.nn.conv2d(images, weights("conv1", [3, 3, 1, 16]), 1, "VALID"))
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(tf.nn.conv2d(x, weights("conv2", [3, 3, 16, 32]), 1, "VALID"))
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), [-1, 5 * 5 * 32])
    bias = tf.get_variable("bias", [10], initializer=tf.zeros_initializer())
    return tf.matmul(x, weights("dense", [5 * 5 * 32, 10])) + bias


def main():
    args = digits.arguments()

    tf.disable_eager_execution()
    hvd.init()

    images = tf.placeholder(tf.float32, [None, 28, 28, 1])
    labels = tf.placeholder(tf.int64, [None])
    scores = network(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, scores)
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float32))
    # the batch of all ranks is larger, so the steps may be
    opt = hvd.DistributedOptimizer(tf.train.AdamOptimizer(args.lr * hvd.size()))
    global_step = tf.train.get_or_create_global_step()
    train = opt.minimize(loss, global_step=global_step)

    x, y = digits.load("train", args.data)
    x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
    tests, wanted = digits.load("t10k", args.data)
    share = slice(hvd.rank(), None, hvd.size())
    draw = np.random.RandomState(hvd.rank())
    # equal weights on all ranks, whatever they began with
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    if hvd.rank() == 0:
        hooks.append(tf.train.LoggingTensorHook({"step": global_step, "loss": loss},
                                                every_n_iter=20))
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    # one rank writes checkpoints, or they would spoil each other's
    folder = args.checkpoint_dir if args.checkpoint_dir and hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks,
                                           config=config) as session:
        for _ in range(args.steps // hvd.size()):
            rows = draw.choice(len(x), args.batch_size)
            session.run(train, {images: x[rows], labels: y[rows]})
        found = session.run(right, {images: tests[share], labels: wanted[share]})
    found = sum(hvd.allgather_object(float(found)))
    if hvd.rank() == 0:
        print("accuracy %.2f %%" % (100 * found / len(wanted)), flush=True)


if __name__ == "__main__":
    main()
