"""Images per second of a network on random images, with the ranks exchanging gradients.

    hvdrun -np 2 python synthetic_benchmark.py [--model small|resnet50|...] [--batch-size 8]
                                               [--fp16-allreduce] [--num-iters 5]

Models: "small" is a network of this file; any other name is one of torchvision.models,
which must then be installed.
"""

import argparse
import statistics
import timeit

import torch
import torch.nn as nn
import torch.nn.functional as F

import horovod.torch as hvd


def small():
    """Three convolutions on 64x64 images, 1.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        nn.Linear(1152, 960), nn.ReLU(), nn.Linear(960, 1000),
    )


def network(name):
    """(model, side of its images)"""
    if name == "small":
        return small(), 64
    try:
        from torchvision import models
    except ImportError as error:
        raise SystemExit("--model %s needs torchvision: %s" % (name, error))
    return getattr(models, name)(), 224


def main():
    parser = argparse.ArgumentParser(
        description="Speed of training on random images",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="small")
    parser.add_argument("--batch-size", type=int, default=8, help="of each rank")
    parser.add_argument("--fp16-allreduce", action="store_true")
    parser.add_argument("--num-warmup-batches", type=int, default=5)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=5)
    parser.add_argument("--use-adasum", action="store_true")
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()

    hvd.init()
    cuda = torch.cuda.is_available() and not args.no_cuda
    if cuda:
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda" if cuda else "cpu")

    model, side = network(args.model)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(args.batch_size, 3, side, side, device=device)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()

    def say(text):
        if hvd.rank() == 0:
            print(text, flush=True)

    say("Model: %s" % args.model)
    say("Batch size: %d" % args.batch_size)
    say("Number of %s: %d" % ("GPUs" if cuda else "CPU ranks", hvd.size()))
    timeit.timeit(step, number=args.num_warmup_batches)
    rates = []
    for i in range(args.num_iters):
        took = timeit.timeit(step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / took)
        say("Iter #%d: %.1f img/sec per rank" % (i, rates[-1]))
    mean = statistics.mean(rates)
    spread = 1.96 * statistics.pstdev(rates)
    say("Img/sec per rank: %.1f +-%.1f" % (mean, spread))
    say("Total img/sec on %d rank(s): %.1f +-%.1f"
        % (hvd.size(), hvd.size() * mean, hvd.size() * spread))


if __name__ == "__main__":
    main()
