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


def test_every_argument_is_accepted(tmp_path):
    def work():
        print("hello")
        return int(os.environ["HOROVOD_RANK"]), sys.executable

    out = str(tmp_path / "out")
    found = horovod.run(
        work, num_proc=2, max_num_proc=None, slots=2, reset_limit=3, cooldown_range=(1, 2),
        hosts="localhost:2", start_timeout=60, disable_cache=True, output_filename=out,
        verbose=0, use_gloo=True, mpi_args="--x", network_interfaces="lo",
        executable=sys.executable)
    assert found == [(0, sys.executable), (1, sys.executable)]
    for rank in "01":
        with open(os.path.join(out, "rank." + rank, "stdout")) as f:
            assert f.read() == "hello\n"


def test_the_ranks_tracebacks_name_rank_and_line():
    def work():
        rank = int(os.environ["HOROVOD_RANK"])
        if rank == 1:
            return 1 // 0
        return rank

    with pytest.raises(RuntimeError) as error:
        horovod.run(work, num_proc=2)
    assert "rank 1: Traceback" in str(error.value)
    assert "in work\n" in str(error.value) and "ZeroDivisionError" in str(error.value)


def test_a_result_that_cannot_travel_is_said():
    import threading

    with pytest.raises(RuntimeError, match="rank 0: Traceback(.|\n)*cannot pickle"):
        horovod.run(threading.Lock)


def test_a_rank_that_ends_at_once_gives_no_result():
    with pytest.raises(RuntimeError, match="no result came from rank 0"):
        horovod.run(os._exit, args=(0,))


@pytest.mark.parametrize("more", [{"min_num_proc": 1}, {"host_discovery_script": "x"}])
def test_elastic_functions_are_not_there_yet(more):
    with pytest.raises(NotImplementedError, match="not supported yet"):
        horovod.run(print, **more)
