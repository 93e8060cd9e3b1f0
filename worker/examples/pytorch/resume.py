"""Train, write a checkpoint on rank 0, and go on from it in another job of any size.

    hvdrun -np 2 python resume.py --checkpoint model.pt --epochs 2
    hvdrun -np 4 python resume.py --checkpoint model.pt --epochs 4     goes on at epoch 3

Only rank 0 reads and writes the file: the others need not see it.
"""

import argparse
import gzip
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import horovod.torch as hvd

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "digits.csv.gz")


def digits(path):
    with gzip.open(path, "rt") as f:
        table = torch.tensor([[float(v) for v in line.split(",")] for line in f if line.strip()])
    return table[:, :-1] / 16, table[:, -1].long()


def main():
    parser = argparse.ArgumentParser(description="Checkpoint on rank 0, resume everywhere")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48, help="of all ranks together")
    parser.add_argument("--data", default=DATA)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    first = 0
    if hvd.rank() == 0 and os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    first = hvd.broadcast_object(first, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    if hvd.rank() == 0 and first:
        print("resumed after epoch %d" % first, flush=True)

    x, y = digits(args.data)
    share = max(1, args.batch_size // hvd.size())
    for epoch in range(first + 1, args.epochs + 1):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(x) - share * hvd.size() + 1, share * hvd.size()):
            mine = order[start + hvd.rank() * share : start + (hvd.rank() + 1) * share]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            optimizer.step()
        mean = float(hvd.allreduce(loss.detach(), name="loss"))
        if hvd.rank() == 0:
            print("epoch %d loss %.4f" % (epoch, mean), flush=True)
            part = args.checkpoint + ".part"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "epoch": epoch}, part)
            os.replace(part, args.checkpoint)


if __name__ == "__main__":
    main()
