"""Arguments of DistributedOptimizer in combination, against the gradient they should give."""

import itertools

import pytest
import torch
from torch import nn

COMPRESSIONS = ("none", "fp16")
GROUPS = (None, 0, 1, 3, 1000, "lists")
TABLES = ("dense", "sparse", "as_dense")


class Net(nn.Module):
    """An embedding, layers, many small parameters that step() queues, and an unused one."""

    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(6, 5, sparse=sparse)
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)
        self.small = nn.ParameterList(nn.Parameter(torch.full((3,), 0.1 * i)) for i in range(34))
        self.never = nn.Parameter(torch.ones(2))

    def forward(self, words):
        out = self.second(torch.tanh(self.first(self.words(words).mean(1))))
        return out + sum(p * (i + 1) for i, p in enumerate(self.small)) * 0.01


def backward(model, rank, part):
    generator = torch.Generator().manual_seed(1 + rank + 1000 * part)
    words = torch.randint(0, 6, (4, 3), generator=generator)
    (model(words) * torch.randn(4, 3, generator=generator)).sum().backward()


def expected(hvd, model, members, passes, op, compression):
    """What the exchange of the members' gradients should give."""
    every = []
    for rank in members:
        model.zero_grad(set_to_none=True)
        for part in range(passes):
            backward(model, rank, part)
        every.append([torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
                      for p in model.parameters()])
    reduced = []
    for grads in zip(*every):
        if compression == "fp16":
            grads = [g.half().float() for g in grads]
        all_ranks = torch.stack(list(grads)).double()
        reduced.append({
            hvd.Average: lambda t: t.mean(0), hvd.Sum: lambda t: t.sum(0),
            hvd.Min: lambda t: t.min(0)[0], hvd.Max: lambda t: t.max(0)[0],
            hvd.Product: lambda t: t.prod(0)}[op](all_ranks).float())
    return reduced


def combinations(hvd):
    ops = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)
    for one in itertools.product(ops, (1.0, 2.5), COMPRESSIONS, (1, 3), GROUPS, TABLES):
        op, predivide, table = one[0], one[1], one[5]
        if predivide != 1.0 and op != hvd.Average:
            continue
        if table == "sparse" and op not in (hvd.Average, hvd.Sum):
            continue
        yield one


@pytest.mark.parametrize("inside", ["all ranks", "a set"])
def test_combinations_give_the_expected_gradient(hvd, inside):
    if inside == "a set" and hvd.size() == 1:
        pytest.skip("needs 2 ranks")
    options, members = {}, list(range(hvd.size()))
    if inside == "a set":
        members = [0, hvd.size() - 1] if hvd.size() > 2 else [0]
        options["process_set"] = hvd.add_process_set(members)
    for number, one in enumerate(combinations(hvd)):
        # every seventh, which meets each pair of values; all of them take a minute
        if number % 7 or hvd.rank() not in members:
            continue
        op, predivide, compression, passes, groups, table = one
        model, twin = Net(table != "dense"), Net(table != "dense")
        if groups == "lists":
            params = list(model.parameters())
            groups = [[params[1], params[2]], (params[4], params[9], params[30])]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), op=op, groups=groups,
            named_parameters=model.named_parameters(), backward_passes_per_step=passes,
            gradient_predivide_factor=predivide, sparse_as_dense=table == "as_dense",
            compression=getattr(hvd.Compression, compression), **options)
        tolerance = 2e-2 if compression == "fp16" else 1e-5
        for _ in range(2):
            twin.load_state_dict(model.state_dict())
            wanted = expected(hvd, twin, members, passes, op, compression)
            optimizer.zero_grad()
            for part in range(passes):
                backward(model, hvd.rank(), part)
            optimizer.synchronize()
            for (name, p), want in zip(model.named_parameters(), wanted):
                if p.grad is None:  # nobody uses it, and one rank exchanges nothing
                    assert name == "never" and hvd.size() == 1, (one, name)
                    continue
                if name == "words.weight" and hvd.size() > 1:
                    assert p.grad.is_sparse == (table == "sparse"), one
                got = p.grad.to_dense()
                assert torch.allclose(got, want, rtol=tolerance, atol=tolerance), (one, name)
            with optimizer.skip_synchronize():
                optimizer.step()
    hvd.barrier()
    if options:
        hvd.remove_process_set(options["process_set"])


def test_arguments_that_cannot_be_meant_are_refused_at_once(hvd):
    model = nn.Linear(3, 2)

    def wrap(**options):
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)

    one = model.weight
    for options, text in [
        (dict(groups=[one]), "groups should be"),
        (dict(groups=[1]), "groups should be"),
        (dict(groups=[["weight"]]), "groups should be.*weight"),
        (dict(groups=[[one], [one]]), "more than one of the groups"),
        (dict(groups=[[one, one]]), "more than one of the groups"),
        (dict(op=17), "op is"),
        (dict(op=None), "op is"),
        (dict(compression=None), "compression is"),
        (dict(compression="fp16"), "compression is.*fp16"),
        (dict(gradient_predivide_factor=0), "other than 0"),
        (dict(gradient_predivide_factor=float("nan")), "other than 0"),
        (dict(process_set=hvd.ProcessSet([0])), "is not registered"),
    ]:
        with pytest.raises(ValueError, match=text):
            wrap(**options)
    with pytest.raises(TypeError, match="not a torch.optim.Optimizer.*Linear"):
        hvd.DistributedOptimizer(model)


# ---- what an optimizer remembers from step to step


def weights_after(hvd, optimizer, model, members):
    """One step on gradients of rank + 1; are the weights as the members' mean says?"""
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    (model.weight * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    mean = sum(r + 1.0 for r in members) / len(members)
    assert torch.allclose(before - model.weight.detach(), torch.full((2, 3), mean))


def test_only_the_members_of_a_set_have_an_optimizer_for_it(hvd):
    if hvd.size() == 1:
        pytest.skip("needs 2 ranks")
    first = hvd.add_process_set([0])
    inner, outer = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    if first.included():
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(inner.parameters(), lr=1.0), process_set=first)
        weights_after(hvd, optimizer, inner, [0])
    # the same names, and on other ranks the first optimizer of these
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(outer.parameters(), lr=1.0))
    weights_after(hvd, optimizer, outer, range(hvd.size()))
    hvd.remove_process_set(first)


def test_a_set_has_another_id_after_init(hvd):
    if hvd.size() < 3:
        pytest.skip("needs two sets of two ranks that overlap in one")
    low, high = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])
    model = nn.Linear(3, 2, bias=False)
    optimizer, ids = None, set()
    for sets in ([low, high], [high, low]):
        hvd.shutdown()
        hvd.init(process_sets=sets)
        ids.add(high.process_set_id)
        if high.included():
            optimizer = optimizer or hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=1.0), process_set=high)
            weights_after(hvd, optimizer, model, [1, 2])
        hvd.barrier()
    assert len(ids) == 2
    hvd.shutdown()
    hvd.init()


def test_plain_step_after_an_overflow(hvd):
    if not (hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler")):
        pytest.skip("this torch scales on GPUs only")
    model = nn.Linear(3, 2, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    factor = float("inf") if hvd.rank() == 0 else 1.0
    scaler.scale((model.weight * factor).sum()).backward()
    scaler.step(optimizer)  # no rank makes this step
    weights_after(hvd, optimizer, model, range(hvd.size()))
