"""A test suite of another project, for the documented behaviour of Horovod's runner."""

import copy
import importlib.util
import io
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import unittest
import warnings
from unittest import mock

import horovod
from horovod.runner import gloo_run, js_run, mpi_run
from horovod.runner.common.util import (
    codec, config_parser, env as env_util, host_hash, hosts, network, safe_shell_exec, secret,
    settings as hvd_settings, timeout, tiny_shell_exec,
)
from horovod.runner.js_run import generate_jsrun_rankfile
from horovod.runner.launch import parse_args, run_controller
from horovod.runner.util import lsf, remote, streams, threads
from horovod.runner.util import network as local_network


def parse(*words):
    with mock.patch.object(sys, "argv", ["horovodrun"] + list(words)):
        return parse_args()


def env_of(*words):
    env = {}
    config_parser.set_env_from_args(env, parse("-np", "2", *words, "python", "x.py"))
    return env


class Arguments(unittest.TestCase):
    FLAGS = (
        (("--fusion-threshold-mb", "10"), {"HOROVOD_FUSION_THRESHOLD": str(10 * 1024 * 1024)}),
        (("--fusion-threshold-mb", "0"), {"HOROVOD_FUSION_THRESHOLD": "0"}),
        (("--cycle-time-ms", "20"), {"HOROVOD_CYCLE_TIME": "20.0"}),
        (("--cache-capacity", "0"), {"HOROVOD_CACHE_CAPACITY": "0"}),
        (("--hierarchical-allreduce",), {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        (("--no-hierarchical-allreduce",), {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}),
        (("--hierarchical-allgather",), {"HOROVOD_HIERARCHICAL_ALLGATHER": "1"}),
        (("--no-hierarchical-allgather",), {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
        (("--torus-allreduce",), {"HOROVOD_TORUS_ALLREDUCE": "1"}),
        (("--no-torus-allreduce",), {"HOROVOD_TORUS_ALLREDUCE": "0"}),
        (("--autotune",), {"HOROVOD_AUTOTUNE": "1"}),
        (("--no-autotune",), {}),
        (("--autotune", "--autotune-log-file", "/l", "--autotune-warmup-samples", "1",
          "--autotune-steps-per-sample", "5", "--autotune-bayes-opt-max-samples", "10",
          "--autotune-gaussian-process-noise", "0.2"),
         {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "/l",
          "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
          "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "10",
          "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.2"}),
        (("--timeline-filename", "/t"), {"HOROVOD_TIMELINE": "/t"}),
        (("--timeline-filename", "/t", "--timeline-mark-cycles"),
         {"HOROVOD_TIMELINE": "/t", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
        (("--timeline-filename", "/t", "--no-timeline-mark-cycles"),
         {"HOROVOD_TIMELINE": "/t", "HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        (("--timeline-mark-cycles",), {}),
        (("--no-stall-check",), {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (("--stall-check",), {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        (("--stall-check-warning-time-seconds", "10"),
         {"HOROVOD_STALL_CHECK_TIME_SECONDS": "10"}),
        (("--stall-check-shutdown-time-seconds", "20"),
         {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}),
        (("--mpi-threads-disable",), {"HOROVOD_MPI_THREADS_DISABLE": "1"}),
        (("--no-mpi-threads-disable",), {"HOROVOD_MPI_THREADS_DISABLE": "0"}),
        (("--tcp",), {"NCCL_IB_DISABLE": "1"}),
        (("--num-nccl-streams", "2"), {"HOROVOD_NUM_NCCL_STREAMS": "2"}),
        (("--thread-affinity", "1"), {"HOROVOD_THREAD_AFFINITY": "1"}),
        (("--gloo-timeout-seconds", "60"), {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}),
        (("--log-level", "INFO"), {"HOROVOD_LOG_LEVEL": "INFO"}),
        (("--log-with-timestamp",), {"HOROVOD_LOG_HIDE_TIME": "0"}),
        (("--log-without-timestamp",), {"HOROVOD_LOG_HIDE_TIME": "1"}),
    )

    def test_flags_become_environment(self):
        for words, wanted in self.FLAGS:
            with self.subTest(words):
                self.assertEqual(env_of(*words), wanted)

    def test_the_rest(self):
        args = parse(
            "-np", "4", "--min-np", "2", "--max-num-proc", "8", "--slots-per-host", "2",
            "--elastic-timeout", "30", "--reset-limit", "3", "--blacklist-cooldown-range", "1",
            "9", "--host-discovery-script", "/d.sh", "--start-timeout", "20", "--disable-cache",
            "--network-interfaces", "a, b", "--network-interfaces", "c", "-p", "2222", "-i",
            "/key", "--output-filename", "/o", "--verbose", "--mpi-args=-x y", "--binding-args",
            "z", "-prefix-timestamp", "--gloo", "python", "-np", "9", "--verbose")
        for name, value in dict(
                num_proc=4, min_num_proc=2, max_num_proc=8, slots=2, elastic_timeout=30,
                reset_limit=3, cooldown_range=[1, 9], host_discovery_script="/d.sh",
                start_timeout=20, disable_cache=True, nics={"a", "b", "c"}, ssh_port=2222,
                ssh_identity_file="/key", output_filename="/o", verbose=2, mpi_args="-x y",
                binding_args="z", prefix_output_with_timestamp=True, use_gloo=True,
                command=["python", "-np", "9", "--verbose"]).items():
            self.assertEqual(getattr(args, name), value, name)

    def test_defaults(self):
        args = parse("-np", "1", "x")
        for name in ("hosts", "hostfile", "host_discovery_script", "min_num_proc", "config_file",
                     "max_num_proc", "nics", "ssh_port", "output_filename", "log_level",
                     "fusion_threshold_mb", "autotune", "tcp_flag", "run_func"):
            self.assertFalse(getattr(args, name), name)

    def test_hosts_and_files_exclude_one_another(self):
        for words in (("-H", "a:1", "-hostfile", "f"), ("-H", "a:1", "--host-discovery-script", "d"),
                      ("--gloo", "--mpi"), ("--mpi", "--jsrun"), ("--autotune", "--no-autotune"),
                      ("--log-level", "LOUD")):
            with self.subTest(words), mock.patch.object(sys, "stderr", io.StringIO()):
                with self.assertRaises(SystemExit):
                    parse("-np", "2", *words, "x")

    def test_the_number_of_ranks_is_needed_but_under_lsf(self):
        with mock.patch.object(sys, "stderr", io.StringIO()), self.assertRaises(SystemExit):
            parse("python", "x.py")
        with mock.patch.dict(os.environ, {"LSB_JOBID": "7"}):
            self.assertIsNone(parse("python", "x.py").num_proc)

    def test_version_and_build(self):
        for words, text in ((("-v",), horovod.__version__),
                            (("--check-build",), "Available Frameworks"), (("-cb",), "Available Tensor Operations")):
            with mock.patch.object(sys, "stdout", io.StringIO()) as out:
                with self.assertRaises(SystemExit) as ended:
                    parse(*words)
            self.assertFalse(ended.exception.code)
            self.assertIn(text, out.getvalue())

    def test_values_out_of_range(self):
        for words in (("--fusion-threshold-mb", "-1"), ("--autotune-gaussian-process-noise", "2"),
                      ("--num-nccl-streams", "-1"), ("--cycle-time-ms", "-0.5")):
            with self.subTest(words), self.assertRaises(ValueError):
                parse("-np", "2", *words, "x")

    def test_old_names_warn(self):
        for words in (("--log-hide-timestamp",), ("--network-interface", "a,b")):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                parse("-np", "2", *words, "x")
            self.assertTrue(any(w.category is DeprecationWarning for w in seen), words)

    @unittest.skipIf(importlib.util.find_spec("yaml") is None, "no PyYAML")
    def test_configuration_file(self):
        text = ("controller: gloo\n"
                "params: {fusion_threshold_mb: 32, cycle_time_ms: 50, cache_capacity: 5,\n"
                "  hierarchical_allreduce: true, torus_allreduce: false}\n"
                "autotune: {enabled: true, log_file: /a, warmup_samples: 5}\n"
                "timeline: {filename: /t, mark_cycles: true}\n"
                "stall_check: {enabled: false, warning_time_seconds: 120}\n"
                "library_options: {num_nccl_streams: 2, gloo_timeout_seconds: 60}\n"
                "logging: {level: INFO, with_timestamp: false}\nunknown: {x: 1}\n")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            f.write(text)
            f.flush()
            before = parse("-np", "2", "--fusion-threshold-mb", "1", "--config-file", f.name, "x")
            after = parse("-np", "2", "--config-file", f.name, "--fusion-threshold-mb", "1", "x")
        for args in (before, after):
            self.assertTrue(args.use_gloo)
            self.assertEqual(config_parser.set_env_from_args({}, args), {
                "HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_CYCLE_TIME": "50",
                "HOROVOD_CACHE_CAPACITY": "5", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
                "HOROVOD_TORUS_ALLREDUCE": "0", "HOROVOD_AUTOTUNE": "1",
                "HOROVOD_AUTOTUNE_LOG": "/a", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
                "HOROVOD_TIMELINE": "/t", "HOROVOD_TIMELINE_MARK_CYCLES": "1",
                "HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
                "HOROVOD_NUM_NCCL_STREAMS": "2", "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
                "HOROVOD_LOG_LEVEL": "INFO", "HOROVOD_LOG_HIDE_TIME": "1"})


class Hosts(unittest.TestCase):
    def test_parse(self):
        names, slots = hosts.parse_hosts_and_slots("a:2,b-1.c_d:4")
        self.assertEqual(names, ["a", "b-1.c_d"])
        self.assertEqual(slots, {"a": 2, "b-1.c_d": 4})
        self.assertEqual([(h.hostname, h.slots) for h in hosts.parse_hosts("a:2,b:10")],
                         [("a", 2), ("b", 10)])

    def test_bad_hosts(self):
        for text in ("a:", ":2", "a:b", "a:2:b", "", "a:-1", "a b:2", "a:2,,b:2", "a:²"):
            with self.subTest(text), self.assertRaises(ValueError):
                hosts.parse_hosts(text)

    def test_file(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("172.31.32.7 slots=8\n\n# comment\n172.31.33.9   slots=4\n")
            f.flush()
            self.assertEqual(hosts.parse_host_files(f.name), "172.31.32.7:8,172.31.33.9:4")

    def test_assignments(self):
        found = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:2"), 3)
        self.assertEqual(len(found), 4)
        self.assertEqual(found[2], hosts.SlotInfo(
            hostname="b", rank=2, local_rank=0, cross_rank=1, size=4, local_size=2, cross_size=2))
        self.assertEqual(len(hosts.get_host_assignments(hosts.parse_hosts("a:2,b:2"), 1, 3)), 3)
        with self.assertRaises(ValueError):
            hosts.get_host_assignments(hosts.parse_hosts("a:1"), 2)
        self.assertEqual(found, copy.deepcopy(found))


class Shell(unittest.TestCase):
    def test_output_and_status(self):
        out, err = io.StringIO(), io.StringIO()
        status = safe_shell_exec.execute(
            "printf 'one\\ntwo\\rthree'; echo \"$A\" >&2; exit 3", env={"A": "é x"},
            stdout=out, stderr=err, index=1)
        self.assertEqual(status, 3)
        self.assertEqual(out.getvalue(),
                         "[1]<stdout>:one\n[1]<stdout>:two\r[1]<stdout>:three\n")
        self.assertEqual(err.getvalue(), "[1]<stderr>:é x\n")

    def test_without_index_the_output_is_as_it_is(self):
        out = io.StringIO()
        self.assertEqual(safe_shell_exec.execute("printf 'a\\n\\nb'", stdout=out), 0)
        self.assertEqual(out.getvalue(), "a\n\nb")

    def test_killed_by_a_signal(self):
        self.assertEqual(safe_shell_exec.execute("kill -9 $$"), 137)

    def test_an_event_ends_it(self):
        event = threading.Event()
        threading.Timer(0.2, event.set).start()
        began = time.time()
        self.assertNotEqual(safe_shell_exec.execute("sleep 60", events=[event]), 0)
        self.assertLess(time.time() - began, 15)
        self.assertNotEqual(safe_shell_exec.execute("sleep 60", events=[event]), 0)

    def test_timestamps(self):
        out = io.StringIO()
        safe_shell_exec.execute("echo x", stdout=out, index=0, prefix_output_with_timestamp=True)
        self.assertRegex(out.getvalue(), r"^.*20\d\d.*\[0\]<stdout>:x\n$")

    def test_prefix_connection_of_pipes(self):
        r, w = os.pipe()
        with os.fdopen(w, "wb") as f:
            f.write("line\nété".encode())
        out = io.StringIO()
        with os.fdopen(r, "rb") as f:
            safe_shell_exec.prefix_connection(f, out, "stdout", 7, False)
        self.assertEqual(out.getvalue(), "[7]<stdout>:line\n[7]<stdout>:été\n")

    def test_tiny(self):
        self.assertEqual(tiny_shell_exec.execute("echo a; echo b >&2; exit 2"), ("a\nb\n", 2))
        output, status = tiny_shell_exec.execute("/no/such/program")
        self.assertEqual(status, 127)
        self.assertIn("/no/such/program", output)


class Utilities(unittest.TestCase):
    def test_secret(self):
        key = secret.make_secret_key()
        self.assertEqual(len(key), secret.SECRET_LENGTH)
        self.assertNotEqual(key, secret.make_secret_key())
        digest = secret.compute_digest(key, b"m")
        self.assertEqual(len(digest), secret.DIGEST_LENGTH)
        self.assertTrue(secret.check_digest(key, b"m", digest))
        self.assertFalse(secret.check_digest(key, b"n", digest))

    def test_codec(self):
        for value in (None, {"a": [1, (2,)]}, hosts.INVALID_SLOT_INFO):
            self.assertEqual(codec.loads_base64(codec.dumps_base64(value)), value)
            self.assertIsInstance(codec.dumps_base64(value), str)
            self.assertIsInstance(codec.dumps_base64(value, to_ascii=False), bytes)

    def test_timeout(self):
        t = timeout.Timeout(1000, "Timed out waiting for {activity}. Check the log.")
        t.check_time_out_for("x")
        self.assertFalse(t.timed_out())
        t = timeout.Timeout(0, "Timed out waiting for {activity}. Check the log.")
        self.assertTrue(t.timed_out())
        self.assertEqual(t.remaining(), 0)
        with self.assertRaisesRegex(timeout.TimeoutException,
                                    "Timed out waiting for ranks to start. Check the log"):
            t.check_time_out_for("ranks to start")

    def test_host_hash(self):
        self.assertEqual(host_hash.host_hash(), host_hash.host_hash())
        self.assertNotEqual(host_hash.host_hash(), host_hash.host_hash(salt="s"))
        self.assertEqual(host_hash.host_hash(salt="s"), host_hash.host_hash(salt="s"))
        self.assertTrue(host_hash.host_hash().startswith(socket.gethostname().split(".")[0] + "-"))

    def test_settings(self):
        s = hvd_settings.Settings(verbose=2, hosts="a:1", num_proc=1, nics={"lo"}, key=b"k")
        self.assertEqual((s.verbose, s.hosts, s.num_proc, s.elastic), (2, "a:1", 1, False))
        copied = codec.loads_base64(codec.dumps_base64(s))
        self.assertEqual(vars(copied), vars(s))

    def test_environment(self):
        for name in ("BASH_FUNC_x%%", "OLDPWD", "CUDA_VISIBLE_DEVICES", secret.HOROVOD_SECRET_KEY):
            self.assertFalse(env_util.is_exportable(name), name)
        self.assertTrue(env_util.is_exportable("PATH"))
        for names in (("HOROVOD_RANK", "HOROVOD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                      ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
            with mock.patch.dict(os.environ, dict(zip(names, ("3", "4"))), clear=True):
                self.assertEqual(env_util.get_env_rank_and_size(), (3, 4))
        with mock.patch.dict(os.environ, {}, clear=True):
            self.assertEqual(env_util.get_env_rank_and_size(), (0, 1))

    def test_threads(self):
        self.assertEqual(threads.execute_function_multithreaded(
            lambda a, b: a * b, [(i, 2) for i in range(20)], max_concurrent_executions=3),
            {i: 2 * i for i in range(20)})
        self.assertEqual(threads.execute_function_multithreaded(len, []), {})
        event, stop, called = threading.Event(), threading.Event(), []
        thread = threads.on_event(event, called.append, args=(1,), stop=stop,
                                  check_stop_interval_s=0.01)
        event.set()
        thread.join(20)
        self.assertEqual(called, [1])
        for bad in (lambda: threads.on_event(None, print), lambda: threads.in_thread(print, args=1),
                    lambda: threads.on_event(event, print, args=1)):
            with self.assertRaises(ValueError):
                bad()

    def test_pipe(self):
        pipe = streams.Pipe()
        writer = threads.in_thread(lambda: (pipe.write("abc"), pipe.write("def"), pipe.close()))
        self.assertEqual([pipe.read(2), pipe.read(), pipe.read(), pipe.read()],
                         ["ab", "c", "def", None])
        writer.join(20)

    def test_ssh_commands(self):
        self.assertEqual(
            remote.get_ssh_command("ls x", "h", port=22, identity_file="/k", timeout_s=5),
            "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no h -p 22 -i /k "
            "-o ConnectTimeout=5 'ls x'")

    def test_local_addresses(self):
        self.assertIn("127.0.0.1", local_network.get_local_host_addresses())
        self.assertIn("lo", local_network.get_local_intfs())
        self.assertEqual(local_network.resolve_host_address("localhost"), "127.0.0.1")
        self.assertEqual(local_network.filter_local_addresses(
            ["localhost", "192.0.2.9"]), ["192.0.2.9"])

    def test_network_service(self):
        key = secret.make_secret_key()
        service = network.BasicService("a service", key, nics=["lo"])
        try:
            self.assertEqual(service.addresses(), {"lo": [("127.0.0.1", service.get_port())]})
            client = network.BasicClient("a service", service.addresses(), key, verbose=0)
            self.assertEqual(client.addresses(), service.addresses())
            for name, other in (("another", key), ("a service", secret.make_secret_key())):
                with self.assertRaises(network.NoValidAddressesFound):
                    network.BasicClient(name, service.addresses(), other, 0, probe_timeout=2,
                                        attempts=1)
        finally:
            service.shutdown()


class Launchers(unittest.TestCase):
    def test_environment_of_slots(self):
        slot = hosts.get_host_assignments(hosts.parse_hosts("h:2,i:1"), 3)[1]
        self.assertEqual(gloo_run.create_slot_env_vars(slot), {
            "HOROVOD_HOSTNAME": "h", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "3",
            "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1"})

    def test_run_command(self):
        env = gloo_run.create_run_env_vars("10.0.0.1", ["eth0", "eth1"], 99, elastic=True)
        self.assertEqual(env, {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "99",
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "eth0", "NCCL_SOCKET_IFNAME": "eth0,eth1",
            "HOROVOD_ELASTIC": "1"})
        command = gloo_run.get_run_command(["sh", "-c", "echo \"$HOROVOD_CONTROLLER $1\"", "x", "a b"],
                                           "10.0.0.1", ["eth0"], 99)
        self.assertEqual(tiny_shell_exec.execute(command), ("gloo a b\n", 0))

    def launch(self, exec_command):
        settings = hvd_settings.Settings(num_proc=2, hosts="localhost:1,127.0.0.1:1", verbose=0)
        gloo_run.launch_gloo(["sh", "-c", "echo $HOROVOD_RANK/$HOROVOD_SIZE; exit $HOROVOD_RANK"],
                             exec_command, settings, ["lo"], dict(os.environ), "127.0.0.1")

    def test_launch_with_a_function(self):
        seen = {}

        def exec_command(command, slot_info, events):
            seen[slot_info.rank] = tiny_shell_exec.execute(command)
            return 0, time.time()

        self.launch(exec_command)
        self.assertEqual(seen, {0: ("0/2\n", 0), 1: ("1/2\n", 1)})

    def test_the_first_failure_is_named(self):
        def exec_command(command, slot_info, events):
            if slot_info.rank == 0:
                return (1 if events[0].wait(20) else 0), time.time()
            return 5, time.time()

        with self.assertRaisesRegex(RuntimeError, "non-zero status(.|\n)*Process name: 1\n"
                                                  "Exit code: 5"):
            self.launch(exec_command)

    def test_output_files(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        settings = hvd_settings.Settings(num_proc=1, verbose=0, output_filename=folder)
        slot = hosts.get_host_assignments(hosts.parse_hosts("localhost:1"), 1)[0]
        with mock.patch.object(sys, "stdout", io.StringIO()) as shown:
            status, _ = gloo_run._exec_command_fn(settings)("echo out; exit 4", slot, [])
        self.assertEqual(status, 4)
        with open(os.path.join(folder, "rank.0", "stdout")) as f:
            self.assertEqual((f.read(), shown.getvalue()), ("[0]<stdout>:out\n",) * 2)
        self.assertEqual(gloo_run._pad_rank(7, 101), "007")

    def test_mpi_implementations(self):
        for text, status, name in (
                ("mpirun (Open MPI) 4.1.4", 0, "open_mpi"), ("OpenRTE 2", 0, "open_mpi"),
                ("mpirun (IBM Spectrum MPI) 10.3", 0, "spectrum_mpi"),
                ("HYDRA build details:\n MPICH 4", 0, "mpich"),
                ("Intel(R) MPI Library for Linux* OS", 0, "intel_mpi"), ("other", 0, None),
                ("mpirun (Open MPI) 4.1.4", 1, None)):
            with self.subTest(text), mock.patch("horovod.runner.mpi_run.tiny_shell_exec.execute",
                                                return_value=(text, status)):
                self.assertEqual([n for n in ("open_mpi", "spectrum_mpi", "mpich", "intel_mpi")
                                  if getattr(mpi_run, "is_" + n)()], [name] if name else [])
                self.assertEqual(mpi_run.mpi_available(), name is not None)
        with mock.patch("horovod.runner.mpi_run.tiny_shell_exec.execute", return_value=("", 1)), \
                self.assertRaisesRegex(ValueError, "does not find an installed MPI.*hvdrun"):
            mpi_run.mpi_run(hvd_settings.Settings(), None, {}, ["x"])

    def test_jsrun_rank_file(self):
        with mock.patch.object(lsf.LSFUtils, "get_num_gpus", return_value=2), \
                mock.patch.object(lsf.LSFUtils, "get_num_cores", return_value=4), \
                mock.patch.object(lsf.LSFUtils, "get_num_threads", return_value=4):
            path = generate_jsrun_rankfile(hvd_settings.Settings(num_proc=3, hosts="a:2,b:2"))
            self.addCleanup(os.remove, path)
            with open(path) as f:
                lines = [line.strip() for line in f if "rank:" in line]
            with self.assertRaisesRegex(ValueError, "a:3"):
                generate_jsrun_rankfile(hvd_settings.Settings(num_proc=3, hosts="a:3"))
        self.assertEqual(lines, [
            "rank: %d: { hostname: %s; cpu: {%s} ; gpu: * ; mem: * }" % row
            for row in ((0, "a", "0-7"), (1, "a", "8-15"), (2, "b", "0-7"))])
        found = lsf.LSFUtils.get_allocation_info()
        self.assertGreaterEqual(found["cores"] * found["threads"], 1)
        self.assertIsInstance(js_run.is_jsrun_installed(), bool)

    def test_controllers(self):
        calls = []
        functions = [lambda name=name: calls.append(name) for name in ("gloo", "mpi", "js")]

        def controller(gloo=False, mpi=False, js=False):
            run_controller(gloo, functions[0], mpi, functions[1], js, functions[2], verbosity=0)

        for mpi_is, lsf_is, wanted in ((True, False, "mpi"), (True, True, "js"),
                                       (False, False, "gloo")):
            with mock.patch("horovod.runner.launch.mpi_built", return_value=mpi_is), \
                    mock.patch("horovod.runner.launch.gloo_built", return_value=True), \
                    mock.patch("horovod.runner.launch.lsf.LSFUtils.using_lsf",
                               return_value=lsf_is), \
                    mock.patch("horovod.runner.launch.is_jsrun_installed", return_value=True):
                controller()
                self.assertEqual(calls.pop(), wanted)
        with mock.patch("horovod.runner.launch.mpi_built", return_value=False), \
                mock.patch("horovod.runner.launch.gloo_built", return_value=False):
            for choice in ({}, {"gloo": True}, {"mpi": True}, {"js": True}):
                with self.assertRaises(ValueError):
                    controller(**choice)


if __name__ == "__main__":
    unittest.main()
