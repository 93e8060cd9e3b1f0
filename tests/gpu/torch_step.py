"""What DistributedOptimizer adds to a training step of ResNet-50 on one GPU, in percent.

    hvdrun -np 1 python torch_step.py [SECONDS]
Plain PyTorch and PyTorch with the optimizer's hooks (HOROVOD_ELASTIC=1: also at one rank)
take turns; of each the median step counts. Prints "PLAIN ms WITH ms PERCENT"; status 77 with
a reason where PyTorch has no GPU.
"""

import os
import statistics
import sys
import time

BATCH, SIDE, STEPS = 64, 224, 10


def bottleneck(nn, inputs, width, stride):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()

            def conv(i, o, size, step=1):
                return nn.Sequential(
                    nn.Conv2d(i, o, size, step, size // 2, bias=False), nn.BatchNorm2d(o))

            self.body = nn.Sequential(conv(inputs, width, 1), nn.ReLU(),
                                      conv(width, width, 3, stride), nn.ReLU(),
                                      conv(width, width * 4, 1))
            self.side = (nn.Identity() if inputs == width * 4
                         else conv(inputs, width * 4, 1, stride))

        def forward(self, x):
            return nn.functional.relu(self.body(x) + self.side(x))

    return Block()


def resnet50(nn):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            layers.append(bottleneck(nn, inputs, width, stride))
            inputs = width * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(2048, 1000))


def steps(torch, model, optimizer, images, labels, count):
    """Seconds of one step."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    try:
        import torch
    except ImportError as error:
        print("no PyTorch: %s" % error)
        return 77
    if not torch.cuda.is_available():
        print("PyTorch %s sees no GPU" % torch.__version__)
        return 77
    os.environ["HOROVOD_ELASTIC"] = "1"
    import horovod.torch as hvd

    hvd.init()
    torch.cuda.set_device(hvd.local_rank())
    torch.manual_seed(1)
    images = torch.randn(BATCH, 3, SIDE, SIDE, device="cuda")
    labels = torch.randint(1000, (BATCH,), device="cuda")
    trials = {}
    for name in ("plain", "with"):
        model = resnet50(torch.nn).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        if name == "with":
            optimizer = hvd.DistributedOptimizer(
                optimizer, named_parameters=model.named_parameters())
        trials[name] = (model, optimizer)
        steps(torch, model, optimizer, images, labels, STEPS)
    times = {"plain": [], "with": []}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times["with"]) < 3:
        for name, (model, optimizer) in trials.items():
            times[name].append(steps(torch, model, optimizer, images, labels, STEPS))
    plain, other = (statistics.median(times[k]) * 1e3 for k in ("plain", "with"))
    print("%.2f ms %.2f ms %+.1f" % (plain, other, 100 * (other / plain - 1)))
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
