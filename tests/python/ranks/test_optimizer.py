"""DistributedOptimizer: the same as training on the concatenated batches of all ranks."""

import copy
import itertools
import os
import warnings

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F


def small_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(rank, step, rows=4):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (torch.randn(rows, 6, generator=generator),
            torch.randint(0, 3, (rows,), generator=generator))


def reference(hvd, optimizer_of, steps, scale=1.0):
    """Weights after steps on the mean of all ranks' gradients, on one process."""
    model = small_model()
    optimizer = optimizer_of(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for r in range(hvd.size()):
            x, y = batch(r, step)
            (F.cross_entropy(model(x), y) * scale / hvd.size()).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def train(hvd, optimizer_of, steps, **options):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(model.parameters()), named_parameters=model.named_parameters(), **options)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(hvd.rank(), step)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def close(a, b, tolerance=1e-5):
    for x, y in zip(a, b):
        assert torch.allclose(x, y, rtol=tolerance, atol=tolerance), (x - y).abs().max()


SGD = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
OPTIMIZERS = {
    "sgd": SGD,
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_equals_one_process_on_all_batches(hvd, name):
    make = OPTIMIZERS[name]
    close(train(hvd, make, 4), reference(hvd, make, 4), 2e-4)


@pytest.mark.parametrize("options", [
    dict(groups=1), dict(groups=2), dict(groups=100), dict(gradient_predivide_factor=2.0)], ids=str)
def test_options_that_do_not_change_the_result(hvd, options):
    close(train(hvd, SGD, 3, **options), reference(hvd, SGD, 3))


def test_ops(hvd):
    make = lambda p: torch.optim.SGD(p, lr=0.05)  # noqa: E731
    close(train(hvd, make, 2, op=hvd.Sum), reference(hvd, make, 2, scale=hvd.size()))


def test_groups_as_lists(hvd):
    model = small_model()
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(
        SGD(params), named_parameters=model.named_parameters(), groups=[params[:2], [params[3]]])
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(hvd.rank(), step)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    close([p.detach() for p in params], reference(hvd, SGD, 3))


def test_compression(hvd):
    for compression, tolerance in ((hvd.Compression.fp16, 5e-3), (hvd.Compression.bf16, 5e-2)):
        close(train(hvd, SGD, 2, compression=compression), reference(hvd, SGD, 2), tolerance)


def test_without_names(hvd):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters()))
    x, y = batch(hvd.rank(), 0)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    close([p.detach() for p in model.parameters()], reference(hvd, SGD, 1))


def test_all_ranks_are_bit_equal_and_two_runs_too(hvd):
    first = train(hvd, SGD, 5)
    second = train(hvd, SGD, 5)
    for a, b in zip(first, second):
        assert torch.equal(a, b)
        everyone = hvd.allgather(a.reshape(1, -1))
        assert all(torch.equal(everyone[0], row) for row in everyone)


def test_backward_passes_per_step(hvd):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        SGD(model.parameters()), named_parameters=model.named_parameters(),
        backward_passes_per_step=2)
    for step in range(0, 4, 2):
        optimizer.zero_grad()
        for half in (0, 1):
            x, y = batch(hvd.rank(), step + half)
            (F.cross_entropy(model(x), y) / 2).backward()
        optimizer.step()
    expected = small_model()
    one = SGD(expected.parameters())
    for step in range(0, 4, 2):
        one.zero_grad()
        for r, half in itertools.product(range(hvd.size()), (0, 1)):
            x, y = batch(r, step + half)
            (F.cross_entropy(expected(x), y) / 2 / hvd.size()).backward()
        one.step()
    close([p.detach() for p in model.parameters()], [p.detach() for p in expected.parameters()])
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    with pytest.raises(ValueError):
        hvd.DistributedOptimizer(SGD(model.parameters()), backward_passes_per_step=0)


def wrapped(hvd, model, **options):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(), **options)


def backward(hvd, model, step=0):
    x, y = batch(hvd.rank(), step)
    F.cross_entropy(model(x), y).backward()


def test_class_name_and_type(hvd):
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.25)
    optimizer = hvd.DistributedOptimizer(plain)
    assert type(optimizer).__name__ == "SGD"
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.__module__.startswith("horovod") and not plain.__module__.startswith("horovod")
    assert type(optimizer).__module__ == type(plain).__module__
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.param_groups[0]["lr"] = 0.5
    assert "SGD" in repr(optimizer)


def test_zero_grad_takes_torchs_arguments(hvd):
    model = small_model()
    optimizer = wrapped(hvd, model)
    backward(hvd, model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in model.parameters())
    backward(hvd, model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(float(p.grad.abs().sum()) == 0 for p in model.parameters())


def test_misuse_is_an_assertion_error(hvd):
    if hvd.size() == 1:
        pytest.skip("one rank exchanges nothing")
    model = small_model()
    optimizer = wrapped(hvd, model)
    backward(hvd, model)
    with pytest.raises(AssertionError):
        optimizer.zero_grad()
    with pytest.raises(AssertionError):
        backward(hvd, model)
    optimizer.step()
    optimizer.zero_grad()
    backward(hvd, model)
    optimizer.step()


def test_many_small_parameters(hvd):
    torch.manual_seed(8)
    params = [nn.Parameter(torch.randn(5)) for _ in range(100)]
    big = nn.Parameter(torch.randn(1000, 300))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params + [big], lr=1.0))

    def loss():
        return sum((p * (i + hvd.rank())).sum() for i, p in enumerate(params)) + big.sum()

    mean = sum(range(hvd.size())) / hvd.size()
    for _ in range(2):
        before = [p.detach().clone() for p in params]
        optimizer.zero_grad()
        loss().backward()
        if hvd.size() > 1:
            with pytest.raises(AssertionError):
                optimizer.zero_grad()
            with pytest.raises(AssertionError):
                loss().backward()
            # what the second backward has spoilt
            for i, p in enumerate(params):
                p.grad.fill_(i + hvd.rank())
        optimizer.step()
        for i, p in enumerate(params):
            assert torch.allclose(before[i] - p.detach(), torch.full((5,), i + mean), atol=1e-4)


def test_synchronize_before_step(hvd):
    model = small_model()
    optimizer = wrapped(hvd, model)
    for step in range(3):
        optimizer.zero_grad()
        backward(hvd, model, step)
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norms = hvd.allgather(norm.detach().reshape(1))
        assert float((norms - norms[0]).abs().max()) == 0
        with optimizer.skip_synchronize():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                optimizer.step()
    if hvd.size() > 1:
        backward(hvd, model)
        optimizer.synchronize()
        with pytest.warns(UserWarning, match="skip_synchronize"):
            optimizer.step()


def test_bad_names(hvd):
    model = small_model()
    named = list(model.named_parameters())
    with pytest.raises(ValueError, match="unique"):
        hvd.DistributedOptimizer(
            SGD(model.parameters()),
            named_parameters=[("same", p) for _, p in named])
    with pytest.raises(ValueError, match="not named"):
        hvd.DistributedOptimizer(SGD(model.parameters()), named_parameters=named[1:])
    with pytest.raises(ValueError, match="tuples"):
        hvd.DistributedOptimizer(SGD(model.parameters()), named_parameters=model.parameters())
    with pytest.raises(ValueError):
        hvd.DistributedOptimizer(SGD(model.parameters()), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError):
        hvd.DistributedOptimizer(SGD(model.parameters()), groups=-1)
    with pytest.raises(ValueError):
        hvd.DistributedOptimizer(SGD(model.parameters()), groups="all")
    with pytest.warns(DeprecationWarning):
        hvd.DistributedOptimizer(SGD(model.parameters()), num_groups=2)


class Branches(nn.Module):
    """Uses another layer on every rank: gradients are missing here and there."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(4)])
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, x, which):
        return self.layers[which](x)


def test_missing_gradients_count_as_zeros(hvd):
    model = Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4), hvd.rank()).sum().backward()
        optimizer.step()
        if hvd.size() > 1:
            for i, layer in enumerate(model.layers):
                want = 1.0 / hvd.size() if i < hvd.size() else 0.0
                assert torch.allclose(layer.weight.grad, torch.full((4, 4), want))
    assert torch.equal(model.never.detach(), torch.ones(3))


def test_requires_grad_switched_on_and_off(hvd):
    first, second = nn.Linear(3, 3), nn.Linear(3, 1)
    one = wrapped(hvd, first)
    two = wrapped(hvd, second)
    for which in (0, 1, 0):
        for p in first.parameters():
            p.requires_grad_(which == 0)
        for p in second.parameters():
            p.requires_grad_(which == 1)
        one.zero_grad()
        two.zero_grad()
        second(first(torch.ones(2, 3) * (hvd.rank() + 1))).sum().backward()
        (one if which == 0 else two).step()
    hvd.barrier()


def test_two_optimizers_in_flight(hvd):
    model = small_model()
    other = small_model()
    one, two = wrapped(hvd, model), wrapped(hvd, other)
    for step in range(3):
        one.zero_grad()
        two.zero_grad()
        x, y = batch(hvd.rank(), step)
        (F.cross_entropy(model(x), y) + F.cross_entropy(other(x), y)).backward()
        one.step()
        two.step()
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    close([p.detach() for p in model.parameters()], reference(hvd, make, 3))
    close([p.detach() for p in other.parameters()], reference(hvd, make, 3))


def test_scheduler_before_and_after(hvd):
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    backward(hvd, model)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    optimizer.zero_grad()
    backward(hvd, model)
    optimizer.step()
    after.step()
    assert plain.param_groups[0]["lr"] == pytest.approx(0.05)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 3.0})
    assert len(optimizer.param_groups) == 2


def test_state_dict_goes_through_plain_optimizers(hvd):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(SGD(model.parameters()))
    backward(hvd, model)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    plain = SGD(small_model().parameters())
    plain.load_state_dict(state)
    kept = list(optimizer.state.values())[0]["momentum_buffer"]
    del optimizer
    again = hvd.DistributedOptimizer(SGD(model.parameters()))
    again.load_state_dict(plain.state_dict())
    assert torch.equal(list(again.state.values())[0]["momentum_buffer"], kept)
    # also with gradients on their way
    again.zero_grad()
    backward(hvd, model)
    again.load_state_dict(plain.state_dict())
    again.zero_grad()
    backward(hvd, model)
    again.step()


def test_closure(hvd):
    model = small_model()
    optimizer = wrapped(hvd, model)
    for step in range(3):
        def closure():
            optimizer.zero_grad()
            x, y = batch(hvd.rank(), step)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        assert float(optimizer.step(closure)) > 0
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    close([p.detach() for p in model.parameters()], reference(hvd, make, 3))


def test_sparse_gradients(hvd):
    for as_dense in (False, True):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            named_parameters=model.named_parameters(), sparse_as_dense=as_dense)
        weight = model[0].weight.detach().clone()
        scale = model[1].weight.detach().clone()
        for _ in range(1):
            optimizer.zero_grad()
            model(torch.tensor([0, hvd.rank() + 1])).sum().backward()
            optimizer.step()
        change = weight - model[0].weight.detach()
        assert torch.allclose(change[0], scale[0], atol=1e-6)
        for r in range(hvd.size()):
            assert torch.allclose(change[r + 1], scale[0] / hvd.size(), atol=1e-6)
        assert float(change[hvd.size() + 1 :].abs().sum()) == 0


def test_channels_last(hvd):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    plain = copy.deepcopy(model)
    model = model.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    one = torch.optim.SGD(plain.parameters(), lr=0.1)
    images = [torch.randn(2, 3, 8, 8) for _ in range(hvd.size())]
    mine = images[hvd.rank()].contiguous(memory_format=torch.channels_last)
    model(mine).square().mean().backward()
    optimizer.step()
    for image in images:
        (plain(image).square().mean() / hvd.size()).backward()
    one.step()
    close([p.detach() for p in model.parameters()], [p.detach() for p in plain.parameters()], 1e-4)


def test_checkpointed_layers(hvd):
    from torch.utils.checkpoint import checkpoint

    model = small_model()
    optimizer = wrapped(hvd, model)
    x, y = batch(hvd.rank(), 0)
    x.requires_grad_()
    options = {} if "1.13" in torch.__version__ else {"use_reentrant": True}
    hidden = checkpoint(lambda t: model[1](model[0](t)), x, **options)
    F.cross_entropy(model[2](hidden), y).backward()
    optimizer.step()
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    close([p.detach() for p in model.parameters()], reference(hvd, make, 1))


class RecordingScaler:
    """A GradScaler that scales on the CPU too."""

    def __new__(cls):
        if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
            return torch.amp.GradScaler("cpu", init_scale=8.0)
        return torch.cuda.amp.GradScaler(enabled=False)


@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler(hvd, unscale):
    model = small_model()
    optimizer = wrapped(hvd, model)
    scaler = RecordingScaler()
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch(hvd.rank(), step)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    close([p.detach() for p in model.parameters()], reference(hvd, make, 3))


def test_overflow_on_one_rank_skips_the_step_everywhere(hvd):
    if not (hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")):
        pytest.skip("this torch scales on GPUs only")
    model = small_model()
    optimizer = wrapped(hvd, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = [p.detach().clone() for p in model.parameters()]
    x, y = batch(hvd.rank(), 0)
    loss = F.cross_entropy(model(x), y) * (float("inf") if hvd.rank() == 0 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    for a, b in zip(before, model.parameters()):
        assert torch.equal(a, b.detach())
    optimizer.zero_grad()
    backward(hvd, model)
    optimizer.step()


def test_training_in_another_thread(hvd):
    import threading

    model = small_model()
    optimizer = wrapped(hvd, model)
    failed = []

    def body():
        try:
            for step in range(2):
                optimizer.zero_grad()
                backward(hvd, model, step)
                optimizer.step()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert not failed
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    close([p.detach() for p in model.parameters()], reference(hvd, make, 2))


def test_adasum_optimizer(hvd):
    n = hvd.size()
    model = small_model()
    if n & (n - 1):
        with pytest.raises(NotImplementedError):
            wrapped(hvd, model, op=hvd.Adasum)
        return
    optimizer = wrapped(hvd, model, op=hvd.Adasum)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = batch(0, 0)  # equal batches: Adasum of equal changes is the change
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    plain = small_model()
    one = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        one.zero_grad()
        x, y = batch(0, 0)
        F.cross_entropy(plain(x), y).backward()
        one.step()
    close([p.detach() for p in model.parameters()], [p.detach() for p in plain.parameters()])
    if n > 1:
        with pytest.raises(AssertionError):
            with optimizer.skip_synchronize():
                pass


def test_error_in_step_leaves_a_usable_optimizer(hvd):
    if hvd.size() == 1:
        pytest.skip("needs 2 ranks")
    rows = 4 if hvd.rank() == 0 else 5
    model = nn.Linear(rows, 1)
    optimizer = wrapped(hvd, model)
    model(torch.ones(1, rows)).sum().backward()
    with pytest.raises(hvd.HorovodInternalError):
        optimizer.step()
    assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
    optimizer.zero_grad()
    good = small_model()
    backward(hvd, good)


@pytest.mark.skipif(not hasattr(torch, "compile") or os.environ.get("HVD_TEST_COMPILE") == "0",
                    reason="this torch has no torch.compile")
def test_compiled_model(hvd):
    model = small_model()
    optimizer = wrapped(hvd, model)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(2):
        optimizer.zero_grad()
        x, y = batch(hvd.rank(), step)
        F.cross_entropy(compiled(x), y).backward()
        optimizer.step()
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    close([p.detach() for p in model.parameters()], reference(hvd, make, 2))


@pytest.mark.skipif(not hasattr(torch, "compile") or os.environ.get("HVD_TEST_COMPILE") == "0",
                    reason="this torch has no torch.compile")
def test_collective_in_a_compiled_function(hvd):
    @torch.compile(backend="aot_eager")
    def f(x):
        return hvd.allreduce(x * 2, op=hvd.Sum, name="compiled") + 1

    got = f(torch.ones(3))
    assert got.tolist() == [2.0 * hvd.size() + 1] * 3
