"""horovod.keras: the package keras; Keras 3 on TensorFlow, PyTorch or JAX, or Keras 2.

On another backend than TensorFlow no TensorFlow is needed.
"""

import keras as _K

import horovod._keras as _impl
from horovod._keras.backends import keras_backend as _keras_backend
from horovod.common.arguments import chosen_groups as _chosen_groups
from horovod.common.job import *  # noqa: F401,F403  size, rank, Average, ...
from horovod.common.job import Average
from horovod.common.job import basics as _basics
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

if _keras_backend(_K) == "tensorflow":
    from horovod.tensorflow import (
        Compression,
        allgather_object,
        broadcast_object,
        init,
        shutdown,
    )
elif _keras_backend(_K) == "torch":
    from horovod.torch import (
        Compression,
        allgather_object,
        broadcast_object,
        init,
        shutdown,
    )
else:
    from horovod._keras.compression import Compression
    from horovod.common.host_ops import allgather_object, broadcast_object

    init = _basics.init
    shutdown = _basics.shutdown

from horovod.keras import callbacks, elastic


def DistributedOptimizer(optimizer, name=None, device_dense="", device_sparse="",
                         compression=Compression.none, sparse_as_dense=False,
                         gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1,
                         average_aggregated_gradients=False, num_groups=0, groups=None,
                         process_set=global_process_set, scale_local_gradients=True):
    """A Keras optimizer like the given one, whose gradients are those of all ranks.

    compression                how gradients travel: hvd.Compression.fp16
    sparse_as_dense            turn tf.IndexedSlices into tensors before they travel
    gradient_predivide_factor  divide by it before and by size / it after the sum
    backward_passes_per_step   sum so many gradients on this rank, then reduce and apply
    average_aggregated_gradients  divide those sums by their number
    groups                     a number of groups, or lists of variables
    """
    return _impl.create_distributed_optimizer(
        _K, optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients,
        _chosen_groups(num_groups, groups), process_set, scale_local_gradients,
    )


def PartialDistributedOptimizer(optimizer, name=None, device_dense="", device_sparse="",
                                compression=Compression.none, sparse_as_dense=False,
                                gradient_predivide_factor=1.0, op=Average,
                                backward_passes_per_step=1, average_aggregated_gradients=False,
                                groups=None, process_set=global_process_set, local_layers=None,
                                scale_local_gradients=True):
    """DistributedOptimizer, but gradients of local layers stay on their rank.

    local_layers  a Keras layer, or several
    """
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients,
        0, groups, process_set, scale_local_gradients,
    )
    return _impl.keep_local(made, local_layers)


def broadcast_global_variables(root_rank):
    """Give all global variables of a v1 graph root_rank's values."""
    return _impl.broadcast_global_variables(_K.backend, root_rank)


def allreduce(value, name=None, average=True, prescale_factor=1.0, postscale_factor=1.0, op=None,
              compression=Compression.none):
    """The reduction of a value over all ranks; the average without op."""
    average = None if op is not None or average else average  # True is what it is without
    return _impl.allreduce(_K, value, name, average, prescale_factor, postscale_factor, op,
                           compression)


def allgather(value, name=None):
    """The values of all ranks after one another, in rank order."""
    return _impl.allgather(_K, value, name)


def broadcast(value, root_rank, name=None):
    """root_rank's value on every rank."""
    return _impl.broadcast(_K, value, root_rank, name)


def reducescatter(value, name=None, op=Average):
    """This rank's rows of the reduction of a value."""
    return _impl.reducescatter(_K, value, name, op)


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none,
               legacy_opts=False):
    """A saved model, with its optimizer made distributed; the optimizer's state is kept.

    custom_optimizers  optimizer classes that Keras does not know
    custom_objects     as of keras.models.load_model
    """
    return _impl.load_model(_K, _impl.class_wrapper(compression), filepath, custom_optimizers,
                            custom_objects, legacy_opts)
