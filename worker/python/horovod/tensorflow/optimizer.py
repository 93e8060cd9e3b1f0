"""Optimizers of tf.compat.v1.train whose gradients are those of all ranks."""

import tensorflow as tf

from horovod.common.process_sets import global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradients import predivide, reduce_all_but, reduce_gradients
from horovod.tensorflow.mpi_ops import Adasum, Average
from horovod.tensorflow.util import _ref, do_not_convert

_LegacyOptimizer = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_LegacyOptimizer):
    """Reduces what compute_gradients() of another optimizer gives."""

    def __init__(self, optimizer, name=None, use_locking=False, device_dense="",
                 device_sparse="", compression=Compression.none, sparse_as_dense=False,
                 op=Average, gradient_predivide_factor=1.0, backward_passes_per_step=1,
                 average_aggregated_gradients=False, groups=None,
                 process_set=global_process_set, scale_local_gradients=True):
        name = name or "Distributed{}".format(type(optimizer).__name__)
        super().__init__(name=name, use_locking=use_locking)
        predivide(gradient_predivide_factor, op)
        self._optimizer = optimizer
        self._process_set = process_set
        self._scale_local_gradients = scale_local_gradients
        self._local_vars = set()

        def reduce_fn(grads, variables):
            return reduce_gradients(name, grads, variables, device_dense, device_sparse,
                                    compression, sparse_as_dense, op,
                                    gradient_predivide_factor, groups, process_set)

        self._allreduce_grads = reduce_fn
        self._agg_helper = None
        if backward_passes_per_step > 1:
            self._agg_helper = LocalGradientAggregationHelper(
                backward_passes_per_step, reduce_fn, sparse_as_dense,
                average_aggregated_gradients, mpi_ops.rank(),
                LocalGradientAggregationHelper.OPTIMIZER_TYPE_LEGACY, process_set,
                scale_local_gradients, name,
            )

    def register_local_var(self, var):
        """Gradients of this variable stay on this rank."""
        if self._agg_helper is not None:
            self._agg_helper.register_local_var(var)
        self._local_vars.add(_ref(var))

    @do_not_convert
    def compute_gradients(self, *args, **kwargs):
        """The wrapped optimizer's gradients, reduced over all ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return pairs
        grads = [g for g, _ in pairs]
        variables = [v for _, v in pairs]
        if self._agg_helper is not None:
            reduced = self._agg_helper.compute_gradients(grads, variables)
        else:
            reduced = reduce_all_but(self._local_vars, grads, variables, self._allreduce_grads,
                                     self._scale_local_gradients, self._process_set)
        return list(zip(reduced, variables))

    @do_not_convert
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """The wrapped optimizer's."""
        pairs = list(grads_and_vars)
        if self._agg_helper is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        return self._agg_helper.apply_gradients(
            lambda: self._optimizer.apply_gradients(pairs, global_step, name), self, pairs
        )

    def get_slot(self, *args, **kwargs):
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args, **kwargs):
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


class _DistributedAdasumOptimizer(_LegacyOptimizer):
    """Every rank makes its own step; what the steps changed is combined by Adasum."""

    def __init__(self, optimizer, name=None, use_locking=False, device_dense="",
                 device_sparse="", compression=Compression.none, backward_passes_per_step=1):
        name = name or "DistributedDelta{}".format(type(optimizer).__name__)
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._compression = compression
        self._passes = backward_passes_per_step
        self._name_prefix = name
        self._step_count = None
        self._start = {}

    @do_not_convert
    def compute_gradients(self, *args, **kwargs):
        """The wrapped optimizer's."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def _make_variables(self, variables):
        with tf.init_scope():
            if self._step_count is None:
                self._step_count = tf.Variable(0, trainable=False, dtype=tf.int32,
                                               name="adasum_step_count")
            for v in variables:
                if _ref(v) not in self._start:
                    self._start[_ref(v)] = tf.Variable(self._value_now(v), trainable=False,
                                                       name="adasum_start")

    @staticmethod
    def _value_now(v):
        """Its value, or what it will be initialized with."""
        if tf.executing_eagerly():
            return tf.convert_to_tensor(v)
        known = tf.compat.v1.is_variable_initialized(v)
        return tf.cond(known, v.read_value, lambda: tf.identity(v.initial_value))

    def _combine(self, variables):
        """Variables become start + Adasum(change); starts become them."""
        values = [tf.convert_to_tensor(v) for v in variables]
        starts = [self._start[_ref(v)] for v in variables]
        deltas = [value - tf.convert_to_tensor(s) for value, s in zip(values, starts)]
        reduced = reduce_gradients(self._name_prefix, deltas, variables,
                                   compression=self._compression, op=Adasum)
        done = []
        for v, s, delta in zip(variables, starts, reduced):
            with tf.control_dependencies([delta]):
                moved = s.assign_add(tf.cast(delta, s.dtype))
            with tf.control_dependencies([moved]):
                done.append(v.assign(tf.convert_to_tensor(s)))
        return done

    @do_not_convert
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """A step of the wrapped optimizer, then the combination of all ranks' changes."""
        pairs = list(grads_and_vars)
        variables = [v for g, v in pairs if g is not None]
        self._make_variables(variables)
        applied = self._optimizer.apply_gradients(pairs, global_step, name)
        if tf.executing_eagerly():
            self._step_count.assign_add(1)
            if int(self._step_count) % self._passes == 0:
                self._combine(variables)
            return applied
        with tf.control_dependencies([applied]):
            count = tf.convert_to_tensor(self._step_count.assign_add(1))
            if self._passes == 1:
                return tf.group(*[self._op(d) for d in self._combine(variables)])

            def combine():
                done = self._combine(variables)
                with tf.control_dependencies([self._op(d) for d in done]):
                    return tf.constant(True)

            due = tf.equal(count % self._passes, 0)
            return tf.group(tf.cond(due, combine, lambda: tf.constant(False)))

    @staticmethod
    def _op(assigned):
        return assigned.op if hasattr(assigned, "op") else assigned

    def get_slot(self, var, name):
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names()

    def variables(self, *args, **kwargs):
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)
