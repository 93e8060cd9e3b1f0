"""Batch normalization over the batches of all ranks."""

import re

import tensorflow as tf

from horovod.tensorflow import mpi_ops
from horovod.tensorflow.mpi_ops import Sum
from horovod.tensorflow.util import do_not_convert


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """BatchNormalization whose mean and variance are those of the batches of all ranks.

    Arguments as of tf.keras.layers.BatchNormalization; fused=True is not possible. The numbers
    that Keras puts behind names count what a process has built, so they do not count here:
    layers whose names differ in them only are run in the same order by all ranks.
    """

    def __init__(self, fused=False, **kwargs):
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if not kwargs.get("name"):
            kwargs["name"] = None
        try:
            super().__init__(fused=fused, **kwargs)
        except (TypeError, ValueError):
            # Keras 3 has no such argument
            super().__init__(**kwargs)
        self.supports_jit = False

    def _axes(self, inputs):
        axes = self.axis if isinstance(self.axis, (list, tuple)) else [self.axis]
        rank = inputs.shape.rank
        kept = {a % rank for a in axes}
        return [a for a in range(rank) if a not in kept]

    @do_not_convert
    def _moments(self, inputs, *args, **kwargs):
        """(mean, variance) over all ranks; the two Keras call it with different arguments."""
        axes, keep_dims, mask = self._axes(inputs), False, kwargs.get("mask")
        if len(args) >= 2 or "keep_dims" in kwargs:
            keep_dims = kwargs.get("keep_dims", args[1] if len(args) > 1 else False)
            if len(args) > 2:
                mask = args[2]
        elif args:
            mask = args[0]
        given = inputs.dtype
        x = tf.cast(inputs, tf.float32) if given in (tf.float16, tf.bfloat16) else inputs
        if mask is None:
            shape = tf.shape(x)
            count = tf.cast(tf.reduce_prod(tf.gather(shape, axes)), x.dtype)
            weighted = x
        else:
            mask = tf.cast(mask, x.dtype)
            weight = tf.reshape(mask, tf.concat(
                [tf.shape(mask), tf.ones([x.shape.rank - mask.shape.rank], tf.int32)], 0))
            weighted = x * weight
            others = tf.gather(tf.shape(x), [a for a in axes if a >= mask.shape.rank])
            count = tf.reduce_sum(mask) * tf.cast(tf.reduce_prod(others), x.dtype)
        sums = tf.reduce_sum(weighted, axes)
        squares = tf.reduce_sum(weighted * x, axes)
        flat = tf.concat([tf.reshape(sums, [-1]), tf.reshape(squares, [-1]), [count]], 0)
        name = re.sub(r"(_\d+)+$", "", self.name)
        total = mpi_ops._allreduce(flat, name=name + ".moments", op=Sum)
        channels = tf.size(sums)
        count = tf.maximum(total[-1], 1)
        mean = tf.reshape(total[:channels] / count, tf.shape(sums))
        square = tf.reshape(total[channels : 2 * channels] / count, tf.shape(sums))
        variance = tf.maximum(square - mean * mean, 0)
        if keep_dims:
            for axis in axes:
                mean, variance = tf.expand_dims(mean, axis), tf.expand_dims(variance, axis)
        if not keep_dims:
            mean.set_shape(sums.shape)
            variance.set_shape(sums.shape)
        return tf.cast(mean, given), tf.cast(variance, given)

    def _calculate_mean_and_var(self, inputs, reduction_axes, keep_dims, mask=None):
        return self._moments(inputs, reduction_axes, keep_dims, mask)
