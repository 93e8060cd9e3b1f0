"""Signals, forks, threads, init and shutdown. Last, as it leaves and joins the job."""

import os
import re
import signal
import threading
import time

import pytest
import torch


def test_ctrl_c_during_a_wait(hvd):
    if hvd.size() == 1:
        pytest.skip("one rank never waits")
    if hvd.rank() == 0:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="interrupted")
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
        assert time.monotonic() - began < 5
        hvd.barrier()
        assert hvd.synchronize(handle).tolist() == [float(hvd.size())] * 2
    else:
        hvd.barrier()
        hvd.allreduce(torch.ones(2), op=hvd.Sum, name="interrupted")


def test_waiting_lets_other_threads_run(hvd):
    if hvd.size() == 1:
        pytest.skip("one rank never waits")
    if hvd.rank() == 0:
        stop, ticks = threading.Event(), []

        def tick():
            while not stop.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.005)

        thread = threading.Thread(target=tick)
        thread.start()
        cpu = time.thread_time()
        hvd.barrier()
        used = time.thread_time() - cpu
        stop.set()
        thread.join()
        assert len(ticks) > 5
        assert used < 0.2, "the waiting thread used the CPU for %.3f s" % used
    else:
        time.sleep(0.4)
        hvd.barrier()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((4,), float(i))


def test_data_loader_workers(hvd):
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6))
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()


def test_a_forked_child_cannot_take_part(hvd):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce(torch.ones(1))
            text = b"no error"
        except Exception as error:
            text = type(error).__name__.encode()
        os.write(write, text)
        os._exit(0)
    os.close(write)
    text = os.read(read, 100)
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    assert text in (b"HorovodInternalError", b"ValueError")
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()


def test_many_threads(hvd):
    results = {}

    def body(i):
        for k in range(10):
            got = hvd.allreduce(torch.full((100,), float(i)), op=hvd.Sum, name="t%d.%d" % (i, k))
            results[(i, k)] = float(got[3])

    threads = [threading.Thread(target=body, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {(i, k): float(i * hvd.size()) for i in range(4) for k in range(10)}


def test_timeline(hvd, tmp_path):
    import json

    path = tmp_path / "trace.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    for i in range(3):
        hvd.allreduce(torch.ones(4), name="traced")
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() == 0:
        deadline = time.monotonic() + 10
        while True:
            try:
                assert "allreduce.traced" in json.dumps(json.loads(path.read_text()))
                break
            except (AssertionError, ValueError, OSError):
                assert time.monotonic() < deadline, "no allreduce.traced in the trace"
                time.sleep(0.05)


def test_timeline_that_cannot_be_written(hvd, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "closed").mkdir(0o555)
    bad = [("no/trace.json", OSError, "No such file or directory"),
           ("", OSError, "Is a directory"), ("fifo", ValueError, "not a regular file"),
           ("closed/trace.json", OSError, "Permission denied")]
    hvd.stop_timeline()
    for name, kind, why in bad[: 3 if os.geteuid() == 0 else 4]:
        path = str(tmp_path / name)
        if hvd.rank() == 0:
            with pytest.raises(kind, match="timeline %s: %s" % (re.escape(path), why)):
                hvd.start_timeline(path)
        else:
            hvd.start_timeline(path)
    with pytest.raises(ValueError, match="has no NUL"):
        hvd.start_timeline("a\0b")
    with pytest.raises(ValueError, match="empty"):
        hvd.start_timeline("")
    hvd.start_timeline(tmp_path / "trace.json")
    hvd.start_timeline(tmp_path / "trace.json")
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="trace.json; stop it first"):
            hvd.start_timeline(tmp_path / "other.json")
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
    hvd.stop_timeline()
    hvd.stop_timeline()
    assert not (tmp_path / "other.json").exists()


def test_static_process_sets(hvd):
    hvd.shutdown()
    first = hvd.ProcessSet([0])
    if hvd_size() == 1:
        # the set of all ranks exists already
        with pytest.raises(ValueError, match="already exists"):
            hvd.init(process_sets=[first])
        assert not hvd.is_initialized()
        return
    hvd.init(process_sets=[first])
    assert first.process_set_id == 1
    if first.included():
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=first)) == 1.0
    hvd.shutdown()
    assert first.process_set_id is None
    with pytest.raises(ValueError):
        hvd.init(process_sets="static")
    hvd.init(process_sets="dynamic")


def hvd_size():
    return int(os.environ["HOROVOD_SIZE"])


def test_nothing_works_before_init(hvd):
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for fact in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank,
                 hvd.cross_size, hvd.is_homogeneous):
        with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
            fact()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.allreduce(torch.ones(1))
    with pytest.raises(ValueError):
        hvd.add_process_set([0])
    hvd.init()
    hvd.init()
    assert hvd.size() == hvd_size()


def test_pending_operations_fail_at_shutdown(hvd):
    if hvd.size() == 1:
        pytest.skip("one rank leaves nothing pending")
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="never")
    else:
        time.sleep(0.2)
    hvd.shutdown()
    if handle is not None:
        with pytest.raises(hvd.HorovodInternalError, match="has been shut down"):
            hvd.synchronize(handle)
        assert hvd.synchronize(handle) is None
    hvd.init()


def test_dropped_handles_are_given_back_at_shutdown(hvd):
    def slot():
        handle = hvd.allreduce_async(torch.ones(2), name="slot")
        hvd.synchronize(handle)
        return handle & 0xFFFFFFFF

    before = slot()
    for _ in range(3):
        for _ in range(100):
            hvd.allgather_async(torch.ones(2))
        hvd.barrier()
        hvd.shutdown()
        hvd.init()
    assert slot() < before + 200, "300 handles are still taken"


def test_two_equal_static_sets_are_an_error_on_every_rank(hvd):
    if hvd.size() == 1:
        pytest.skip("needs 2 ranks")
    hvd.shutdown()
    for _ in range(2):
        with pytest.raises(ValueError, match="already exists|same ranks"):
            hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
        assert not hvd.is_initialized()
    hvd.init()
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()


def test_others_hear_of_a_rank_that_left(hvd):
    if hvd.size() == 1:
        pytest.skip("needs 2 ranks")
    if hvd.rank() == 1:
        hvd.shutdown()
    else:
        with pytest.raises(hvd.HorovodInternalError, match="has been shut down"):
            hvd.allreduce(torch.ones(2), name="left.alone")
        hvd.shutdown()
    hvd.init()
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()


def test_hundred_init_shutdown_cycles(hvd):
    times = []
    for i in range(100):
        hvd.shutdown()
        began = time.monotonic()
        hvd.init()
        times.append(time.monotonic() - began)
        if i % 10 == 0:
            assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
    median = sorted(times)[50]
    print("init: median %.4f s" % median)
    assert median < 0.1, "init takes %.3f s" % median
