"""A program without a wrong type, for test_types.py; never run."""

from pathlib import Path
from typing import Dict, List

import horovod
import horovod.torch as hvd
import torch
from horovod.torch import Compression
from torch.utils.data import TensorDataset

hvd.init()
hvd.init(process_sets=[hvd.ProcessSet([0, 1])])
hvd.init(process_sets="dynamic")
number: int = hvd.rank() + hvd.size() + hvd.local_rank() + hvd.local_size()
number = hvd.cross_rank() + hvd.cross_size() + hvd.nccl_built() + hvd.join() + hvd.join(number)
fact: bool = hvd.is_initialized() or hvd.gloo_enabled() or hvd.mpi_threads_supported()
hvd.start_timeline("trace.json", mark_cycles=True)
hvd.start_timeline(Path("trace.json"))
hvd.stop_timeline()

model = torch.nn.Sequential(torch.nn.Linear(2, 2), hvd.SyncBatchNorm(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
hvd.broadcast_parameters(list(model.parameters()), 0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
other = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), groups=2, op=hvd.Adasum,
                                 compression=Compression.none)
other.synchronize()
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16,
    op=hvd.Average, backward_passes_per_step=2, gradient_predivide_factor=2.0,
    groups=[list(model.parameters())], process_set=hvd.global_process_set, sparse_as_dense=True)
x = torch.ones(2, 2)
loss = model(x).sum()
loss.backward()
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()

average: float = hvd.allreduce(loss.detach(), name="loss").item()
t: torch.Tensor = hvd.allreduce(x, average=False) + hvd.allreduce_(x, op=hvd.Min)
t = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=2,
                  compression=hvd.Compression.none)
t = hvd.allgather(x, name="g") + hvd.broadcast(x, 0) + hvd.broadcast_(x, root_rank=0)
handle = hvd.allreduce_async(x, name="h")
while not hvd.poll(handle):
    pass
for handle in (hvd.allreduce_async_(x), hvd.allgather_async(x), hvd.broadcast_async(x, 0),
               hvd.broadcast_async_(x, 0), hvd.alltoall_async(x), hvd.reducescatter_async(x),
               hvd.grouped_allreduce_async([x]), hvd.grouped_allreduce_async_([x]),
               hvd.grouped_allgather_async([x]), hvd.grouped_reducescatter_async([x])):
    t = hvd.synchronize(handle)
many: List[torch.Tensor] = hvd.grouped_allreduce([x, x], name="many", op=hvd.Max)
many = hvd.grouped_allreduce_((x, x)) + hvd.grouped_allgather([x])
many = hvd.grouped_reducescatter([x])
t = hvd.alltoall(x)
t, received = hvd.alltoall(x, splits=torch.tensor([1, 1]))
t, received = hvd.alltoall(x, [1, 1], "name")
t = hvd.reducescatter(x, op=hvd.Sum, name="r")
t = hvd.sparse_allreduce_async(x.to_sparse(), "sparse", hvd.Average)()
hvd.barrier()

known: Dict[str, int] = hvd.broadcast_object({"a": 1}, root_rank=0, name="o")
everyone: List[str] = hvd.allgather_object("a", name="all")
some = hvd.add_process_set([0, 1])
some = hvd.add_process_set(hvd.ProcessSet(range(1)))
if some.included() and some.rank() == 0 and some.size() == 1:
    t = hvd.allreduce(x, process_set=some)
fact = hvd.remove_process_set(some)
try:
    hvd.allreduce(x)
except hvd.HorovodInternalError as error:
    print(error.args)

begin = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)
sampler = hvd.elastic.ElasticSampler(TensorDataset(x), shuffle=False)
sampler.record_batch(0, 4)
begin.register_reset_callbacks([lambda: sampler.set_epoch(1)])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, more: int) -> float:
    for state.epoch in range(state.epoch, 3):
        state.commit()
    return 1.0


average = train(begin, 1)
results = horovod.run(print, args=(1,), num_proc=2)
hvd.shutdown()
