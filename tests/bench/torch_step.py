"""Steps per second of gradient exchange in torch: horovod.torch, DDP over Gloo, Horovod.

    hvdrun -np N python torch_step.py WHAT SHAPES [SECONDS]
WHAT    hvd    DistributedOptimizer of this project's package (or of the original Horovod,
               whichever `import horovod` finds)
        ddp    DistributedDataParallel over Gloo
        none   no exchange: what the rest of the step costs
SHAPES  resnet50   161 tensors with the shapes of ResNet-50's gradients (25.6 M floats)
        small      1000 tensors of 1 KiB
A step: zero_grad, a backward whose gradients are there at once (so that the exchange is
measured and not a network), optimizer.step with SGD. Rank 0 prints one line:
    WHAT SHAPES np=N MEDIAN steps/s MEDIAN ms BEST ms CPU ms (of this rank, per step)
and a JSON line for scripts/bench.sh.
"""

import json
import os
import sys
import time

import torch


def resnet50_shapes():
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (width * 4, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(width * 4, inputs, 1, 1), (width * 4,), (width * 4,)]
            inputs = width * 4
    return shapes + [(1000, 2048), (1000,)]


class Given(torch.autograd.Function):
    """A loss whose gradients are given."""

    @staticmethod
    def forward(ctx, gradients, *weights):
        ctx.gradients = gradients
        return weights[0].new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return (None, *ctx.gradients)


class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        torch.manual_seed(1)
        self.weights = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.randn(s) * 0.01) for s in shapes]
        )
        self.gradients = [torch.randn(s) * 0.01 for s in shapes]

    def forward(self, _):
        return Given.apply(self.gradients, *self.weights)


def run(what, name, seconds):
    shapes = {"resnet50": resnet50_shapes(), "small": [(256,)] * 1000}[name]
    model = Model(shapes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    network = model
    count, rank = 1, 0
    if what == "hvd":
        import horovod.torch as hvd

        hvd.init()
        count, rank = hvd.size(), hvd.rank()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters()
        )
    elif what == "ddp":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        count, rank = dist.get_world_size(), dist.get_rank()
        network = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        rank = int(os.environ.get("HOROVOD_RANK", "0"))
        count = int(os.environ.get("HOROVOD_SIZE", "1"))

    def step():
        optimizer.zero_grad()
        network(1.0 + rank).backward()
        optimizer.step()

    for _ in range(5):
        step()
    # the same number of steps everywhere: rank 0's first measurement says how many
    began = time.perf_counter()
    for _ in range(3):
        step()
    each = torch.tensor([(time.perf_counter() - began) / 3])
    if what == "hvd":
        each = hvd.broadcast(each, 0)
    elif what == "ddp":
        dist.broadcast(each, 0)
    steps = max(5, int(seconds / float(each)))
    times = []
    cpu = time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    cpu = (time.process_time() - cpu) / steps
    times.sort()
    median = times[len(times) // 2]
    if rank == 0:
        print("%s %s np=%d %.2f steps/s %.2f ms best %.2f ms cpu %.2f ms"
              % (what, name, count, 1 / median, median * 1e3, times[0] * 1e3, cpu * 1e3))
        print(json.dumps({"peer": what, "np": count, "step": "torch " + name,
                          "med_us": median * 1e6, "p99_us": times[len(times) * 99 // 100] * 1e6}))
    if what == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 3.0)
