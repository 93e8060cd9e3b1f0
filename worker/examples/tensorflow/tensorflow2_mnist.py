"""Train a small network on real handwritten digits with a loop of one's own.

    hvdrun -np 2 python tensorflow2_mnist.py [--steps 400] [--batch-size 64] [--lr 0.001]
                                             [--checkpoint-dir DIR] [--data DIR]

Prints the loss as it goes, and at the end the accuracy on digits that were not seen.
"""

import tensorflow as tf

import digits
import horovod.tensorflow as hvd


def main():
    args = digits.arguments()

    hvd.init()

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = digits.load("train", args.data)
    dataset = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shard(hvd.size(), hvd.rank())
        .repeat()
        .shuffle(4000, seed=hvd.rank())
        .batch(args.batch_size)
    )
    mnist_model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(16, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(32, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Dense(10, activation="softmax"),
    ])
    loss = tf.losses.SparseCategoricalCrossentropy()
    # the batch of all ranks is larger, so the steps may be
    opt = tf.optimizers.Adam(args.lr * hvd.size())
    checkpoint = tf.train.Checkpoint(model=mnist_model, optimizer=opt)

    def opt_variables():
        return opt.variables() if callable(opt.variables) else opt.variables

    @tf.function
    def training_step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            probs = mnist_model(images, training=True)
            loss_value = loss(labels, probs)

        tape = hvd.DistributedGradientTape(tape)

        grads = tape.gradient(loss_value, mnist_model.trainable_variables)
        opt.apply_gradients(zip(grads, mnist_model.trainable_variables))

        # after the first step, when the optimizer has its variables
        if first_batch:
            hvd.broadcast_variables(mnist_model.variables, root_rank=0)
            hvd.broadcast_variables(opt_variables(), root_rank=0)

        return loss_value

    for batch, (images, labels) in enumerate(dataset.take(args.steps // hvd.size())):
        loss_value = training_step(images, labels, batch == 0)
        if batch % 20 == 0 and hvd.rank() == 0:
            print("step %d loss %.4f" % (batch, loss_value), flush=True)

    images, labels = digits.load("t10k", args.data)
    share = slice(hvd.rank(), None, hvd.size())
    probs = mnist_model(images[share], training=False)
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(probs, 1), labels[share]), tf.float32))
    right = hvd.allreduce(right, op=hvd.Sum, name="right")
    if hvd.rank() == 0:
        print("accuracy %.2f %%" % (100 * float(right) / len(labels)), flush=True)
        if args.checkpoint_dir:
            print("saved", checkpoint.save(args.checkpoint_dir + "/ckpt"), flush=True)


if __name__ == "__main__":
    main()
