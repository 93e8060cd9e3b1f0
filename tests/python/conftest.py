"""What all tests share: the job, deadlines, and a record of results for run.sh.

Tests under ranks/ run in every rank of a job at once and must call the same collectives.
The first failure in a rank ends that rank, and so the job: its peers would wait for it.
"""

import faulthandler
import os
import random
import sys

import pytest

DEADLINE_S = int(os.environ.get("HVD_TEST_DEADLINE", "180"))


def _record(outcome, nodeid, reason=""):
    path = os.environ.get("HVD_TEST_RESULTS")
    if not path:
        return
    rank = os.environ.get("HOROVOD_RANK", "0")
    with open("%s.%s" % (path, rank), "a", encoding="utf-8") as f:
        f.write("%s\t%s\t%s\n" % (outcome, nodeid, reason.replace("\n", " ")[:200]))


def pytest_collection_finish(session):
    if os.environ.get("HOROVOD_RANK", "0") == "0":
        for item in session.items:
            _record("collected", item.nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        _record("passed", report.nodeid)
    elif report.failed:
        _record("failed", report.nodeid, str(report.longrepr)[-200:])
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _record("skipped", report.nodeid, str(reason))


@pytest.fixture(autouse=True)
def deadline():
    """A test that does not end says where all threads are, and ends the process."""
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def same_numbers():
    """Every rank draws the same random numbers, the same in every run."""
    torch = pytest.importorskip("torch")
    random.seed(7)
    torch.manual_seed(7)


@pytest.fixture
def hvd():
    import horovod.torch as hvd

    hvd.init()
    yield hvd
    hvd.init()
