"""The error contract: types, and that the job goes on afterwards."""

import pytest
import torch


def goes_on(hvd):
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()


def only_from(n):
    return pytest.mark.skipif("int(__import__('os').environ.get('HOROVOD_SIZE', 1)) < %d" % n,
                              reason="needs %d ranks" % n)


@only_from(2)
def test_shape_mismatch(hvd):
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(3 + (hvd.rank() == 1)), name="shape")
    text = str(caught.value)
    assert "shape" in text and "rank 1" in text
    goes_on(hvd)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones((2, 2) if hvd.rank() == 0 else (4,)), name="shape2")
    goes_on(hvd)


@only_from(2)
def test_dtype_mismatch(hvd):
    dtype = torch.float32 if hvd.rank() == 0 else torch.float64
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(3, dtype=dtype), name="dtype")
    assert "float32" in str(caught.value) and "float64" in str(caught.value)
    goes_on(hvd)


@only_from(2)
def test_op_and_scale_mismatch(hvd):
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(3), name="op", op=hvd.Sum if hvd.rank() == 0 else hvd.Max)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(3), name="scale", prescale_factor=1.0 + hvd.rank())
    goes_on(hvd)


@only_from(2)
def test_allgather_mismatch(hvd):
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allgather(torch.ones(2, 3 + hvd.rank()), name="gather")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allgather(torch.ones((2, 3) if hvd.rank() == 0 else (2, 3, 1)), name="gather2")
    goes_on(hvd)


@only_from(2)
def test_root_mismatch(hvd):
    with pytest.raises(hvd.HorovodInternalError):
        hvd.broadcast(torch.ones(2), root_rank=hvd.rank() % 2, name="root")
    goes_on(hvd)


@only_from(2)
def test_group_mismatch(hvd):
    tensors = [torch.ones(2), torch.ones(3 + (hvd.rank() == 0))]
    with pytest.raises(hvd.HorovodInternalError):
        hvd.grouped_allreduce(tensors, name="group")
    goes_on(hvd)


def test_duplicate_name(hvd):
    if hvd.rank() == 0 and hvd.size() > 1:
        # the others have not come yet, so the first one is surely in flight
        first = hvd.allreduce_async(torch.ones(2), name="twice")
        with pytest.raises(ValueError, match="same name"):
            hvd.allreduce_async(torch.ones(2), name="twice")
        hvd.barrier()
        hvd.synchronize(first)
    else:
        hvd.barrier()
        hvd.allreduce(torch.ones(2), name="twice")
    goes_on(hvd)


def test_bad_arguments_are_refused_at_once(hvd):
    n = hvd.size()
    with pytest.raises(ValueError):
        hvd.broadcast(torch.ones(2), root_rank=n)
    with pytest.raises(ValueError):
        hvd.broadcast(torch.ones(2), root_rank=-1)
    with pytest.raises(ValueError):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(ValueError):
        hvd.reducescatter(torch.tensor(1.0))
    with pytest.raises(ValueError):
        hvd.alltoall(torch.ones(n), splits=torch.ones(n + 1, dtype=torch.int32))
    with pytest.raises(ValueError):
        hvd.alltoall(torch.ones(n), splits=torch.full((n,), 2, dtype=torch.int32))
    with pytest.raises(ValueError):
        hvd.alltoall(torch.ones(n), splits=torch.ones(n))
    with pytest.raises(ValueError, match="one dimension"):
        hvd.alltoall(torch.ones(n), splits=torch.ones(n, 1, dtype=torch.int32))
    if n > 1:
        with pytest.raises(ValueError):
            hvd.alltoall(torch.ones(n + 1))
    with pytest.raises(NotImplementedError):
        hvd.reducescatter(torch.ones(n), op=hvd.Max)
    with pytest.raises(ValueError):
        hvd.allreduce(torch.ones(2), name="x" * 2000)
    goes_on(hvd)


def test_unsupported_types(hvd):
    for bad in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse()):
        with pytest.raises(ValueError, match="is not supported"):
            hvd.allreduce(bad)
        with pytest.raises(ValueError, match="is not supported"):
            hvd.broadcast_(bad, 0)
    with pytest.raises(ValueError):
        hvd.allreduce_([1.0, 2.0])
    goes_on(hvd)


@only_from(2)
def test_gather_while_a_rank_has_joined(hvd):
    if hvd.rank() == 0:
        hvd.join()
    else:
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allgather(torch.ones(2), name="after.join")
        hvd.join()
    goes_on(hvd)


def test_exception_types(hvd):
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

    assert hvd.HorovodInternalError is HorovodInternalError
    assert issubclass(HorovodInternalError, RuntimeError)
    assert HostsUpdatedInterrupt(True).skip_sync is True
