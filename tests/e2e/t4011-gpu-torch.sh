#!/bin/bash
# deadline: 90
# The CUDA path of horovod.torch without a GPU: tensors that say that they are on one lie in the fake
# driver's memory. Each operation gets the tensor's device and PyTorch's current stream, synchronize()
# orders that stream after the result and does not wait for the device; results of libhvd are GPU memory.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
# not a PyTorch with CUDA: the stubs that stand for its libraries would be taken
python=$("$HVD_SRC/scripts/python-env.sh" --check torch-debian 2>err) ||
    { echo "no PyTorch: $(tail -n 1 err)"; exit 77; }
cat >tensors.py <<'PY'
import ctypes
import threading

import torch

import horovod.torch as hvd
from horovod.torch import mpi_ops

cuda = ctypes.CDLL("libcuda.so.1")


def cu(name, *args):
    rc = getattr(cuda, name)(*args)
    assert rc == 0, (name, rc)


class OnGpu(torch.Tensor):
    is_cuda = True
    device = torch.device("cuda", 0)

    def get_device(self):
        return hvd.local_rank()


class Stream:
    def __init__(self):
        handle = ctypes.c_void_p()
        cu("cuStreamCreate", ctypes.byref(handle), 1)
        self.cuda_stream = handle.value


def on_gpu(address, count, dtype=torch.float32):
    size = count * torch.empty(0, dtype=dtype).element_size()
    memory = (ctypes.c_ubyte * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_subclass(OnGpu)


def tensor(values):
    host = torch.tensor(values)
    address = ctypes.c_uint64()
    cu("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4096))
    made = on_gpu(address.value, len(values), host.dtype)
    memory.append(host)  # the copy is queued
    cu("cuMemcpyHtoDAsync_v2", address, ctypes.c_void_p(host.data_ptr()),
       ctypes.c_size_t(host.numel() * host.element_size()), ctypes.c_void_p(stream.cuda_stream))
    return made


def values(made):
    cu("cuStreamSynchronize", ctypes.c_void_p(stream.cuda_stream))
    return torch.Tensor.tolist(made.as_subclass(torch.Tensor))


memory = []
hvd.init()
cu("cuInit", 0)
context = ctypes.c_void_p()
cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), hvd.local_rank())
cu("cuCtxSetCurrent", context)
stream = Stream()
torch.cuda.current_stream = lambda device=None: stream


def as_tensor(buffer, device=None):
    memory.append(buffer)  # PyTorch keeps it as long as the tensor
    interface = buffer.__cuda_array_interface__
    return on_gpu(interface["data"][0], interface["shape"][0], torch.uint8)


torch.as_tensor = as_tensor
waited = []
real = mpi_ops._native.wait


def wait(handles, *mode):
    waited.append(mode)
    return real(handles, *mode)


mpi_ops._native.wait = wait
rank, size = hvd.rank(), hvd.size()

called = threading.Event()
in_time = []
late = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda arg: in_time.append(called.wait(20)))
cu("cuLaunchHostFunc", ctypes.c_void_p(stream.cuda_stream), late, None)  # a backward pass
a = tensor([1.0 + rank, 2.0])
assert hvd.allreduce_(a, op=hvd.Sum, name="a") is a
called.set()  # it returned while the backward pass ran
assert values(a) == [size * (size + 1) / 2, 2.0 * size], values(a)
assert in_time == [True], "allreduce_ has waited for the stream"
b = tensor([float(rank)] * 5)
hvd.broadcast_(b, root_rank=size - 1, name="b")
assert values(b) == [float(size - 1)] * 5
handles = [hvd.allreduce_async_(tensor([float(rank), i]), op=hvd.Average, name="g%d" % i) for i in range(20)]
for i, handle in enumerate(handles):
    assert values(hvd.synchronize(handle)) == [(size - 1) / 2, i]
assert waited and all(mode == (mpi_ops._native.WAIT_ENQUEUED,) for mode in waited), waited
c = hvd.allgather(tensor([float(rank)] * (rank + 1)), name="c")
assert isinstance(c, OnGpu) and values(c) == [float(r) for r in range(size) for _ in range(r + 1)]
host = torch.tensor([float(rank)])
address = host.data_ptr()
try:
    hvd.allreduce_(host.as_subclass(OnGpu), name="not on a GPU")
    raise SystemExit("memory of the host was taken")
except ValueError as error:
    assert "is not GPU memory" in str(error), error
hvd.shutdown()
print("rank %d of %d fine" % (rank, size))
PY
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake FAKE_CUDA_DELAY_US=200
export PYTHONPATH=$HVD_SRC/worker/python HVD_LIBRARY=$HVD_BUILD/lib/libhvd.so
for np in 1 2; do
    run hvdrun -np $np "$python" tensors.py
    expect_status 0
    expect_line out "rank $((np - 1)) of $np fine"
done
