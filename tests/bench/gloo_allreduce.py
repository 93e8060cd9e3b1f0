#!/usr/bin/python3
"""The peer of bench_allreduce.c in PyTorch's Gloo, on 127.0.0.1.

usage: gloo_allreduce.py NAME NP [SECONDS_PER_SIZE [MAX_BYTES]]
"""
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]


def iterations(size_bytes):
    for limit, count in ((1024, 4000), (65536, 2000), (1 << 20, 400), (16 << 20, 60), (64 << 20, 24)):
        if size_bytes <= limit:
            return count
    return 10


def time_size(name, rank, np, size_bytes, cap_s):
    tensor = torch.full((size_bytes // 4,), float(rank + 1))
    dist.all_reduce(tensor)
    if not bool((tensor == np * (np + 1) / 2).all()):
        sys.exit("gloo_allreduce.py: the sum is wrong")
    tensor.zero_()
    count = iterations(size_bytes)
    warm = count // 10 + 1
    began = time.perf_counter()
    for _ in range(warm):
        dist.all_reduce(tensor)
    per = (time.perf_counter() - began) / warm
    agreed = torch.tensor([float(max(3, min(count, int(cap_s / per))))])
    dist.broadcast(agreed, 0)
    count = int(agreed.item())
    dist.barrier()
    us = []
    for _ in range(count):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        us.append((time.perf_counter() - start) * 1e6)
    if rank == 0:
        us.sort()
        median = us[int(0.5 * (count - 1) + 0.5)]
        print(json.dumps({
            "peer": name, "np": np, "bytes": size_bytes, "n": count, "med_us": round(median, 2),
            "p99_us": round(us[int(0.99 * (count - 1) + 0.5)], 2), "mean_us": round(sum(us) / count, 2),
            "busbw": round(2 * (np - 1) / np * size_bytes / median * 1e-3, 3)}), flush=True)


def work(rank, name, np, cap_s, max_bytes, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=np)
    for size_bytes in SIZES:
        if size_bytes <= max_bytes:
            time_size(name, rank, np, size_bytes, cap_s)
    dist.barrier()
    dist.destroy_process_group()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cap_s = float(sys.argv[3]) if len(sys.argv) > 3 else 2.0
    max_bytes = int(sys.argv[4]) if len(sys.argv) > 4 else SIZES[-1]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    np = int(sys.argv[2])
    mp.spawn(work, args=(sys.argv[1], np, cap_s, max_bytes, port), nprocs=np)


if __name__ == "__main__":
    main()
