"""horovod.run(): functions as jobs."""

import os
import subprocess
import sys

import pytest

import horovod


def test_results_in_rank_order():
    def work(a, b=0):
        import torch

        import horovod.torch as hvd

        hvd.init()
        total = float(hvd.allreduce(torch.tensor(float(a + b)), op=hvd.Sum))
        return hvd.rank(), hvd.size(), total

    assert horovod.run(work, args=(1,), kwargs={"b": 2}, num_proc=3) == [
        (r, 3, 9.0) for r in range(3)
    ]


def test_failure_is_a_runtime_error_with_the_reason():
    def work():
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("this one")
        return 1

    with pytest.raises(RuntimeError, match="this one"):
        horovod.run(work, num_proc=2)


def test_argument_checks():
    with pytest.raises(ValueError):
        horovod.run(print, hosts="localhost:1", hostfile="x")
    with pytest.raises(ValueError):
        horovod.run(print, use_gloo=True, use_mpi=True)


def test_np_is_deprecated():
    with pytest.warns(DeprecationWarning):
        assert horovod.run(os.getcwd, np=1) == [os.getcwd()]


def test_plain_torch_distributed_under_hvdrun(tmp_path):
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no Gloo")
    script = tmp_path / "plain.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.tensor([float(dist.get_rank())])\n"
        "dist.all_reduce(x)\n"
        "assert float(x) == 1.0\n"
        "dist.destroy_process_group()\n"
    )
    subprocess.run(["hvdrun", "-np", "2", sys.executable, str(script)], check=True)
