"""What a gradient may be turned into before it travels."""

import tensorflow as tf

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor  # noqa: F401


class _CastCompressor(CastCompressor):
    @staticmethod
    def is_floating(dtype):
        return dtype.is_floating

    @staticmethod
    def cast(tensor, dtype):
        return tf.cast(tensor, dtype)


class FP16Compressor(_CastCompressor):
    """Casts floating-point tensors to float16."""

    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Casts floating-point tensors to bfloat16."""

    dtype = tf.bfloat16


class Compression:
    """The choices for the compression argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
