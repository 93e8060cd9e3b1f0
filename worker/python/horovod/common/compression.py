"""What a gradient may be turned into before it travels: what the frameworks have in common."""


class Compressor:
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


class CastCompressor(Compressor):
    """Casts floating-point tensors to dtype for the journey; a framework says how."""

    dtype = None

    @staticmethod
    def is_floating(dtype):
        raise NotImplementedError

    @staticmethod
    def cast(tensor, dtype):
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor):
        if cls.is_floating(tensor.dtype) and tensor.dtype != cls.dtype:
            return cls.cast(tensor, cls.dtype), tensor.dtype
        return tensor, tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        if ctx is not None and cls.is_floating(ctx) and tensor.dtype != ctx:
            return cls.cast(tensor, ctx)
        return tensor
