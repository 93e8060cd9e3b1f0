"""horovod.tensorflow: collectives, tapes and optimizers for TensorFlow 2.13 and later."""

try:
    import tensorflow as _tf
except ImportError as error:
    raise ImportError("horovod.tensorflow needs TensorFlow: %s" % error) from error

if tuple(int(part) for part in _tf.__version__.split(".")[:2]) < (2, 13):
    raise ImportError(
        "horovod.tensorflow needs TensorFlow 2.13 or later, this is %s" % _tf.__version__
    )

import tensorflow as tf

from horovod.common.arguments import chosen_groups as _chosen_groups
from horovod.common.util import check_extension, gpu_available, split_list
from horovod.tensorflow import elastic
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradients import (
    allreduce_slices as _allreduce_slices,
    is_sparse as _is_sparse,
    reduce_gradients as _reduce_gradients,
)
from horovod.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    add_process_set,
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    ccl_built,
    check_num_rank_power_of_2,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    exact_gradients,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    handle_average_backwards_compatibility,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from horovod.tensorflow.optimizer import (
    _DistributedAdasumOptimizer,
    _DistributedOptimizer,
    _LegacyOptimizer,
)
from horovod.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
    _DistributedGradientTape,
)
from horovod.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    do_not_convert as _do_not_convert,
    on_device as _on_device,
    refs_to_vars,
    vars_to_refs,
)

_SessionRunHook = tf.estimator.SessionRunHook if hasattr(tf, "estimator") and hasattr(
    tf.estimator, "SessionRunHook"
) else tf.compat.v1.train.SessionRunHook


def _check_adasum(op, tensors, process_set):
    if op != Adasum:
        return
    if process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if is_initialized() and not check_num_rank_power_of_2(size()):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


@_do_not_convert
def allreduce(tensor, average=None, device_dense="", device_sparse="",
              compression=Compression.none, op=None, prescale_factor=1.0,
              postscale_factor=1.0, name=None, process_set=global_process_set,
              ignore_name_scope=False):
    """The reduction of a tensor, variable or tf.IndexedSlices over the ranks of a set.

    op                Average (without op), Sum, Min, Max, Product, Adasum
    compression       how it travels: hvd.Compression.fp16
    prescale_factor   multiplied in before, postscale_factor after the reduction
    name              equal on all ranks; without one it is made from the function and tensor
    """
    op = handle_average_backwards_compatibility(op, average)
    _check_adasum(op, [tensor], process_set)
    if _is_sparse(tensor):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            tensor = tf.IndexedSlices(tensor.values * (prescale_factor * postscale_factor),
                                      tensor.indices, tensor.dense_shape)
        with _on_device(device_sparse):
            return _allreduce_slices([tensor], [name], op, process_set)[0]
    with _on_device(device_dense):
        compressed, ctx = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _allreduce(compressed, name, op, prescale_factor, postscale_factor,
                             process_set=process_set)
        return compression.decompress(reduced, ctx)


@_do_not_convert
def grouped_allreduce(tensors, average=None, device_dense="", device_sparse="",
                      compression=Compression.none, op=None, prescale_factor=1.0,
                      postscale_factor=1.0, process_set=global_process_set,
                      ignore_name_scope=False, name=None):
    """The reductions of tensors that run all or none, as a list."""
    if not tensors:
        return tensors
    op = handle_average_backwards_compatibility(op, average)
    _check_adasum(op, tensors, process_set)
    if any(_is_sparse(t) for t in tensors):
        return [
            allreduce(t, None, device_dense, device_sparse, compression, op, prescale_factor,
                      postscale_factor, name and "%s.%d" % (name, i), process_set)
            for i, t in enumerate(tensors)
        ]
    with _on_device(device_dense):
        compressed = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
        reduced = _grouped_allreduce([t for t, _ in compressed], name, op, prescale_factor,
                                     postscale_factor, process_set=process_set)
        return [compression.decompress(t, ctx) for t, (_, ctx) in zip(reduced, compressed)]


@_do_not_convert
def reducescatter(tensor, device_dense="", compression=Compression.none, op=Average, name=None,
                  process_set=global_process_set, ignore_name_scope=False, prescale_factor=1.0,
                  postscale_factor=1.0):
    """This rank's rows of the reduction; the first ranks have one more when it is uneven."""
    with _on_device(device_dense):
        compressed, ctx = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _reducescatter(compressed, name, op, process_set=process_set,
                                 prescale_factor=prescale_factor,
                                 postscale_factor=postscale_factor)
        return compression.decompress(reduced, ctx)


@_do_not_convert
def grouped_reducescatter(tensors, device_dense="", compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    """reducescatter of tensors that run all or none, as a list."""
    if not tensors:
        return tensors
    with _on_device(device_dense):
        compressed = [compression.compress(tf.convert_to_tensor(t)) for t in tensors]
        reduced = _grouped_reducescatter([t for t, _ in compressed], None, op,
                                         process_set=process_set,
                                         prescale_factor=prescale_factor,
                                         postscale_factor=postscale_factor)
        return [compression.decompress(t, ctx) for t, (_, ctx) in zip(reduced, compressed)]


@_do_not_convert
def _allreduce_cond(tensor, *args, process_set=global_process_set, **kwargs):
    return allreduce(tensor, *args, process_set=process_set, **kwargs)


@_do_not_convert
def _grouped_allreduce_cond(tensors, *args, process_set=global_process_set, **kwargs):
    return grouped_allreduce(tensors, *args, process_set=process_set, **kwargs)


def _make_allreduce_grads_fn(name, device_dense, device_sparse, compression, sparse_as_dense, op,
                             gradient_predivide_factor, groups, process_set):
    def allreduce_grads(grads, vars=None, use_generic_names=False):
        return _reduce_gradients(name, grads, vars, device_dense, device_sparse, compression,
                                 sparse_as_dense, op, gradient_predivide_factor, groups,
                                 process_set)

    return allreduce_grads


_make_cached_allreduce_grads_fn = _make_allreduce_grads_fn


@_do_not_convert
def broadcast_global_variables(root_rank):
    """Give all global variables of a v1 graph root_rank's values; the op that does it."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(_SessionRunHook):
    """Gives all global variables root_rank's values when a session has begun.

    For tf.compat.v1.train.MonitoredTrainingSession and its like.
    """

    def __init__(self, root_rank, device=""):
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op = None
        self.device = device

    def begin(self):
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with _on_device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session, coord):
        session.run(self.bcast_op)


@_do_not_convert
def DistributedOptimizer(optimizer, name=None, use_locking=False, device_dense="",
                         device_sparse="", compression=Compression.none, sparse_as_dense=False,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         average_aggregated_gradients=False, num_groups=0, groups=None,
                         process_set=global_process_set, scale_local_gradients=True):
    """An optimizer whose gradients are those of all ranks.

    optimizer                  of tf.compat.v1.train, or of Keras
    compression                how gradients travel: hvd.Compression.fp16
    sparse_as_dense            turn tf.IndexedSlices into tensors before they travel
    backward_passes_per_step   sum so many gradients on this rank, then reduce and apply
    average_aggregated_gradients  divide those sums by their number
    gradient_predivide_factor  divide by it before and by size / it after the sum
    groups                     a number of groups, or lists of variables
    """
    groups = _chosen_groups(num_groups, groups)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    _check_adasum(op, [], process_set)
    if isinstance(optimizer, _LegacyOptimizer):
        if op == Adasum:
            return _DistributedAdasumOptimizer(
                optimizer, name, use_locking, device_dense, device_sparse, compression,
                backward_passes_per_step,
            )
        return _DistributedOptimizer(
            optimizer, name, use_locking, device_dense, device_sparse, compression,
            sparse_as_dense, op, gradient_predivide_factor, backward_passes_per_step,
            average_aggregated_gradients, groups, process_set, scale_local_gradients,
        )
    if hasattr(optimizer, "apply_gradients"):
        import horovod.tensorflow.keras as hvd_k

        return hvd_k.DistributedOptimizer(
            optimizer, name=name, device_dense=device_dense, device_sparse=device_sparse,
            compression=compression, sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor, op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients, groups=groups,
            process_set=process_set, scale_local_gradients=scale_local_gradients,
        )
    raise ValueError(
        "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras "
        "optimizer: %s" % optimizer
    )


def __getattr__(name):
    # it is a Keras layer; not every program wants to wait for Keras
    if name == "SyncBatchNormalization":
        from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


__all__ = sorted(
    [name for name in globals() if not name.startswith("_") and name not in ("error", "tf")]
    + ["SyncBatchNormalization"]
)
