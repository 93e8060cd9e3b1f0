"""The workers of a tf.data service, one in each rank of a job of their own.

    hvdrun -np N python -m horovod.tensorflow.data.compute_worker CONFIGFILE [options]

Rank 0 writes CONFIGFILE, which the training job reads with TfDataServiceConfig.read(). The job
ends when somebody calls shutdown() of TfDataServiceConfig.compute_client().
"""

import argparse

import horovod.tensorflow as hvd
from horovod.runner.common.service.compute_service import ComputeService
from horovod.runner.common.util import secret
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int):
    """Serve as one of hvd.size() workers until the end is told."""
    hvd.init()
    if not 1 <= dispatchers <= hvd.size():
        raise ValueError("%d dispatchers need at least as many workers, here are %d; start more "
                         "ranks or give --dispatchers" % (dispatchers, hvd.size()))
    workers = hvd.size() // dispatchers
    service, config = None, None
    if hvd.rank() == 0:
        key = secret.make_secret_key()
        service = ComputeService(dispatchers, workers, key=key)
        config = TfDataServiceConfig(
            dispatchers=dispatchers, workers_per_dispatcher=workers,
            dispatcher_side=dispatcher_side, addresses=service.addresses(), key=key,
            timeout=timeout)
        config.write(configfile)
    try:
        compute_worker_fn(hvd.broadcast_object(config, name="tf_data_service_config"))
        # all have had their answer before the service ends
        hvd.allgather_object(None, name="tf_data_service_end")
    finally:
        if service is not None:
            service.shutdown()


parser = argparse.ArgumentParser(
    prog="compute_worker", description="One worker of a tf.data service in each rank.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("configfile", help="where rank 0 writes what training ranks need to know")
parser.add_argument("--dispatchers", type=int, default=1, help="how many; workers are shared out")
parser.add_argument("--dispatcher-side", choices=["compute", "training"], default="compute",
                    help="where dispatchers run: in this job or in the training job")
parser.add_argument("--timeout", type=int, default=60,
                    help="seconds to wait for dispatchers and workers")


if __name__ == "__main__":
    parsed_args = parser.parse_args()
    main(parsed_args.dispatchers, parsed_args.dispatcher_side, parsed_args.configfile,
         parsed_args.timeout)
