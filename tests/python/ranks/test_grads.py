"""Gradients of every collective: Horovod's, and the mathematical ones against numbers."""

import pytest
import torch


def test_allreduce_gradient(hvd):
    for op, factor in ((hvd.Sum, hvd.size()), (hvd.Average, 1.0)):
        x = torch.randn(3, 2, requires_grad=True)
        hvd.allreduce(x, op=op).sum().backward()
        assert torch.allclose(x.grad, torch.full((3, 2), float(factor)))
    x = torch.randn(5, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).backward(torch.ones(5))
    assert torch.allclose(x.grad, torch.full((5,), float(hvd.size())))


def test_grouped_allreduce_gradient(hvd):
    xs = [torch.randn(4, requires_grad=True) for _ in range(3)]
    sum(t.sum() for t in hvd.grouped_allreduce(xs, op=hvd.Sum)).backward()
    for x in xs:
        assert torch.allclose(x.grad, torch.full((4,), float(hvd.size())))


def test_allgather_gradient_is_averaged(hvd):
    me, n = hvd.rank(), hvd.size()
    x = torch.randn(me + 1, 2, requires_grad=True)
    out = hvd.allgather(x)
    weight = torch.arange(float(out.shape[0])).view(-1, 1)
    (out * weight * (me + 1)).sum().backward()
    first = me * (me + 1) // 2
    mean = sum(r + 1 for r in range(n)) / n
    want = weight[first : first + me + 1].expand(-1, 2) * mean
    assert torch.allclose(x.grad, want)


def test_grouped_allgather_gradient(hvd):
    me = hvd.rank()
    xs = [torch.randn(me + 1, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
    a, b = hvd.grouped_allgather(xs)
    (a.sum() + 2 * b.sum()).backward()
    assert torch.allclose(xs[0].grad, torch.ones(me + 1, 2))
    assert torch.allclose(xs[1].grad, torch.full((2,), 2.0))


def test_broadcast_gradient_is_averaged_on_the_root(hvd):
    root = hvd.size() - 1
    x = torch.randn(3, requires_grad=True)
    (hvd.broadcast(x, root) * (hvd.rank() + 1)).sum().backward()
    mean = sum(r + 1 for r in range(hvd.size())) / hvd.size()
    want = mean if hvd.rank() == root else 0.0
    assert torch.allclose(x.grad, torch.full((3,), want))


def test_alltoall_gradient_goes_back(hvd):
    n, me = hvd.size(), hvd.rank()
    x = torch.randn(n, 2, requires_grad=True)
    (hvd.alltoall(x) * (me + 1)).sum().backward()
    want = torch.arange(1.0, n + 1).view(-1, 1).expand(-1, 2)
    assert torch.allclose(x.grad, want)
    rows = n * (n + 1) // 2 + 1  # the last row goes nowhere
    x = torch.randn(rows, requires_grad=True)
    splits = torch.tensor([s + 1 for s in range(n)], dtype=torch.int32)
    out, received = hvd.alltoall(x, splits)
    (out * (me + 1)).sum().backward()
    want = [float(s + 1) for s in range(n) for _ in range(s + 1)] + [0.0]
    assert x.grad.tolist() == want


def test_reducescatter_gradient(hvd):
    n = hvd.size()
    for op, factor in ((hvd.Sum, n), (hvd.Average, 1.0)):
        x = torch.randn(2 * n, 3, requires_grad=True)
        (hvd.reducescatter(x, op=op) * 1.0).sum().backward()
        assert torch.allclose(x.grad, torch.full((2 * n, 3), float(factor)))
    xs = [torch.randn(n, requires_grad=True), torch.randn(2 * n, requires_grad=True)]
    sum(t.sum() for t in hvd.grouped_reducescatter(xs, op=hvd.Sum)).backward()
    for x in xs:
        assert torch.allclose(x.grad, torch.full_like(x, float(n)))


def numeric_gradient(hvd, f, x):
    """d(sum of all ranks' f)/dx of this rank's x, element by element on every rank."""
    eps = 1e-4
    grad = torch.zeros_like(x)
    for r in range(hvd.size()):
        count = int(hvd.broadcast(torch.tensor([x.numel()]), r))
        for i in range(count):
            totals = []
            for sign in (1, -1):
                moved = x.clone()
                if hvd.rank() == r:
                    moved.view(-1)[i] += sign * eps
                totals.append(float(hvd.allreduce(f(moved).detach(), op=hvd.Sum)))
            if hvd.rank() == r:
                grad.view(-1)[i] = (totals[0] - totals[1]) / (2 * eps)
    return grad


def losses(hvd):
    n, me = hvd.size(), hvd.rank()
    weight = float(me + 1)
    splits = torch.tensor([s + 1 for s in range(n)], dtype=torch.int32)
    return {
        "allreduce_sum": ((3,), lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum() * weight),
        "allreduce_average": ((3,), lambda x: (hvd.allreduce(x) ** 2).sum() * weight),
        "allreduce_scaled": ((3,), lambda x: (hvd.allreduce(
            x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0) ** 2).sum() * weight),
        "allreduce_min": ((4,), lambda x: (hvd.allreduce(x, op=hvd.Min) * weight).sum()),
        "allreduce_max": ((4,), lambda x: (hvd.allreduce(x, op=hvd.Max) * weight).sum()),
        "allreduce_product": ((4,), lambda x: (hvd.allreduce(x, op=hvd.Product) * weight).sum()),
        "grouped_allreduce": ((3,), lambda x: sum(
            (t ** 2).sum() * weight for t in hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum))),
        "grouped_min": ((4,), lambda x: sum(
            (t * weight).sum() for t in hvd.grouped_allreduce([x, 2 * x], op=hvd.Min))),
        "grouped_product": ((3,), lambda x: sum(
            (t * weight).sum() for t in hvd.grouped_allreduce([x, 2 * x], op=hvd.Product))),
        "allreduce_max_of_negatives": ((4,), lambda x: (hvd.allreduce(
            x, op=hvd.Max, prescale_factor=-0.7, postscale_factor=1.1) * weight).sum()),
        "allgather": ((me + 1, 2), lambda x: (hvd.allgather(x) ** 3).sum() * weight),
        "grouped_allgather": ((me + 1, 2), lambda x: sum(
            (t ** 2).sum() * weight for t in hvd.grouped_allgather([x, x * 2]))),
        "broadcast": ((3,), lambda x: (hvd.broadcast(x, n - 1) ** 2).sum() * weight),
        "alltoall": ((n * (n + 1) // 2,), lambda x: (
            hvd.alltoall(x, splits)[0] ** 2).sum() * weight),
        "reducescatter_sum": ((2 * n,), lambda x: (
            hvd.reducescatter(x, op=hvd.Sum) ** 2).sum() * weight),
        "reducescatter_average": ((2 * n,), lambda x: (hvd.reducescatter(x) ** 2).sum() * weight),
        "grouped_reducescatter": ((2 * n,), lambda x: sum(
            (t ** 2).sum() * weight for t in hvd.grouped_reducescatter([x, x * 2], op=hvd.Sum))),
    }


@pytest.mark.parametrize("name", [
    "allreduce_sum", "allreduce_average", "allreduce_scaled", "allreduce_min", "allreduce_max",
    "allreduce_product", "grouped_allreduce", "grouped_min", "grouped_product",
    "allreduce_max_of_negatives", "allgather", "grouped_allgather", "broadcast",
    "alltoall", "reducescatter_sum", "reducescatter_average", "grouped_reducescatter"])
def test_exact_gradients_are_the_mathematical_ones(hvd, name):
    shape, f = losses(hvd)[name]
    generator = torch.Generator().manual_seed(31 + hvd.rank())
    x = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5
    before = hvd.exact_gradients(True)
    try:
        leaf = x.clone().requires_grad_()
        f(leaf).backward()
        want = numeric_gradient(hvd, f, x)
    finally:
        hvd.exact_gradients(before)
    assert torch.allclose(leaf.grad, want, rtol=1e-5, atol=1e-6), (leaf.grad, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_exact_gradient_of_a_scaled_extreme_is_never_lost(hvd, dtype):
    generator = torch.Generator().manual_seed(hvd.rank())
    x = torch.rand(2000, generator=generator).to(dtype).requires_grad_()
    before = hvd.exact_gradients(True)
    try:
        hvd.allreduce(x, op=hvd.Max, prescale_factor=0.1, postscale_factor=0.3).sum().backward()
    finally:
        hvd.exact_gradients(before)
    total = hvd.allreduce(x.grad.float(), op=hvd.Sum)
    want = torch.full((2000,), hvd.size() * 0.1 * 0.3)
    assert torch.allclose(total, want, rtol=0.02), total[(total - want).abs() > 0.001]


def test_gradient_of_a_product_with_a_zero(hvd):
    before = hvd.exact_gradients(True)
    try:
        x = torch.tensor([0.0 if hvd.rank() == 0 else 2.0], requires_grad=True)
        hvd.allreduce(x, op=hvd.Product).sum().backward()
    finally:
        hvd.exact_gradients(before)
    n = hvd.size()
    assert float(x.grad) == (n * 2.0 ** (n - 1) if hvd.rank() == 0 else 0.0)


def test_double_use_in_one_graph(hvd):
    x = torch.ones(2, requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(2 * x, op=hvd.Sum)
    y.sum().backward()
    assert torch.allclose(x.grad, torch.full((2,), 3.0 * hvd.size()))
