"""The callbacks, for every Keras and every backend; bases of the classes that programs see."""

import warnings

import numpy as np

from horovod import _native
from horovod.common import host_ops
from horovod.common.basics import HorovodBasics

_basics = HorovodBasics(__file__)


def _variables_of(thing):
    found = getattr(thing, "variables", None) if thing is not None else []
    return list(found() if callable(found) else found or [])


def _value(variable):
    """A variable's value as an array."""
    if hasattr(variable, "numpy") and not hasattr(variable, "constraint"):
        return np.asarray(variable.numpy())
    value = getattr(variable, "value", variable)
    value = value() if callable(value) else value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    return np.asarray(value)


class _Common:
    """What Keras 2 asks a callback and Keras 3 no longer defines, and XLA switched off."""

    _supports_tf_logs = False

    def set_model(self, model):
        if getattr(model, "jit_compile", None) and _on_tensorflow():
            warnings.warn("collectives cannot be compiled by XLA: jit_compile is now False")
            model.jit_compile = False
            if hasattr(model, "_jit_compile"):
                model._jit_compile = False
        super().set_model(model)

    def _implements_train_batch_hooks(self):
        return True

    def _implements_test_batch_hooks(self):
        return False

    def _implements_predict_batch_hooks(self):
        return False


def _on_tensorflow():
    try:
        import keras
    except ImportError:
        return True
    if int(keras.__version__.split(".")[0]) < 3:
        return True
    return keras.backend.backend() == "tensorflow"


class BroadcastGlobalVariablesCallbackImpl(_Common):
    """Gives every rank root_rank's variables when the first batch has been trained.

    That is when the optimizer has its variables too.
    """

    def __init__(self, backend, root_rank, device="", *args):
        super().__init__(*args)
        self.backend = backend
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_vars = []

    def register_local_var(self, var):
        """This variable keeps its value on every rank."""
        self._local_vars.append(var)

    def _shared(self):
        seen = {id(v) for v in self._local_vars}
        found = []
        model = self.model
        for v in _variables_of(model) + _variables_of(getattr(model, "optimizer", None)):
            if id(v) not in seen:
                seen.add(id(v))
                found.append(v)
        return found

    def on_batch_end(self, batch, logs=None):
        if self.broadcast_done:
            return
        variables = self._shared()
        names = ["model.%d.%d" % (len(variables), i) for i in range(len(variables))]
        values = host_ops.exchange(
            _native.BROADCAST, [_value(v) for v in variables], names, root=self.root_rank
        )
        for variable, value in zip(variables, values):
            variable.assign(value)
        self.broadcast_done = True

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs)


class MetricAverageCallbackImpl(_Common):
    """Makes the logs of an epoch averages over all ranks; callbacks behind it see those."""

    def __init__(self, backend, device="", *args):
        super().__init__(*args)
        self.backend = backend
        self.device = device

    def _average_metrics_in_place(self, logs):
        logs = logs or {}
        names, values = [], []
        for metric, value in sorted(logs.items()):
            try:
                value = np.asarray(value, np.float64)
            except (TypeError, ValueError):
                continue
            names.append(metric)
            values.append(value)
        if not names:
            return
        averages = host_ops.exchange(
            _native.ALLREDUCE, values, ["metric." + n for n in names], _basics.Average
        )
        for metric, value in zip(names, averages):
            logs[metric] = float(value) if value.ndim == 0 else value

    def on_epoch_end(self, epoch, logs=None):
        self._average_metrics_in_place(logs)


def get_hyper(optimizer, name):
    """The number behind an optimizer's setting."""
    value = getattr(optimizer, name)
    if callable(value) and not hasattr(value, "numpy"):
        raise ValueError("the optimizer has a schedule for %s; give it a number" % name)
    return float(_value(value)) if not isinstance(value, (int, float)) else float(value)


def set_hyper(optimizer, name, number):
    current = getattr(optimizer, name)
    if hasattr(current, "assign"):
        current.assign(number)
    else:
        setattr(optimizer, name, number)


class LearningRateScheduleCallbackImpl(_Common):
    """The learning rate is initial_lr times multiplier, a number or a function of the epoch."""

    def __init__(self, backend, initial_lr, multiplier, start_epoch=0, end_epoch=None,
                 staircase=True, momentum_correction=True, steps_per_epoch=None, *args):
        super().__init__(*args)
        self.backend = backend
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.initial_lr = initial_lr
        self.restore_momentum = None
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = None
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.staircase = True
            self.multiplier = lambda epoch: multiplier

    def _autodetect_steps_per_epoch(self):
        params = self.params or {}
        if params.get("steps"):
            return params["steps"]
        if params.get("samples") and params.get("batch_size"):
            return params["samples"] // params["batch_size"]
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the "
            "steps_per_epoch parameter to the %s()." % type(self).__name__
        )

    def _adjust_learning_rate(self, epoch):
        optimizer = self.model.optimizer
        old_lr = get_hyper(optimizer, "learning_rate")
        new_lr = self.initial_lr * self.multiplier(epoch)
        set_hyper(optimizer, "learning_rate", new_lr)
        if self.momentum_correction and getattr(optimizer, "momentum", None) and old_lr:
            # the velocity holds gradients that were scaled by the old rate
            self.restore_momentum = get_hyper(optimizer, "momentum")
            set_hyper(optimizer, "momentum", self.restore_momentum * new_lr / old_lr)

    def _restore_momentum_if_needed(self):
        if self.restore_momentum is not None:
            set_hyper(self.model.optimizer, "momentum", self.restore_momentum)
            self.restore_momentum = None

    def on_train_begin(self, logs=None):
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._autodetect_steps_per_epoch()

    def on_epoch_begin(self, epoch, logs=None):
        self.current_epoch = epoch

    def on_batch_begin(self, batch, logs=None):
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase and batch == 0:
            self._adjust_learning_rate(self.current_epoch)
        elif not self.staircase:
            self._adjust_learning_rate(self.current_epoch + float(batch) / self.steps_per_epoch)

    def on_batch_end(self, batch, logs=None):
        self._restore_momentum_if_needed()

    def on_train_batch_begin(self, batch, logs=None):
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = get_hyper(self.model.optimizer, "learning_rate")


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    """From initial_lr / size to initial_lr in warmup_epochs, a little more with each batch."""

    def __init__(self, backend, initial_lr, warmup_epochs=5, momentum_correction=True,
                 steps_per_epoch=None, verbose=0, *args):
        def multiplier(epoch):
            # a batch is trained with the rate of its end
            epoch += 1.0 / self.steps_per_epoch
            size = _basics.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(backend, initial_lr, multiplier, 0, warmup_epochs, False,
                         momentum_correction, steps_per_epoch, *args)
        self.verbose = verbose

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0:
            print("\nEpoch %d: finished gradual learning rate warmup to %g."
                  % (epoch + 1, get_hyper(self.model.optimizer, "learning_rate")))


def make_classes(keras):
    """The callbacks as classes over this Keras's Callback, by name."""
    base = keras.callbacks.Callback

    class BroadcastGlobalVariablesCallback(BroadcastGlobalVariablesCallbackImpl, base):
        __doc__ = BroadcastGlobalVariablesCallbackImpl.__doc__

        def __init__(self, root_rank, device="", local_variables=None):
            super().__init__(keras.backend, root_rank, device)
            for variable in local_variables or []:
                self.register_local_var(variable)

    class MetricAverageCallback(MetricAverageCallbackImpl, base):
        __doc__ = MetricAverageCallbackImpl.__doc__

        def __init__(self, device=""):
            super().__init__(keras.backend, device)

    class LearningRateScheduleCallback(LearningRateScheduleCallbackImpl, base):
        __doc__ = LearningRateScheduleCallbackImpl.__doc__

        def __init__(self, initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
                     momentum_correction=True, steps_per_epoch=None):
            super().__init__(keras.backend, initial_lr, multiplier, start_epoch, end_epoch,
                             staircase, momentum_correction, steps_per_epoch)

    class LearningRateWarmupCallback(LearningRateWarmupCallbackImpl, base):
        __doc__ = LearningRateWarmupCallbackImpl.__doc__

        def __init__(self, initial_lr, warmup_epochs=5, momentum_correction=True,
                     steps_per_epoch=None, verbose=0):
            super().__init__(keras.backend, initial_lr, warmup_epochs, momentum_correction,
                             steps_per_epoch, verbose)

    return {
        cls.__name__: cls
        for cls in (BroadcastGlobalVariablesCallback, MetricAverageCallback,
                    LearningRateScheduleCallback, LearningRateWarmupCallback)
    }


def checkpoint_base(keras):
    """Base of BestModelCheckpoint: a ModelCheckpoint whose filepath is given later."""

    class Best(keras.callbacks.ModelCheckpoint):
        def __init__(self, monitor, verbose, save_weights_only, mode, save_freq):
            # Keras checks the ending of a path here; the real path comes with filepath below
            ending = ".weights.h5" if save_weights_only else ".keras"
            super().__init__(
                filepath="best" + ending, monitor=monitor, verbose=verbose, save_best_only=True,
                save_weights_only=save_weights_only, mode=mode, save_freq=save_freq,
            )
            self.filepath = None

    return Best
