"""The aggregation of gradient_aggregation.py under the name that eager programs use."""

from horovod.common.process_sets import global_process_set
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """Sums gradients of several backward passes before they are reduced."""

    def __init__(self, backward_passes_per_step, allreduce_func, sparse_as_dense,
                 average_aggregated_gradients, process_set=global_process_set,
                 scale_local_gradients=True):
        super().__init__(
            backward_passes_per_step, allreduce_func, sparse_as_dense,
            average_aggregated_gradients, process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
