"""libhvd through ctypes: finding it, its prototypes, packed operations, waiting.

Everything that the framework bindings share and that knows the C API lives here. The
only source is ``hvd/hvd.h``; ``tests/python/test_native.py`` compares the layouts below
with that header.

Threads: every function may be called from any thread. ``ctypes.CDLL`` gives the
interpreter lock back during a call, so waiting never stops other Python threads.
"""

import ctypes
import os
import shutil
import struct
import threading
from functools import lru_cache

ABI_VERSION = 1

# enum hvd_status
OK = 0
INPROGRESS = 1
EINVAL = -1
ENOMEM = -2
ESTATE = -3
EMISMATCH = -4
EDUPLICATE = -5
ETIMEDOUT = -6
EPEER = -7
ESHUTDOWN = -8
EIO = -10
EUNSUPPORTED = -11
EFORKED = -13
EINTR = -14
EHANDLE = -18

# enum hvd_dtype
UINT8, INT8, UINT16, INT16, INT32, INT64 = 1, 2, 3, 4, 5, 6
FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BOOL = 7, 8, 9, 10, 11

# enum hvd_kind
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER = 1, 2, 3, 4, 5, 6

# enum hvd_reduce_op: Horovod's numbers
AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = 0, 1, 2, 3, 4, 5

CPU, CUDA = 0, 1
WAIT_DONE, WAIT_ENQUEUED = 0, 1
READY_NONE, READY_CUSTREAM = 0, 1
STATE_UP = 1

GROUP_MAX = 4096
NAME_MAX = 1023

# A wait is cut into slices, so that Ctrl-C works also where the signal went to another
# thread or came just before the wait.
_SLICE_MS = 500


class Tensor(ctypes.Structure):
    """struct hvd_tensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    ]


class Config(ctypes.Structure):
    """struct hvd_config"""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("nsets", ctypes.c_int32),
        ("set_ranks", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("set_sizes", ctypes.POINTER(ctypes.c_int32)),
        ("start_timeout_ms", ctypes.c_int64),
        ("ranks", ctypes.POINTER(ctypes.c_int32)),
        ("nranks", ctypes.c_int32),
    ]


class Stats(ctypes.Structure):
    """struct hvd_stats"""

    _fields_ = [("size", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in (
            "ops_enqueued",
            "ops_completed",
            "ops_failed",
            "groups_run",
            "bytes_reduced",
            "cache_hits",
            "cache_misses",
            "cache_evictions",
        )
    ]


#: struct hvd_op, in the order of the header: size kind reduce_op pset root priority, name,
#: prescale postscale, in (data dims ndim dtype device device_id), out (the same),
#: out_capacity_bytes, splits nsplits, ready (kind object), done alloc arg
OP = struct.Struct("=IiiiiiQddQQiiiiQQiiiiQQi4xi4xQQQQ")
OP_SIZE = OP.size
OP_IN_DATA = 48
OP_OUT_DATA = 80
OP_READY_OBJECT = 144


def _candidates():
    """Where the library may be, best first: (path, may be absent)."""
    name = "libhvd.so.%d" % ABI_VERSION
    chosen = os.environ.get("HVD_LIBRARY")
    if chosen:
        return [(chosen, False)]
    found = [(os.path.join(os.path.dirname(__file__), "_dist", "lib", name), True)]
    launcher = shutil.which("hvdrun")
    if launcher:
        root = os.path.dirname(os.path.dirname(os.path.realpath(launcher)))
        found.append((os.path.join(root, "lib", name), True))
    found.append((name, False))
    return found


def _open():
    tried = []
    for path, optional in _candidates():
        if optional and not os.path.exists(path):
            tried.append("%s: not there" % path)
            continue
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            tried.append(str(error))
    raise ImportError(
        "horovod: the library libhvd cannot be loaded; set HVD_LIBRARY to its path, or "
        "install the wheel 'hvd'. Tried: " + "; ".join(tried)
    )


_I32 = ctypes.c_int32
_I64 = ctypes.c_int64
_PTR = ctypes.c_void_p
_PROTOTYPES = {
    # name: (result, arguments)
    "hvd_init": (ctypes.c_int, [_PTR]),
    "hvd_shutdown": (ctypes.c_int, []),
    "hvd_get_state": (ctypes.c_int, []),
    "hvd_epoch": (ctypes.c_uint32, []),
    "hvd_rank": (ctypes.c_int, []),
    "hvd_size": (ctypes.c_int, []),
    "hvd_local_rank": (ctypes.c_int, []),
    "hvd_local_size": (ctypes.c_int, []),
    "hvd_cross_rank": (ctypes.c_int, []),
    "hvd_cross_size": (ctypes.c_int, []),
    "hvd_is_homogeneous": (ctypes.c_int, []),
    "hvd_feature": (ctypes.c_int, [ctypes.c_char_p]),
    "hvd_abi_version": (ctypes.c_int, []),
    "hvd_version_string": (ctypes.c_char_p, []),
    "hvd_pset_add": (ctypes.c_int, [_PTR, _I32, _PTR]),
    "hvd_pset_remove": (ctypes.c_int, [_I32]),
    "hvd_pset_size": (ctypes.c_int, [_I32]),
    "hvd_pset_rank": (ctypes.c_int, [_I32]),
    "hvd_pset_included": (ctypes.c_int, [_I32]),
    "hvd_pset_ranks": (ctypes.c_int, [_I32, _PTR, _I32]),
    "hvd_pset_count": (ctypes.c_int, []),
    "hvd_pset_ids": (ctypes.c_int, [_PTR, _I32]),
    "hvd_enqueue": (ctypes.c_int, [_PTR, _PTR]),
    "hvd_enqueue_group": (ctypes.c_int, [_PTR, _I32, _PTR, _PTR]),
    "hvd_enqueue_join": (ctypes.c_int, [_I32, _PTR]),
    "hvd_poll": (ctypes.c_int, [_I64]),
    "hvd_wait": (ctypes.c_int, [_I64, ctypes.c_int, _I64]),
    "hvd_wait_all": (ctypes.c_int, [_PTR, _I32, ctypes.c_int, _I64]),
    "hvd_handle_error": (ctypes.c_int, [_I64, ctypes.c_char_p, ctypes.c_size_t]),
    "hvd_release": (ctypes.c_int, [_I64]),
    "hvd_release_all": (ctypes.c_int, [_PTR, _I32]),
    "hvd_stream_wait": (ctypes.c_int, [_I64, _PTR]),
    "hvd_result": (ctypes.c_int, [_I64, _PTR]),
    "hvd_result_take": (ctypes.c_int, [_I64, _PTR]),
    "hvd_buffer_free": (None, [_PTR]),
    "hvd_result_splits": (ctypes.c_int, [_I64, _PTR, _I32]),
    "hvd_result_last_joined": (ctypes.c_int, [_I64]),
    "hvd_alloc": (_PTR, [ctypes.c_size_t]),
    "hvd_free": (None, [_PTR]),
    "hvd_last_error": (ctypes.c_char_p, []),
    "hvd_strerror": (ctypes.c_char_p, [ctypes.c_int]),
    "hvd_timeline_start": (ctypes.c_int, [ctypes.c_char_p, _I32]),
    "hvd_timeline_stop": (ctypes.c_int, []),
    "hvd_get_stats": (ctypes.c_int, [_PTR]),
}


def _declare(library, path):
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(
                "horovod: %s has no %s; it is not the libhvd of this package" % (path, name)
            ) from None
        function.restype = result
        function.argtypes = arguments
    abi = library.hvd_abi_version()
    if abi != ABI_VERSION:
        raise ImportError(
            "horovod: %s has ABI %d, this package needs %d" % (path, abi, ABI_VERSION)
        )
    return library


_library, library_path = _open()
lib = _declare(_library, library_path)


def last_error():
    """Text of this thread's last failed call."""
    return lib.hvd_last_error().decode("utf-8", "replace")


def strerror(status):
    return lib.hvd_strerror(status).decode("utf-8", "replace")


class _Scratch(threading.local):
    """Memory of this thread in which one call's operations are laid out."""

    def __init__(self):
        self.reserve(8192)

    def reserve(self, size):
        self.size = size
        self.buffer = ctypes.create_string_buffer(size)
        self.base = ctypes.addressof(self.buffer)


_scratch = _Scratch()


@lru_cache(maxsize=None)
def _longs(count):
    return struct.Struct("=%dq" % count)


@lru_cache(maxsize=4096)
def encode_name(name):
    """UTF-8 with the NUL; None for an unnamed operation."""
    if name is None or name == "":
        return None
    data = name.encode("utf-8", "surrogateescape")
    if len(data) > NAME_MAX or b"\0" in data:
        raise ValueError("a tensor's name has at most %d bytes and no NUL" % NAME_MAX)
    return data + b"\0"


def pack_ops(buffer, base, where, kind, members, reduce_op, pset, root, prescale, postscale,
             splits=None, name=0):
    """Lay out one hvd_op for each member at the start of buffer, what they point to at where.

    buffer   ctypes character array that starts at address base
    members  (in_data, out_data, out_capacity, shape, dtype, device, device_id, stream)
    Returns the offset behind what was written.
    """
    offset = 0
    for source, target, capacity, shape, dtype, device, device_id, stream in members:
        ndim = len(shape)
        dims = base + where
        if ndim:
            _longs(ndim).pack_into(buffer, where, *shape)
            where += 8 * ndim
        splits_at = 0
        if splits is not None and len(splits) > 0:
            splits_at = base + where
            _longs(len(splits)).pack_into(buffer, where, *splits)
            where += 8 * len(splits)
        ready = READY_NONE if stream is None else READY_CUSTREAM
        OP.pack_into(
            buffer, offset, OP_SIZE, kind, reduce_op, pset, root, 0, name, prescale, postscale,
            source, dims, ndim, dtype, device, device_id,
            target, dims, ndim, dtype, device, device_id,
            capacity, splits_at, 0 if splits is None else len(splits),
            ready, stream or 0, 0, 0, 0,
        )
        offset += OP_SIZE
    return where


def enqueue(kind, name, members, reduce_op=SUM, pset=0, root=0, prescale=1.0, postscale=1.0,
            splits=None, grouped=False):
    """Queue one operation for each member; with grouped they start all or none.

    name  as of encode_name()
    Returns (status, handles); the handles are None unless status is OK.
    """
    count = len(members)
    nsplits = 0 if splits is None else len(splits)
    needed = sum(8 * len(m[3]) for m in members) + count * (OP_SIZE + 8 + 8 * nsplits) + 1032
    scratch = _scratch
    if needed > scratch.size:
        scratch.reserve(2 * needed)
    buffer, base = scratch.buffer, scratch.base
    handles_at = count * OP_SIZE
    where = handles_at + 8 * count
    name_at = 0
    if name is not None:
        name_at = where
        buffer[where : where + len(name)] = name
        where += (len(name) + 7) & ~7
        name_at += base
    pack_ops(buffer, base, where, kind, members, reduce_op, pset, root, prescale, postscale,
             splits, name_at)
    if grouped:
        status = lib.hvd_enqueue_group(base, count, name_at, base + handles_at)
    else:
        status = lib.hvd_enqueue(base, base + handles_at)
    if status != OK:
        return status, None
    return OK, _longs(count).unpack_from(buffer, handles_at)


def enqueue_barrier(pset):
    """(status, handles) of a barrier."""
    return enqueue(BARRIER, None, [(0, 0, 0, (), 0, CPU, 0, None)], pset=pset)


def enqueue_join(device):
    """(status, handles) of a join."""
    out = ctypes.c_int64()
    status = lib.hvd_enqueue_join(device, ctypes.addressof(out))
    return status, (out.value,) if status == OK else None


def _handle_array(handles):
    if isinstance(handles, ctypes.Array):
        return handles
    return (ctypes.c_int64 * len(handles))(*handles)


def wait(handles, mode=WAIT_DONE):
    """Wait until all handles are done; the status of the first that failed, or OK.

    handles  a sequence, or a ctypes array

    Python's signal handlers run in between, so KeyboardInterrupt may come out of here;
    the handles are then still valid.
    """
    if len(handles) == 1:
        handle = handles[0]
        while True:
            status = lib.hvd_wait(handle, mode, _SLICE_MS)
            if status == EINTR:
                continue
            if status == ETIMEDOUT:
                # the slice ended, or that is what the operation ended with
                status = lib.hvd_poll(handle)
                if status == INPROGRESS:
                    continue
            return status
    array = _handle_array(handles)
    address = ctypes.addressof(array)
    while True:
        status = lib.hvd_wait_all(address, len(handles), mode, _SLICE_MS)
        if status == EINTR:
            continue
        if status == ETIMEDOUT and any(lib.hvd_poll(h) == INPROGRESS for h in handles):
            continue
        return status


def handle_error(handles):
    """Text of the first of these handles that failed."""
    text = ctypes.create_string_buffer(1024)
    for handle in handles:
        if lib.hvd_handle_error(handle, text, len(text)) == OK and text.value:
            return text.value.decode("utf-8", "replace")
    return last_error()


def release(handles):
    """Free handles, a sequence or a ctypes array; stale ones do not matter."""
    if len(handles) == 1:
        lib.hvd_release(handles[0])
    elif len(handles):
        array = _handle_array(handles)
        lib.hvd_release_all(ctypes.addressof(array), len(handles))


def result(handle):
    """(address, shape, dtype) of a finished operation's result."""
    tensor = Tensor()
    status = lib.hvd_result(handle, ctypes.addressof(tensor))
    if status != OK:
        return status, None
    shape = tuple(tensor.dims[i] for i in range(tensor.ndim))
    return OK, (tensor.data or 0, shape, tensor.dtype)


def result_take(handle):
    """Address of the library's result buffer, now the caller's; hvd_buffer_free() it."""
    out = ctypes.c_void_p()
    status = lib.hvd_result_take(handle, ctypes.addressof(out))
    return status, out.value


def result_splits(handle, count):
    array = (ctypes.c_int64 * max(count, 1))()
    got = lib.hvd_result_splits(handle, ctypes.addressof(array), count)
    return list(array[: max(got, 0)])


def stats():
    """Counters of libhvd since init, by name."""
    out = Stats()
    out.size = ctypes.sizeof(out)
    status = lib.hvd_get_stats(ctypes.addressof(out))
    if status != OK:
        return {}
    return {name: getattr(out, name) for name, _ in Stats._fields_[1:]}
