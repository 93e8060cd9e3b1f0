"""Tapes whose gradients are those of all ranks."""

import tensorflow as tf

from horovod.common.arguments import checked_layers, chosen_groups
from horovod.common.process_sets import global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradients import predivide, reduce_all_but, reduce_gradients
from horovod.tensorflow.mpi_ops import Average
from horovod.tensorflow.util import _ref, do_not_convert


class _Settings:
    def __init__(self, reduce_fn, process_set, scale_local_gradients):
        self.reduce_fn = reduce_fn
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.local = set()
        self.layers = []

    def local_refs(self):
        """Variables whose gradients stay here; layers may have got theirs since."""
        found = set(self.local)
        for layer in self.layers:
            found.update(_ref(v) for v in layer.trainable_weights)
        return found


class _DistributedGradientTape(tf.GradientTape):
    # the slot keeps settings out of what is shared with the tape that is wrapped
    __slots__ = ("_hvd",)

    @do_not_convert
    def __init__(self, tape, device_dense, device_sparse, compression, sparse_as_dense, op,
                 gradient_predivide_factor, groups, persistent=False,
                 watch_accessed_variables=True, process_set=global_process_set,
                 scale_local_gradients=True):
        # one recording with two names: what one of them watches, the other knows
        self.__dict__ = tape.__dict__
        predivide(gradient_predivide_factor, op)

        def reduce_fn(grads, variables):
            return reduce_gradients(
                "DistributedGradientTape", grads, variables, device_dense, device_sparse,
                compression, sparse_as_dense, op, gradient_predivide_factor, groups,
                process_set,
            )

        self._hvd = _Settings(reduce_fn, process_set, scale_local_gradients)

    def register_local_source(self, source):
        """The gradients of this variable stay on this rank."""
        self._hvd.local.add(_ref(source))

    def _own_gradient(self, target, sources, output_gradients, kwargs):
        return super().gradient(target, sources, output_gradients, **kwargs)

    @do_not_convert
    def gradient(self, target, sources, output_gradients=None, use_generic_names=False,
                 **kwargs):
        """The gradients, reduced over all ranks; arguments as of tf.GradientTape.gradient."""
        if isinstance(use_generic_names, tf.UnconnectedGradients):
            # it has the place of tf.GradientTape's fourth argument
            kwargs["unconnected_gradients"] = use_generic_names
        grads = self._own_gradient(target, sources, output_gradients, kwargs)
        flat_sources = tf.nest.flatten(sources)
        flat = tf.nest.flatten(grads)
        if len(flat) != len(flat_sources):
            raise ValueError("the gradients of these sources cannot be reduced one by one")
        reduced = reduce_all_but(
            self._hvd.local_refs(), flat, flat_sources, self._hvd.reduce_fn,
            self._hvd.scale_local_gradients, self._hvd.process_set,
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    @do_not_convert
    def get_local_and_global_gradients(self, target, sources, output_gradients=None,
                                       use_generic_names=False):
        """(gradients of local sources, reduced gradients of the others), as lists."""
        flat_sources = tf.nest.flatten(sources)
        reduced = tf.nest.flatten(
            self.gradient(target, flat_sources, output_gradients, use_generic_names)
        )
        local = self._hvd.local_refs()
        here = [g for g, v in zip(reduced, flat_sources) if _ref(v) in local]
        everywhere = [g for g, v in zip(reduced, flat_sources) if _ref(v) not in local]
        return here, everywhere


@do_not_convert
def DistributedGradientTape(gradtape, device_dense="", device_sparse="",
                            compression=Compression.none, sparse_as_dense=False, op=Average,
                            gradient_predivide_factor=1.0, num_groups=0, groups=None,
                            process_set=global_process_set, scale_local_gradients=True):
    """A tape with what gradtape has recorded, whose gradient() reduces over all ranks.

    In a tf.function each gradient begins to travel as soon as it exists.

    compression, sparse_as_dense, op, gradient_predivide_factor, process_set
                 as of hvd.DistributedOptimizer
    groups       None: each gradient by itself; a number of groups; or lists of variables:
                 the gradients of a group travel all or none
    scale_local_gradients  divide gradients of local sources by the number of ranks
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    cls = _DistributedGradientTape
    if type(gradtape) is not tf.GradientTape and not isinstance(gradtape, cls):
        cls = type(type(gradtape).__name__, (cls, type(gradtape)), {})
    return cls(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, chosen_groups(num_groups, groups),
        process_set=process_set, scale_local_gradients=scale_local_gradients,
    )


@do_not_convert
def PartialDistributedGradientTape(gradtape, device_dense="", device_sparse="",
                                   compression=Compression.none, sparse_as_dense=False,
                                   op=Average, gradient_predivide_factor=1.0, num_groups=0,
                                   groups=None, process_set=global_process_set,
                                   local_layers=None, scale_local_gradients=True):
    """DistributedGradientTape, but gradients of local layers stay on their rank.

    local_layers  a Keras layer, or several
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, num_groups, groups, process_set, scale_local_gradients,
    )
    tape._hvd.layers = checked_layers(local_layers)
    return tape
