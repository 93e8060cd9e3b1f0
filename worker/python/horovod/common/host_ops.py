"""Collectives of numpy arrays: what needs no framework, and the slow way of every framework."""

import ctypes

import numpy as np

from horovod import _native
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import late_error, queue_error
from horovod.common.objects import Parcel, unpack
from horovod.common.process_sets import global_process_set

_basics = HorovodBasics(__file__)

_DTYPES = {
    "uint8": _native.UINT8,
    "int8": _native.INT8,
    "uint16": _native.UINT16,
    "int16": _native.INT16,
    "int32": _native.INT32,
    "int64": _native.INT64,
    "float16": _native.FLOAT16,
    "bfloat16": _native.BFLOAT16,
    "float32": _native.FLOAT32,
    "float64": _native.FLOAT64,
    "bool": _native.BOOL,
}
#: types that libhvd does not know and that can be moved all the same
_MOVED = {"uint32": _native.INT32, "uint64": _native.INT64}
_MOVING = (_native.ALLGATHER, _native.BROADCAST, _native.ALLTOALL)


def dtype_number(name, kind):
    """libhvd's number of a numpy type; None when this kind of operation cannot have it."""
    number = _DTYPES.get(name)
    if number is None and kind in _MOVING:
        number = _MOVED.get(name)
    return number


def _member(kind, array):
    number = dtype_number(array.dtype.name, kind)
    if number is None:
        raise ValueError("type %s is not supported" % array.dtype.name)
    target = None
    if kind in (_native.ALLREDUCE, _native.BROADCAST):
        target = np.empty_like(array)
    member = (
        array.ctypes.data if array.size else 0,
        target.ctypes.data if target is not None and target.size else 0,
        target.nbytes if target is not None else 0,
        array.shape,
        number,
        _native.CPU,
        0,
        None,
    )
    return member, target


def _owned(handle, array):
    """Copy of a result that libhvd owns."""
    status, found = _native.result(handle)
    if status != _native.OK:
        raise late_error(status, _native.last_error())
    address, shape, _ = found
    result = np.empty(shape, array.dtype)
    if result.nbytes:
        ctypes.memmove(result.ctypes.data, address, result.nbytes)
    return result


def exchange(kind, arrays, names, reduce_op=_native.SUM, pset=0, root=0, prescale=1.0,
             postscale=1.0, splits=None, grouped=False):
    """The results of one operation for each array, in order.

    names    one for each array, or one for all with grouped; None: unnamed
    splits   alltoall: rows for every rank; (result, rows received) comes back then
    Raises what the framework modules raise: ValueError, HorovodInternalError.
    """
    arrays = [np.ascontiguousarray(a).reshape(np.shape(a)) for a in arrays]
    members = [_member(kind, a) for a in arrays]
    handles, error = [], None
    for batch, name in ([(members, names)] if grouped else
                        [([m], n) for m, n in zip(members, names)]):
        status, got = _native.enqueue(
            kind, _native.encode_name(name), [m for m, _ in batch], reduce_op, pset, root,
            prescale, postscale, splits, grouped,
        )
        if status != _native.OK:
            error = queue_error(status)
            break
        handles.extend(got)
    try:
        if handles:
            status = _native.wait(handles)
            if status != _native.OK and error is None:
                error = late_error(status, _native.handle_error(handles))
        if error is not None:
            raise error
        if kind == _native.ALLTOALL and splits is not None:
            received = _native.result_splits(handles[0], _set_size(pset))
            return [_owned(handles[0], arrays[0]), np.asarray(received, np.int32)]
        return [
            target if target is not None else _owned(handle, array)
            for handle, array, (_, target) in zip(handles, arrays, members)
        ]
    finally:
        _native.release(handles)


def _set_size(pset):
    return _basics.size() if pset == 0 else _basics._process_set_size(pset)


def join():
    """Say that this rank has no more data; the rank that joined last, when all have."""
    status, handles = _native.enqueue_join(-1)
    if status != _native.OK:
        raise queue_error(status)
    try:
        status = _native.wait(handles)
        if status != _native.OK:
            raise late_error(status, _native.handle_error(handles))
        return _native.lib.hvd_result_last_joined(handles[0])
    finally:
        _native.release(handles)


def set_id(process_set):
    """Id of a process set that is known to all ranks."""
    found = process_set.process_set_id
    if found is None:
        raise ValueError("%s is not known: hvd.add_process_set() comes first" % process_set)
    return found


def _part(name, suffix):
    return [None if name is None else str(name) + suffix]


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """root_rank's object on every rank, pickled on the way. Only for ranks you trust.

    ValueError on every rank, with the reason, when the root cannot pickle it.
    """
    pset = set_id(process_set)
    mine = Parcel(obj, root_rank) if _basics.rank() == root_rank else None
    size = np.array([mine.size if mine else 0], np.int64)
    size = exchange(_native.BROADCAST, [size], _part(name, ".sz"), pset=pset, root=root_rank)[0]
    data = np.frombuffer(mine.data, np.uint8) if mine else np.zeros(abs(int(size[0])), np.uint8)
    data = exchange(_native.BROADCAST, [data], _part(name, ".t"), pset=pset, root=root_rank)[0]
    if mine:
        mine.check()
        return obj
    return unpack(data.tobytes(), int(size[0]))


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks, as a list in rank order. Only for ranks you trust.

    ValueError on every rank, with the reason, when one cannot pickle its object.
    """
    pset = set_id(process_set)
    mine = Parcel(obj, _basics.rank())
    size, data = np.array([mine.size], np.int64), np.frombuffer(mine.data, np.uint8)
    sizes = exchange(_native.ALLGATHER, [size], _part(name, ".sz"), pset=pset)[0]
    everything = exchange(_native.ALLGATHER, [data], _part(name, ".t"), pset=pset)[0]
    mine.check()
    parts = np.split(everything, np.cumsum(np.abs(sizes))[:-1])
    return [unpack(part.tobytes(), size) for part, size in zip(parts, sizes)]
