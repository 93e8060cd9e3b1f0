"""Process sets: created at init and later, and collectives inside them."""

import pytest
import torch


def halves(hvd):
    evens = [r for r in range(hvd.size()) if r % 2 == 0]
    odds = [r for r in range(hvd.size()) if r % 2 == 1]
    return evens, odds


def test_global_process_set(hvd):
    everyone = hvd.global_process_set
    assert everyone.process_set_id == 0
    assert everyone.ranks == list(range(hvd.size()))
    assert everyone.size() == hvd.size() and everyone.rank() == hvd.rank()
    assert everyone.included() is True
    assert hvd.remove_process_set(everyone) is False


def test_unregistered_set(hvd):
    loose = hvd.ProcessSet([0])
    assert loose.size() is None and loose.rank() is None and loose.included() is None
    assert hvd.remove_process_set(loose) is False
    with pytest.raises(ValueError):
        hvd.allreduce(torch.ones(1), process_set=loose)


def test_collectives_inside_sets(hvd):
    if hvd.size() < 2:
        pytest.skip("needs 2 ranks")
    evens, odds = (hvd.add_process_set(r) for r in halves(hvd))
    mine = odds if hvd.rank() % 2 else evens
    other = evens if hvd.rank() % 2 else odds
    assert mine.included() and not other.included()
    assert mine.size() == len(mine.ranks)
    assert mine.rank() == mine.ranks.index(hvd.rank())
    x = torch.full((3,), float(hvd.rank()))
    got = hvd.allreduce(x, op=hvd.Sum, process_set=mine, name="inside")
    assert torch.equal(got, torch.full((3,), float(sum(mine.ranks))))
    got = hvd.allreduce(x, process_set=mine)
    assert torch.allclose(got, torch.full((3,), sum(mine.ranks) / len(mine.ranks)))
    assert hvd.allgather(x[:1], process_set=mine).tolist() == [float(r) for r in mine.ranks]
    root = mine.ranks[-1]
    assert hvd.broadcast(x, root, process_set=mine).tolist() == [float(root)] * 3
    out, received = hvd.alltoall(
        torch.full((mine.size(),), float(hvd.rank())),
        torch.ones(mine.size(), dtype=torch.int32), process_set=mine)
    assert out.tolist() == [float(r) for r in mine.ranks]
    assert received.tolist() == [1] * mine.size()
    part = hvd.reducescatter(torch.ones(mine.size(), 2), op=hvd.Sum, process_set=mine)
    assert part.tolist() == [[float(mine.size())] * 2]
    got = hvd.grouped_allreduce([x, x], op=hvd.Sum, process_set=mine)
    assert float(got[1][0]) == sum(mine.ranks)
    assert hvd.broadcast_object(hvd.rank(), root, process_set=mine) == root
    hvd.barrier(process_set=mine)
    with pytest.raises(ValueError):
        hvd.allreduce(x, process_set=other)
    if root not in other.ranks and 0 not in odds.ranks:
        bad = 1 if hvd.rank() % 2 == 0 else 0
        with pytest.raises(ValueError):
            hvd.broadcast(x, bad, process_set=mine)
    with pytest.raises(ValueError):
        hvd.add_process_set(mine)
    with pytest.raises(ValueError):
        hvd.add_process_set(list(evens.ranks))
    ids = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    assert ids[evens.process_set_id] == evens.ranks
    assert hvd.remove_process_set(odds) is True
    assert hvd.remove_process_set(evens) is True
    assert evens.process_set_id is None
    assert hvd.remove_process_set(evens) is False


def test_gradient_inside_a_set(hvd):
    if hvd.size() < 3:
        pytest.skip("needs 3 ranks: all ranks are the global set already")
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        x = torch.ones(2, requires_grad=True)
        hvd.allreduce(x, op=hvd.Sum, process_set=pair).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
        x = torch.ones(2, requires_grad=True)
        hvd.allgather(x, process_set=pair).sum().backward()
        assert x.grad.tolist() == [1.0, 1.0]
    hvd.remove_process_set(pair)


def test_optimizer_inside_a_set(hvd):
    if hvd.size() < 3:
        pytest.skip("needs 3 ranks: all ranks are the global set already")
    pair = hvd.add_process_set([0, 1])
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters(),
        process_set=pair)
    (model.weight.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    want = -1.5 if hvd.rank() < 2 else -float(hvd.rank() + 1)
    assert model.weight.tolist() == [[want, want]]
    hvd.remove_process_set(pair)
