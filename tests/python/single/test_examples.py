"""The examples run and learn."""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")
EXAMPLES = os.path.join(ROOT, "worker", "examples", "pytorch")


def start(name, *words, ranks=2):
    done = subprocess.run(
        ["hvdrun", "--prefix", "none", "--timeout", "200s", "-np", str(ranks), sys.executable,
         os.path.join(EXAMPLES, name)] + [str(w) for w in words],
        stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def test_mnist_learns():
    text = start("mnist.py", "--epochs", 2, "--lr", 0.02)
    assert float(re.findall(r"accuracy ([0-9.]+)", text)[-1]) > 80


def test_resume_in_a_job_of_another_size(tmp_path):
    file = tmp_path / "model.pt"
    text = start("resume.py", "--checkpoint", file, "--epochs", 1)
    first = float(re.search(r"epoch 1 loss ([0-9.]+)", text).group(1))
    text = start("resume.py", "--checkpoint", file, "--epochs", 2, ranks=3)
    assert "resumed after epoch 1" in text and "epoch 1 loss" not in text
    assert float(re.search(r"epoch 2 loss ([0-9.]+)", text).group(1)) < first


def test_synthetic_benchmark():
    text = start("synthetic_benchmark.py", "--num-iters", 1, "--num-batches-per-iter", 2,
                 "--num-warmup-batches", 1, "--fp16-allreduce")
    assert re.search(r"Total img/sec on 2 rank\(s\): [0-9.]+", text)
