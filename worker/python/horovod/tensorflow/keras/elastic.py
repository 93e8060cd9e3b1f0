"""Elastic training with horovod.tensorflow.keras."""

from tensorflow import keras as _K

from horovod._keras import elastic as _impl
from horovod.tensorflow.elastic import TensorFlowKerasState, run  # noqa: F401

_classes = _impl.make_classes(_K)
CommitStateCallback = _classes["CommitStateCallback"]
UpdateBatchStateCallback = _classes["UpdateBatchStateCallback"]
UpdateEpochStateCallback = _classes["UpdateEpochStateCallback"]


class KerasState(TensorFlowKerasState):
    """State of a Keras model, its optimizer, and of plain Python values."""

    def __init__(self, model, optimizer=None, **kwargs):
        super().__init__(model, optimizer=optimizer, **kwargs)
