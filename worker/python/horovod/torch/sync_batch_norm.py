"""Batch normalization over the batches of all ranks, on the CPU and on GPUs."""

import threading

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.torch.mpi_ops import Sum, allgather, allreduce, size

# What a rank has built or loaded before says nothing about the others, so no layer has a
# name of its own: of one direction and number of channels (which libhvd's cache of known
# operations wants to be constant) the k-th call of a rank meets the k-th of the others. For
# that, calls of one name take turns, also those of several threads; one lock for all names
# could let two ranks wait for one another.
_turns = {}


def _in_turn(operation, direction, channels, *args, **kwargs):
    """operation(..., name=) after those of that name that other threads here have begun."""
    name = "sync_batch_norm.%s.%d" % (direction, channels)
    with _turns.setdefault(name, threading.Lock()):
        return operation(*args, name=name, **kwargs)


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d/2d/3d whose mean and variance are those of all ranks' batches.

    Arguments as of torch.nn.BatchNorm2d. Every rank runs its layers in the same order, also
    backward; layers of the same width in several threads need an order among the threads.
    """

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError("expected at least 2D input (got {}D input)".format(input.dim()))

    def forward(self, input):
        self._check_input_dim(input)
        training = self.training or not self.track_running_stats
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked = self.num_batches_tracked + 1
        if not training or size() == 1:
            return self._plain(input, training)
        momentum = self._momentum()
        return _SyncBatchNorm.apply(
            input, self.weight, self.bias,
            self.running_mean if self.training else None,
            self.running_var if self.training else None,
            self.eps, momentum,
        )

    def _momentum(self):
        if self.momentum is None:
            if self.num_batches_tracked is None:
                return 0.0
            return 1.0 / max(float(self.num_batches_tracked), 1.0)
        return self.momentum

    def _plain(self, input, training):
        tracked = not self.training or self.track_running_stats
        return F.batch_norm(
            input, self.running_mean if tracked else None,
            self.running_var if tracked else None, self.weight, self.bias, training,
            self._momentum(), self.eps,
        )


def _over(input):
    """Every dimension but that of the channels, and the shape of a value per channel."""
    dims = [d for d in range(input.dim()) if d != 1]
    shape = [1] * input.dim()
    shape[1] = input.shape[1]
    return dims, shape


class _SyncBatchNorm(torch.autograd.Function):
    """Statistics are computed in float32 (float64 for float64): half types overflow."""

    @staticmethod
    def forward(ctx, input, weight, bias, running_mean, running_var, eps, momentum):
        dims, shape = _over(input)
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        x = input.to(wide)
        channels = input.shape[1]
        count = input.numel() // channels if channels else 0
        if count:
            mean = x.mean(dims)
            m2 = ((x - mean.view(shape)) ** 2).sum(dims)
        else:
            mean = m2 = x.new_zeros(channels)
        # every rank's count, mean and sum of squares, combined in rank order
        mine = torch.cat((mean, m2, x.new_tensor([count])))
        everyone = _in_turn(allgather, "forward", channels, mine.view(1, -1))
        means, m2s = everyone[:, :channels], everyone[:, channels : 2 * channels]
        counts = everyone[:, -1:]
        total = counts.sum()
        if float(total) <= 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size %s on "
                "all ranks together" % (tuple(input.shape),)
            )
        mean = (means * counts).sum(0) / total
        var = (m2s + counts * (means - mean) ** 2).sum(0) / total
        if running_mean is not None:
            unbiased = var * (total / (total - 1))
            running_mean.mul_(1 - momentum).add_(mean.to(running_mean.dtype) * momentum)
            running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype) * momentum)
        invstd = torch.rsqrt(var + eps)
        normal = (x - mean.view(shape)) * invstd.view(shape)
        ctx.save_for_backward(input, weight, mean, invstd, total)
        if weight is not None:
            normal = normal * weight.to(wide).view(shape)
        if bias is not None:
            normal = normal + bias.to(wide).view(shape)
        return normal.to(input.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        input, weight, mean, invstd, total = ctx.saved_tensors
        dims, shape = _over(input)
        x = input.to(mean.dtype)
        dy = grad_output.to(mean.dtype)
        normal = (x - mean.view(shape)) * invstd.view(shape)
        sum_dy = dy.sum(dims)
        sum_dy_normal = (dy * normal).sum(dims)
        grad_input = grad_weight = grad_bias = None
        # every rank takes part, also one that needs no gradient of its input
        channels = sum_dy.numel()
        sums = _in_turn(allreduce, "backward", channels, torch.cat((sum_dy, sum_dy_normal)),
                        op=Sum)
        if ctx.needs_input_grad[0]:
            mean_dy = (sums[:channels] / total).view(shape)
            mean_dy_normal = (sums[channels:] / total).view(shape)
            grad_input = (dy - mean_dy - normal * mean_dy_normal) * invstd.view(shape)
            if weight is not None:
                grad_input = grad_input * weight.to(mean.dtype).view(shape)
            grad_input = grad_input.to(input.dtype)
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = sum_dy_normal.to(weight.dtype)
        if weight is not None and ctx.needs_input_grad[2]:
            grad_bias = sum_dy.to(weight.dtype)
        return grad_input, grad_weight, grad_bias, None, None, None, None
