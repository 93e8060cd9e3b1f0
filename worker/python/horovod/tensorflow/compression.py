"""What a gradient may be turned into before it travels."""

import tensorflow as tf


class Compressor(object):
    """A way to make a tensor smaller and back."""

    @staticmethod
    def compress(tensor):
        """(smaller tensor, context for decompress)"""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        """The tensor as it was before compress, but for rounding."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


class _CastCompressor(Compressor):
    """Casts floating-point tensors to dtype for the journey."""

    dtype = None

    @classmethod
    def compress(cls, tensor):
        if tensor.dtype.is_floating and tensor.dtype != cls.dtype:
            return tf.cast(tensor, cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        if ctx is not None and ctx.is_floating and tensor.dtype != ctx:
            return tf.cast(tensor, ctx)
        return tensor


class FP16Compressor(_CastCompressor):
    """Casts floating-point tensors to float16."""

    dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Casts floating-point tensors to bfloat16."""

    dtype = tf.bfloat16


class Compression(object):
    """The choices for the compression argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
