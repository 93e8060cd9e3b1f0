"""Train a small network on real handwritten digits with Keras's fit().

    hvdrun -np 2 python tensorflow2_keras_mnist.py [--epochs 3] [--batch-size 64] [--lr 0.001]
                                                   [--fp16-allreduce] [--data DIR]

Prints the loss of each epoch, and at the end the accuracy on digits that were not seen.
"""

import argparse

import tensorflow as tf

import digits
import horovod.tensorflow.keras as hvd


def network():
    return tf.keras.Sequential([
        tf.keras.layers.Conv2D(16, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(32, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Dense(10, activation="softmax"),
    ])


def main():
    parser = argparse.ArgumentParser(
        description="Train a network on handwritten digits",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.001, help="for one rank")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--checkpoint", default="", help="file for the model: model.keras")
    parser.add_argument("--data", default=digits.DATA)
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = digits.load("train", args.data)
    # equal shares, so that all ranks make equally many steps
    share = len(images) // hvd.size()
    mine = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    test_images, test_labels = digits.load("t10k", args.data)

    rate = args.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.Adam(rate),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none)
    model = network()
    # XLA cannot compile what exchanges the gradients
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy",
                  metrics=["accuracy"], jit_compile=False)

    callbacks = [
        # equal weights on all ranks, whatever they began with
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=1),
    ]
    if hvd.rank() == 0 and args.checkpoint:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(args.checkpoint))

    model.fit(images[mine], labels[mine], batch_size=args.batch_size, epochs=args.epochs,
              callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)

    tests = slice(hvd.rank(), None, hvd.size())
    _, accuracy = model.evaluate(test_images[tests], test_labels[tests], verbose=0)
    accuracy = hvd.allreduce(accuracy, name="accuracy")
    if hvd.rank() == 0:
        print("accuracy %.2f %%" % (100 * float(accuracy)), flush=True)


if __name__ == "__main__":
    main()
