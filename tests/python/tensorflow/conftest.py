"""Fixtures of the TensorFlow suites; the rest is in the conftest.py above."""

import os
import random
import time

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(autouse=True)
def same_numbers():
    """Every rank draws the same random numbers, the same in every run."""
    import numpy as np

    random.seed(7)
    np.random.seed(7)


@pytest.fixture
def hvd():
    import horovod.tensorflow as hvd

    hvd.init()
    yield hvd
    hvd.init()


@pytest.fixture
def no_leak():
    """After the test no operation's memory is held: TensorFlow's threads let go of the last
    one a moment after its result is there."""
    from horovod.tensorflow import _library

    yield
    until = time.monotonic() + 10
    while _library.library is not None and _library.library.hvd_tf_live() > 0:
        assert time.monotonic() < until, "an operation's memory is still held after 10 s"
        time.sleep(0.002)
