"""The handwritten digits beside the examples, as numpy arrays."""

import argparse
import gzip
import os
import struct

import numpy as np

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")


def read_idx(path):
    """The array in a gzipped IDX file."""
    with gzip.open(path, "rb") as f:
        data = f.read()
    ndim = data[3]
    shape = struct.unpack(">%dI" % ndim, data[4 : 4 + 4 * ndim])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * ndim).reshape(shape)


def load(part, folder=DATA):
    """(images of 28x28x1 from 0 to 1, labels); part is "train" or "t10k"."""
    images = read_idx(os.path.join(folder, part + "-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(folder, part + "-labels-idx1-ubyte.gz"))
    return (images[..., np.newaxis] / 255.0).astype(np.float32), labels.astype(np.int64)


def arguments():
    """The command line of the examples that train by steps."""
    parser = argparse.ArgumentParser(
        description="Train a network on handwritten digits",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of all ranks together")
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.001, help="for one rank")
    parser.add_argument("--checkpoint-dir", default="")
    parser.add_argument("--data", default=DATA)
    return parser.parse_args()
