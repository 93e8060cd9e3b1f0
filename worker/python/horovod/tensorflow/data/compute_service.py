"""tf.data service beside a training job.

A compute job (compute_worker.py) has one process for each worker; it serves one dispatcher
or several, and each training rank reads from the dispatcher rank % dispatchers. Where the
dispatchers run is dispatcher_side: "compute" is the first worker of each dispatcher,
"training" the first training ranks. A ComputeService in the compute job tells all where
they are and when to end; who wants to talk to it reads its address and key from a file.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import socket
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

import tensorflow as tf

from horovod.runner.common.service.compute_service import ComputeClient

_service = tf.data.experimental.service
_SIDES = ("compute", "training")
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """Where the ComputeService of a compute job is, and what the job looks like.

    addresses  of the ComputeService: {interface: [(address, port)]}
    key        signs what is said to it; whoever has it is trusted
    timeout    seconds to wait for dispatchers and workers to register
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Dict[str, List[Tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose=1) -> ComputeClient:
        """A new client of the service."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> Mapping[str, Any]:
        """What from_dict() and JSON understand; the key is hexadecimal text."""
        return dict(dataclasses.asdict(self), key=self.key.hex())

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "TfDataServiceConfig":
        """The counterpart of to_dict()."""
        addresses = {name: [tuple(place) for place in places]
                     for name, places in config["addresses"].items()}
        key = config["key"]
        return TfDataServiceConfig(
            dispatchers=config["dispatchers"],
            workers_per_dispatcher=config["workers_per_dispatcher"],
            dispatcher_side=config["dispatcher_side"], addresses=addresses,
            key=bytes.fromhex(key) if isinstance(key, str) else key,
            timeout=config.get("timeout", 60),
        )

    def write(self, filename: str):
        """Write a file that only its owner can read; it is there at once or not at all."""
        folder = os.path.dirname(os.path.abspath(filename))
        handle, name = tempfile.mkstemp(dir=folder, prefix=".tf-data-service-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as f:
                json.dump(self.to_dict(), f)
            os.replace(name, filename)
        except BaseException:
            os.unlink(name)
            raise

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> "TfDataServiceConfig":
        """The configuration in a file.

        wait_for_file_creation  wait until there is such a file
        """
        while wait_for_file_creation and not os.path.exists(filename):
            time.sleep(_POLL_S)
        with open(filename, encoding="utf-8") as f:
            return TfDataServiceConfig.from_dict(json.load(f))


def _checked_side(side):
    if side not in _SIDES:
        raise ValueError("dispatcher_side is 'compute' or 'training', not %r" % (side,))
    return side


def _own_address(client):
    """This host's address towards the service; that of the loopback only if there is no other."""
    places = [place for name in client.addresses().values() for place in name]
    found = []
    for place in places:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(place)  # sends nothing
                found.append(probe.getsockname()[0])
            except OSError:
                continue
    return next((a for a in found if not a.startswith("127.")), "127.0.0.1")


#: dispatchers of this process, by service and number: they end with the process, since other
#: ranks may read for longer than this one
_dispatchers = {}
_jobs = itertools.count()


def _start_dispatcher(compute_config, dispatcher_id, client):
    """Run a dispatcher here that has told the service its address, unless there is one."""
    known = (compute_config.key, dispatcher_id)
    if known in _dispatchers:
        return
    server = _service.DispatchServer(_service.DispatcherConfig(port=0))
    port = server.target.rsplit(":", 1)[1]
    client.register_dispatcher(dispatcher_id, "grpc://%s:%s" % (_own_address(client), port))
    _dispatchers[known] = server


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> str:
    """The address of a training rank's dispatcher, whose workers are all there.

    rank  this rank of the training job. With dispatcher_side "training" the first ranks run
          the dispatchers, until the process ends
    TimeoutException when they are not there within compute_config.timeout seconds.
    """
    side = _checked_side(compute_config.dispatcher_side)
    client = compute_config.compute_client(verbose=2)
    if side == "training" and rank < compute_config.dispatchers:
        _start_dispatcher(compute_config, rank, client)
    dispatcher_id = rank % compute_config.dispatchers
    address = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
    client.wait_for_dispatcher_worker_registration(dispatcher_id, compute_config.timeout)
    yield address


def send_to_data_service(dataset: tf.data.Dataset, compute_config: TfDataServiceConfig, rank: int,
                         size: Optional[int] = None, processing_mode: str = "distributed_epoch",
                         reuse_dataset: bool = False, round_robin: bool = False) -> tf.data.Dataset:
    """The data set, prepared by the workers of this rank's dispatcher.

    size             ranks of the training job; needed with reuse_dataset and round_robin
    processing_mode  of tf.data service: "distributed_epoch", "parallel_epochs" or a
                     tf.data.experimental.service.ShardingPolicy
    reuse_dataset    the ranks of a dispatcher share one run through the data set; all ranks
                     make their shared data sets in the same order
    round_robin      and take turns, so that all get equally much; the data set is endless then
    """
    turns = {}
    if reuse_dataset and round_robin:
        if size is None:
            raise ValueError("send_to_data_service: reuse_dataset with round_robin needs size, "
                             "the number of training ranks")
        ranks = range(rank % compute_config.dispatchers, size, compute_config.dispatchers)
        turns = {"consumer_index": ranks.index(rank), "num_consumers": len(ranks)}
    job = "job.%d" % next(_jobs) if reuse_dataset else None
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(_service.distribute(processing_mode=processing_mode, service=address,
                                                 job_name=job, **turns))


# as a method, too: dataset.send_to_data_service(compute_config, rank)
tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig):
    """What each rank of a compute job does: be a worker until the service says to end.

    Rank i serves dispatcher i // workers_per_dispatcher, ranks behind the last one's serve the
    last one, too. With dispatcher_side "compute" a dispatcher's first worker runs it.
    """
    import horovod.tensorflow as hvd

    hvd.init()
    index, last = hvd.rank(), compute_config.dispatchers - 1
    dispatcher_id = min(index // compute_config.workers_per_dispatcher, last)
    side = _checked_side(compute_config.dispatcher_side)
    client = compute_config.compute_client(verbose=2)
    if side == "compute" and index == dispatcher_id * compute_config.workers_per_dispatcher:
        _start_dispatcher(compute_config, dispatcher_id, client)
    address = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
    worker = _service.WorkerServer(_service.WorkerConfig(
        dispatcher_address=address.split("://")[-1],
        worker_address="%s:%%port%%" % _own_address(client)))
    client.register_worker_for_dispatcher(dispatcher_id, index)
    client.wait_for_shutdown()
    worker._stop()
