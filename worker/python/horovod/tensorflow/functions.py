"""Collectives on variables and on any Python object."""

import tensorflow as tf

from horovod.common import host_ops
from horovod.common.process_sets import global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.util import do_not_convert


def _is_variable(value):
    return hasattr(value, "assign")


@do_not_convert
def broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False):
    """Give every rank root_rank's values of variables.

    variables  of TensorFlow or Keras, in one list
    inplace    accepted; there is nothing that it changes
    Returns nothing, in a v1 graph the op that does it.
    """
    variables = [v for v in variables if _is_variable(v)]
    if not variables:
        return None if tf.executing_eagerly() else tf.no_op()
    names = ["broadcast_variables.%d.%d" % (len(variables), i) for i in range(len(variables))]
    values = mpi_ops._broadcast_many(variables, names, root_rank, process_set)
    assigned = [mpi_ops._assign(v, value) for v, value in zip(variables, values)]
    graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
    if graph is None or getattr(graph, "building_function", False):
        return None
    return tf.group(*[a.op if hasattr(a, "op") else a for a in assigned])


@do_not_convert
def broadcast_object(obj, root_rank=0, session=None, name=None,
                     process_set=global_process_set):
    """root_rank's object on every rank, pickled on the way. Only for ranks you trust.

    session  not needed
    """
    return host_ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank=0, session=None, name=None, process_set=global_process_set):
    """broadcast_object as a function of the object alone."""

    def broadcast(obj):
        return host_ops.broadcast_object(obj, root_rank, name, process_set)

    return broadcast


@do_not_convert
def allgather_object(obj, session=None, name=None, process_set=global_process_set):
    """The objects of all ranks, as a list in rank order. Only for ranks you trust."""
    return host_ops.allgather_object(obj, name, process_set)
