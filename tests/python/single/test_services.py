"""The services that programs import from horovod.runner."""

import http.client
import threading

import pytest

from horovod.common.elastic import WorkerNotificationManager
from horovod.runner.common.service.compute_service import ComputeClient, ComputeService
from horovod.runner.common.service.driver_service import BasicDriverClient, BasicDriverService
from horovod.runner.common.util import hosts, secret
from horovod.runner.common.util.timeout import Timeout, TimeoutException
from horovod.runner.elastic.worker import (
    HostUpdateResult, WorkerNotificationClient, WorkerNotificationService,
)
from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore
from horovod.runner.http.http_server import KVStoreServer, RendezvousServer


def request(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_key_value_store():
    server = KVStoreServer(verbose=0)
    port = server.start_server()
    try:
        put_data_into_kvstore("127.0.0.1", port, "runfunc", "result", {"a": [1, None]})
        assert read_data_from_kvstore("127.0.0.1", port, "runfunc", "result") == {"a": [1, None]}
        with pytest.raises(RuntimeError, match="has no /runfunc/other"):
            read_data_from_kvstore("127.0.0.1", port, "runfunc", "other")
        assert request(port, "PUT", "/scope/key", b"") == (200, b"")
        assert request(port, "GET", "/scope/key") == (200, b"")
        assert request(port, "GET", "/etc/../passwd")[0] == 400
        assert request(port, "GET", "/")[0] == 400
        assert request(port, "HEAD", "/")[0] == 400
        assert request(port, "DELETE", "/scope/key")[0] == 501
    finally:
        server.shutdown_server()
    with pytest.raises(RuntimeError, match="Read data from KVStore server failed"):
        read_data_from_kvstore("127.0.0.1", port, "runfunc", "result")


def test_rendezvous():
    server = RendezvousServer()
    port = server.start()
    try:
        server.init(hosts.get_host_assignments(hosts.parse_hosts("a:2"), 2))
        assert request(port, "PUT", "/global/k", b"v")[0] == 200
        assert request(port, "DELETE", "/global/0")[0] == 200
        assert request(port, "GET", "/global/k") == (200, b"v")
        assert server._httpd.should_continue()
        assert request(port, "DELETE", "/global/1")[0] == 200
        assert request(port, "GET", "/global/k")[0] == 404
        for path in ("/local_a/0", "/local_a/1", "/cross_0/0", "/cross_1/0"):
            assert server._httpd.should_continue()
            assert request(port, "DELETE", path)[0] == 200
        assert not server._httpd.should_continue()
    finally:
        server.stop()


def test_compute_service():
    key = secret.make_secret_key()
    service = ComputeService(2, 2, key)
    try:
        client = ComputeClient(service.addresses(), key)
        with pytest.raises(TimeoutException, match="dispatcher 1 to register"):
            client.wait_for_dispatcher_registration(1, 0.01)
        with pytest.raises(IndexError):
            client.register_dispatcher(2, "grpc://localhost:1")
        client.register_dispatcher(1, "grpc://localhost:1")
        client.register_dispatcher(1, "grpc://localhost:1")
        with pytest.raises(ValueError, match="different address"):
            client.register_dispatcher(1, "grpc://localhost:2")
        assert client.wait_for_dispatcher_registration(1, 10) == "grpc://localhost:1"
        client.register_worker_for_dispatcher(1, 0)
        client.register_worker_for_dispatcher(1, 0)
        with pytest.raises(TimeoutException, match="workers of dispatcher 1"):
            client.wait_for_dispatcher_worker_registration(1, 0.01)
        client.register_worker_for_dispatcher(1, 1)
        client.wait_for_dispatcher_worker_registration(1, 10)
        waiter = threading.Thread(target=client.wait_for_shutdown)
        waiter.start()
        client.shutdown()
        waiter.join(20)
        assert not waiter.is_alive(), "wait_for_shutdown() has not returned"
    finally:
        service.shutdown()
    for bad in ((0, 1), (1, 0)):
        with pytest.raises(ValueError):
            ComputeService(*bad, key)


def test_notifications():
    heard = []

    class Listener:
        def on_hosts_updated(self, timestamp, res):
            heard.append((timestamp, res))

    manager = WorkerNotificationManager()
    manager.register_listener(Listener())
    key = secret.make_secret_key()
    service = WorkerNotificationService(key, "lo", manager)
    try:
        client = WorkerNotificationClient(service.addresses(), key, 0)
        client.notify_hosts_updated(7, HostUpdateResult.added)
        assert heard == [(7, HostUpdateResult.added)]
    finally:
        service.shutdown()


def test_driver_service():
    key = secret.make_secret_key()
    service = BasicDriverService(2, "driver", key, None)
    late = "Timed out waiting for {activity}."
    try:
        client = BasicDriverClient("driver", service.addresses(), key, 0)
        places = {"lo": [("127.0.0.1", 1)], "eth9": [("192.0.2.1", 1)]}
        client.register_task(1, places, "hash-a")
        with pytest.raises(TimeoutException, match="tasks to start"):
            service.wait_for_initial_registration(Timeout(0.01, late))
        client.register_task(0, places, "hash-a")
        service.wait_for_initial_registration(Timeout(20, late))
        assert client.all_task_addresses(1) == service.all_task_addresses(1) == places
        assert set(service.task_addresses_for_driver(1)) <= set(places)
        assert sorted(service.task_indices()) == [0, 1]
        assert service.task_host_hash_indices() == {"hash-a": [0, 1]}
        assert service.task_index_host_hash(1) == "hash-a"
        with pytest.raises(TimeoutException, match="task-to-task"):
            service.wait_for_task_to_task_address_updates(Timeout(0.01, late))
        for index in (0, 1):
            client.register_task_to_task_addresses(index, {"lo": places["lo"]})
        service.wait_for_task_to_task_address_updates(Timeout(20, late))
        assert service.task_addresses_for_tasks(0) == {"lo": places["lo"]}
        with pytest.raises(ValueError):
            service.register_task_to_task_addresses(2, places)
    finally:
        service.shutdown()
