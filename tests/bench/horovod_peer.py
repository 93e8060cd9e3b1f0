"""The peer of bench_allreduce.c and bench_step.c in the original Horovod; its own launcher
starts it.

    horovod_peer.py allreduce SECONDS MAX_BYTES
    horovod_peer.py resnet50|small SECONDS
"""
import json
import sys
import time

import horovod.torch as hvd
import torch

SIZES = [4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]


def resnet50():
    counts = []
    inputs = 64

    def conv(a, b, size):
        counts.extend((a * b * size * size, b, b))

    conv(3, 64, 7)
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            conv(inputs, width, 1)
            conv(width, width, 3)
            conv(width, width * 4, 1)
            if block == 0:
                conv(inputs, width * 4, 1)
            inputs = width * 4
    return counts + [1000 * 2048, 1000]


def agree(count):
    return int(hvd.broadcast(torch.tensor([float(count)]), 0, name="iters").item())


def timed(once, cap_s, most):
    once()
    began = time.perf_counter()
    for _ in range(4):
        once()
    count = agree(max(3, min(most, int(cap_s / ((time.perf_counter() - began) / 4)))))
    us = []
    for _ in range(count):
        start = time.perf_counter()
        once()
        us.append((time.perf_counter() - start) * 1e6)
    us.sort()
    return {"n": count, "med_us": round(us[count // 2], 2), "p99_us": round(us[int(0.99 * (count - 1) + 0.5)], 2)}


def main():
    hvd.init()
    torch.set_num_threads(1)
    cap_s = float(sys.argv[2])
    if sys.argv[1] == "allreduce":
        for size in SIZES:
            if size > int(sys.argv[3]):
                break
            tensor = torch.full((size // 4,), float(hvd.rank() + 1))
            hvd.allreduce_(tensor, name="t%d" % size, op=hvd.Sum)
            if not bool((tensor == hvd.size() * (hvd.size() + 1) / 2).all()):
                sys.exit("horovod_peer.py: the sum is wrong")
            tensor.zero_()
            row = timed(lambda: hvd.allreduce_(tensor, name="t%d" % size, op=hvd.Sum), cap_s, 1000)  # pylint: disable=cell-var-from-loop
            if hvd.rank() == 0:
                print(json.dumps(dict(peer="horovod", np=hvd.size(), bytes=size, **row)), flush=True)
    else:
        counts = resnet50() if sys.argv[1] == "resnet50" else [256] * 1000
        tensors = [torch.zeros(n) for n in counts]

        def step():
            handles = [hvd.allreduce_async_(t, name="%s/%d" % (sys.argv[1], i), op=hvd.Sum)
                       for i, t in reversed(list(enumerate(tensors)))]
            for handle in handles:
                hvd.synchronize(handle)

        row = timed(step, cap_s, 400)
        if hvd.rank() == 0:
            print(json.dumps(dict(peer="horovod", np=hvd.size(), step=sys.argv[1], bytes=4 * sum(counts), **row)), flush=True)
    hvd.shutdown()


main()
