"""Train a small network on real handwritten digits (MNIST) with every rank's share.

    hvdrun -np 2 python mnist.py [--epochs 3] [--batch-size 64] [--lr 0.01] [--fp16-allreduce]
                                 [--use-adasum] [--data DIR]

Prints the loss as it goes, and at the end the accuracy on digits that were not seen.
"""

import argparse
import gzip
import os
import struct

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")


def read_idx(path):
    """The tensor in a gzipped IDX file."""
    with gzip.open(path, "rb") as f:
        data = f.read()
    ndim = data[3]
    shape = struct.unpack(">%dI" % ndim, data[4 : 4 + 4 * ndim])
    body = bytearray(data[4 + 4 * ndim :])
    return torch.frombuffer(body, dtype=torch.uint8).view(*shape)


def digits(folder, part):
    images = read_idx(os.path.join(folder, part + "-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(folder, part + "-labels-idx1-ubyte.gz"))
    return TensorDataset((images.float() / 255 - 0.13).unsqueeze(1) / 0.31, labels.long())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def train(model, optimizer, loader, epoch):
    model.train()
    for i, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if i % 20 == 0 and hvd.rank() == 0:
            print("epoch %d batch %d/%d loss %.4f" % (epoch, i, len(loader), float(loss)),
                  flush=True)


def test(model, loader):
    """(loss, accuracy) over all ranks' shares of the test digits."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            sums[0] += F.cross_entropy(output, labels, reduction="sum").double()
            sums[1] += (output.argmax(1) == labels).sum()
            sums[2] += len(labels)
    sums = hvd.allreduce(sums, op=hvd.Sum, name="test")
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def main():
    parser = argparse.ArgumentParser(description="MNIST over the ranks of a job")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.01, help="for one rank")
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--data", default=DATA)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    train_set, test_set = digits(args.data, "train"), digits(args.data, "t10k")
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_loader = DataLoader(
        test_set, batch_size=256,
        sampler=range(hvd.rank(), len(test_set), hvd.size()))

    model = Net()
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(model, optimizer, train_loader, epoch)
        loss, accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print("epoch %d: test loss %.4f, accuracy %.2f %%" % (epoch, loss, 100 * accuracy),
                  flush=True)


if __name__ == "__main__":
    main()
