"""The launcher's modules that programs and test suites import."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

from horovod.runner import gloo_run, js_run, launch, mpi_run
from horovod.runner.common.util import (
    codec, config_parser, env, host_hash, hosts, network, safe_shell_exec, secret, timeout,
    tiny_shell_exec,
)
from horovod.runner.common.util.settings import Settings
from horovod.runner.elastic.discovery import FixedHosts, HostDiscoveryScript, HostManager, HostState
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.util import cache, lsf, streams, threads
from horovod.runner.util import network as local_network


def parse(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["horovodrun"] + [str(w) for w in words])
    return launch.parse_args()


def environment(args):
    return config_parser.set_env_from_args({}, args)


def test_arguments_become_environment(monkeypatch):
    args = parse(monkeypatch, "-np", 2, "--fusion-threshold-mb", 10, "--cycle-time-ms", 20,
                 "--cache-capacity", 512, "--hierarchical-allreduce",
                 "--no-hierarchical-allgather", "--timeline-filename", "/tmp/t.json",
                 "--timeline-mark-cycles", "--stall-check-warning-time-seconds", 10,
                 "--log-level", "INFO", "--log-without-timestamp", "python", "train.py", "-np")
    assert args.num_proc == 2 and args.command == ["python", "train.py", "-np"]
    assert environment(args) == {
        "HOROVOD_FUSION_THRESHOLD": str(10 * 1024 * 1024),
        "HOROVOD_CYCLE_TIME": "20.0",
        "HOROVOD_CACHE_CAPACITY": "512",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
        "HOROVOD_TIMELINE": "/tmp/t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "10",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }
    assert environment(parse(monkeypatch, "-np", 1, "true")) == {}


def test_autotune_and_library_options(monkeypatch):
    args = parse(monkeypatch, "-np", 2, "--autotune", "--autotune-log-file", "/tmp/a.txt",
                 "--autotune-warmup-samples", 1, "--autotune-gaussian-process-noise", 0.5,
                 "--mpi-threads-disable", "--num-nccl-streams", 2, "--thread-affinity", 1,
                 "--gloo-timeout-seconds", 60, "--tcp", "true")
    got = environment(args)
    assert got["HOROVOD_AUTOTUNE"] == "1" and got["HOROVOD_AUTOTUNE_LOG"] == "/tmp/a.txt"
    assert got["HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"] == "0.5"
    assert got["HOROVOD_MPI_THREADS_DISABLE"] == "1" and got["NCCL_IB_DISABLE"] == "1"
    assert got["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "60"


@pytest.mark.parametrize("words", [
    ("--fusion-threshold-mb", -1), ("--cycle-time-ms", -1), ("--cache-capacity", -1),
    ("--autotune-gaussian-process-noise", 1.5), ("--stall-check-shutdown-time-seconds", -1),
    ("--num-nccl-streams", -1),
])
def test_bad_values(monkeypatch, words):
    with pytest.raises(ValueError):
        parse(monkeypatch, "-np", 2, *words, "true")


def test_exclusive_arguments(monkeypatch, capsys):
    for words in (("-H", "a:1", "--hostfile", "f"), ("--gloo", "--mpi"),
                  ("--hierarchical-allreduce", "--no-hierarchical-allreduce")):
        with pytest.raises(SystemExit):
            parse(monkeypatch, "-np", 2, *words, "true")
    with pytest.raises(SystemExit):
        parse(monkeypatch, "true")
    capsys.readouterr()


def test_deprecated_arguments_warn(monkeypatch):
    with pytest.warns(DeprecationWarning):
        args = parse(monkeypatch, "-np", 2, "--log-hide-timestamp", "true")
    assert environment(args) == {"HOROVOD_LOG_HIDE_TIME": "1"}
    with pytest.warns(DeprecationWarning):
        parse(monkeypatch, "-np", 2, "--network-interface", "eth0,eth1", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = parse(monkeypatch, "-np", 2, "--network-interfaces", "eth0,eth1",
                     "--network-interfaces", "eth2", "true")
    assert args.nics == {"eth0", "eth1", "eth2"}


CONFIG = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  hierarchical_allreduce: true
timeline:
  filename: horovod_timeline.json
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
logging:
  level: INFO
  with_timestamp: false
unknown:
  key: 1
"""


def test_configuration_file(monkeypatch, tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    for words in (("--config-file", path, "--fusion-threshold-mb", 128),
                  ("--fusion-threshold-mb", 128, "--config-file", path)):
        args = parse(monkeypatch, "-np", 2, *words, "true")
        assert args.fusion_threshold_mb == 128 and args.cycle_time_ms == 10
        assert args.use_gloo and not args.use_mpi
        got = environment(args)
        assert got["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
        assert got["HOROVOD_STALL_CHECK_DISABLE"] == "1"
        assert got["HOROVOD_LOG_HIDE_TIME"] == "1"
    path.write_text("params: {cycle_time_ms: -1}\n")
    with pytest.raises(ValueError):
        parse(monkeypatch, "-np", 2, "--config-file", path, "true")


def test_controllers():
    called = []
    run = launch.run_controller

    def mark(name):
        return lambda: called.append(name)

    functions = mark("gloo"), mark("mpi"), mark("js")
    run(True, functions[0], False, functions[1], False, functions[2], 0)
    run(False, functions[0], False, functions[1], False, functions[2], 0)
    assert called == ["gloo", "gloo"]
    with pytest.raises(ValueError, match="MPI support has not been built"):
        run(False, functions[0], True, functions[1], False, functions[2], 0)
    assert launch.is_gloo_used() and launch.is_gloo_used(use_gloo=True)
    assert not launch.is_gloo_used(use_mpi=True)


def test_a_job_of_parsed_arguments(monkeypatch, tmp_path):
    out = tmp_path / "out"
    args = parse(monkeypatch, "-np", 2, "--cycle-time-ms", 3, "sh", "-c",
                 "echo $HOROVOD_RANK $HOROVOD_CYCLE_TIME >>%s" % out)
    launch._run(args)
    assert sorted(out.read_text().split("\n")) == ["", "0 3.0", "1 3.0"]
    with pytest.raises(RuntimeError, match="one or more processes exited with non-zero status"):
        launch._run(parse(monkeypatch, "-np", 2, "false"))


def test_hosts():
    with pytest.raises(ValueError):
        hosts.parse_hosts("a:b")
    with pytest.raises(ValueError):
        hosts.get_host_assignments(hosts.parse_hosts("a:2"), 3)
    found = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:2"), 2, 3)
    assert [(s.hostname, s.rank, s.local_rank, s.size) for s in found] == [
        ("a", 0, 0, 3), ("a", 1, 1, 3), ("b", 2, 0, 3)]
    assert found[2].to_response_string() == "2,3,0,1,1,2"
    assert gloo_run.create_slot_env_vars(found[1])["HOROVOD_LOCAL_RANK"] == "1"


def test_digests_and_codec():
    key = secret.make_secret_key()
    assert len(key) == secret.SECRET_LENGTH and key != secret.make_secret_key()
    digest = secret.compute_digest(key, b"text")
    assert len(digest) == secret.DIGEST_LENGTH
    assert secret.check_digest(key, b"text", digest)
    assert not secret.check_digest(key, b"tea", digest)
    for value in (1, "a", {"a": [1, None]}, Settings(hosts="a:1", num_proc=1).hosts):
        assert codec.loads_base64(codec.dumps_base64(value)) == value
        assert codec.loads_base64(codec.dumps_base64(value, to_ascii=False)) == value


def test_timeout():
    late = timeout.Timeout(0.0, "Timed out waiting for {activity}.")
    assert late.timed_out() and late.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match="waiting for tea"):
        late.check_time_out_for("tea")
    timeout.Timeout(100, "{activity}").check_time_out_for("tea")


def test_environment_rules(monkeypatch):
    assert env.is_exportable("PATH") and not env.is_exportable("BASH_FUNC_x%%")
    assert not env.is_exportable("OLDPWD") and not env.is_exportable(secret.HOROVOD_SECRET_KEY)
    for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert env.get_env_rank_and_size() == (1, 2)
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    monkeypatch.delenv("LSB_JOBID", raising=False)
    assert not lsf.LSFUtils.using_lsf()


def test_service_and_client():
    key = secret.make_secret_key()
    service = network.BasicService("tea", key, None)
    try:
        assert "lo" in service.addresses()
        client = network.BasicClient("tea", service.addresses(), key, 0)
        assert ("127.0.0.1", service.get_port()) in client.addresses()["lo"]
        answer = client._send(network.PingRequest())
        assert answer.service_name == "tea"
        for name, other in (("coffee", key), ("tea", secret.make_secret_key())):
            with pytest.raises(network.NoValidAddressesFound):
                network.BasicClient(name, service.addresses(), other, 0, probe_timeout=2,
                                    attempts=1)
    finally:
        service.shutdown()


def test_unsigned_bytes_are_never_unpickled():
    import pickle

    message = pickle.dumps(1)
    data = bytes(secret.DIGEST_LENGTH) + network._LENGTH.pack(len(message)) + message
    with pytest.raises(Exception, match="digest did not match"):
        network.Wire(b"key").read(io.BytesIO(data))


def test_commands():
    out, err = io.StringIO(), io.StringIO()
    status = safe_shell_exec.execute("printf 'a\\nb'; printf c >&2; exit 3", stdout=out,
                                     stderr=err, index=2)
    assert status == 3
    assert out.getvalue() == "[2]<stdout>:a\n[2]<stdout>:b\n"
    assert err.getvalue() == "[2]<stderr>:c\n"
    out = io.StringIO()
    assert safe_shell_exec.execute("echo $X", env={"X": "ü"}, stdout=out) == 0
    assert out.getvalue() == "ü\n"
    assert tiny_shell_exec.execute("echo a; exit 4") == ("a\n", 4)


def test_an_event_ends_a_command_and_its_children(tmp_path):
    event = threading.Event()
    pid_file = tmp_path / "pid"
    status = []
    thread = threading.Thread(target=lambda: status.append(safe_shell_exec.execute(
        "sleep 300 & echo $! >%s.part; mv %s.part %s; wait" % (pid_file, pid_file, pid_file),
        events=[event])))
    thread.start()
    ends = time.monotonic() + 20
    while not pid_file.exists():
        assert time.monotonic() < ends, "the command has not started"
        time.sleep(0.01)
    event.set()
    thread.join(20)
    assert not thread.is_alive(), "the command has not ended"
    assert status == [128 + signal.SIGTERM]
    pid = int(pid_file.read_text())
    while time.monotonic() < ends:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE)
        if not state.stdout.strip() or state.stdout.startswith(b"Z"):
            break
        time.sleep(0.01)
    else:
        pytest.fail("the command's child is still there")


def test_threads_and_pipes():
    assert threads.execute_function_multithreaded(lambda a, b: a + b, [(1, 2), (3, 4)]) == {
        0: 3, 1: 7}
    with pytest.raises(ZeroDivisionError):
        threads.execute_function_multithreaded(lambda: 1 / 0, [()])
    with pytest.raises(ValueError):
        threads.in_thread(print, args=[1])
    event, done = threading.Event(), threading.Event()
    thread = threads.on_event(event, done.set)
    assert not done.is_set()
    event.set()
    assert done.wait(20), "the function was not called"
    thread.join(20)

    pipe = streams.Pipe()
    threads.in_thread(lambda: (pipe.write("abc"), pipe.write("d"), pipe.close()))
    assert [pipe.read(2), pipe.read(), pipe.read(), pipe.read()] == ["ab", "c", "d", None]


def test_cache(tmp_path):
    first = cache.Cache(str(tmp_path), 60, "p")
    first.put(("a", 1), [1, 2])
    assert cache.Cache(str(tmp_path), 60, "p").get(("a", 1)) == [1, 2]
    assert cache.Cache(str(tmp_path), 60, "other").get(("a", 1)) is None
    assert cache.Cache(str(tmp_path), 0, "p").get(("a", 1)) is None
    calls = []

    @cache.use_cache()
    def slow(n):
        calls.append(n)
        return 2 * n

    assert [slow(2, fn_cache=first), slow(2, fn_cache=first), slow(2)] == [4, 4, 4]
    assert calls == [2, 2]


def test_addresses():
    assert "127.0.0.1" in local_network.get_local_host_addresses()
    assert local_network.resolve_host_address("no.such.host.invalid") is None
    assert local_network.filter_local_addresses(["localhost", "no.such.host.invalid"]) == [
        "no.such.host.invalid"]
    assert local_network.get_driver_ip({"lo"}) == "127.0.0.1"
    with pytest.raises(RuntimeError):
        local_network.get_driver_ip({"no_such_nic"})


def test_discovery(tmp_path):
    fixed = FixedHosts({"a": 2})
    manager = HostManager(fixed)
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    fixed.set({"a": 2, "b": 1})
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.current_hosts.host_assignment_order == ["a", "b"]
    fixed.set({"a": 1, "b": 2})
    assert manager.update_available_hosts() == HostUpdateResult.mixed
    assert manager.current_hosts.count_available_slots() == 3
    manager.blacklist("a")
    assert manager.is_blacklisted("a") and manager.current_hosts.available_hosts == {"b"}
    fixed.set({"b": 2})
    assert manager.update_available_hosts() == HostUpdateResult.removed
    assert HostManager.order_available_hosts({"x", "b"}, ["c", "b"]) == ["b", "x"]

    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho a:3\necho b\n")
    script.chmod(0o755)
    assert HostDiscoveryScript(str(script), 2).find_available_hosts_and_slots() == {
        "a": 3, "b": 2}
    with pytest.raises(ValueError):
        HostDiscoveryScript(str(script), None).find_available_hosts_and_slots()
    script.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(RuntimeError):
        HostDiscoveryScript(str(script), 2).find_available_hosts_and_slots()
    for bad in ((0, 10), (10, 5), (1, 4000)):
        with pytest.raises(ValueError):
            HostState(bad)
    os.remove(script)


RANK = ("import os, sys, horovod.torch as hvd; hvd.init(); assert hvd.rank() == int(os.environ['HOROVOD_RANK'])\n"
        "open(os.path.join(sys.argv[1], str(hvd.rank())), 'w').write('%d' % hvd.size())")
FAKE_JSRUN = """#!/bin/sh
[ "$1" = --erf_input ] && grep -q 'rank: 1' "$2" || exit 9
shift 2
JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2 "$@" & first=$!
JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 "$@" && wait $first
"""


@pytest.mark.parametrize("run", [mpi_run.mpi_run, js_run.js_run])
def test_ranks_of_another_launcher(run, tmp_path, monkeypatch):
    if run is js_run.js_run:
        (tmp_path / "jsrun").write_text(FAKE_JSRUN)
        (tmp_path / "jsrun").chmod(0o755)
        monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    elif not mpi_run.is_open_mpi():
        pytest.skip("no mpirun of Open MPI")
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
    settings = Settings(num_proc=2, hosts="localhost:2")
    run(settings, None, None, [sys.executable, "-c", RANK, str(tmp_path)])
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2", "2"]
    with pytest.raises(RuntimeError, match="failed with exit status"):
        run(settings, None, None, ["false"])
