"""DistributedOptimizer: averages gradients over the ranks while backward still runs.

The parameters are divided into buckets, the same on every rank, in the reverse order of
their registration, which is about the order in which backward finishes them. A hook on
each parameter counts; when a bucket's last gradient is there, one call queues the whole
bucket. step() waits for all buckets. What a bucket holds never depends on timing, so
neither do results.

A hook costs some microseconds, more than a small tensor's share of the communication. So a
bucket of many small gradients has a hook on one parameter only, which notices misuse, and
is queued by step().
"""

import ctypes
import math
import operator
import os
import threading
import warnings
import weakref
from array import array
from contextlib import contextmanager

import torch

from horovod import _native
from horovod.common.basics import HorovodBasics
from horovod.common.class_module import ClassModule
from horovod.common.exceptions import late_error, queue_error
from horovod.common.util import split_list
from horovod.torch import mpi_ops
from horovod.torch.compression import Compression
from horovod.torch.mpi_ops import (
    Adasum,
    Average,
    allreduce_async_,
    global_process_set,
    size,
    sparse_allreduce_async,
    synchronize,
)

# Bytes of a bucket: small at first, so that communication starts early.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 4 << 20

# A bucket of at least this many parameters with at most these bytes on average is queued by
# step(): backward would be slowed by more than an early start gains.
_LAZY_COUNT = 32
_LAZY_BYTES = 8 << 10

_GRAD, _DTYPE, _LAYOUT = map(operator.attrgetter, ("grad", "dtype", "layout"))
_TENSORS, _STRIDED = {torch.Tensor}, {torch.strided}
_OPS = (Average, mpi_ops.Sum, Adasum, mpi_ops.Min, mpi_ops.Max, mpi_ops.Product)
_OP_WORDS = _native.OP_SIZE // 8
_NO_HANDLES = (ctypes.c_int64 * 0)()

# How many optimizers of the same parameter names exist in a process set: part of the
# operations' names, so that two optimizers can be in flight. Counted from 0 in every
# membership; for each set, as only its members may have made one.
_instances = {}
HorovodBasics._after_init.append(_instances.clear)


def _instance(process_set, names):
    key = (process_set.process_set_id, hash(tuple(names)))
    _instances[key] = _instances.get(key, -1) + 1
    return _instances[key]


class _Bucket:
    """Parameters whose gradients travel as one group."""

    __slots__ = ("index", "params", "name", "lazy", "left", "handles", "keep", "after", "sent",
                 "buffer", "base", "pointers", "counts", "dtypes", "how", "on_device",
                 "handle_array")

    def __init__(self, index, params, name, lazy):
        self.index = index
        self.lazy = lazy
        self.params = params
        self.name = name
        self.left = len(params)
        self.sent = False
        self.handles = _NO_HANDLES
        self.keep = []
        self.after = []
        self.buffer = None
        self.pointers = []
        self.counts = self.dtypes = self.how = None
        self.on_device = False


def _plan_buckets(params):
    """Lists of parameters in the order in which backward is likely to finish them."""
    buckets, current, held = [], [], 0
    limit = _FIRST_BUCKET_BYTES
    for p in reversed(params):
        nbytes = p.numel() * p.element_size()
        if current and (held + nbytes > limit or len(current) >= _native.GROUP_MAX // 2
                        or p.device != current[0].device):
            buckets.append(current)
            current, held, limit = [], 0, _BUCKET_BYTES
        current.append(p)
        held += nbytes
    if current:
        buckets.append(current)
    return buckets


def _plain(grads):
    """Are all of these tensors that libhvd takes as they are?"""
    return (set(map(type, grads)) == _TENSORS and set(map(_LAYOUT, grads)) == _STRIDED
            and all(map(torch.Tensor.is_contiguous, grads)))


def _is_lazy(params):
    nbytes = sum(p.numel() * p.element_size() for p in params)
    return len(params) >= _LAZY_COUNT and nbytes <= _LAZY_BYTES * len(params)


def _hook_parameter(p, function):
    """Call function(...) when p's gradient of a backward pass is complete.

    Returns what must be kept alive.
    """
    if hasattr(p, "register_post_accumulate_grad_hook"):
        return p.register_post_accumulate_grad_hook(function)
    accumulator = p.expand_as(p).grad_fn.next_functions[0][0]
    accumulator.register_hook(function)
    return accumulator


def _check_named(named_parameters, param_groups):
    """[(name, parameter)] of an optimizer; ValueError when names do not fit."""
    if named_parameters is None:
        return [
            ("allreduce.noname.%d.%d" % (i, j), p)
            for i, group in enumerate(param_groups)
            for j, p in enumerate(group["params"])
        ]
    named_parameters = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named_parameters):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "produced by model.named_parameters()."
        )
    duplicates = _DistributedOptimizer.find_duplicates([name for name, _ in named_parameters])
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: %s"
            % ", ".join(duplicates)
        )
    named = {id(p) for _, p in named_parameters}
    if any(id(p) not in named for group in param_groups for p in group["params"]):
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not "
            "named. Python object ids: %s"
            % ", ".join(
                str(id(p))
                for group in param_groups
                for p in group["params"]
                if id(p) not in named
            )
        )
    return named_parameters


_TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
_ZERO_GRAD = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)
_NO_SKIP = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). This can cause training slowdown. You may want to consider "
    "using optimizer.skip_synchronize() context if you use optimizer.synchronize() in your "
    "code."
)


class _Common(torch.optim.Optimizer):
    """What both distributed optimizers share. Never made by its constructor: see _wrap()."""

    def _setup_common(self, named_parameters, compression, backward_passes_per_step,
                      process_set):
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        named = _check_named(named_parameters, self.param_groups)
        self._compression = compression
        self._parameter_names = {p: name for name, p in sorted(named, key=lambda pair: pair[0])}
        self.backward_passes_per_step = backward_passes_per_step
        self.process_set = process_set
        # backward passes until a parameter's gradient is sent
        self._left = {p: [backward_passes_per_step] for _, p in named}
        self._requires_update = set()
        self._handles = {}
        self._synchronized = False
        self._synchronized_for_scaler = False
        self._should_synchronize = True
        self._hook_keep = []
        self._lock = threading.Lock()
        self._instance = _instance(process_set, [name for name, _ in named])

    def _active(self):
        """Are there gradients to exchange?"""
        return self.process_set.included() and (
            size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"
        )

    @staticmethod
    def find_duplicates(lst):
        """What is in the list more than once, in order."""
        seen, duplicates = set(), []
        for one in lst:
            if one in seen and one not in duplicates:
                duplicates.append(one)
            seen.add(one)
        return duplicates

    def set_backward_passes_per_step(self, passes):
        """From now on that many backward passes belong to one step."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = passes
        self._rearm()

    def _rearm(self):
        for left in self._left.values():
            left[0] = self.backward_passes_per_step

    @contextmanager
    def skip_synchronize(self):
        """In this block step() does not synchronize, as synchronize() was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def _make_hook(self, p):
        """Function to call when p's gradient is there."""
        raise NotImplementedError


class _DistributedOptimizer(_Common):
    """See DistributedOptimizer()."""

    def _setup(self, named_parameters, compression, backward_passes_per_step=1, op=Average,
               gradient_predivide_factor=1.0, groups=None, sparse_as_dense=False,
               process_set=global_process_set):
        self._setup_common(named_parameters, compression, backward_passes_per_step,
                           process_set)
        self.op = op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._sparse = set()
        self._buckets = []
        self._bucket_of = {}
        self._sparse_handles = {}
        if self._active():
            self._register_hooks()

    # ---- plan

    def _group_lists(self, params):
        """The user's groups as lists of parameters; None: divide by size."""
        groups = self._groups
        if groups is None:
            return None
        if isinstance(groups, list):
            mine = {id(p) for p in params}
            seen = set()
            lists = []
            for group in groups:
                seen.update(map(id, group))
                members = [p for p in group if id(p) in mine]
                if members:
                    lists.append(members)
            lists += [[p] for p in params if id(p) not in seen]
            return lists
        if groups <= 0:
            return None
        return [part for part in split_list(params, min(groups, len(params))) if part]

    def _register_hooks(self):
        params = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    params.append(p)
                    self._requires_update.add(p)
        if not params:
            return
        lists = self._group_lists(params)
        if lists is None:
            lists = _plan_buckets(params)
        for index, members in enumerate(lists):
            name = "gradients.%d.%d.%s" % (
                self._instance, index, self._parameter_names[members[0]])
            # cut at a character's end
            short = name.encode("utf-8", "replace")[: _native.NAME_MAX].decode("utf-8", "ignore")
            bucket = _Bucket(index, members, short.encode() + b"\0", _is_lazy(members))
            self._buckets.append(bucket)
            for p in members:
                self._bucket_of[p] = bucket
            for p in members[:1] if bucket.lazy else members:
                self._hook_keep.append(_hook_parameter(p, self._make_hook(p)))

    def _make_hook(self, p):
        bucket, left, lock = self._bucket_of[p], self._left[p], self._lock
        # parameters outlive an optimizer that the program has dropped
        alive = weakref.ref(self)

        # runs once for every parameter and step: no tensor is hashed here
        def hook(*_):
            with lock:
                left[0] -= 1
                if left[0] > 0:
                    return
                if left[0] < 0:
                    left[0] = 0
                    if alive() is None:
                        return
                    raise AssertionError(_TOO_MANY)
                bucket.left -= 1
                if bucket.left and not bucket.lazy:
                    return
                optimizer = alive()
                if optimizer is None:
                    return
                optimizer._synchronized = optimizer._synchronized_for_scaler = False
                if bucket.lazy:
                    optimizer._handles[bucket] = ()
                else:
                    optimizer._send(bucket)

        return hook

    # ---- sending

    def _scales(self):
        if self.op == Average and self.gradient_predivide_factor != 1.0:
            f = self.gradient_predivide_factor
            return 1.0 / f, f
        return 1.0, 1.0

    def _gradient(self, p):
        """p's gradient; zeros when this rank has none, for the others have."""
        grad = p.grad
        if grad is None:
            if p in self._sparse:
                empty = torch.empty((1, 0), dtype=torch.int64, device=p.device)
                values = torch.empty((0,) + tuple(p.shape[1:]), dtype=p.dtype, device=p.device)
                grad = torch.sparse_coo_tensor(empty, values, p.shape)
            else:
                grad = torch.zeros_like(p, memory_format=torch.preserve_format,
                                        requires_grad=False)
            p.grad = grad
        if grad.is_sparse:
            if self.sparse_as_dense:
                grad = p.grad = grad.to_dense()
            else:
                self._sparse.add(p)
        return grad

    def _send(self, bucket):
        """Queue what a bucket holds. Under the lock."""
        after = ()
        keep = list(map(_GRAD, bucket.params))
        if self._compression is not Compression.none or not _plain(keep):
            keep, after = self._wires(bucket.params)
        bucket.keep = keep
        bucket.after = after
        bucket.sent = True
        if not keep:
            bucket.handles = _NO_HANDLES
            return
        self._queue(bucket, keep)
        self._handles[bucket] = bucket.handles

    def _wires(self, params):
        """What travels for these parameters, and what is to be done with it afterwards."""
        keep, after = [], []
        plain = self._compression is Compression.none
        for p in params:
            grad = self._gradient(p)
            if grad.is_sparse:
                self._sparse_allreduce_grad_async(p, self._parameter_names[p])
                continue
            wire = grad
            if not plain:
                wire, ctx = self._compression.compress(grad.detach())
                if not wire.is_contiguous():
                    wire = wire.contiguous()
                elif wire.data_ptr() == grad.data_ptr():
                    wire = wire.clone()
                after.append((p, grad, wire, ctx))
            elif not grad.is_contiguous():
                wire = grad.detach().contiguous()
                after.append((p, grad, wire, None))
            keep.append(wire)
        return keep, after

    def _queue(self, bucket, dense):
        """Hand the bucket's tensors to libhvd, reusing the layout of the step before.

        Nothing here makes an object of its own for each tensor that Python's collector of
        cycles counts: a thousand shapes a step would set it going in every step.
        """
        counts = list(map(torch.Tensor.numel, dense))
        dtypes = list(map(_DTYPE, dense))
        pointers = list(map(torch.Tensor.data_ptr, dense))
        streams = dense[0].is_cuda
        # a set has another id after shutdown() and init()
        how = self.op, mpi_ops._set_id(self.process_set), *self._scales()
        if (bucket.counts != counts or bucket.dtypes != dtypes or bucket.how != how or streams
                or bucket.on_device):
            self._lay_out(bucket, dense, how)
            bucket.counts, bucket.dtypes, bucket.how = counts, dtypes, how
            bucket.on_device = streams
        elif bucket.pointers != pointers:
            words, new = memoryview(bucket.buffer).cast("B").cast("q"), array("q", pointers)
            end = len(dense) * _OP_WORDS
            words[_native.OP_IN_DATA // 8 : end : _OP_WORDS] = new
            words[_native.OP_OUT_DATA // 8 : end : _OP_WORDS] = new
        bucket.pointers = pointers
        status = _native.lib.hvd_enqueue_group(
            bucket.base, len(dense), bucket.name, ctypes.addressof(bucket.handle_array)
        )
        if status != _native.OK:
            raise queue_error(status)
        bucket.handles = bucket.handle_array

    @staticmethod
    def _lay_out(bucket, dense, how):
        """Write the operations of a bucket's tensors into its buffer.

        how  (operation, set's id, prescale, postscale)
        """
        for wire in dense:
            mpi_ops._check(wire)
        members = [mpi_ops._member(w, w) for w in dense]
        where = len(dense) * _native.OP_SIZE
        need = where + sum(8 * len(m[3]) for m in members) + 8
        bucket.buffer = ctypes.create_string_buffer(need)
        bucket.base = ctypes.addressof(bucket.buffer)
        bucket.handle_array = (ctypes.c_int64 * len(dense))()
        op, pset, prescale, postscale = how
        _native.pack_ops(bucket.buffer, bucket.base, where, _native.ALLREDUCE, members, op,
                         pset, 0, prescale, postscale)

    def _sparse_allreduce_grad_async(self, p, name):
        """Start the exchange of a sparse gradient."""
        self._sparse_handles[p] = sparse_allreduce_async(
            p.grad, name="%d.%s" % (self._instance, name), op=self.op,
            process_set=self.process_set)

    def _allreduce_grad_async(self, p):
        """Start the exchange of one parameter's gradient; (handle, context)."""
        wire, ctx = self._compression.compress(self._gradient(p))
        prescale, postscale = self._scales()
        handle = allreduce_async_(
            wire, name=self._parameter_names[p], op=self.op, prescale_factor=prescale,
            postscale_factor=postscale, process_set=self.process_set)
        return handle, ctx

    def _grouped_allreduce_grad_async(self, ps):
        """Start the exchange of several parameters' gradients as one; (handle, contexts)."""
        pairs = [self._compression.compress(self._gradient(p)) for p in ps]
        prescale, postscale = self._scales()
        handle = mpi_ops.grouped_allreduce_async_(
            [wire for wire, _ in pairs], name=self._parameter_names[ps[0]], op=self.op,
            prescale_factor=prescale, postscale_factor=postscale,
            process_set=self.process_set)
        return handle, [ctx for _, ctx in pairs]

    # ---- waiting

    def synchronize(self):
        """Wait until all gradients are exchanged.

        Parameters without a gradient take part with zeros, so ranks whose graphs differ
        stay together.
        """
        if not self._buckets:
            self._synchronized = True
            return
        with self._lock:
            for bucket in self._buckets:
                if not bucket.sent:
                    self._send(bucket)
        status, text = _native.OK, None
        for bucket in self._buckets:
            ended = self._await(bucket)
            if ended != _native.OK and status == _native.OK:
                status, text = ended, _native.handle_error(bucket.handles)
        for bucket in self._buckets:
            _native.release(bucket.handles)
        try:
            if status != _native.OK:
                raise late_error(status, text)
            with torch.no_grad():
                for bucket in self._buckets:
                    for p, grad, wire, ctx in bucket.after:
                        grad.copy_(self._compression.decompress(wire, ctx))
                for p, handle in self._sparse_handles.items():
                    p.grad = handle()
        finally:
            self._reset()
        self._synchronized = True

    @staticmethod
    def _await(bucket):
        """Wait for a bucket; the status of its first failed gradient."""
        handles = bucket.handles
        if not len(handles):
            return _native.OK
        if not bucket.keep[0].is_cuda:
            return _native.wait(handles)
        status = _native.wait(handles, _native.WAIT_ENQUEUED)
        stream = torch.cuda.current_stream(bucket.keep[0].device).cuda_stream
        for handle in handles:
            status = status or _native.lib.hvd_stream_wait(handle, stream)
        return status

    def _reset(self):
        """Forget what belongs to the step that ended."""
        for bucket in self._buckets:
            bucket.left = len(bucket.params)
            bucket.sent = False
            bucket.handles = _NO_HANDLES
            bucket.keep = bucket.after = ()
        self._rearm()
        self._handles.clear()
        self._sparse_handles.clear()

    def _drain(self):
        """Finish what is in flight without caring for its result."""
        for bucket in self._buckets:
            self._await(bucket)
            _native.release(bucket.handles)
        for handle in self._sparse_handles.values():
            handle()
        self._reset()

    # ---- torch's interface

    def load_state_dict(self, *args, **kwargs):
        if self._buckets:
            self._drain()
        self._synchronized = False
        return super().load_state_dict(*args, **kwargs)

    def step(self, closure=None):
        """Exchange what is left to exchange, then make the wrapped optimizer's step."""
        if closure is not None:
            return self._step_with(closure)
        if self._should_synchronize:
            if self._synchronized and not self._synchronized_for_scaler:
                if self._buckets:
                    warnings.warn(_NO_SKIP)
            if not self._synchronized_for_scaler:
                self.synchronize()
        self._synchronized = self._synchronized_for_scaler = False
        return super().step()

    def _step_with(self, closure):
        """The closure runs backward: its gradients are exchanged before they are used."""

        def exchanged():
            loss = closure()
            self.synchronize()
            return loss

        result = super().step(exchanged)
        self._synchronized = self._synchronized_for_scaler = False
        return result

    def zero_grad(self, *args, **kwargs):
        """As of the wrapped optimizer; AssertionError between backward and step."""
        if self._handles or self._sparse_handles:
            raise AssertionError(_ZERO_GRAD)
        return super().zero_grad(*args, **kwargs)


class _DistributedAdasumOptimizer(_Common):
    """Makes the local step, then combines the ranks' changes of the weights by Adasum."""

    def _setup(self, named_parameters, compression, backward_passes_per_step=1):
        self._setup_common(named_parameters, compression, backward_passes_per_step,
                           global_process_set)
        self._starting_models = {}
        self._ready = []
        if self._active():
            self._register_hooks()

    def _register_hooks(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    self._requires_update.add(p)
                    self._hook_keep.append(_hook_parameter(p, self._make_hook(p)))

    def _make_hook(self, p):
        alive, left = weakref.ref(self), self._left[p]

        def hook(*_):
            optimizer = alive()
            if optimizer is None:
                return
            with optimizer._lock:
                if left[0] <= 0:
                    raise AssertionError(_TOO_MANY)
                left[0] -= 1
                if left[0] == 0:
                    optimizer._ready.append(p)

        return hook

    def _allreduce_grad_async(self, p, delta):
        """Start to combine the changes of one parameter; (handle, tensor, context)."""
        wire, ctx = self._compression.compress(delta)
        handle = allreduce_async_(
            wire, name="adasum.%d.%s" % (self._instance, self._parameter_names[p]), op=Adasum)
        return handle, wire, ctx

    def synchronize(self):
        """Nothing to do: the exchange belongs to step()."""

    @contextmanager
    def skip_synchronize(self):
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )
        yield

    def step(self, closure=None):
        """The wrapped optimizer's step, then Adasum of what it changed."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params = [p for g in self.param_groups for p in g["params"]
                  if p in self._requires_update]
        before = {p: p.detach().clone() for p in params}
        for p in params:
            if p.grad is None:
                p.grad = torch.zeros_like(p, requires_grad=False)
        super().step()
        started = []
        with torch.no_grad():
            for p in params:
                delta = p.detach() - before[p]
                started.append((p, *self._allreduce_grad_async(p, delta)))
            error = None
            for p, handle, wire, ctx in started:
                try:
                    synchronize(handle)
                except mpi_ops.HorovodInternalError as failed:
                    error = error or failed
                    continue
                p.copy_(before[p] + self._compression.decompress(wire, ctx))
        self._rearm()
        self._ready.clear()
        if error is not None:
            raise error
        return loss

    def zero_grad(self, *args, **kwargs):
        """As of the wrapped optimizer; AssertionError between backward and step."""
        if self._ready:
            raise AssertionError(_ZERO_GRAD)
        return super().zero_grad(*args, **kwargs)



def _wrap(optimizer, kind):
    """An object of a subclass of optimizer's class that shares all its state.

    The constructor of the user's class is not called, so it may want any arguments; an
    object that already holds the optimizer (a learning rate scheduler) keeps working.
    """
    base = optimizer.__class__
    module = ClassModule(base.__module__, __name__)
    cls = type(base.__name__, (kind, base), {"__module__": module})
    wrapped = cls.__new__(cls)
    # a scheduler may have put its own step on the object: ours is the class's
    wrapped.__dict__.update(
        (k, v) for k, v in optimizer.__dict__.items() if k not in ("step", "zero_grad")
    )
    return wrapped


def _teach_grad_scaler():
    """GradScaler looks at gradients before step(): let it see exchanged ones.

    Otherwise ranks could disagree about an overflow, and it would scale gradients that are
    on their way.
    """
    from torch.cuda import amp

    scaler = next((c for c in amp.GradScaler.__mro__ if "_unscale_grads_" in c.__dict__), None)
    if scaler is None or getattr(scaler._unscale_grads_, "_hvd", False):
        return
    original = scaler._unscale_grads_

    def unscale(self, optimizer, *args, **kwargs):
        if isinstance(optimizer, _DistributedOptimizer) and not optimizer._synchronized:
            optimizer.synchronize()
            optimizer._synchronized_for_scaler = True
        return original(self, optimizer, *args, **kwargs)

    unscale._hvd = True
    scaler._unscale_grads_ = unscale


_BAD_GROUPS = "groups should be a non-negative integer or a list of list of torch.Tensor."


def _check_groups(groups):
    if isinstance(groups, bool) or not isinstance(groups, (list, int)):
        raise ValueError(_BAD_GROUPS)
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(_BAD_GROUPS)
        return
    seen = set()
    for group in groups:
        if not isinstance(group, (list, tuple)):
            raise ValueError(_BAD_GROUPS)
        for p in group:
            if not isinstance(p, torch.Tensor):
                raise ValueError("%s Not: %.60r" % (_BAD_GROUPS, p))
            if id(p) in seen:
                raise ValueError("a parameter is in more than one of the groups")
            seen.add(id(p))


def _check_arguments(optimizer, compression, op, gradient_predivide_factor, process_set):
    """What would else fail in the first step, or train without an exchange."""
    if not hasattr(optimizer, "param_groups"):
        raise TypeError("not a torch.optim.Optimizer: %.60r" % (optimizer,))
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError("compression is hvd.Compression.none, .fp16, .bf16 or a class like "
                         "those, not %.60r" % (compression,))
    if op not in _OPS:
        raise ValueError("op is hvd.Average, Sum, Adasum, Min, Max or Product, not %.60r" % (op,))
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor == 0 or not math.isfinite(gradient_predivide_factor):
        raise ValueError("gradient_predivide_factor is a number other than 0, not %s"
                         % gradient_predivide_factor)
    mpi_ops._set_id(process_set)


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average,
                         gradient_predivide_factor=1.0, num_groups=0, groups=None,
                         sparse_as_dense=False, process_set=global_process_set):
    """An optimizer like the given one that exchanges gradients over the ranks first.

    optimizer         any torch.optim.Optimizer; the new one shares its state
    named_parameters  model.named_parameters(); names for timelines and errors
    compression       Compression.none, .fp16, .bf16 or a class like those
    backward_passes_per_step  backward passes that belong to one step: gradients are
                      accumulated here and exchanged once
    op                Average, Sum, Adasum, Min, Max or Product
    gradient_predivide_factor  with Average: divide by this before summing and by
                      size/this afterwards
    groups            gradients that travel together: a number of groups, or a list of lists
                      of parameters; None: by size
    num_groups        deprecated: groups
    sparse_as_dense   make sparse gradients dense first
    process_set       ranks among which gradients are exchanged
    """
    _check_arguments(optimizer, compression, op, gradient_predivide_factor, process_set)
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in "
            "v0.23.0.",
            DeprecationWarning,
            stacklevel=2,
        )
        if groups is None:
            groups = num_groups
    if groups is not None:
        _check_groups(groups)
    _teach_grad_scaler()
    if op == Adasum and size() > 1:
        if process_set is not global_process_set and process_set.process_set_id != 0:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        mpi_ops._check_adasum(op, process_set)
        wrapped = _wrap(optimizer, _DistributedAdasumOptimizer)
        wrapped._setup(named_parameters, compression, backward_passes_per_step)
        return wrapped
    wrapped = _wrap(optimizer, _DistributedOptimizer)
    wrapped._setup(named_parameters, compression, backward_passes_per_step, op,
                   gradient_predivide_factor, groups, sparse_as_dense, process_set)
    return wrapped
