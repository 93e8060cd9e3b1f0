"""Gradients of several backward passes, summed on this rank before they travel."""

import tensorflow as tf

from horovod.common.process_sets import global_process_set
from horovod.tensorflow.gradients import is_sparse, reduce_all_but
from horovod.tensorflow.util import _ref


def apply_op_to_not_none_tensors(tensor_op, tensors, *args):
    """tensor_op(tensor, *args) of each tensor; None stays None."""
    return [tensor_op(t, *args) if t is not None else t for t in tensors]


def get_not_none_from_list(tensor_list):
    """What of a list is not None."""
    return [t for t in tensor_list if t is not None]


class LocalGradientAggregationHelper:
    """Sums gradients in variables; every backward_passes_per_step-th time they are reduced.

    allreduce_func  (gradients, variables) -> reduced gradients
    Works in eager mode, in tf.function and in v1 graphs. Between the reductions
    compute_gradients() returns the sums so far, and apply_gradients() applies nothing.
    """

    OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(self, backward_passes_per_step, allreduce_func, sparse_as_dense,
                 average_aggregated_gradients, rank=0, optimizer_type=OPTIMIZER_TYPE_KERAS,
                 process_set=global_process_set, scale_local_gradients=True, name=""):
        if backward_passes_per_step <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self._passes = backward_passes_per_step
        self._allreduce_grads = allreduce_func
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.name = name
        self.counter = None
        self.locally_aggregated_grads = []
        self._local_vars = set()

    @property
    def backward_passes_per_step(self):
        return self._passes

    def register_local_var(self, var):
        """Gradients of this variable stay on this rank."""
        self._local_vars.add(_ref(var))

    def _make_variables(self, grads, variables):
        if self.counter is not None:
            return
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32,
                                       name="aggregation_counter")
            for i, (gradient, variable) in enumerate(zip(grads, variables)):
                if gradient is None:
                    self.locally_aggregated_grads.append(None)
                    continue
                self.locally_aggregated_grads.append(
                    tf.Variable(tf.zeros(tuple(variable.shape), gradient.dtype),
                                trainable=False, name="aggregated_gradient_%d" % i)
                )

    def _dense(self, gradient):
        if not is_sparse(gradient):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                "`sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def _reduced(self, sums, variables):
        if self.average_aggregated_gradients:
            sums = apply_op_to_not_none_tensors(lambda t: t / self._passes, sums)
        return reduce_all_but(self._local_vars, sums, variables, self._allreduce_grads,
                              self.scale_local_gradients, self.process_set)

    def compute_gradients(self, grads, vars):
        """The gradients to hand to apply_gradients()."""
        grads = [self._dense(g) for g in grads]
        self._make_variables(grads, vars)
        sums = self.locally_aggregated_grads
        with tf.control_dependencies(get_not_none_from_list(grads)):
            counted = self.counter.assign_add(1)
        with tf.control_dependencies([counted]):
            added = [None if g is None else s.assign_add(g) for s, g in zip(sums, grads)]
        added = [None if a is None else tf.convert_to_tensor(a) for a in added]
        present = get_not_none_from_list(added)

        def put_back(some):
            some = iter(some)
            return [None if a is None else next(some) for a in added]

        def reduce():
            return get_not_none_from_list(self._reduced(added, vars))

        with tf.control_dependencies(present):
            due = tf.equal(tf.convert_to_tensor(counted), self._passes)
        if tf.executing_eagerly():
            return self._reduced(added, vars) if bool(due) else added
        some = tf.cond(due, reduce, lambda: [tf.identity(a) for a in present])
        return put_back(some if isinstance(some, (list, tuple)) else [some])

    def apply_gradients(self, apply_grads_closure, optimizer, *args, **kwargs):
        """Call the closure when the gradients are reduced ones, else do nothing."""

        def due():
            return tf.equal(self.counter, self._passes)

        def clear():
            cleared = [self.counter.assign(0)]
            for one in get_not_none_from_list(self.locally_aggregated_grads):
                cleared.append(one.assign(tf.zeros_like(one)))
            return cleared

        if tf.executing_eagerly():
            if not bool(due()):
                return None
            done = apply_grads_closure()
            clear()
            return done
        inputs = [g for g, _ in args[0]] if args else []
        with tf.control_dependencies([g for g in inputs if isinstance(g, tf.Tensor)]):
            is_due = tf.identity(due())

        def apply_and_clear():
            done = apply_grads_closure()
            dependencies = [done] if isinstance(done, (tf.Operation, tf.Tensor)) else []
            with tf.control_dependencies(dependencies):
                cleared = clear()
            with tf.control_dependencies([tf.group(*cleared)]):
                return tf.constant(True)

        return tf.cond(is_due, apply_and_clear, lambda: tf.constant(False))
