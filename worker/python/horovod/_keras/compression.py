"""What a gradient may be turned into before it travels, on backends without a module here."""


class _Compressor:
    dtype = None

    @classmethod
    def compress(cls, tensor):
        name = str(tensor.dtype)
        if cls.dtype is not None and "float" in name and name != cls.dtype:
            return tensor.astype(cls.dtype), tensor.dtype
        return tensor, None

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else tensor.astype(ctx)


class NoneCompressor(_Compressor):
    """Leaves tensors as they are."""


class FP16Compressor(_Compressor):
    """Casts floating-point tensors to float16."""

    dtype = "float16"


class BF16Compressor(_Compressor):
    """Casts floating-point tensors to bfloat16."""

    dtype = "bfloat16"


class Compression:
    """The choices for the compression argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
