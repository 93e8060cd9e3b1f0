"""Collectives on TensorFlow tensors, with gradients.

A collective is a Start op, which gives the tensor to libhvd and returns at once, and a Wait
op for one or many of them (worker/bind/tensorflow/ops.c). Starts are taken out of
tf.function's automatic order, so each runs as soon as its tensor exists.

Gradients are Horovod's: those of allgather and broadcast are averaged, that of a summing
reducescatter is multiplied by the number of ranks. HVD_EXACT_GRADIENTS=1, or
exact_gradients(True), gives the mathematical ones of the sum of all ranks' losses, but for
Adasum, whose gradient stays the Adasum of the gradients.
"""

import math
import os
import re
import struct
import sys
import warnings

import tensorflow as tf

from horovod import _native
from horovod.common import host_ops
from horovod.common import process_sets as _process_sets
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import NOT_INITIALIZED, HorovodInternalError  # noqa: F401
from horovod.common.host_ops import dtype_number
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
from horovod.tensorflow import _library
from horovod.tensorflow.util import do_not_convert

MPI_LIB = _library.ops

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)
check_num_rank_power_of_2 = num_rank_is_power_2

_exact = env_bool("HVD_EXACT_GRADIENTS")


def exact_gradients(enabled=True):
    """Choose between the mathematical gradients (True) and Horovod's (False, the default).

    Say the same on all ranks, before functions are traced. Returns what was chosen before.
    """
    global _exact
    before = _exact
    _exact = bool(enabled)
    return before


# ---- life cycle


def _two_threads():
    """A Wait blocks a thread; with one only, another operation's Start could not run.

    TensorFlow's default is one thread where the process may use one core.
    """
    if len(os.sched_getaffinity(0)) > 1 and not os.environ.get("TF_NUM_INTEROP_THREADS"):
        chosen = tf.config.threading.get_inter_op_parallelism_threads()
        if chosen != 1:
            return
    if os.environ.get("TF_NUM_INTEROP_THREADS", "").isdigit():
        if int(os.environ["TF_NUM_INTEROP_THREADS"]) > 1:
            return
    if tf.config.threading.get_inter_op_parallelism_threads() > 1:
        return
    try:
        tf.config.threading.set_inter_op_parallelism_threads(2)
    except RuntimeError:
        warnings.warn(
            "TensorFlow runs with one inter-op thread: ranks that call separate collectives "
            "in different orders may wait for each other for ever. Call hvd.init() before "
            "TensorFlow is used, or tf.config.threading.set_inter_op_parallelism_threads(2).",
            RuntimeWarning,
            stacklevel=3,
        )


@do_not_convert
def init(*args, **kwargs):
    """Join the job; arguments as of HorovodBasics.init()."""
    _two_threads()
    _basics.init(*args, **kwargs)


def shutdown(*args, **kwargs):
    """Leave the job."""
    _basics.shutdown(*args, **kwargs)


def _drop():
    if _library.library is not None:
        _library.library.hvd_tf_drop()


HorovodBasics._after_shutdown.append(_drop)


def _check_has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


# ---- names


def _normalize_name(name):
    """Only what TensorFlow allows in the name of an op."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def _graph_name(graph):
    """A function's name without the number that differs between processes."""
    return re.sub(r"(_\d+)+$", "", getattr(graph, "name", None) or "graph")


def _full_name(name, kind_name, tensor):
    """The name by which the ranks' operations are matched; "" is matched by order.

    In a graph operations run in no fixed order, so each needs a name, equal on all ranks
    however often they have traced: function, tensor, and how often that came before.
    """
    if tf.executing_eagerly():
        return name or ""
    graph = tf.compat.v1.get_default_graph()
    if not name:
        origin = getattr(tensor, "name", None) or "tensor"
        name = "%s.%s.%s" % (kind_name, _graph_name(graph), origin.split(":")[0])
    seen = getattr(graph, "_hvd_names", None)
    if seen is None:
        seen = graph._hvd_names = {}
    before = seen.get(name, 0)
    seen[name] = before + 1
    return "%s.%d" % (name, before) if before else name


# ---- errors


def _error(cls, text):
    return cls(None, None, text)


def _check(tensors, kind):
    for tensor in tensors:
        if dtype_number(tensor.dtype.base_dtype.name, kind) is None:
            raise _error(
                tf.errors.InvalidArgumentError,
                "%s: type %s is not supported"
                % (_KIND_NAMES[kind], tensor.dtype.base_dtype.name),
            )


def _compiled_frame():
    """Is this called while a function with jit_compile=True is traced?"""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("polymorphic_function.py"):
            function = frame.f_locals.get("self")
            if getattr(function, "_jit_compile", None):
                return True
        frame = frame.f_back
    return False


def _check_traced():
    if not tf.executing_eagerly() and _compiled_frame():
        raise _error(
            tf.errors.InvalidArgumentError,
            "collectives cannot be compiled by XLA: take the step out of "
            "tf.function(jit_compile=True), or give jit_compile=False to model.compile()",
        )


def _set_id(process_set):
    try:
        return host_ops.set_id(process_set)
    except ValueError as error:
        raise _error(tf.errors.InvalidArgumentError, str(error)) from None


_KIND_NAMES = {
    _native.ALLREDUCE: "HorovodAllreduce",
    _native.ALLGATHER: "HorovodAllgather",
    _native.BROADCAST: "HorovodBroadcast",
    _native.ALLTOALL: "HorovodAlltoall",
    _native.REDUCESCATTER: "HorovodReducescatter",
}


# ---- Start and Wait


def _bits(value):
    """A double as the integer attribute of an op; 1.0 is 0."""
    value = float(value)
    return 0 if value == 1.0 else struct.unpack("=q", struct.pack("=d", value))[0]


def _independent(op):
    """Take one op out of the automatic order of the function that is being traced."""
    manager = getattr(
        tf.compat.v1.get_default_graph(), "experimental_acd_manager", None
    )
    if manager is not None:
        manager.run_independently(op)


class _Started:
    """Operations that have begun: what Wait needs."""

    def __init__(self):
        self.handles = []
        self.buffers = []

    def wait(self):
        """The results, in the order of the Starts."""
        return _library.ops.hvd_wait(handles=self.handles, buffers=self.buffers)


def _start(started, kind, tensors, name, attrs):
    """Begin one operation, or a group of several that run all or none."""
    same_shape = kind in (_native.ALLREDUCE, _native.BROADCAST)
    function = _library.ops.hvd_start_over if same_shape else _library.ops.hvd_start
    handles, buffers = function(
        tensors=tensors, N=len(tensors), tensor_name=name, kind=kind, **attrs
    )
    if not tf.executing_eagerly():
        _independent(handles[0].op)
    started.handles.extend(handles)
    started.buffers.extend(buffers)


def _attrs(reduce_op=_native.SUM, process_set=global_process_set, root=0, prescale=1.0,
           postscale=1.0):
    return {
        "reduce_op": int(reduce_op),
        "pset": _set_id(process_set),
        "root": int(root),
        "prescale": _bits(prescale),
        "postscale": _bits(postscale),
    }


def _zero_scale(prescale, postscale):
    """libhvd takes a factor of 0 for none."""
    return float(prescale) == 0.0 or float(postscale) == 0.0


def _named(names, kind, tensors):
    return [_full_name(n, _KIND_NAMES[kind], t) for n, t in zip(names, tensors)]


def _run(kind, tensors, names, attrs, groups=None):
    """Results of one operation for each tensor, in order.

    names   one for each tensor; None: made up in a graph, matched by order else
    groups  lists of indices that run all or none; None: each by itself
    """
    if not tensors:
        return []
    _check(tensors, kind)
    _check_traced()
    names = _named(names, kind, tensors)
    if _library.ops is None:
        return _fallback(kind, tensors, names, attrs, groups)
    started = _Started()
    if groups is None:
        for tensor, name in zip(tensors, names):
            _start(started, kind, [tensor], name, attrs)
        return started.wait()
    order = []
    for group in groups:
        _start(started, kind, [tensors[i] for i in group], names[group[0]], attrs)
        order.extend(group)
    results = [None] * len(tensors)
    for i, result in zip(order, started.wait()):
        results[i] = result
    return results


# ---- the slow way


def _doubles(attrs):
    def value(bits):
        return 1.0 if bits == 0 else struct.unpack("=d", struct.pack("=q", bits))[0]

    return value(attrs["prescale"]), value(attrs["postscale"])


_NDIM_MAX = 16  # libhvd's


def _folded(array):
    """With more dimensions than libhvd takes: rows of one dimension."""
    if array.ndim <= _NDIM_MAX:
        return array
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))


def _unfolded(result, shape):
    return result if len(shape) <= _NDIM_MAX else result.reshape(result.shape[:1] + shape[1:])


def _fallback(kind, tensors, names, attrs, groups=None, splits=None):
    """_run() by numpy arrays: one Python call for all tensors."""
    pre, post = _doubles(attrs)
    common = dict(reduce_op=attrs["reduce_op"], pset=attrs["pset"], root=attrs["root"],
                  prescale=pre, postscale=post)

    def body(*arrays):
        shapes = [a.shape for a in arrays]
        results = run([_folded(a) for a in arrays])
        return [_unfolded(r, shapes[i]) if i < len(names) else r for i, r in enumerate(results)]

    def run(arrays):
        if splits is not None:
            return host_ops.exchange(kind, [arrays[0]], names, splits=arrays[1].tolist(),
                                     **common)
        if groups is None:
            return host_ops.exchange(kind, arrays, names, **common)
        results = [None] * len(arrays)
        for group in groups:
            got = host_ops.exchange(kind, [arrays[i] for i in group], names[group[0]],
                                    grouped=True, **common)
            for i, result in zip(group, got):
                results[i] = result
        return results

    def forward(*inputs):
        types = [t.dtype for t in tensors] + ([tf.int32] if splits is not None else [])
        results = tf.numpy_function(body, list(inputs), types)
        if not isinstance(results, (list, tuple)):  # eagerly one result comes alone
            results = [results]
        if kind in (_native.ALLREDUCE, _native.BROADCAST):
            for tensor, result in zip(tensors, results):
                result.set_shape(tensor.shape)
        return results

    @tf.custom_gradient
    def both(*inputs):
        results = forward(*inputs)

        def grad(*grads):
            if splits is not None:
                return [_alltoall_grad(attrs["pset"], inputs[0], splits, grads[0], names[0]),
                        None]
            return _start_grads(kind, names, attrs, groups, inputs, grads)

        return tuple(results), grad

    inputs = list(tensors) + ([splits] if splits is not None else [])
    return list(both(*inputs))


# ---- gradients


def _process_set_of(pset):
    if pset == 0:
        return global_process_set
    return _process_sets._known.get(pset) or _process_sets._temp_process_set_object(pset)


def _grad_name(name):
    return name + ".grad" if name else None


def _start_grads(kind, names, attrs, groups, tensors, grads):
    """Gradients of the tensors of Starts, from those of their results."""
    process_set = _process_set_of(attrs["pset"])
    gradient_of = {
        _native.ALLREDUCE: _allreduce_grads,
        _native.ALLGATHER: _allgather_grads,
        _native.BROADCAST: _broadcast_grads,
        _native.ALLTOALL: _alltoall_grads,
        _native.REDUCESCATTER: _reducescatter_grads,
    }[kind]
    names = [_grad_name(n) for n in names]
    grads = [tf.convert_to_tensor(g) for g in grads]
    # what was one operation is one operation again
    together = [list(range(len(grads)))] if len(grads) > 1 and groups is not None else None
    return gradient_of(names, attrs, process_set, together, tensors, grads)


def _allreduce_grads(names, attrs, process_set, groups, tensors, grads):
    op = attrs["reduce_op"]
    if _exact and op in (Min, Max, Product):
        return [
            _extreme_grad(op, attrs, process_set, name, x, g)
            for name, x, g in zip(names, tensors, grads)
        ]
    return _run(_native.ALLREDUCE, grads, names, attrs, groups)


def _sub(name, suffix):
    return name and name + suffix


def _extreme_grad(op, attrs, process_set, name, x, grad):
    """The mathematical gradient of a minimum, maximum or product."""
    pre, post = _doubles(attrs)
    # not the op's own buffer: nothing here waits for it
    y = _run(_native.ALLREDUCE, [x], [_sub(name, ".again")], attrs)[0]

    def total(value, suffix, reduce_op=Sum):
        return _allreduce(value, _sub(name, suffix), reduce_op, process_set=process_set)

    gradient = total(grad, ".sum")
    one = tf.ones_like(x)
    if op == Product:
        zero = tf.equal(x, 0)
        safe = tf.where(zero, one, x)
        zeros = total(tf.cast(zero, x.dtype), ".zeros")
        others = total(safe, ".others", Product)
        alone = tf.logical_and(zero, tf.equal(zeros, 1))
        factor = tf.cast(pre, x.dtype) ** tf.cast(_members(process_set), x.dtype) * post
        return tf.where(
            alone,
            gradient * others * factor,
            tf.where(zero, tf.zeros_like(x), gradient * y / safe),
        )
    mine = tf.cast(tf.equal(x * pre * post, y), x.dtype)
    ties = total(mine, ".ties")
    return gradient * mine / tf.maximum(ties, one) * (pre * post)


def _members(process_set):
    return process_set.size() if process_set.process_set_id else size()


def _shared(process_set):
    """Attributes of the reduction of gradients that several ranks have of one tensor."""
    return _attrs(Sum if _exact else Average, process_set)


def _allgather_grads(names, attrs, process_set, groups, tensors, grads):
    reduced = _run(_native.ALLREDUCE, grads, names, _shared(process_set), groups)
    rows = tf.stack([tf.shape(t, out_type=tf.int64)[0] for t in tensors])[tf.newaxis, :]
    counts = _run(_native.ALLGATHER, [rows], [_sub(names[0], ".rows")],
                  _attrs(process_set=process_set))[0]
    me = process_set.rank() if process_set.process_set_id else rank()
    own = []
    for i, gradient in enumerate(reduced):
        first = tf.reduce_sum(counts[:me, i])
        own.append(gradient[first : first + counts[me, i]])
    return own


def _broadcast_grads(names, attrs, process_set, groups, tensors, grads):
    reduced = _run(_native.ALLREDUCE, grads, names, _shared(process_set), groups)
    if rank() != attrs["root"]:
        return [gradient * 0 for gradient in reduced]
    return reduced


def _alltoall_grads(names, attrs, process_set, groups, tensors, grads):
    return _run(_native.ALLTOALL, grads, names, _attrs(process_set=process_set), groups)


def _reducescatter_grads(names, attrs, process_set, groups, tensors, grads):
    gathered = _run(_native.ALLGATHER, grads, names, _attrs(process_set=process_set), groups)
    pre, post = _doubles(attrs)
    factor = pre * post
    members = _members(process_set)
    if attrs["reduce_op"] == Average and _exact:
        factor /= members
    elif attrs["reduce_op"] == Sum and not _exact:
        factor *= members
    if factor == 1.0:
        return list(gathered)
    return [g * tf.cast(factor, g.dtype) for g in gathered]


def _alltoall_grad(pset, tensor, splits, grad, name):
    """Every row's gradient goes back where it came from."""
    process_set = _process_set_of(pset)
    name = _grad_name(name)
    received = _run(_native.ALLTOALL, [splits], [_sub(name, ".splits")],
                    _attrs(process_set=process_set))[0]
    back, _ = _alltoall_splits(tf.convert_to_tensor(grad), received, name, process_set)
    # rows behind the splits went nowhere
    rest = tf.shape(tensor)[0] - tf.shape(back)[0]
    padding = tf.concat([[[0, rest]], tf.zeros([tf.rank(back) - 1, 2], tf.int32)], 0)
    back = tf.pad(back, padding)
    back.set_shape(tensor.shape)
    return back


def _op_attrs(op):
    attrs = {a: op.get_attr(a) for a in ("reduce_op", "pset", "root", "prescale", "postscale")}
    name = op.get_attr("tensor_name")
    return op.get_attr("kind"), attrs, name.decode() if isinstance(name, bytes) else name


def _start_gradient(op, *grads):
    kind, attrs, name = _op_attrs(op)
    count = op.get_attr("N")
    names = [name if i == 0 else _sub(name, ".%d" % i) for i in range(count)]
    return _start_grads(
        kind, names, attrs, True if count > 1 else None, list(op.inputs),
        list(grads)[count:],
    )


def _start_splits_gradient(op, _handle, grad):
    _, attrs, name = _op_attrs(op)
    return [_alltoall_grad(attrs["pset"], op.inputs[0], op.inputs[1], grad, name), None]


def _wait_gradient(op, *grads):
    """A result's gradient belongs to its buffer, from where Start's gradient takes it."""
    return [None] * len(grads) + list(grads)


if _library.ops is not None:
    tf.RegisterGradient("HvdStartOver")(_start_gradient)
    tf.RegisterGradient("HvdStart")(_start_gradient)
    tf.RegisterGradient("HvdStartSplits")(_start_splits_gradient)
    tf.RegisterGradient("HvdWait")(_wait_gradient)
    tf.RegisterGradient("HvdWaitSplits")(lambda op, grad, _splits: [None, grad])
    tf.no_gradient("HvdFact")


# ---- the operations


def _tensor(value):
    """A tensor of a variable of TensorFlow or Keras, an array, a number."""
    return tf.convert_to_tensor(value)


def _scaled(results, zero):
    return [tf.zeros_like(r) for r in results] if zero else list(results)


def _reduce(kind, tensors, names, op, prescale_factor, postscale_factor, process_set, groups):
    zero = _zero_scale(prescale_factor, postscale_factor)
    factors = (1.0, 1.0) if zero else (prescale_factor, postscale_factor)
    attrs = _attrs(op, process_set, prescale=factors[0], postscale=factors[1])
    return _scaled(_run(kind, tensors, names, attrs, groups), zero)


def _all_names(name, tensors):
    return [name] + [name and "%s.%d" % (name, i) for i in range(1, len(tensors))]


def _one_group(tensors):
    return [list(range(len(tensors)))]


@do_not_convert
def _allreduce(tensor, name=None, op=Sum, prescale_factor=1.0, postscale_factor=1.0,
               ignore_name_scope=False, process_set=global_process_set):
    """The reduction of a tensor over the ranks of a set; see allreduce()."""
    return _reduce(_native.ALLREDUCE, [_tensor(tensor)], [name], op, prescale_factor,
                   postscale_factor, process_set, None)[0]


@do_not_convert
def _grouped_allreduce(tensors, name=None, op=Sum, prescale_factor=1.0, postscale_factor=1.0,
                       ignore_name_scope=False, process_set=global_process_set):
    """The reductions of tensors that run all or none."""
    tensors = [_tensor(t) for t in tensors]
    return _reduce(_native.ALLREDUCE, tensors, _all_names(name, tensors), op, prescale_factor,
                   postscale_factor, process_set, _one_group(tensors))


def _allreduce_many(tensors, names, op, prescale_factor, postscale_factor, process_set,
                    groups=None):
    """The reductions of tensors that begin one by one and are awaited together."""
    return _reduce(_native.ALLREDUCE, tensors, names, op, prescale_factor, postscale_factor,
                   process_set, groups)


def _open_rows(result, tensor):
    """Of a gathered tensor all dimensions but the first are known."""
    shape = tensor.shape
    if shape.rank is not None and shape.rank > 0 and not tf.executing_eagerly():
        result.set_shape([None] + shape.as_list()[1:])
    return result


def _gather(kind, tensors, names, attrs, groups=None):
    return [_open_rows(r, t) for r, t in zip(_run(kind, tensors, names, attrs, groups), tensors)]


@do_not_convert
def allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set):
    """The tensors of all ranks after one another, in rank order.

    Ranks may have different numbers of rows; the other dimensions are equal.
    """
    return _gather(_native.ALLGATHER, [_tensor(tensor)], [name],
                   _attrs(process_set=process_set))[0]


@do_not_convert
def grouped_allgather(tensors, name=None, ignore_name_scope=False,
                      process_set=global_process_set):
    """allgather of tensors that run all or none."""
    tensors = [_tensor(t) for t in tensors]
    return _gather(_native.ALLGATHER, tensors, _all_names(name, tensors),
                   _attrs(process_set=process_set), _one_group(tensors))


def _check_root(root_rank):
    return int(root_rank)


@do_not_convert
def broadcast(tensor, root_rank, name=None, ignore_name_scope=False,
              process_set=global_process_set):
    """root_rank's tensor on every rank. root_rank is a global rank."""
    return _run(_native.BROADCAST, [_tensor(tensor)], [name],
                _attrs(process_set=process_set, root=_check_root(root_rank)))[0]


def _broadcast_many(values, names, root_rank, process_set):
    return _run(_native.BROADCAST, [_tensor(v) for v in values], names,
                _attrs(process_set=process_set, root=_check_root(root_rank)))


def _assign(variable, value):
    """Give a variable of TensorFlow or Keras 3 a value; in a v1 graph the op that does."""
    return variable.assign(value)


@do_not_convert
def broadcast_(variables, root_rank, name=None, process_set=global_process_set):
    """Give every rank root_rank's values of variables; the variables are assigned."""
    variables = list(variables)
    names = [name and "%s.%d" % (name, i) for i in range(len(variables))]
    values = _broadcast_many(variables, names, root_rank, process_set)
    return [_assign(v, value) for v, value in zip(variables, values)]


def _alltoall_splits(tensor, splits, name, process_set):
    _check([tensor], _native.ALLTOALL)
    _check_traced()
    attrs = _attrs(process_set=process_set)
    name = _full_name(name, _KIND_NAMES[_native.ALLTOALL], tensor)
    splits = tf.reshape(tf.cast(splits, tf.int64), [-1])
    if _library.ops is None:
        output, received = _fallback(_native.ALLTOALL, [tensor], [name], attrs, splits=splits)
        return _open_rows(output, tensor), received
    handle, buffer = _library.ops.hvd_start_splits(
        tensor=tensor, splits=splits, tensor_name=name, kind=_native.ALLTOALL, **attrs
    )
    if not tf.executing_eagerly():
        _independent(handle.op)
    output, received = _library.ops.hvd_wait_splits(handle=handle, buffer=buffer)
    return _open_rows(output, tensor), received


def _splits(splits):
    """A tensor of the caller's splits."""
    splits = tf.convert_to_tensor(splits)
    empty = splits.shape.num_elements() == 0
    if not (splits.dtype.is_integer or empty):
        raise _error(tf.errors.InvalidArgumentError,
                     "splits are whole numbers, not %s" % splits.dtype.name)
    if splits.shape.rank not in (1, None):
        raise _error(tf.errors.InvalidArgumentError,
                     "splits have one dimension, not %d" % splits.shape.rank)
    return splits


@do_not_convert
def alltoall(tensor, splits=None, name=None, ignore_name_scope=False,
             process_set=global_process_set):
    """Rows for every rank are sent there; what came from all ranks, in rank order.

    splits  how many rows each rank gets; None: equally many. With splits the result is
            (tensor, rows received from every rank)
    """
    tensor = _tensor(tensor)
    if splits is not None:
        return _alltoall_splits(tensor, _splits(splits), name, process_set)
    return _gather(_native.ALLTOALL, [tensor], [name], _attrs(process_set=process_set))[0]


def _scatter(tensors, name, op, prescale_factor, postscale_factor, process_set, groups):
    if op not in (Average, Sum):
        raise NotImplementedError("reducescatter supports op=Average and op=Sum only")
    results = _reduce(_native.REDUCESCATTER, tensors, _all_names(name, tensors), op,
                      prescale_factor, postscale_factor, process_set, groups)
    return [_open_rows(r, t) for r, t in zip(results, tensors)]


@do_not_convert
def _reducescatter(tensor, name=None, op=Sum, ignore_name_scope=False,
                   process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's rows of the reduction; the first ranks have one more when it is uneven."""
    return _scatter([_tensor(tensor)], name, op, prescale_factor, postscale_factor, process_set,
                    None)[0]


@do_not_convert
def _grouped_reducescatter(tensors, name=None, op=Sum, ignore_name_scope=False,
                           process_set=global_process_set, prescale_factor=1.0,
                           postscale_factor=1.0):
    """_reducescatter of tensors that run all or none."""
    tensors = [_tensor(t) for t in tensors]
    return _scatter(tensors, name, op, prescale_factor, postscale_factor, process_set,
                    _one_group(tensors))


def _host_call(function):
    """The int that a Python function returns, when the graph runs or at once."""
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    result = tf.numpy_function(lambda: _int32(function()), [], tf.int32)
    result.set_shape([])
    return result


def _int32(value):
    import numpy as np

    return np.int32(value)


@do_not_convert
def join():
    """Say that this rank has no more data; the rank that joined last, when all have.

    Until then this rank takes part in the others' allreduces with zeros.
    """
    return _host_call(host_ops.join)


# ---- facts when the graph runs

_FACTS = {"rank": 0, "size": 1, "local_rank": 2, "local_size": 3, "included": 4}


def _fact(what, process_set_id=0):
    if _library.ops is not None:
        return _library.ops.hvd_fact(what=_FACTS[what], pset=int(process_set_id))
    if what == "included":
        return _host_call(lambda: int(_basics._process_set_included(process_set_id)))
    if process_set_id:
        return _host_call(lambda: _basics._process_set_size(process_set_id))
    return _host_call(getattr(_basics, what))


@do_not_convert
def size_op(process_set_id=0, name=None):
    """The number of ranks of a set as a scalar that is read when the graph runs."""
    return _fact("size", process_set_id)


@do_not_convert
def process_set_included_op(process_set_id=0, name=None):
    """1 when this rank belongs to the set, else 0."""
    return _fact("included", process_set_id)


@do_not_convert
def local_size_op(name=None):
    """The number of ranks of this host."""
    return _fact("local_size")


@do_not_convert
def rank_op(name=None):
    """This rank."""
    return _fact("rank")


@do_not_convert
def local_rank_op(name=None):
    """This rank's place on its host."""
    return _fact("local_rank")
