"""Training on real digits over the ranks learns what one process learns."""

import gzip
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "..", "worker", "examples", "data",
                    "digits.csv.gz")


def digits():
    with gzip.open(DATA, "rt") as f:
        rows = [[float(v) for v in line.split(",")] for line in f if line.strip()]
    table = torch.tensor(rows)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(1))
    table = table[order]
    return table[:, :-1] / 16.0, table[:, -1].long()


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def test_same_weights_and_accuracy_as_one_process(hvd):
    x, y = digits()
    train, test = slice(0, 1440), slice(1440, None)
    size, rank, rows = hvd.size(), hvd.rank(), 48
    model, plain = network(), network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        named_parameters=model.named_parameters())
    one = torch.optim.SGD(plain.parameters(), lr=0.2, momentum=0.9)
    xs, ys = x[train], y[train]
    for epoch in range(8):
        for first in range(0, len(xs), rows):
            whole = slice(first, first + rows)
            share = rows // size
            mine = slice(first + rank * share, first + (rank + 1) * share)
            optimizer.zero_grad()
            F.cross_entropy(model(xs[mine]), ys[mine]).backward()
            optimizer.step()
            one.zero_grad()
            F.cross_entropy(plain(xs[whole]), ys[whole]).backward()
            one.step()
    got, want = accuracy(model, x[test], y[test]), accuracy(plain, x[test], y[test])
    assert want > 0.9
    assert abs(got - want) < 0.02
    for a, b in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(a, b, rtol=2e-2, atol=2e-2)
