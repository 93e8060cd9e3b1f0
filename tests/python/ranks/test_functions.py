"""Broadcast of models, optimizers and objects; SyncBatchNorm; elastic state."""

import collections
import copy
import threading

import pytest
import torch
import torch.nn as nn


def model_of(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))


def test_broadcast_parameters(hvd):
    for give in (lambda m: m.state_dict(), lambda m: m.named_parameters(),
                 lambda m: list(m.named_parameters()), lambda m: list(m.parameters())):
        model, want = model_of(hvd.rank()), model_of(hvd.size() - 1)
        hvd.broadcast_parameters(give(model), root_rank=hvd.size() - 1)
        for a, b in zip(model.parameters(), want.parameters()):
            assert torch.equal(a, b)
    model = model_of(hvd.rank()).to(memory_format=torch.channels_last)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert torch.equal(model[0].weight, model_of(0)[0].weight)
    state = collections.OrderedDict(a=torch.full((2,), float(hvd.rank())), b=None, c=3)
    hvd.broadcast_parameters(state, root_rank=0)
    assert state["a"].tolist() == [0.0, 0.0]
    for bad in (torch.ones(1), 5, "abc"):
        with pytest.raises(ValueError):
            hvd.broadcast_parameters(bad, root_rank=0)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.2, momentum=0.9)),
    "adam": (torch.optim.Adam, dict(lr=0.2, betas=(0.8, 0.9))),
    "adamw": (torch.optim.AdamW, dict(lr=0.2, amsgrad=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.2)),
    "rprop": (torch.optim.Rprop, dict(lr=0.2, etas=(0.4, 1.3))),
    "asgd": (torch.optim.ASGD, dict(lr=0.2)),
}


def steps(model, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 1, 4, 4)).sum().backward()
        optimizer.step()


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_broadcast_optimizer_state(hvd, name):
    kind, options = OPTIMIZERS[name]
    # only the root has made steps, as after loading a checkpoint there
    model = model_of(1)
    optimizer = kind(model.parameters(), **options)
    want_model = model_of(1)
    want = kind(want_model.parameters(), **options)
    steps(want_model, want, 3)
    if hvd.rank() == 0:
        steps(model, optimizer, 3)
    else:
        for group in optimizer.param_groups:
            group["lr"] = 9.0
    weights = [p.detach().clone() for p in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert equal(optimizer.state_dict(), want.state_dict())
    for a, b in zip(weights, model.parameters()):
        assert torch.equal(a, b.detach())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    steps(model, optimizer, 1)
    steps(want_model, want, 1)
    assert all(torch.allclose(a, b) for a, b in zip(model.parameters(), want_model.parameters()))


def test_broadcast_optimizer_state_of_a_distributed_one(hvd):
    model = model_of(hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    steps(model, optimizer, 2)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    steps(model, optimizer, 1)
    frozen = model_of(0)
    for p in frozen[0].parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.Adam(frozen.parameters())
    if hvd.rank() == 0:
        steps(frozen, optimizer, 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert len(optimizer.state_dict()["state"]) == 4


def test_lbfgs_is_refused(hvd):
    optimizer = torch.optim.LBFGS(nn.Linear(2, 1).parameters())
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def test_objects(hvd):
    n = hvd.size()
    for root in range(n):
        got = hvd.broadcast_object({"from": hvd.rank(), "x": [1, None]}, root_rank=root)
        assert got == {"from": root, "x": [1, None]}
    big = "x" * 300000
    assert hvd.broadcast_object(big if hvd.rank() == 0 else None, 0, name="big") == big
    got = hvd.allgather_object(["r"] * (hvd.rank() + 1))
    assert got == [["r"] * (r + 1) for r in range(n)]
    assert hvd.allgather_object(None, name="none") == [None] * n
    function = hvd.broadcast_object((lambda k: k + 41) if hvd.rank() == 0 else None)
    assert function(1) == 42


def test_objects_that_cannot_be_pickled(hvd):
    """Every rank learns it, none waits; and the next object passes."""
    root = hvd.size() - 1
    mine = threading.Lock() if hvd.rank() == root else [1]
    why = "rank %d cannot pickle its object: TypeError: cannot pickle '_thread.lock' object" % root
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    optimizer.param_groups[0]["extra"] = mine
    for call in (lambda: hvd.broadcast_object(mine, root),
                 lambda: hvd.broadcast_object(mine, root, name="named"),
                 lambda: hvd.allgather_object(mine),
                 lambda: hvd.broadcast_optimizer_state(optimizer, root)):
        with pytest.raises(ValueError, match=why) as caught:
            call()
        assert (caught.value.__cause__ is not None) == (hvd.rank() == root)
    assert hvd.broadcast_object([hvd.rank()], root) == [root]
    assert len(hvd.allgather_object(0)) == hvd.size()


@pytest.mark.parametrize("dims", [(6, 3), (4, 3, 5), (2, 3, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sync_batch_norm(hvd, dims, dtype):
    n, me = hvd.size(), hvd.rank()
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
    inputs = [torch.randn((dims[0] + r,) + dims[1:], dtype=dtype) * (r + 1) + r for r in range(n)]
    weights = [torch.randn_like(t) for t in inputs]
    plain = kinds[len(dims)](3).to(dtype)
    synced = hvd.SyncBatchNorm(3).to(dtype)
    with torch.no_grad():
        for layer in (plain, synced):
            layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
            layer.bias.copy_(torch.tensor([0.0, -1.0, 1.0]))
    for _ in range(2):
        whole = torch.cat(inputs).requires_grad_()
        plain.zero_grad()
        (plain(whole) * torch.cat(weights)).sum().backward()
        mine = inputs[me].clone().requires_grad_()
        synced.zero_grad()
        out = synced(mine)
        (out * weights[me]).sum().backward()
    first = sum(t.shape[0] for t in inputs[:me])
    rows = slice(first, first + mine.shape[0])
    tolerance = dict(rtol=1e-4, atol=1e-4)
    assert torch.allclose(mine.grad, whole.grad[rows], **tolerance)
    assert torch.allclose(synced.running_mean, plain.running_mean, **tolerance)
    assert torch.allclose(synced.running_var, plain.running_var, **tolerance)
    assert int(synced.num_batches_tracked) == 2
    total = hvd.allreduce(synced.weight.grad, op=hvd.Sum)
    assert torch.allclose(total, plain.weight.grad, rtol=1e-3, atol=1e-3)
    total = hvd.allreduce(synced.bias.grad, op=hvd.Sum)
    assert torch.allclose(total, plain.bias.grad, rtol=1e-3, atol=1e-3)
    plain.eval(), synced.eval()
    assert torch.allclose(synced(mine), plain(mine), **tolerance)
    with pytest.raises(ValueError):
        synced(torch.ones(3))


def test_sync_batch_norm_options(hvd):
    x = torch.randn(4, 3) + hvd.rank()
    layer = hvd.SyncBatchNorm(3, affine=False, track_running_stats=False)
    everyone = hvd.allgather(x)
    want = (x - everyone.mean(0)) / (everyone.var(0, unbiased=False) + 1e-5).sqrt()
    assert torch.allclose(layer(x), want, atol=1e-4)
    layer.eval()
    assert torch.allclose(layer(x), want, atol=1e-4)
    layer = hvd.SyncBatchNorm(3, momentum=None)
    layer(x)
    assert torch.allclose(layer.running_mean, everyone.mean(0), atol=1e-5)
    assert layer(x.bfloat16()).dtype == torch.bfloat16


def test_sync_batch_norm_of_ranks_that_built_more(hvd):
    hvd.SyncBatchNorm(3) if hvd.rank() == 0 else None
    layer = hvd.SyncBatchNorm(3)
    if hvd.rank() == hvd.size() - 1:
        layer = copy.deepcopy(layer)
    x = torch.randn(4, 3, requires_grad=True)
    layer(x + hvd.rank()).sum().backward()
    everyone = hvd.allgather(x.detach() + hvd.rank())
    assert torch.allclose(layer.running_mean, 0.1 * everyone.mean(0), atol=1e-5)


def test_sync_batch_norm_in_threads(hvd):
    """Layers of other widths need no order; same widths take turns."""
    widths = [3, 3, 4, 5][:: 1 if hvd.rank() % 2 == 0 else -1]
    start, failed = threading.Barrier(len(widths)), []

    def train(width):
        layer = hvd.SyncBatchNorm(width, momentum=1.0)
        x = torch.ones(2, width, requires_grad=True)
        start.wait()
        try:
            for _ in range(20):
                layer(x + hvd.rank()).sum().backward()
            mean = 1 + (hvd.size() - 1) / 2
            assert torch.allclose(layer.running_mean, torch.full((width,), mean))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=train, args=(width,)) for width in widths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_torch_state(hvd):
    model = model_of(hvd.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=hvd.rank(), batch=5)
    state.sync()
    assert state.epoch == 0 and state.batch == 5
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), model_of(0).parameters()))
    assert optimizer.param_groups[0]["lr"] == 0.1
    steps(model, optimizer, 1)
    saved = copy.deepcopy(model.state_dict())
    state.epoch = 7
    state.commit()
    steps(model, optimizer, 2)
    state.epoch = 8
    state.restore()
    assert state.epoch == 7
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), saved.values()))


def test_elastic_run_restores_after_an_error(hvd):
    state = hvd.elastic.TorchState(model=None, count=0, seen=0)
    calls = []
    state.register_reset_callbacks([lambda: calls.append(hvd.size())])

    @hvd.elastic.run
    def train(state):
        state.seen = state.count
        while state.count < 5:
            state.count += 1
            if state.count == 3:
                state.commit()
            if state.count == 4 and not calls:
                raise hvd.HorovodInternalError("made up")
        return state.count, state.seen

    assert train(state) == (5, 3)
    assert calls == [hvd.size()]


def test_elastic_sampler(hvd):
    sampler = hvd.elastic.ElasticSampler(list(range(21)), shuffle=True, seed=1)
    mine = list(sampler)
    assert len(mine) == len(sampler) == -(-21 // hvd.size())
    everyone = hvd.allgather(torch.tensor(mine)).tolist()
    assert set(everyone) == set(range(21))
    sampler.record_batch(0, 2)
    sampler.reset()
    done = 2 * hvd.size()
    left = set(hvd.allgather(torch.tensor(list(sampler))).tolist())
    assert len(left) == 21 - done
    state = sampler.state_dict()
    other = hvd.elastic.ElasticSampler(list(range(21)), shuffle=True, seed=1)
    other.load_state_dict(state)
    assert list(other) == list(sampler)
    sampler.set_epoch(1)
    assert set(hvd.allgather(torch.tensor(list(sampler))).tolist()) == set(range(21))
