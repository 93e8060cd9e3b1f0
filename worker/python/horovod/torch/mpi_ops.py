"""Collectives on torch tensors: asynchronous, in place, grouped, with gradients.

An operation is queued by one call into libhvd and never blocks; synchronize() waits. From
the queueing until then a table here keeps every tensor that libhvd reads or writes, so a
caller may drop its own references.

Gradients are Horovod's: those of allgather and broadcast are averaged over the ranks, and
that of a summing reducescatter is multiplied by their number. HVD_EXACT_GRADIENTS=1, or
exact_gradients(True), gives the mathematical ones of the sum of all ranks' losses, but for
Adasum, whose gradient stays the Adasum of the gradients.
"""

import ctypes
import weakref

import torch

from horovod import _native
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import (  # noqa: F401
    NOT_INITIALIZED,
    SHUT_DOWN,
    HorovodInternalError,
    late_error,
    queue_error,
)
from horovod.common.job import *  # noqa: F401,F403  size, rank, Average, ...
from horovod.common.job import basics as _basics
from horovod.common.process_sets import (  # noqa: F401
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.common.util import (
    env_bool,
    get_average_backwards_compatibility_fun,
    num_rank_is_power_2,
)
from horovod.torch.compression import Compression

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)


def init(*args, **kwargs):
    """Join the job; arguments as of HorovodBasics.init()."""
    _basics.init(*args, **kwargs)


def shutdown(*args, **kwargs):
    """Leave the job."""
    _basics.shutdown(*args, **kwargs)


_DTYPES = {
    torch.uint8: _native.UINT8,
    torch.int8: _native.INT8,
    torch.int16: _native.INT16,
    torch.int32: _native.INT32,
    torch.int64: _native.INT64,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.float32: _native.FLOAT32,
    torch.float64: _native.FLOAT64,
    torch.bool: _native.BOOL,
}
if hasattr(torch, "uint16"):
    _DTYPES[torch.uint16] = _native.UINT16
_TORCH_DTYPES = {number: dtype for dtype, number in _DTYPES.items()}

# A result smaller than this is copied out of libhvd's buffer: cheaper than owning it.
_COPY_BYTES = 32768

_exact = env_bool("HVD_EXACT_GRADIENTS")


def exact_gradients(enabled=True):
    """Choose between the mathematical gradients (True) and Horovod's (False, the default).

    The mathematical gradient is that of the sum of all ranks' losses; Adasum keeps Horovod's.
    Say the same on all ranks. Returns what was chosen before.
    """
    global _exact
    before = _exact
    _exact = bool(enabled)
    return before


# ---- pending operations


class _Pending:
    """Operations behind one handle of ours, and everything that must outlive them."""

    __slots__ = ("handles", "inputs", "finish", "stream_device", "dead")

    def __init__(self, handles, inputs, finish, stream_device):
        self.handles = handles
        self.inputs = inputs
        self.finish = finish
        self.stream_device = stream_device
        self.dead = None


_handle_map = {}


def _forget_pending():
    """After shutdown handles are stale: synchronize() must say so, not return None.

    Every operation has ended by then, so libhvd's handles and buffers are given back, also
    those that the program has dropped.
    """
    for pending in list(_handle_map.values()):
        _native.release(pending.handles)
        pending.handles = ()
        pending.inputs = pending.finish = None
        pending.dead = HorovodInternalError(SHUT_DOWN)


HorovodBasics._after_shutdown.append(_forget_pending)


# Buffers of libhvd that a tensor uses: freed when the tensor's storage is gone.
class _Buffer:
    """Memory of libhvd as an object that torch.frombuffer() accepts and keeps."""

    @staticmethod
    def of(address, size):
        array = (ctypes.c_ubyte * size).from_address(address)
        # no call at exit: tensors may still be alive then
        weakref.finalize(array, _native.lib.hvd_buffer_free, address).atexit = False
        return array


class _CudaBuffer:
    """Device memory of libhvd for torch.as_tensor()."""

    def __init__(self, address, nbytes):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }
        weakref.finalize(self, _native.lib.hvd_buffer_free, address).atexit = False


def _adopt(handle, like):
    """Tensor with a finished operation's result that libhvd holds."""
    status, found = _native.result(handle)
    if status != _native.OK:
        raise late_error(status, _native.last_error())
    address, shape, dtype = found
    count = 1
    for dim in shape:
        count *= dim
    if count == 0:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    size_bytes = count * like.element_size()
    if like.is_cuda:
        _, address = _native.result_take(handle)
        flat = torch.as_tensor(_CudaBuffer(address, size_bytes), device=like.device)
        return flat.view(_TORCH_DTYPES[dtype]).view(shape)
    if size_bytes < _COPY_BYTES:
        out = torch.empty(shape, dtype=like.dtype)
        ctypes.memmove(out.data_ptr(), address, size_bytes)
        return out
    status, address = _native.result_take(handle)
    if status != _native.OK:
        raise late_error(status, _native.last_error())
    return torch.frombuffer(_Buffer.of(address, size_bytes), dtype=like.dtype).view(shape)


# ---- queueing


def _type_name(tensor):
    return tensor.type() if isinstance(tensor, torch.Tensor) else type(tensor).__name__


def _check(tensor):
    """ValueError unless libhvd can take this tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError("Tensor type %s is not supported." % _type_name(tensor))
    if tensor.layout is not torch.strided or tensor.dtype not in _DTYPES:
        raise ValueError("Tensor type %s is not supported." % _type_name(tensor))
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError("Tensors on device %s are not supported." % tensor.device)


def _check_function(function_factory, tensor):
    """Kept for programs that call it: checks the type, returns the operation's name."""
    _check(tensor)
    return function_factory(tensor)


def _allreduce_function_factory(tensor):
    return "allreduce." + _type_name(tensor)


def _grouped_allreduce_function_factory(tensor):
    return "grouped_allreduce." + _type_name(tensor)


def _allgather_function_factory(tensor):
    return "allgather." + _type_name(tensor)


def _grouped_allgather_function_factory(tensor):
    return "grouped_allgather." + _type_name(tensor)


def _broadcast_function_factory(tensor):
    return "broadcast." + _type_name(tensor)


def _alltoall_function_factory(tensor):
    return "alltoall." + _type_name(tensor)


def _reducescatter_function_factory(tensor):
    return "reducescatter." + _type_name(tensor)


def _grouped_reducescatter_function_factory(tensor):
    return "grouped_reducescatter." + _type_name(tensor)


def _full_name(kind, name):
    """Horovod's name of an operation; None: unnamed, matched by count."""
    return None if name is None else _native.encode_name("%s.%s" % (kind, name))


def _set_id(process_set):
    found = process_set.process_set_id
    if found is None:
        raise ValueError(
            "%s is not registered; give it to hvd.init() or hvd.add_process_set()"
            % process_set
        )
    return found


def _stream(tensor):
    """Handle of the CUDA stream that the tensor's contents come from."""
    return torch.cuda.current_stream(tensor.device).cuda_stream


def _member(source, target, capacity=0):
    """One operation as _native.pack_ops() wants it."""
    where, device_id, stream = _native.CPU, 0, None
    if source.is_cuda:
        where, device_id, stream = _native.CUDA, source.get_device(), _stream(source)
    return (
        source.data_ptr(),
        0 if target is None else target.data_ptr(),
        capacity,
        source.shape,
        _DTYPES[source.dtype],
        where,
        device_id,
        stream,
    )


def _queue(kind, name, members, inputs, finish, grouped=False, **options):
    """Queue members; returns our handle."""
    status, handles = _native.enqueue(kind, name, members, grouped=grouped, **options)
    if status != _native.OK:
        raise queue_error(status)
    return _keep(handles, inputs, finish)


def _keep(handles, inputs, finish):
    device = next(
        (t.device for t in inputs if isinstance(t, torch.Tensor) and t.is_cuda), None
    )
    _handle_map[handles[0]] = _Pending(handles, inputs, finish, device)
    return handles[0]


def _nothing(result):
    """Handle of a group without members, done at once with this result."""
    global _empty_groups
    _empty_groups -= 1
    _handle_map[_empty_groups] = _Pending((), (), lambda handles: result, None)
    return _empty_groups


_empty_groups = 0


def poll(handle):
    """Is the operation done, so that synchronize() will not wait?"""
    pending = _handle_map.get(handle)
    if pending is None:
        raise ValueError("Handle %s was not created or has been cleared." % (handle,))
    return all(_native.lib.hvd_poll(h) != _native.INPROGRESS for h in pending.handles)


def synchronize(handle):
    """Wait for an operation; its result. None for a handle that was synchronized before.

    HorovodInternalError when the operation failed.
    """
    pending = _handle_map.get(handle)
    if pending is None:
        return None
    if pending.dead is not None:
        del _handle_map[handle]
        raise pending.dead
    device = pending.stream_device
    if device is None:
        status = _native.wait(pending.handles) if pending.handles else _native.OK
    else:
        status = _native.wait(pending.handles, _native.WAIT_ENQUEUED)
        if status == _native.OK:
            stream = torch.cuda.current_stream(device).cuda_stream
            for one in pending.handles:
                status = _native.lib.hvd_stream_wait(one, stream)
    try:
        if status != _native.OK:
            raise late_error(status, _native.handle_error(pending.handles))
        return pending.finish(pending.handles)
    finally:
        _native.release(pending.handles)
        _handle_map.pop(handle, None)


def _scales(prescale_factor, postscale_factor):
    """(prescale, postscale, result is zero): for libhvd the factor 0 means 1."""
    zero = prescale_factor == 0 or postscale_factor == 0
    return prescale_factor or 1.0, postscale_factor or 1.0, zero


def _check_adasum(op, process_set):
    if op != Adasum:
        return
    if not num_rank_is_power_2(size()):
        raise NotImplementedError(
            "Running Adasum with non-power of 2 ranks is not supported yet."
        )
    if process_set is not global_process_set and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")


def _reduce_async(tensors, outputs, name, op, prescale_factor, postscale_factor, process_set,
                  grouped):
    """Allreduce tensors into outputs, which may be the same; the handle."""
    _check_adasum(op, process_set)
    prescale, postscale, zero = _scales(prescale_factor, postscale_factor)
    members, keep, moved = [], [], []
    for tensor, output in zip(tensors, outputs):
        _check(tensor)
        source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        target = output
        if not output.is_contiguous():
            target = source if output is tensor else torch.empty_like(source)
            moved.append((output, target))
        members.append(_member(source, target))
        keep += (source, target)

    def finish(handles):
        with torch.no_grad():
            for output, target in moved:
                output.copy_(target)
            if zero:
                for output in outputs:
                    output.zero_()
        return outputs if grouped else outputs[0]

    if not members:
        return _nothing(outputs)
    return _queue(_native.ALLREDUCE, _full_name("allreduce", name), members, keep, finish,
                  grouped, reduce_op=op, pset=_set_id(process_set), prescale=prescale,
                  postscale=postscale)


def _like(tensor):
    """A contiguous tensor of the same shape for a result."""
    _check(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


# ---- allreduce


def _allreduce_async(tensor, output, name, op, prescale_factor, postscale_factor, process_set):
    return _reduce_async([tensor], [output], name, op, prescale_factor, postscale_factor,
                         process_set, grouped=False)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                    postscale_factor=1.0, process_set=global_process_set):
    """Start to reduce tensor over the ranks; a handle for poll() and synchronize().

    average  deprecated: True for op=Average, False for op=Sum
    name     equal on all ranks; None: the k-th unnamed one matches the k-th elsewhere
    op       Average (default), Sum, Adasum, Min, Max or Product
    prescale_factor, postscale_factor  multiplied in before and after the reduction
    """
    op = handle_average_backwards_compatibility(op, average)
    return _allreduce_async(tensor, _like(tensor), name, op, prescale_factor,
                            postscale_factor, process_set)


class HorovodAllreduce(torch.autograd.Function):
    """allreduce with its gradient: the same reduction of the gradients."""

    @staticmethod
    def forward(ctx, tensor, average, name, op, prescale_factor, postscale_factor, process_set):
        op = handle_average_backwards_compatibility(op, average)
        ctx.op = op
        ctx.factors = (prescale_factor, postscale_factor)
        ctx.process_set = process_set
        ctx.exact = _exact
        handle = allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor,
                                 process_set)
        output = synchronize(handle)
        if _selects(ctx):
            ctx.save_for_backward(tensor, output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        if _selects(ctx):
            grad = _exact_grad(ctx, grad_output, *ctx.saved_tensors)
        else:
            grad = allreduce(grad_output, op=ctx.op, prescale_factor=ctx.factors[0],
                             postscale_factor=ctx.factors[1], process_set=ctx.process_set)
        return grad, None, None, None, None, None, None


def _selects(ctx):
    """Is the gradient another one than the same reduction of the gradients?"""
    return ctx.exact and ctx.op in (Min, Max, Product)


def _exact_grad(ctx, grad_output, tensor, output):
    """Gradients of Min, Max and Product."""
    pre, post = ctx.factors
    total = allreduce(grad_output, op=Sum, process_set=ctx.process_set)
    if ctx.op == Product:
        n = ctx.process_set.size()
        return total * output / torch.where(tensor == 0, torch.ones_like(tensor), tensor) * (
            (tensor != 0).to(tensor.dtype)
        ) + _zero_factor_grad(ctx, total, tensor, pre, post, n)
    # equal extremes share the gradient; asked without factors, whose rounding could differ
    signed = tensor.detach() if pre >= 0 else -tensor.detach()
    extreme = allreduce(signed, op=ctx.op, process_set=ctx.process_set)
    mine = (signed == extreme).to(total.dtype)
    ties = allreduce(mine, op=Sum, process_set=ctx.process_set)
    return total * mine / torch.where(ties == 0, torch.ones_like(ties), ties) * (pre * post)


def _zero_factor_grad(ctx, total, tensor, pre, post, n):
    """Gradient of a product where this rank's factor is 0: the product of the others."""
    zeros = allreduce((tensor == 0).to(total.dtype), op=Sum, process_set=ctx.process_set)
    others = allreduce(torch.where(tensor == 0, torch.ones_like(tensor), tensor), op=Product,
                       process_set=ctx.process_set)
    alone = (tensor == 0) & (zeros == 1)
    return torch.where(alone, total * others * (pre**n * post), torch.zeros_like(total))


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """The reduction of tensor over the ranks, as a new tensor with a gradient.

    Arguments as of allreduce_async(); compression says how the tensor travels.
    """
    op = handle_average_backwards_compatibility(op, average)
    compressed, ctx = compression.compress(tensor)
    reduced = HorovodAllreduce.apply(compressed, None, name, op, prescale_factor,
                                     postscale_factor, process_set)
    return compression.decompress(reduced, ctx)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
                     postscale_factor=1.0, process_set=global_process_set):
    """As allreduce_async(), in place."""
    op = handle_average_backwards_compatibility(op, average)
    return _allreduce_async(tensor, tensor, name, op, prescale_factor, postscale_factor,
                            process_set)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0,
               postscale_factor=1.0, process_set=global_process_set):
    """As allreduce(), in place and without a gradient."""
    op = handle_average_backwards_compatibility(op, average)
    return synchronize(
        allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    )


def _grouped_allreduce_async(tensors, outputs, name, op, prescale_factor, postscale_factor,
                             process_set):
    return _reduce_async(tensors, outputs, name, op, prescale_factor, postscale_factor,
                         process_set, grouped=True)


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                            postscale_factor=1.0, process_set=global_process_set):
    """Start to reduce all tensors of a list as one: none before every rank has all."""
    op = handle_average_backwards_compatibility(op, average)
    tensors = list(tensors)
    return _grouped_allreduce_async(tensors, [_like(t) for t in tensors], name, op,
                                    prescale_factor, postscale_factor, process_set)


class HorovodGroupedAllreduce(torch.autograd.Function):
    """grouped_allreduce with its gradient."""

    @staticmethod
    def forward(ctx, average, name, op, prescale_factor, postscale_factor, process_set,
                *tensors):
        op = handle_average_backwards_compatibility(op, average)
        ctx.op = op
        ctx.factors = (prescale_factor, postscale_factor)
        ctx.process_set = process_set
        ctx.exact = _exact
        handle = grouped_allreduce_async(list(tensors), None, name, op, prescale_factor,
                                         postscale_factor, process_set)
        outputs = tuple(synchronize(handle))
        if _selects(ctx):
            ctx.save_for_backward(*tensors, *outputs)
        return outputs

    @staticmethod
    def backward(ctx, *grad_output):
        if _selects(ctx):
            tensors = ctx.saved_tensors[: len(grad_output)]
            outputs = ctx.saved_tensors[len(grad_output) :]
            reduced = [_exact_grad(ctx, *one) for one in zip(grad_output, tensors, outputs)]
        else:
            reduced = grouped_allreduce(
                list(grad_output), op=ctx.op, prescale_factor=ctx.factors[0],
                postscale_factor=ctx.factors[1], process_set=ctx.process_set,
            )
        return (None, None, None, None, None, None, *reduced)


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0,
                      process_set=global_process_set):
    """The reductions of all tensors of a list, as a list of new tensors."""
    op = handle_average_backwards_compatibility(op, average)
    compressed = [compression.compress(t) for t in tensors]
    if not compressed:
        return []
    reduced = HorovodGroupedAllreduce.apply(None, name, op, prescale_factor, postscale_factor,
                                            process_set, *[t for t, _ in compressed])
    return [compression.decompress(t, ctx) for t, (_, ctx) in zip(reduced, compressed)]


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                             postscale_factor=1.0, process_set=global_process_set):
    """As grouped_allreduce_async(), in place."""
    op = handle_average_backwards_compatibility(op, average)
    tensors = list(tensors)
    return _grouped_allreduce_async(tensors, tensors, name, op, prescale_factor,
                                    postscale_factor, process_set)


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0,
                       postscale_factor=1.0, process_set=global_process_set):
    """As grouped_allreduce(), in place and without a gradient."""
    op = handle_average_backwards_compatibility(op, average)
    return synchronize(
        grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor,
                                 process_set)
    )


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Start to sum or average a sparse tensor; a function that waits and returns it.

    Indices and values of all ranks are gathered, so the result holds every rank's entries.
    """
    if op not in (Average, Sum):
        raise NotImplementedError("sparse allreduce supports op=Average and op=Sum only")
    tensor = tensor.detach().coalesce()
    shape = tensor.size()
    # the two gathers travel together, so no other rank sees one without the other
    name = None if name is None else str(name)
    indices = tensor.indices().transpose(0, 1).contiguous()
    values = tensor.values().contiguous()
    indices_handle = allgather_async(indices, None if name is None else name + "_indices",
                                     process_set=process_set)
    values_handle = allgather_async(values, None if name is None else name + "_values",
                                    process_set=process_set)

    def handle():
        all_values = synchronize(values_handle)
        all_indices = synchronize(indices_handle)
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(
            all_indices.transpose(0, 1), all_values.to(tensor.dtype), shape
        ).coalesce()

    return handle


# ---- allgather


def _gather_async(tensors, name, process_set, grouped):
    members, keep = [], []
    for tensor in tensors:
        _check(tensor)
        source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        members.append(_member(source, None))
        keep.append(source)

    def finish(handles):
        found = [_adopt(handle, like) for handle, like in zip(handles, keep)]
        return found if grouped else found[0]

    if not members:
        return _nothing([])
    return _queue(_native.ALLGATHER, _full_name("allgather", name), members, keep, finish,
                  grouped, pset=_set_id(process_set))


def _allgather_async(tensor, output, name, process_set):
    return _gather_async([tensor], name, process_set, grouped=False)


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Start to put the tensors of all ranks after one another; a handle.

    First dimensions may differ between ranks, all others must be equal.
    """
    return _allgather_async(tensor, None, name, process_set)


class HorovodAllgather(torch.autograd.Function):
    """allgather with its gradient: this rank's rows of the reduced gradient."""

    @staticmethod
    def forward(ctx, tensor, name, process_set):
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        ctx.process_set = process_set
        ctx.exact = _exact
        return synchronize(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx, grad_output):
        op = Sum if ctx.exact else Average
        reduced = allreduce(grad_output, op=op, process_set=ctx.process_set)
        return _own_rows(reduced, _all_rows(ctx.rows, ctx.process_set), ctx), None, None


def _all_rows(rows, process_set):
    """Rows of every rank of the set."""
    counts = torch.tensor([rows], dtype=torch.int64)
    return synchronize(allgather_async(counts, process_set=process_set)).tolist()


def _own_rows(reduced, counts, ctx):
    me = ctx.process_set.rank()
    first = sum(counts[:me])
    return reduced[first : first + counts[me]]


def allgather(tensor, name=None, process_set=global_process_set):
    """The tensors of all ranks after one another, in rank order, with a gradient."""
    return HorovodAllgather.apply(tensor, name, process_set)


def _grouped_allgather_async(tensors, outputs, name, process_set):
    return _gather_async(tensors, name, process_set, grouped=True)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """Start to gather all tensors of a list as one; a handle."""
    return _grouped_allgather_async(list(tensors), None, name, process_set)


class HorovodGroupedAllgather(torch.autograd.Function):
    """grouped_allgather with its gradient."""

    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        ctx.rows = [t.shape[0] if t.dim() else 0 for t in tensors]
        ctx.process_set = process_set
        ctx.exact = _exact
        return tuple(synchronize(grouped_allgather_async(list(tensors), name, process_set)))

    @staticmethod
    def backward(ctx, *grad_output):
        op = Sum if ctx.exact else Average
        reduced = grouped_allreduce(list(grad_output), op=op, process_set=ctx.process_set)
        rows = torch.tensor([ctx.rows], dtype=torch.int64)
        counts = synchronize(allgather_async(rows, process_set=ctx.process_set))
        own = [_own_rows(r, counts[:, i].tolist(), ctx) for i, r in enumerate(reduced)]
        return (None, None, *own)


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """The gathered tensors of a list, as a list."""
    tensors = list(tensors)
    if not tensors:
        return []
    return list(HorovodGroupedAllgather.apply(name, process_set, *tensors))


# ---- broadcast


def _broadcast_async(tensor, output, root_rank, name, process_set):
    _check(tensor)
    source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    target = output
    if not output.is_contiguous():
        target = source if output is tensor else torch.empty_like(source)

    def finish(handles):
        if target is not output:
            with torch.no_grad():
                output.copy_(target)
        return output

    return _queue(_native.BROADCAST, _full_name("broadcast", name),
                  [_member(source, target)], (source, target, output), finish,
                  pset=_set_id(process_set), root=root_rank)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Start to give every rank root_rank's tensor; a handle. root_rank is a global rank."""
    return _broadcast_async(tensor, _like(tensor), root_rank, name, process_set)


class HorovodBroadcast(torch.autograd.Function):
    """broadcast with its gradient: the reduced gradient on the root, zero elsewhere."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        ctx.exact = _exact
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, grad_output):
        op = Sum if ctx.exact else Average
        reduced = allreduce(grad_output, op=op, process_set=ctx.process_set)
        if rank() != ctx.root_rank:
            reduced = reduced * 0
        return reduced, None, None, None


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """root_rank's tensor on every rank, as a new tensor with a gradient."""
    return HorovodBroadcast.apply(tensor, root_rank, name, process_set)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast_async(), in place."""
    return _broadcast_async(tensor, tensor, root_rank, name, process_set)


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """As broadcast(), in place and without a gradient."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def _broadcast_group_async_(tensors, root_rank, name, process_set):
    """Broadcast a list of tensors in place as one operation."""
    members, keep, moved = [], [], []
    for tensor in tensors:
        _check(tensor)
        target = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        if target is not tensor:
            moved.append((tensor, target))
        members.append(_member(target, target))
        keep.append(target)

    def finish(handles):
        with torch.no_grad():
            for tensor, target in moved:
                tensor.copy_(target)
        return tensors

    if not members:
        return _nothing(tensors)
    return _queue(_native.BROADCAST, _full_name("broadcast", name), members, keep, finish,
                  grouped=True, pset=_set_id(process_set), root=root_rank)


# ---- alltoall


def _alltoall_async(tensor, splits, output, output_received_splits, name, process_set):
    _check(tensor)
    counts = None
    if splits is not None:
        if isinstance(splits, torch.Tensor):
            if splits.is_floating_point() or splits.dtype == torch.bool:
                raise ValueError("splits are whole numbers, not %s" % splits.dtype)
            if splits.dim() != 1:
                raise ValueError("splits have one dimension, not %d" % splits.dim())
            counts = splits.detach().tolist()
        else:
            counts = [int(n) for n in splits]
        if not counts:
            counts = None
    source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    pset = _set_id(process_set)

    def finish(handles):
        found = _adopt(handles[0], source)
        if splits is None:
            return found
        received = _native.result_splits(handles[0], _basics._process_set_size(pset))
        kind = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
        where = splits.device if isinstance(splits, torch.Tensor) else None
        return found, torch.tensor(received, dtype=kind, device=where)

    return _queue(_native.ALLTOALL, _full_name("alltoall", name), [_member(source, None)],
                  (source,), finish, pset=pset, splits=counts)


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Start to send rows to every rank; a handle.

    splits  rows for every rank, a one-dimensional tensor of whole numbers; None: the same
            number for all. With splits the result is (tensor, received splits).
    """
    return _alltoall_async(tensor, splits, None, None, name, process_set)


class HorovodAlltoall(torch.autograd.Function):
    """alltoall with its gradient: every row's gradient goes back where it came from."""

    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        ctx.process_set = process_set
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        ctx.sent = None
        if splits is None:
            ctx.received = None
            return synchronize(alltoall_async(tensor, None, name, process_set))
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received = received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, grad_output, *dead_gradients):
        if ctx.received is None:
            grad = alltoall(grad_output, process_set=ctx.process_set)
        else:
            grad, _ = alltoall(grad_output, ctx.received, process_set=ctx.process_set)
        if grad.shape[0] < ctx.rows:
            # rows behind the splits went nowhere
            rest = grad.new_zeros((ctx.rows - grad.shape[0],) + tuple(grad.shape[1:]))
            grad = torch.cat((grad, rest))
        return grad, None, None, None


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Rows from every rank, in rank order; with splits (tensor, received splits)."""
    return HorovodAlltoall.apply(tensor, splits, name, process_set)


# ---- reducescatter


def _scatter_rows(rows, members, place):
    """Rows of the result: the first rows % members ranks have one more."""
    each, more = divmod(rows, members)
    return each + (1 if place < more else 0)


def _scatter_async(tensors, name, op, process_set, prescale_factor, postscale_factor, grouped):
    if op not in (Average, Sum):
        raise NotImplementedError("reducescatter supports op=Average and op=Sum only")
    pset = _set_id(process_set)
    prescale, postscale, zero = _scales(prescale_factor, postscale_factor)
    members, keep, outputs = [], [], []
    for tensor in tensors:
        _check(tensor)
        source = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        shape = list(source.shape)
        if shape:
            ranks = _basics._process_set_size(pset)
            shape[0] = _scatter_rows(shape[0], ranks, _basics._process_set_rank(pset))
        output = torch.empty(shape, dtype=source.dtype, device=source.device)
        members.append(
            _member(source, output, output.numel() * output.element_size())
            if output.numel()
            else _member(source, None)
        )
        keep += (source, output)
        outputs.append(output)

    def finish(handles):
        if zero:
            for output in outputs:
                output.zero_()
        return outputs if grouped else outputs[0]

    if not members:
        return _nothing([])
    return _queue(_native.REDUCESCATTER, _full_name("reducescatter", name), members, keep,
                  finish, grouped, reduce_op=op, pset=pset, prescale=prescale,
                  postscale=postscale)


def _reducescatter_async(tensor, output, name, op, process_set, prescale_factor,
                         postscale_factor):
    return _scatter_async([tensor], name, op, process_set, prescale_factor, postscale_factor,
                          grouped=False)


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set,
                        prescale_factor=1.0, postscale_factor=1.0):
    """Start to reduce tensor and give every rank its share of the rows; a handle.

    op  Average or Sum
    """
    return _reducescatter_async(tensor, None, name, op, process_set, prescale_factor,
                                postscale_factor)


def _scatter_factor(ctx):
    """What Horovod's gradient of reducescatter multiplies the gathered gradient with."""
    n = ctx.process_set.size()
    factor = ctx.factors[0] * ctx.factors[1]
    if ctx.exact:
        return factor if ctx.op == Sum else factor / n
    return factor * n if ctx.op == Sum else factor


class HorovodReducescatter(torch.autograd.Function):
    """reducescatter with its gradient: the gathered gradient."""

    @staticmethod
    def forward(ctx, tensor, name, op, process_set, prescale_factor, postscale_factor):
        ctx.op = op
        ctx.process_set = process_set
        ctx.factors = (prescale_factor, postscale_factor)
        ctx.exact = _exact
        return synchronize(
            reducescatter_async(tensor, name, op, process_set, prescale_factor,
                                postscale_factor)
        )

    @staticmethod
    def backward(ctx, grad_output):
        grad = allgather(grad_output, process_set=ctx.process_set) * _scatter_factor(ctx)
        return grad, None, None, None, None, None


def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's share of the rows of the reduction, as a new tensor with a gradient."""
    compressed, ctx = compression.compress(tensor)
    reduced = HorovodReducescatter.apply(compressed, name, op, process_set, prescale_factor,
                                         postscale_factor)
    return compression.decompress(reduced, ctx)


def _grouped_reducescatter_async(tensors, outputs, name, op, process_set, prescale_factor,
                                 postscale_factor):
    return _scatter_async(tensors, name, op, process_set, prescale_factor, postscale_factor,
                          grouped=True)


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set,
                                prescale_factor=1.0, postscale_factor=1.0):
    """Start a reducescatter of all tensors of a list as one; a handle."""
    return _grouped_reducescatter_async(list(tensors), None, name, op, process_set,
                                        prescale_factor, postscale_factor)


class HorovodGroupedReducescatter(torch.autograd.Function):
    """grouped_reducescatter with its gradient."""

    @staticmethod
    def forward(ctx, name, op, process_set, prescale_factor, postscale_factor, *tensors):
        ctx.op = op
        ctx.process_set = process_set
        ctx.factors = (prescale_factor, postscale_factor)
        ctx.exact = _exact
        handle = grouped_reducescatter_async(list(tensors), name, op, process_set,
                                             prescale_factor, postscale_factor)
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx, *grad_output):
        gathered = grouped_allgather(list(grad_output), process_set=ctx.process_set)
        factor = _scatter_factor(ctx)
        return (None, None, None, None, None, *[g * factor for g in gathered])


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    """The shares of all tensors of a list, as a list."""
    compressed = [compression.compress(t) for t in tensors]
    if not compressed:
        return []
    reduced = HorovodGroupedReducescatter.apply(name, op, process_set, prescale_factor,
                                                postscale_factor, *[t for t, _ in compressed])
    return [compression.decompress(t, ctx) for t, (_, ctx) in zip(reduced, compressed)]


# ---- join, barrier


def join(device=-1):
    """Say that this rank has no more data; returns when all ranks have, with the last one.

    Until then this rank takes part in the others' allreduces with zeros.
    device  GPU to use for that; -1: the CPU
    """
    status, handles = _native.enqueue_join(device)
    if status != _native.OK:
        raise queue_error(status)
    return synchronize(
        _keep(handles, (), lambda done: _native.lib.hvd_result_last_joined(done[0]))
    )


def barrier(process_set=global_process_set):
    """Return when every rank of the set has called this."""
    status, handles = _native.enqueue_barrier(_set_id(process_set))
    if status != _native.OK:
        raise queue_error(status)
    synchronize(_keep(handles, (), lambda done: None))
