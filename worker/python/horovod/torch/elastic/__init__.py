"""Elastic training: hvd.elastic.run, TorchState, ElasticSampler."""

from horovod.common.elastic import run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "TorchState", "init", "run", "run_fn", "shutdown"]


def run(func):
    """Decorator of a training function whose first argument is a State.

    When a rank is lost, the state goes back to its last commit, the job is formed anew and
    the function is called again.
    """

    def reset():
        shutdown()
        init()

    return run_fn(func, reset)
