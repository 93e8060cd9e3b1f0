"""Collectives on more than tensors: models, optimizers, any Python object."""

import collections

import torch

from horovod.common.objects import Parcel, unpack
from horovod.common.process_sets import global_process_set
from horovod.torch import mpi_ops
from horovod.torch.mpi_ops import allgather, allgather_async, broadcast_, rank, synchronize

# Tensors of one broadcast travel as groups of at most this many and of about these bytes.
_GROUP_TENSORS = 1024
_GROUP_BYTES = 64 << 20


def _broadcast_tensors(tensors, root_rank, name, process_set=global_process_set):
    """Broadcast tensors in place, many at a time."""
    handles, group, group_bytes = [], [], 0

    def send():
        if group:
            handles.append(
                mpi_ops._broadcast_group_async_(
                    list(group), root_rank, "%s.%d" % (name, len(handles)), process_set
                )
            )
            group.clear()

    for tensor in tensors:
        group.append(tensor)
        group_bytes += tensor.numel() * tensor.element_size()
        if len(group) >= _GROUP_TENSORS or group_bytes >= _GROUP_BYTES:
            send()
            group_bytes = 0
    send()
    error = None
    for handle in handles:
        try:
            synchronize(handle)
        except mpi_ops.HorovodInternalError as failed:
            error = error or failed
    if error is not None:
        raise error


def broadcast_parameters(params, root_rank):
    """Give every rank root_rank's parameters, in place.

    params  model.state_dict(), model.named_parameters(), or a list of tensors or of
            (name, tensor); entries that are no tensors are left alone
    """
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif isinstance(params, (str, bytes, torch.Tensor)) or not hasattr(params, "__iter__"):
        raise ValueError("invalid params of type: %s" % type(params))
    else:
        pairs = [p if isinstance(p, tuple) else (None, p) for p in params]
    tensors = [p for _, p in pairs if isinstance(p, torch.Tensor)]
    _broadcast_tensors([t.data for t in tensors], root_rank, "parameters")


class _Place:
    """Stands for the n-th tensor in a state that travels without its tensors."""

    __slots__ = ("index", "shape", "dtype")

    def __init__(self, index, shape, dtype):
        self.index = index
        self.shape = shape
        self.dtype = dtype


def _take_tensors(value, tensors):
    """The same nest of dicts, lists and tuples with every tensor replaced by a _Place."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return type(value)((k, _take_tensors(v, tensors)) for k, v in value.items()) if type(
            value
        ) in (dict, collections.OrderedDict) else {
            k: _take_tensors(v, tensors) for k, v in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(_take_tensors(v, tensors) for v in value)
    return value


def _put_tensors(value, tensors):
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return type(value)((k, _put_tensors(v, tensors)) for k, v in value.items())
    if type(value) in (list, tuple):
        return type(value)(_put_tensors(v, tensors) for v in value)
    return value


def _places(value):
    """Every _Place in a state, by index."""
    found, left = {}, [value]
    while left:
        one = left.pop()
        if isinstance(one, _Place):
            found[one.index] = one
        elif isinstance(one, dict):
            left.extend(one.values())
        elif type(one) in (list, tuple):
            left.extend(one)
    return [found[i] for i in range(len(found))]


def broadcast_optimizer_state(optimizer, root_rank, model=None):
    """Give every rank root_rank's optimizer state: momenta, step counts, learning rates.

    No optimizer step is made for that, so weights stay as they are; other ranks may have no
    state yet. LBFGS keeps its history in a form that cannot be broadcast: ValueError.
    model is not needed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    mine = rank() == root_rank
    tensors, skeleton = [], None
    if mine:
        skeleton = _take_tensors(optimizer.state_dict(), tensors)
    skeleton = broadcast_object(skeleton, root_rank, name="optimizer_state")
    if mine:
        sent = [t if t.is_contiguous() else t.contiguous() for t in tensors]
    else:
        sent = [torch.empty(p.shape, dtype=p.dtype) for p in _places(skeleton)]
    on_cpu = [t.cpu() if t.device.type not in ("cpu", "cuda") else t for t in sent]
    if mine:
        # what the root sends stays on its device; the others receive on the CPU
        on_cpu = [t.cpu() for t in on_cpu]
    _broadcast_tensors(on_cpu, root_rank, "optimizer_state")
    if not mine:
        optimizer.load_state_dict(_put_tensors(skeleton, on_cpu))


def _bytes_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(tensor):
    return tensor.numpy().tobytes() if _has_numpy else bytes(tensor.tolist())


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """root_rank's object on every rank, pickled on the way. Only for ranks you trust.

    name  equal on all ranks; None: matched by order
    ValueError on every rank, with the reason, when the root cannot pickle it.
    """
    mine = Parcel(obj, root_rank) if rank() == root_rank else None
    size = torch.tensor([mine.size if mine else 0], dtype=torch.int64)
    name = None if name is None else str(name)
    broadcast_(size, root_rank, name and name + ".sz", process_set)
    data = _bytes_tensor(mine.data) if mine else torch.empty(abs(int(size)), dtype=torch.uint8)
    broadcast_(data, root_rank, name and name + ".t", process_set)
    if mine:
        mine.check()
        return obj
    return unpack(_bytes(data), int(size))


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks, as a list in rank order. Only for ranks you trust.

    ValueError on every rank, with the reason, when one cannot pickle its object.
    """
    mine = Parcel(obj, rank())
    size = torch.tensor([mine.size], dtype=torch.int64)
    name = None if name is None else str(name)
    sizes = allgather(size, name and name + ".sz", process_set).tolist()
    everything = synchronize(
        allgather_async(_bytes_tensor(mine.data), name and name + ".t", process_set)
    )
    mine.check()
    parts = everything.split([abs(size) for size in sizes])
    return [unpack(_bytes(part), size) for part, size in zip(parts, sizes)]


def _numpy_works():
    try:
        torch.zeros(1).numpy()
    except Exception:
        return False
    return True


_has_numpy = _numpy_works()
