"""Reducing gradients under each Keras backend."""

import numpy as np

from horovod import _native
from horovod.common import host_ops


def keras_backend(keras):
    """Name of the backend of a Keras module: "tensorflow" for Keras 2."""
    if not is_keras3(keras):
        return "tensorflow"
    return keras.backend.backend()


def is_keras3(keras):
    return int(str(getattr(keras, "__version__", "2")).split(".")[0]) >= 3


class _Options:
    """Arguments of DistributedOptimizer that the reduction needs."""

    def __init__(self, name, device_dense, device_sparse, compression, sparse_as_dense, op,
                 gradient_predivide_factor, groups, process_set):
        self.name = name
        self.device_dense = device_dense
        self.device_sparse = device_sparse
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.op = op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.groups = groups
        self.process_set = process_set

    def names(self, count):
        return ["%s.%d.%d" % (self.name, count, i) for i in range(count)]

    def scales(self):
        return 1.0 / self.gradient_predivide_factor, float(self.gradient_predivide_factor)


def _tensorflow(options):
    from horovod.tensorflow.gradients import reduce_gradients

    def reduce_fn(grads, variables):
        return reduce_gradients(
            options.name, grads, variables, options.device_dense, options.device_sparse,
            options.compression, options.sparse_as_dense, options.op,
            options.gradient_predivide_factor, options.groups, options.process_set,
        )

    return reduce_fn


def _present(grads, names):
    return [(i, g, n) for i, (g, n) in enumerate(zip(grads, names)) if g is not None]


def _torch(options):
    import horovod.torch as hvd

    def reduce_fn(grads, variables):
        prescale, postscale = options.scales()
        result, waiting = list(grads), []
        for i, gradient, name in _present(grads, options.names(len(grads))):
            small, ctx = options.compression.compress(gradient.detach())
            handle = hvd.allreduce_async(small, None, name, options.op, prescale, postscale,
                                         options.process_set)
            waiting.append((i, handle, ctx))
        for i, handle, ctx in waiting:
            result[i] = options.compression.decompress(hvd.synchronize(handle), ctx)
        return result

    return reduce_fn


def _jax(options):
    import jax
    from jax.experimental import io_callback

    def reduce_fn(grads, variables):
        found = _present(grads, options.names(len(grads)))
        if not found:
            return list(grads)
        names = [n for _, _, n in found]
        small = [options.compression.compress(g) for _, g, _ in found]
        prescale, postscale = options.scales()

        def body(*arrays):
            return tuple(host_ops.exchange(
                _native.ALLREDUCE, [np.asarray(a) for a in arrays], names, options.op,
                host_ops.set_id(options.process_set), prescale=prescale, postscale=postscale,
            ))

        arrays = [t for t, _ in small]
        if any(isinstance(a, jax.core.Tracer) for a in arrays):
            shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
            reduced = io_callback(body, shapes, *arrays)
        else:
            reduced = [jax.numpy.asarray(a) for a in body(*arrays)]
        result = list(grads)
        for (i, _, _), value, (_, ctx) in zip(found, reduced, small):
            result[i] = options.compression.decompress(value, ctx)
        return result

    return reduce_fn


def reducer(backend, options):
    """A function (gradients, variables) -> reduced gradients."""
    makers = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}
    if backend not in makers:
        raise ValueError(
            "horovod.keras works with the Keras backends tensorflow, torch and jax, not with %r"
            % backend
        )
    return makers[backend](options)
