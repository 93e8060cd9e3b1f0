"""The decisions of an elastic job, with workers that are threads."""

import threading
import time

import pytest

from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.elastic import driver as elastic_driver
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE, create_rendezvous_handler
from horovod.runner.http.http_server import RendezvousServer

from test_services import request


class NoStore:
    def init(self, slots):
        self.slots = slots


@pytest.fixture
def job(monkeypatch):
    """make(hosts, min, max, ...): (driver, discovery); stopped at the end"""
    monkeypatch.setattr(elastic_driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.02)
    made = []

    def make(hosts, least, most, **more):
        discovery = FixedHosts(hosts) if isinstance(hosts, dict) else hosts
        made.append(ElasticDriver(NoStore(), discovery, least, most, **more))
        return made[-1], discovery

    yield make
    for one in made:
        one.stop()


def in_time(driver):
    """Results, which must come within 20 s."""
    found = []
    thread = threading.Thread(target=lambda: found.append(driver.get_results()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the job has not ended"
    return found[0]


def test_all_succeed(job):
    driver, _ = job({"a": 2, "b": 2}, 2, 3)
    driver.wait_for_available_slots(2, min_hosts=2)

    def work(slot, events):
        driver.record_ready(slot.hostname, slot.local_rank)
        return 0, time.time()

    driver.start(2, work)
    results = in_time(driver).worker_results
    assert driver.world_size() == 3 and driver.finished()
    assert [results[name][0] for name in sorted(results)] == [0] * len(results) != []
    assert driver.get_coordinator_info().rank == 0


def test_all_fail(job):
    driver, _ = job({"a": 2}, 2, 2)
    driver.start(2, lambda slot, events: (3, time.time()))
    results = in_time(driver)
    assert driver.finished() and results.error_message is None
    assert {status for status, _ in results.worker_results.values()} == {3}


def test_a_failing_host_is_blacklisted_and_the_job_goes_on(job):
    driver, _ = job({"a": 1, "b": 1}, 1, 2)
    sizes = []

    def work(slot, events):
        driver.record_ready(slot.hostname, slot.local_rank)
        if slot.hostname == driver._host_manager.current_hosts.host_assignment_order[-1]:
            return 1, time.time()
        driver.record_ready(slot.hostname, slot.local_rank)
        sizes.append((driver.world_size(), driver.get_slot_info(slot.hostname, 0).size))
        return 0, time.time()

    driver.start(2, work)
    results = in_time(driver).worker_results
    assert sizes == [(1, 1)]
    assert [status for status, _ in results.values()] == [0]


def test_the_reset_limit_ends_the_job(job):
    driver, _ = job({"a": 2}, 2, 2, reset_limit=1)

    def work(slot, events):
        while not driver.finished():
            driver.record_ready(slot.hostname, slot.local_rank)
        return 1, time.time()

    driver.start(2, work)
    assert in_time(driver).error_message == (
        "Horovod was shutdown because number of resets during elastic job exceeded limit: 1")


def test_new_hosts_come_last_and_old_ones_must_remain(job):
    driver, discovery = job({"a": 1}, 1, 4)
    started = threading.Event()
    go_on = threading.Event()
    seen = []

    def work(slot, events):
        driver.record_ready(slot.hostname, slot.local_rank)
        if slot.hostname == "a" and not started.is_set():
            started.set()
            assert go_on.wait(20)
            driver.record_ready("a", 0)
        seen.append(driver.get_slot_info(slot.hostname, slot.local_rank))
        return 0, time.time()

    driver.start(1, work)
    assert started.wait(20)
    discovery.set({"b": 2, "a": 1})
    driver.wait_for_available_slots(3)
    go_on.set()
    in_time(driver)
    assert driver.world_size() == 3
    assert driver.get_slot_info("a", 0).rank == 0
    discovery.set({"c": 1})
    with pytest.raises(RuntimeError, match="No hosts from previous set remaining"):
        driver._host_manager.update_available_hosts()
        driver._plan(driver._host_manager.current_hosts)


def test_too_few_slots_are_a_timeout(job):
    driver, _ = job({"a": 1}, 2, 2, timeout=0.2)
    with pytest.raises(TimeoutException, match="2 slots on 1 hosts"):
        driver.wait_for_available_slots(2)


def test_the_first_failure_of_discovery_is_fatal(job):
    class Broken(HostDiscovery):
        def find_available_hosts_and_slots(self):
            raise OSError("no such cloud")

    driver, _ = job(Broken(), 1, 1)
    with pytest.raises(RuntimeError, match="no such cloud"):
        driver.wait_for_available_slots(1)
    assert driver.finished()


def test_stop_lets_ready_workers_go(job):
    driver, _ = job({"a": 2}, 2, 2)
    ready = threading.Event()

    def work(slot, events):
        if slot.local_rank == 0:
            ready.set()
            driver.record_ready("a", 0)
        elif not events[0].wait(20):
            return 5, time.time()
        return 0, time.time()

    driver.start(2, work)
    assert ready.wait(20)
    driver.stop("enough")
    assert in_time(driver).error_message == "enough"


def test_ranks_by_http(job):
    driver, _ = job({"a": 2}, 2, 2)
    server = RendezvousServer()
    port = server.start(create_rendezvous_handler(driver))
    answers = {}

    def work(slot, events):
        path = "/%s/a:%d" % (GET_RANK_AND_SIZE, slot.local_rank)
        answers[slot.local_rank] = request(port, "GET", path)
        return 0, time.time()

    try:
        server.init([])
        driver.start(2, work)
        in_time(driver)
        assert answers == {0: (200, b"0,2,0,2,0,1"), 1: (200, b"1,2,1,2,0,1")}
        assert request(port, "GET", "/%s/x:9" % GET_RANK_AND_SIZE) == (200, b"-1,-1,-1,-1,-1,-1")
        assert request(port, "GET", "/%s/x" % GET_RANK_AND_SIZE)[0] == 400
        assert request(port, "PUT", "/worker_addresses/a:0", b"x")[0] == 400
        assert request(port, "PUT", "/scope/key", b"v")[0] == 200
        assert request(port, "GET", "/scope/key") == (200, b"v")
    finally:
        server.stop()
