"""What a gradient may be turned into before it travels."""

import torch

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor  # noqa: F401


class _CastCompressor(CastCompressor):
    @staticmethod
    def is_floating(dtype):
        return dtype.is_floating_point

    @staticmethod
    def cast(tensor, dtype):
        return tensor.to(dtype)


class FP16Compressor(_CastCompressor):
    """Casts floating-point tensors to float16."""

    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Casts floating-point tensors to bfloat16."""

    dtype = torch.bfloat16


class Compression:
    """The choices for the compression argument."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
