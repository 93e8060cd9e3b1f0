"""State and callbacks of elastic training; bases of the classes that programs see."""

import numpy as np

from horovod import _native
from horovod._keras.callbacks import _value, _variables_of
from horovod.common import host_ops
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import ObjectState, run_fn

_basics = HorovodBasics(__file__)


def run(func):
    """Decorator of a training function whose first argument is a State."""

    def reset():
        _basics.shutdown()
        _basics.init()

    return run_fn(func, reset)


class CommitStateCallbackImpl:
    """Commits the state every batches_per_commit batches and at the end of an epoch."""

    def __init__(self, backend, state, batches_per_commit, *args):
        super().__init__(*args)
        self.backend = backend
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs=None):
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch, logs=None):
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.commit()

    def commit(self):
        self.state.commit()
        self.batches_remaining = self.batches_per_commit


class UpdateBatchStateCallbackImpl:
    """Keeps state.batch at the batch to go on with after a reset."""

    def __init__(self, backend, state, *args):
        super().__init__(*args)
        self.backend = backend
        self.state = state
        self.steps_per_epoch = None

    def on_train_begin(self, logs=None):
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        params = self.params or {}
        if params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = params["steps"]
            params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch, logs=None):
        self.state.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.state.batch = 0


class UpdateEpochStateCallbackImpl:
    """Keeps state.epoch at the epoch to go on with after a reset."""

    def __init__(self, backend, state, *args):
        super().__init__(*args)
        self.backend = backend
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs=None):
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch, logs=None):
        self.state.epoch = self.initial_epoch + epoch + 1


def make_classes(keras):
    """The callbacks as classes over this Keras's Callback, by name."""
    base = keras.callbacks.Callback

    class CommitStateCallback(CommitStateCallbackImpl, base):
        __doc__ = CommitStateCallbackImpl.__doc__

        def __init__(self, state, batches_per_commit=1):
            super().__init__(keras.backend, state, batches_per_commit)

    class UpdateBatchStateCallback(UpdateBatchStateCallbackImpl, base):
        __doc__ = UpdateBatchStateCallbackImpl.__doc__

        def __init__(self, state):
            super().__init__(keras.backend, state)

    class UpdateEpochStateCallback(UpdateEpochStateCallbackImpl, base):
        __doc__ = UpdateEpochStateCallbackImpl.__doc__

        def __init__(self, state):
            super().__init__(keras.backend, state)

    return {
        cls.__name__: cls
        for cls in (CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback)
    }


class ModelState(ObjectState):
    """State of a Keras model, its optimizer, and of plain Python values.

    optimizer  None: that of the model
    """

    def __init__(self, model, optimizer=None, backend=None, **kwargs):
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self._saved_values = []
        super().__init__(bcast_object=host_ops.broadcast_object, get_rank=_basics.rank, **kwargs)
        self._keep()

    def _variables(self):
        seen, found = set(), []
        for v in _variables_of(self.model) + _variables_of(self.optimizer):
            if id(v) not in seen:
                seen.add(id(v))
                found.append(v)
        return found

    def _keep(self):
        self._saved_values = [(v, np.array(_value(v))) for v in self._variables()]

    def save(self):
        self._keep()
        super().save()

    def restore(self):
        for variable, value in self._saved_values:
            variable.assign(value)
        super().restore()

    def sync(self):
        variables = self._variables()
        names = ["state.%d.%d" % (len(variables), i) for i in range(len(variables))]
        values = host_ops.exchange(_native.BROADCAST, [_value(v) for v in variables], names)
        for variable, value in zip(variables, values):
            variable.assign(value)
        self._keep()
        super().sync()
