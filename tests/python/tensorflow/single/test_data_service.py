"""A tf.data service: a compute job of two workers beside a training job of two ranks."""

import os
import subprocess
import sys

import pytest

from horovod.runner.common.util.timeout import TimeoutException

TRAIN = """
import sys
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
hvd.init()
rank, size = hvd.rank(), hvd.size()
whole = tf.data.Dataset.range(40).map(lambda x: x * 2)
try:
    # one run through the data for the ranks of a dispatcher, another for every rank
    for _ in range(2):
        shared = whole.send_to_data_service(config, rank, size, reuse_dataset=True)
        mine = [int(x) for x in shared]
        every = sorted(sum(hvd.allgather_object(mine), []))
        once = sorted(list(range(0, 80, 2)) * config.dispatchers)
        assert every == once, every
    alone = whole.send_to_data_service(config, rank)
    assert sorted(int(x) for x in alone) == list(range(0, 80, 2))
    turns = whole.repeat().batch(4).send_to_data_service(config, rank, size, reuse_dataset=True,
                                                         round_robin=True)
    assert len([b for b in turns.take(6)]) == 6
    with tf_data_service(config, rank) as address:
        assert address.startswith("grpc://")
    hvd.allreduce(tf.constant(1.0), name="all have read")
finally:
    if rank == 0:
        config.compute_client().shutdown()
print("trained", flush=True)
"""


def config(**changed):
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    fields = dict(dispatchers=2, workers_per_dispatcher=3, dispatcher_side="compute",
                  addresses={"lo": [("127.0.0.1", 1)]}, key=b"\x00\xffkey", timeout=7)
    return TfDataServiceConfig(**{**fields, **changed})


def test_config_goes_through_a_file(tmp_path):
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    one = config()
    assert TfDataServiceConfig.from_dict(one.to_dict()) == one
    path = str(tmp_path / "config.json")
    one.write(path)
    assert TfDataServiceConfig.read(path, wait_for_file_creation=True) == one
    assert os.stat(path).st_mode & 0o077 == 0, "others may read the key"
    assert os.listdir(str(tmp_path)) == ["config.json"]
    assert config(key=b"").timeout == 7


def test_bad_arguments():
    import tensorflow as tf

    from horovod.tensorflow.data.compute_service import tf_data_service

    data = tf.data.Dataset.range(3)
    with pytest.raises(ValueError, match="size"):
        data.send_to_data_service(config(), 0, reuse_dataset=True, round_robin=True)
    with pytest.raises(ValueError, match="'compute' or 'training'"):
        with tf_data_service(config(dispatcher_side="elsewhere"), 0):
            pass


def test_workers_that_do_not_come():
    from horovod.runner.common.service.compute_service import ComputeService
    from horovod.tensorflow.data.compute_service import tf_data_service

    service = ComputeService(1, 1, key=b"key")
    try:
        with pytest.raises(TimeoutException, match="dispatcher 0 to register"):
            with tf_data_service(config(dispatchers=1, addresses=service.addresses(), key=b"key",
                                        timeout=1), 0):
                pass
    finally:
        service.shutdown()


@pytest.mark.parametrize("side", ["compute", "training"])
@pytest.mark.parametrize("dispatchers", [1, 2])
def test_two_jobs(tmp_path, side, dispatchers):
    path = str(tmp_path / "config.json")
    job = ["hvdrun", "--timeout", "100s", "-np", "2", sys.executable]
    compute = subprocess.Popen(
        job + ["-m", "horovod.tensorflow.data.compute_worker", path, "--dispatchers",
               str(dispatchers), "--dispatcher-side", side, "--timeout", "60"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        train = subprocess.run(job + ["-c", TRAIN, path], stdin=subprocess.DEVNULL, timeout=120,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert train.returncode == 0, train.stdout[-3000:]
        assert train.stdout.count("trained") == 2
        said = compute.communicate(timeout=60)[0]
        assert compute.returncode == 0, said[-3000:]
    finally:
        compute.kill()
