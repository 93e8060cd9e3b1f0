"""The services that programs import from horovod.runner."""

import http.client
import io
import os
import socketserver
import threading

import pytest

from horovod.common.elastic import WorkerNotificationManager
from horovod.runner.common.service.compute_service import ComputeClient, ComputeService
from horovod.runner.common.service.driver_service import BasicDriverClient, BasicDriverService
from horovod.runner.common.service.task_service import (
    BasicTaskClient, BasicTaskService, CommandOutputNotCaptured, StreamCommandStdOutRequest,
)
from horovod.runner.common.util import hosts, secret
from horovod.runner.common.util.network import BasicClient, BasicService
from horovod.runner.common.util.settings import Settings
from horovod.runner.common.util.timeout import Timeout, TimeoutException
from horovod.runner.driver.driver_service import (
    HorovodRunDriverClient, HorovodRunDriverService, get_common_interfaces, get_local_interfaces,
)
from horovod.runner.elastic.worker import (
    HostUpdateResult, WorkerNotificationClient, WorkerNotificationService,
)
from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore
from horovod.runner.http.http_server import KVStoreServer, RendezvousServer
from horovod.runner.task.task_service import HorovodRunTaskClient, HorovodRunTaskService


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
        put_data_into_kvstore("127.0.0.1", port, "a scope", "a/key?", 1)
        assert read_data_from_kvstore("127.0.0.1", port, "a scope", "a/key?") == 1
        request(port, "PUT", "/a%20scope/forged", b"." * 32 + b"cos\nsystem\n(S'exit 1'\ntR.")
        with pytest.raises(RuntimeError, match="not signed with this job's key"):
            read_data_from_kvstore("127.0.0.1", port, "a scope", "forged")
        for length in ("²", "-1", "", "1e3", "９"):
            assert request(port, "PUT", "/scope/key", **{"Content-Length": length.encode()})[0] == 400
        for length in ("9" * 12, "9" * 5000):
            assert request(port, "PUT", "/scope/key", **{"Content-Length": length})[0] == 413
        assert request(port, "DELETE", "/scope/key")[0] == 501
    finally:
        server.shutdown_server()
    with pytest.raises(RuntimeError, match="Read data from KVStore server failed"):
        read_data_from_kvstore("127.0.0.1", port, "runfunc", "result")


def test_a_server_that_speaks_no_http_is_a_runtime_error():
    class Mute(socketserver.StreamRequestHandler):
        def handle(self):
            self.rfile.readline()
            self.wfile.write(b"what?\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Mute) as server:
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(2)])
        thread.start()
        port = server.server_address[1]
        with pytest.raises(RuntimeError, match="Read data from KVStore server failed"):
            read_data_from_kvstore("127.0.0.1", port, "s", "k")
        with pytest.raises(RuntimeError, match="Put data input KVStore server failed"):
            put_data_into_kvstore("127.0.0.1", port, "s", "k", 1)
        thread.join(20)


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


@pytest.fixture
def task():
    """(service, client) of a task that has the index 3"""
    key = secret.make_secret_key()
    service = HorovodRunTaskService(3, key, None)
    yield service, HorovodRunTaskClient(3, service.addresses(), key, 0)
    service.shutdown()


def test_a_task_runs_a_command(task, tmp_path):
    service, client = task
    assert not service.check_for_command_start(0.01)
    with pytest.raises(TimeoutException, match="command to run"):
        service.wait_for_command_start(Timeout(0.01, "Timed out waiting for {activity}."))
    assert client.command_result() == (False, None)
    out = tmp_path / "out"
    client.run_command("echo $A >%s; exit 7" % out, {"A": "b c"})
    assert service.check_for_command_start(20)
    service.wait_for_command_start()
    assert client.wait_for_command_exit_code() == 7 == service.command_exit_code()
    client.wait_for_command_termination()
    assert client.command_terminated() and client.command_result() == (True, 7)
    assert out.read_text() == "b c\n"
    with pytest.raises(RuntimeError, match="#3 runs a command already"):
        client.run_command("true", {})


def test_a_task_streams_output(task):
    _, client = task
    out, err = io.StringIO(), io.StringIO()
    client.run_command("seq 20000; echo wrong >&2", {}, capture_stdout=True, capture_stderr=True)
    threads = client.stream_command_output(out, err)
    assert client.wait_for_command_exit_code() == 0
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a stream has not ended"
    assert out.getvalue() == "".join("[3]<stdout>:%d\n" % n for n in range(1, 20001))
    assert err.getvalue() == "[3]<stderr>:wrong\n"


def test_output_that_is_not_captured(task):
    service, client = task
    with pytest.raises(CommandOutputNotCaptured):
        client._send(StreamCommandStdOutRequest(), io.StringIO())
    client.run_command("true", {}, capture_stderr=True)
    with pytest.raises(CommandOutputNotCaptured):
        client._send(StreamCommandStdOutRequest(), io.StringIO())
    assert client.stream_command_output() == (None, None)


def test_a_task_is_aborted(task):
    _, client = task
    client.run_command("sleep 100 & sleep 100", {})
    client.abort_command()
    assert client.wait_for_command_exit_code() == 128 + 15


def test_a_task_hears_of_registration_and_results(task):
    service, client = task
    late = Timeout(0.01, "Timed out waiting for {activity}.")
    with pytest.raises(TimeoutException):
        service.wait_for_initial_registration(late)
    with pytest.raises(TimeoutException):
        service.wait_for_task_to_task_address_check_finish_signal(late)
    client.notify_initial_registration_complete()
    service.wait_for_initial_registration(Timeout(20, ""))
    assert client.task_to_task_address_check_completed() == 3
    service.wait_for_task_to_task_address_check_finish_signal(Timeout(20, ""))
    client.register_code_result({"loss": 1})
    assert service.fn_result() == {"loss": 1}


def test_the_environment_of_a_tasks_command(tmp_path):
    key = secret.make_secret_key()
    out = tmp_path / "out"
    service = BasicTaskService("t", 0, key, None, command_env={"PATH": os.environ["PATH"], "B": "1"})
    try:
        BasicTaskClient("t", service.addresses(), key, 0).run_command("env >%s" % out, {"A": "2"})
        service.wait_for_command_termination()
    finally:
        service.shutdown()
    lines = set(out.read_text().splitlines())
    assert {"A=2", "B=1"} <= lines and not any(line.startswith("HOME=") for line in lines)


def test_errors_of_a_service_are_raised_at_the_client():
    class Unkind(Exception):
        def __init__(self, one, two):
            super().__init__("%s %s" % (one, two))

        def __reduce__(self):
            return Unkind, ()

    class Service(BasicService):
        def _handle(self, req, client_address):
            if req == "os":
                raise FileNotFoundError("not there")
            if req == "unkind":
                raise Unkind("cannot be", "unpickled")
            return None if req == "nothing" else super()._handle(req, client_address)

    key = secret.make_secret_key()
    service = Service("s", key, None)
    try:
        client = BasicClient("s", service.addresses(), key, 0)
        for request_, error, text in (("os", FileNotFoundError, "not there"),
                                      ("unkind", RuntimeError, "Unkind: cannot be unpickled"),
                                      ("nothing", RuntimeError, "s has no answer to a str"),
                                      ("other", NotImplementedError, "other")):
            with pytest.raises(error, match=text):
                client._send(request_)
    finally:
        service.shutdown()


def test_interfaces():
    assert get_local_interfaces(Settings()) == {"lo"}
    assert get_common_interfaces(Settings(), ["localhost"]) == {"lo"}
    assert get_common_interfaces(Settings(nics={"eth0"}), ["a", "b"], ["b"]) == {"eth0"}
    key = secret.make_secret_key()
    service = HorovodRunDriverService(1, key, None)
    try:
        client = HorovodRunDriverClient(service.addresses(), key, 0)
        with pytest.raises(ValueError, match="no task 1: the job has tasks 0 to 0"):
            client.register_task(1, {}, "h")
        with pytest.raises(KeyError, match="task 0 has not registered"):
            client.all_task_addresses(0)
    finally:
        service.shutdown()
