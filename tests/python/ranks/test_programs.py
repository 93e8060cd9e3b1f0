"""Training loops of the kinds that people have written for Horovod, as they write them."""

import contextlib
import copy
import json
import os
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 3


def network(hvd):
    torch.manual_seed(hvd.rank() + 1)  # broadcast_parameters makes them equal
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.BatchNorm1d(16),
                         nn.Linear(16, CLASSES))


def data(hvd, count=8):
    generator = torch.Generator().manual_seed(100 + hvd.rank())
    return (torch.randn(count, 10, generator=generator),
            torch.randint(0, CLASSES, (count,), generator=generator))


def assert_equal_weights(hvd, parameters):
    for p in parameters:
        every = hvd.allgather(p.detach().reshape(1, -1))
        assert (every == every[0]).all(), "the ranks' weights differ"


def wrap(hvd, optimizer, model, prefix="", **options):
    named = [(prefix + name, p) for name, p in model.named_parameters()]
    return hvd.DistributedOptimizer(optimizer, named_parameters=named, **options)


def backward(hvd, model):
    x, y = data(hvd)
    F.cross_entropy(model(x), y).backward()


class Metric:
    def __init__(self, hvd, name):
        self.hvd, self.name = hvd, name
        self.sum, self.count = torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value):
        self.sum += self.hvd.allreduce(value.detach().cpu(), name=self.name)
        self.count += 1


def test_images_with_checkpoint_and_sub_batches(hvd, tmp_path):
    rank, size = hvd.rank(), hvd.size()
    resume = hvd.broadcast(torch.tensor(5 if rank == 0 else 0), root_rank=0,
                           name="resume_from_epoch").item()
    assert resume == 5
    model = network(hvd)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * size, momentum=0.9,
                                weight_decay=1e-4)
    optimizer = wrap(hvd, optimizer, model, compression=hvd.Compression.fp16,
                     backward_passes_per_step=2, op=hvd.Average, gradient_predivide_factor=2.0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    dataset = torch.utils.data.TensorDataset(*data(hvd, 32))
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=size,
                                                              rank=rank)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler,
                                         drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        metric = Metric(hvd, "train_loss")
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (epoch + 1)
            optimizer.zero_grad()
            for i in range(0, len(x), 2):
                loss = F.cross_entropy(model(x[i : i + 2]), y[i : i + 2])
                metric.update(loss)
                loss.div_(2)
                loss.backward()
            optimizer.step()
        every = hvd.allgather(metric.sum.reshape(1))
        assert (every == every[0]).all()
    assert_equal_weights(hvd, model.parameters())
    path = tmp_path / "checkpoint.pt"
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        found = torch.load(path)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def test_words_with_clipped_gradients(hvd):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Embedding(50, 8), nn.Linear(8, 50)
            self.rnn = nn.LSTM(8, 8, 2)
            self.decoder.weight = self.encoder.weight  # tied

        def forward(self, x, hidden=None):
            out, hidden = self.rnn(self.encoder(x), hidden)
            return self.decoder(out), hidden

    model, hidden = Words(), None
    optimizer = wrap(hvd, torch.optim.SGD(model.parameters(), lr=1.0), model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * hvd.rank() + step)
        x = torch.randint(0, 50, (5, 4), generator=generator)
        optimizer.zero_grad()
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        out, hidden = model(x, hidden)
        F.cross_entropy(out.view(-1, 50), x.view(-1)).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_equal_weights(hvd, model.parameters())


def test_sparse_and_dense_optimizers_of_one_model(hvd):
    bag, linear = nn.EmbeddingBag(30, 4, sparse=True), nn.Linear(4, 2)
    optimizers = [
        wrap(hvd, torch.optim.SparseAdam(list(bag.parameters())), bag, "bag."),
        wrap(hvd, torch.optim.AdamW(linear.parameters()), linear, "linear."),
    ]
    for model in (bag, linear):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        linear(bag(torch.tensor([[hvd.rank(), step], [step, 7]]))).pow(2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_equal_weights(hvd, list(bag.parameters()) + list(linear.parameters()))
    hvd.broadcast_optimizer_state(optimizers[0], root_rank=0)


def test_lbfgs(hvd):
    model = nn.Linear(10, 1)
    optimizer = wrap(hvd, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4), model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    x, _ = data(hvd)

    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


def test_a_trainer_that_synchronizes_by_itself(hvd):
    model = network(hvd)
    parts = [model[0], model[3]]
    optimizers = [torch.optim.SGD(parts[0].parameters(), 0.1),
                  torch.optim.Adam(parts[1].parameters())]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for optimizer in optimizers:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapped = []
    for optimizer in optimizers:
        mine = {p for group in optimizer.param_groups for p in group["params"]}
        wrapped.append(hvd.DistributedOptimizer(optimizer, named_parameters=[
            (name, p) for name, p in model.named_parameters() if p in mine]))
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1) for one in wrapped]
    with contextlib.ExitStack() as stack:
        for one in wrapped:
            stack.enter_context(one.skip_synchronize())
        for _ in range(3):
            for one in wrapped:
                one.zero_grad(set_to_none=True)
            backward(hvd, model)
            for one in wrapped:
                one.synchronize()
            for one in wrapped:
                one.step()
            for scheduler in schedulers:
                scheduler.step()
    for part in parts:
        assert_equal_weights(hvd, part.parameters())
    assert isinstance(wrapped[0], torch.optim.SGD) and repr(wrapped[0]).startswith("SGD")
    hvd.join()


def test_schedulers_do_not_warn(hvd):
    model = network(hvd)
    optimizer = wrap(hvd, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)
    kinds = torch.optim.lr_scheduler
    schedulers = [kinds.OneCycleLR(optimizer, 0.1, total_steps=10),
                  kinds.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
                  kinds.CosineAnnealingLR(optimizer, 10)]
    plateau = kinds.ReduceLROnPlateau(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.zero_grad()
            backward(hvd, model)
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
            plateau.step(1.0)


OPTIMIZERS = sorted(
    name for name in dir(torch.optim)
    if isinstance(getattr(torch.optim, name), type)
    and issubclass(getattr(torch.optim, name), torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
)


def test_every_optimizer_resumes_from_rank_0(hvd):
    for name in OPTIMIZERS:
        torch.manual_seed(hvd.rank())
        model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
        plain = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        if hvd.rank() == 0:  # the others have no state yet
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            plain.step()
            for p in model.parameters():
                p.grad = None
        optimizer = wrap(hvd, plain, model)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).pow(2).sum().backward()
            optimizer.step()
        assert_equal_weights(hvd, model.parameters())
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        texts = hvd.allgather_object(json.dumps(
            {key: str(value) for key, value in state["state"].items()}))
        assert len(set(texts)) == 1, name


def test_autocast_and_half_models(hvd):
    model = network(hvd)
    optimizer = wrap(hvd, torch.optim.SGD(model.parameters(), 0.1), model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    x, y = data(hvd)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    assert_equal_weights(hvd, model.parameters())
    half = nn.Linear(10, 2).to(torch.bfloat16)
    optimizer = wrap(hvd, torch.optim.SGD(half.parameters(), 0.1), half)
    hvd.broadcast_parameters(half.state_dict(), root_rank=0)
    half(x.to(torch.bfloat16)).sum().backward()
    optimizer.step()
    assert_equal_weights(hvd, half.parameters())


def test_elastic_loop(hvd):
    model = network(hvd)
    optimizer = wrap(hvd, torch.optim.SGD(model.parameters(), 0.1), model)
    dataset = torch.utils.data.TensorDataset(*data(hvd, 40))
    sampler = hvd.elastic.ElasticSampler(dataset)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0,
                                   batch=0)
    state.register_reset_callbacks([lambda: None])

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 2):
            state.sampler.set_epoch(state.epoch)
            loader = torch.utils.data.DataLoader(dataset, batch_size=4, drop_last=True,
                                                 sampler=state.sampler)
            for i, (x, y) in enumerate(loader):
                state.batch = i
                state.optimizer.zero_grad()
                F.cross_entropy(state.model(x), y).backward()
                state.optimizer.step()
                state.sampler.record_batch(i, 4)
                if i % 2 == 0:
                    state.commit()
            state.commit()
        return "trained"

    assert train(state) == "trained"
    assert_equal_weights(hvd, model.parameters())


def test_pickles_and_copies(hvd):
    from horovod.common.exceptions import HostsUpdatedInterrupt

    for one in (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Compression.fp16, hvd.Compression):
        assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(hvd.ProcessSet([0]))).ranks == [0]
    assert str(pickle.loads(pickle.dumps(hvd.HorovodInternalError("why")))) == "why"
    assert pickle.loads(pickle.dumps(HostsUpdatedInterrupt(True))).skip_sync is True
    cloudpickle = pytest.importorskip("cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(lambda: hvd.rank()))() == hvd.rank()
    model = network(hvd)
    optimizer = wrap(hvd, torch.optim.SGD(model.parameters(), 0.1), model)
    backward(hvd, model)
    copy.deepcopy(model)
    pickle.dumps(optimizer.state_dict())
    optimizer.step()


def test_halves_of_a_model_in_two_process_sets(hvd):
    size = int(os.environ["HOROVOD_SIZE"])
    if size == 1:
        pytest.skip("needs 2 ranks")
    evens = hvd.ProcessSet(range(0, size, 2))
    odds = hvd.ProcessSet(range(1, size, 2))
    hvd.shutdown()
    hvd.init(process_sets=[evens, odds])
    mine, other = (evens, odds) if evens.included() else (odds, evens)
    assert mine.included() and not other.included()
    model, alone = nn.Linear(4, 2), nn.Linear(4, 2)
    for p in model.parameters():
        hvd.broadcast_(p.data, mine.ranks[0], process_set=mine)
    optimizer = wrap(hvd, torch.optim.SGD(model.parameters(), 0.1), model, process_set=mine)
    local = wrap(hvd, torch.optim.SGD(alone.parameters(), 0.1), alone, process_set=other)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(hvd.rank()))).sum().backward()
        optimizer.step()
        alone(torch.ones(1, 4)).sum().backward()
        local.step()  # not a member: no exchange
    every = hvd.allgather(model.weight.detach().reshape(1, -1), process_set=mine)
    assert (every == every[0]).all() and len(every) == mine.size()
    # one name in two sets
    handles = [hvd.allreduce_async(torch.ones(2), name="same", op=hvd.Sum, process_set=one)
               for one in (mine, hvd.global_process_set)]
    assert [hvd.synchronize(h)[0].item() for h in handles] == [mine.size(), size]
    # the same objects again
    hvd.shutdown()
    assert evens.process_set_id is None
    hvd.init(process_sets=[evens, odds])
    hvd.allreduce(torch.ones(1), process_set=mine)
    hvd.shutdown()
    hvd.init()
