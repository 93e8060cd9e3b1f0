"""Elastic training with horovod.keras."""

import keras as _K

from horovod._keras import elastic as _impl
from horovod._keras.backends import keras_backend

if keras_backend(_K) == "tensorflow":
    from horovod.tensorflow.elastic import TensorFlowKerasState as _State, run
else:
    from horovod._keras.elastic import ModelState as _State, run

_classes = _impl.make_classes(_K)
CommitStateCallback = _classes["CommitStateCallback"]
UpdateBatchStateCallback = _classes["UpdateBatchStateCallback"]
UpdateEpochStateCallback = _classes["UpdateEpochStateCallback"]


class KerasState(_State):
    """State of a Keras model, its optimizer, and of plain Python values."""

    def __init__(self, model, optimizer=None, **kwargs):
        super().__init__(model, optimizer=optimizer, **kwargs)
