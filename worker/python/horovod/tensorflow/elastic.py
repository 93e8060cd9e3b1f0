"""Elastic training: hvd.elastic.run, TensorFlowKerasState, TensorFlowState."""

import functools

import numpy as np
import tensorflow as tf

from horovod import _native
from horovod._keras.elastic import ModelState
from horovod.common import host_ops
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.functions import broadcast_object
from horovod.tensorflow.mpi_ops import init, rank, shutdown

_LOST = (b"%d" % _native.EPEER, b"%d" % _native.ESHUTDOWN)


def is_lost(error):
    """Is this TensorFlow error that of an operation whose peer is gone?"""
    payloads = getattr(error, "experimental_payloads", None) or {}
    return any(payloads.get(key) in _LOST for key in ("hvd.status", b"hvd.status"))


def run(func):
    """Decorator of a training function whose first argument is a State.

    When a rank is lost, the state goes back to its last commit, the job is formed anew and
    the function is called again.
    """

    def reset():
        shutdown()
        init()

    @functools.wraps(func)
    def guarded(state, *args, **kwargs):
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as error:
            if is_lost(error):
                raise HorovodInternalError(error) from error
            raise

    return run_fn(guarded, reset)


def _values(variables, session=None):
    if session is not None:
        return [np.asarray(v) for v in session.run(list(variables))]
    return [np.asarray(v) for v in variables]


def _give(variables, values, session=None):
    for variable, value in zip(variables, values):
        if session is not None:
            variable.load(value, session)
        else:
            variable.assign(value)


def _broadcast(values):
    names = ["state.%d.%d" % (len(values), i) for i in range(len(values))]
    return host_ops.exchange(_native.BROADCAST, values, names) if values else []


class TensorFlowState(ObjectState):
    """State of variables and of plain Python values, which are attributes.

    variables  None: all global variables of a v1 graph
    session    the session of a v1 graph
    """

    def __init__(self, variables=None, session=None, **kwargs):
        self.variables = list(
            tf.compat.v1.global_variables() if variables is None else variables
        )
        self.session = session
        self._saved_values = _values(self.variables, session)
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def save(self):
        self._saved_values = _values(self.variables, self.session)
        super().save()

    def restore(self):
        _give(self.variables, self._saved_values, self.session)
        super().restore()

    def sync(self):
        values = _broadcast(_values(self.variables, self.session))
        _give(self.variables, values, self.session)
        self._saved_values = values
        super().sync()


class TensorFlowKerasState(ModelState):
    """State of a Keras model, its optimizer, and of plain Python values.

    optimizer  None: that of the model
    backend    not needed
    """
