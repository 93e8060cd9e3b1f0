"""Callbacks of horovod.keras."""

import keras as _K

from horovod._keras import callbacks as _impl

_classes = _impl.make_classes(_K)
BroadcastGlobalVariablesCallback = _classes["BroadcastGlobalVariablesCallback"]
MetricAverageCallback = _classes["MetricAverageCallback"]
LearningRateScheduleCallback = _classes["LearningRateScheduleCallback"]
LearningRateWarmupCallback = _classes["LearningRateWarmupCallback"]


class BestModelCheckpoint(_impl.checkpoint_base(_K)):
    """ModelCheckpoint of the best model; set `filepath` before training."""

    def __init__(self, monitor="val_loss", verbose=0, mode="auto",
                 save_freq="epoch"):
        super().__init__(monitor, verbose, False, mode, save_freq)
