"""Fixtures of the TensorFlow suites; the rest is in the conftest.py above."""

import os
import random

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
    """After the test no operation's memory is held."""
    from horovod.tensorflow import _library

    yield
    if _library.library is not None:
        assert _library.library.hvd_tf_live() == 0
