"""More programs as people write them, and what else they touch of the package."""

import copy
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def equal_on_all_ranks(hvd, tensors):
    for tensor in tensors:
        every = hvd.allgather(tensor.detach().reshape(1, -1).contiguous())
        assert (every == every[0]).all(), "the ranks' values differ"


# ---- gradients that change between steps: an operation's layout is kept from step to step


@pytest.mark.parametrize("count", [3, 50], ids=["hooks", "queued by step"])
def test_gradients_that_are_not_those_of_the_step_before(hvd, count):
    shape = (4, 6)
    params = [nn.Parameter(torch.zeros(shape)) for _ in range(count)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    every = [r + 1.0 for r in range(hvd.size())]
    mean = sum(every) / len(every)

    def give(i, p, kind):
        """p's gradient of this kind instead of what backward has left."""
        value = hvd.rank() + 1.0
        if kind == "moved":
            p.grad = torch.full(shape, value)
        elif kind == "strided":
            p.grad = torch.full(shape[::-1], value).t()
        elif kind == "sliced":
            p.grad = torch.full((4, 12), value)[:, ::2]
        elif kind == "parameter":
            p.grad = nn.Parameter(torch.full(shape, value), requires_grad=False)
        elif kind == "none" and i % 2:
            p.grad = None
        elif kind == "double":
            p.grad.data = torch.full(shape, value, dtype=torch.float64)

    for kind in ("same", "moved", "strided", "sliced", "parameter", "double", "none", "same"):
        for p in params:
            p.data.zero_()
        optimizer.zero_grad(set_to_none=kind in ("moved", "double"))
        if count > 3:
            # the hook counts one parameter; the others' gradients are looked at in step()
            sum((p * (hvd.rank() + 1.0)).sum() for p in params).backward()
            for i, p in enumerate(params):
                give(i, p, kind)
        else:
            for i, p in enumerate(params):
                p.grad = torch.full(shape, hvd.rank() + 1.0)
                give(i, p, kind)
        if kind == "double":
            optimizer.synchronize()
            got = [p.grad for p in params]
        else:
            optimizer.step()
            got = [-p.detach() for p in params]
        for i, one in enumerate(got):
            wanted = 0.0 if kind == "none" and i % 2 else mean
            assert torch.allclose(one.double(), torch.full(shape, wanted).double()), (kind, i)
        if kind == "double":
            for p in params:
                p.grad = torch.zeros(shape)
            with optimizer.skip_synchronize():
                optimizer.step()


# ---- loops


class Encoder(nn.Module):
    """Tied embeddings, norms, and a layer that some batches leave out."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(3))

    def forward(self, tokens, dropped=None):
        x = self.words(tokens)
        for i, layer in enumerate(self.layers):
            if i != dropped:
                x = x + layer(x)
        return F.linear(x.mean(1), self.words.weight)


def tokens(step, part, rank):
    generator = torch.Generator().manual_seed(1000 * step + 100 * part + rank)
    batch = torch.randint(0, 20, (4, 5), generator=generator)
    return batch, batch[:, 0]


def groups_of(model):
    plain = [p for name, p in model.named_parameters() if name.endswith("bias")]
    decayed = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    return [dict(params=decayed, weight_decay=0.01), dict(params=plain, weight_decay=0.0)]


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))


def test_a_language_model_equals_one_process(hvd):
    """Parameter groups, tied weights, sub-batches, dropped layers, warm-up, clipping."""
    torch.manual_seed(3)
    model = Encoder()
    alone = copy.deepcopy(model)
    passes, size = 2, hvd.size()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(groups_of(model), lr=0.01), backward_passes_per_step=passes,
        named_parameters=model.named_parameters())
    reference = torch.optim.AdamW(groups_of(alone), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    schedules = warmup(optimizer), warmup(reference)
    for step in range(4):
        # one rank leaves out a layer: its gradients there are zero
        left_out = {step % size: step % 3}
        optimizer.zero_grad()
        for part in range(passes):
            x, y = tokens(step, part, hvd.rank())
            (F.cross_entropy(model(x, left_out.get(hvd.rank())), y) / passes).backward()
        optimizer.synchronize()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.zero_grad()
        for rank in range(size):
            for part in range(passes):
                x, y = tokens(step, part, rank)
                loss = F.cross_entropy(alone(x, left_out.get(rank)), y)
                (loss / passes / size).backward()
        for p in alone.parameters():
            # what no rank has used is exchanged as zeros; without an exchange it stays None
            if p.grad is None and size > 1:
                p.grad = torch.zeros_like(p)
        wanted = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        assert math.isclose(float(norm), float(wanted), rel_tol=1e-4)
        reference.step()
        for schedule in schedules:
            schedule.step()
    equal_on_all_ranks(hvd, model.parameters())
    for p, q in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(p, q, atol=1e-5)


def test_images_with_a_moving_average(hvd, tmp_path):
    """Averaged weights, augmentation by rank, metrics by name, resume on all ranks."""
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                          nn.Linear(4 * 36, 3)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9,
                                nesterov=True)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=hvd.Compression.fp16)
    average = copy.deepcopy(model)
    for p in average.parameters():
        p.requires_grad_(False)
    random.seed(hvd.rank())  # what a program draws must not matter to the exchange
    for step in range(3):
        images = torch.randn(4, 1, 8, 8).to(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(images), torch.randint(0, 3, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for kept, now in zip(average.state_dict().values(), model.state_dict().values()):
            kept.copy_(kept * 0.9 + now.detach() * 0.1 if kept.is_floating_point() else now)
        shown = hvd.allreduce_(loss.detach().clone(), name="loss")
        assert torch.isfinite(shown)
    equal_on_all_ranks(hvd, model.parameters())
    equal_on_all_ranks(hvd, average.parameters())
    # statistics of normalization are each rank's own until somebody averages them
    for name, buffer in average.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(hvd.allreduce(buffer, name="buffer." + name))
    equal_on_all_ranks(hvd, [b for b in average.buffers() if b.is_floating_point()])
    saved = None
    if hvd.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   str(tmp_path / "last.pt"))
        saved = torch.load(str(tmp_path / "last.pt"))
    saved = hvd.broadcast_object(saved, root_rank=0, name="checkpoint")
    fresh = copy.deepcopy(model)
    fresh.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    equal_on_all_ranks(hvd, fresh.parameters())
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.05 * hvd.size()


def test_evaluation_of_uneven_shares(hvd):
    """Predictions gathered by rank, a mean weighted by count, one decision for all ranks."""
    mine = torch.arange(hvd.rank() + 1) + 10 * hvd.rank()
    every = hvd.allgather(mine, name="predictions")
    assert every.tolist() == [10 * r + i for r in range(hvd.size()) for i in range(r + 1)]
    counted = hvd.allreduce(torch.tensor([float(mine.sum()), float(len(mine))]), op=hvd.Sum)
    assert math.isclose(counted[0] / counted[1], float(every.sum()) / len(every), rel_tol=1e-6)
    reports = hvd.allgather_object({"rank": hvd.rank(), "best": 1.0 / (1 + hvd.rank())})
    assert [r["rank"] for r in reports] == list(range(hvd.size()))
    stop = hvd.broadcast_object(reports[-1]["best"] < 0.5, root_rank=0)
    assert stop == (hvd.size() > 2)
    assert hvd.join() in range(hvd.size())


def test_a_model_is_wrapped_anew(hvd):
    """Fine-tuning: the head alone first, then everything with another optimizer."""
    torch.manual_seed(0)
    body, head = nn.Linear(6, 4), nn.Linear(4, 2)
    model = nn.Sequential(body, head)
    body.requires_grad_(False)
    for stage in range(2):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(trained, lr=0.1),
            named_parameters=[(n, p) for n, p in model.named_parameters() if p.requires_grad])
        before = body.weight.detach().clone()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((2, 6), hvd.rank() + 1.0)).square().sum().backward()
            optimizer.step()
        assert torch.equal(before, body.weight) == (stage == 0)
        equal_on_all_ranks(hvd, model.parameters())
        body.requires_grad_(True)
        model.zero_grad()


@pytest.mark.parametrize("passes", [1, 2])
def test_adasum_in_a_loop(hvd, passes):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of two of ranks")
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), op=hvd.Adasum,
        named_parameters=model.named_parameters(), backward_passes_per_step=passes)
    generator = torch.Generator().manual_seed(hvd.rank())
    x = torch.randn(32, 10, generator=generator)
    y = (x[:, 0] > 0).long()
    first = last = None
    for _ in range(15):
        optimizer.zero_grad()
        for part in range(passes):
            loss = F.cross_entropy(model(x[part::passes]), y[part::passes])
            (loss / passes).backward()
        optimizer.step()
        mean = float(hvd.allreduce(loss.detach(), name="loss"))
        first, last = first if first is not None else mean, mean
    assert last < 0.95 * first
    equal_on_all_ranks(hvd, model.parameters())


# ---- names


def test_names_that_programs_touch(hvd):
    import horovod
    import horovod.torch.compression
    import horovod.torch.functions
    import horovod.torch.mpi_ops
    import horovod.torch.optimizer

    assert horovod.torch is hvd
    assert hvd.mpi_ops is horovod.torch.mpi_ops
    assert hvd.mpi_threads_supported() is False and hvd.gloo_built()
    assert isinstance(hvd.nccl_built(), int) and hvd.mpi_built() is False
    assert hvd.rank() == horovod.torch.mpi_ops.rank() == hvd.mpi_ops._basics.rank()
    handle = hvd.mpi_ops.allreduce_async(torch.ones(2), op=hvd.mpi_ops.Sum)
    assert horovod.torch.mpi_ops.synchronize(handle)[0] == hvd.size()
    half, context = horovod.torch.compression.Compression.fp16.compress(torch.ones(3))
    assert half.dtype == torch.float16
    assert horovod.torch.compression.FP16Compressor.decompress(half, context).dtype == torch.float32
    assert issubclass(hvd.compression.NoneCompressor, hvd.compression.Compressor)
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
                                         named_parameters=model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert type(optimizer).__name__ == "SGD" and optimizer.defaults["momentum"] == 0.9
    assert optimizer._requires_update == (set(model.parameters()) if hvd.size() > 1 else set())
    assert optimizer._parameter_names[model.weight] == "weight"
    assert optimizer.backward_passes_per_step == 1 and optimizer._handles == {}
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert "momentum_buffer" in optimizer.state[model.weight]
    hooked = hvd.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0))
    hooked.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
    assert [g["lr"] for g in hooked.param_groups] == [1.0, 0.5]
