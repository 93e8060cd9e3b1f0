#!/usr/bin/python3
"""Measure this build and the peers found on the machine; what scripts/bench.sh calls.

All peers of a part take turns within each repetition, so that what else the machine does
hits all alike: compare only inside one run. Every sample is one JSON line in OUT; table.py
makes medians, ratios and goals of them.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time

PARTS = ("ceilings", "allreduce", "steps", "torch", "tensorflow", "launch", "launch-hosts", "output", "idle", "control",
         "sweep")
MIB = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))


class Bench:
    def __init__(self, args):
        self.args = args
        self.bin = os.path.join(args.build, "tests", "bench")
        self.out = open(args.out, "w", encoding="utf-8")
        self.failures = 0

    def note(self, **row):
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()

    def missing(self, peer, why):
        print("bench: no %s: %s" % (peer, why), file=sys.stderr)
        self.note(missing=peer, why=why)

    def run(self, command, env=None, limit=None):
        """Output, seconds; None, None when it failed."""
        limit = limit or 60 + 20 * self.args.seconds
        began = time.perf_counter()
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                                  env=dict(os.environ, **(env or {})), timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            self.failures += 1
            print("bench: no end after %g s: %s" % (limit, " ".join(command)), file=sys.stderr)
            return None, None
        took = time.perf_counter() - began
        if done.returncode != 0:
            self.failures += 1
            print("bench: status %d: %s\n%s" % (done.returncode, " ".join(command), done.stderr[-600:]), file=sys.stderr)
            return None, None
        return done.stdout, took

    def take(self, part, command, env=None, **more):
        """Run a program that prints JSON lines; keep them."""
        out, _ = self.run(command, env)
        found = re.findall(r'\{"(?:peer|ceiling)".*\}', out or "")
        for line in found:
            self.note(part=part, **dict(json.loads(line), **more))
        if out is not None and not found:
            self.failures += 1
            print("bench: no result from: %s" % " ".join(command), file=sys.stderr)

    def program(self, name):
        return os.path.join(self.bin, name)

    def hvdrun(self, np):
        return [os.path.join(self.args.build, "bin", "hvdrun"), "-np", str(np)]

    def repeat(self, title, nps, once):
        for rep in range(1, self.args.reps + 1):
            for np in nps:
                print("%s, repetition %d, np %s" % (title, rep, np), flush=True)
                once(np)


# ---- peers

TUNED = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000"}


def openmpi(np, *mca):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun.openmpi", *root, "--oversubscribe", *mca, "-np", str(np)]


def openmpi_tuned(np):
    """Open MPI allocates a temporary in every call: this keeps malloc from giving it back."""
    return openmpi(np, *[w for key, value in TUNED.items() for w in ("-x", "%s=%s" % (key, value))])


def openmpi_tcp(np):
    return openmpi(np, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")


def mpich(np):
    return ["mpiexec.hydra", "-np", str(np)]


def horovod(bench, np):
    return [bench.args.horovod, "-m", "horovod.runner.launch", "--gloo", "-np", str(np), "-H", "localhost:%d" % np,
            "--network-interface", "lo", bench.args.horovod, os.path.join(HERE, "horovod_peer.py")]


def succeeds(command):
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_peers(bench):
    found = set()
    for peer, launcher, program in (("openmpi", "mpirun.openmpi", "mpi_step.openmpi"), ("mpich", "mpiexec.hydra", "mpi_step.mpich")):
        if shutil.which(launcher) and os.path.exists(bench.program(program)):
            found.add(peer)
        else:
            bench.missing(peer, "%s is not installed; scripts/deps.sh --bench installs it" % launcher)
    if succeeds([bench.args.python, "-c", "import torch.distributed"]):
        found.add("gloo")
    else:
        bench.missing("gloo", "no PyTorch for %s; scripts/deps.sh --bench installs it" % bench.args.python)
    if bench.args.horovod and succeeds([bench.args.horovod, "-c", "import horovod.torch, horovod.runner.launch"]):
        found.add("horovod")
    else:
        bench.missing("horovod", "the original comes as source only and is compiled against a framework; "
                      "--horovod PYTHON names an interpreter that has it")
    return found


# ---- parts

def ceilings(bench, peers):
    del peers
    seconds = str(bench.args.seconds)
    bench.repeat("ceilings", [0], lambda _: bench.take("ceilings", [bench.program("ceiling"), "machine", "0.3"]))
    bench.repeat("ceilings", bench.args.np, lambda np: bench.take(
        "allreduce", [bench.program("ceiling"), "direct", str(np), seconds, str(bench.args.max)]))


def allreduce(bench, peers):
    seconds, largest = str(bench.args.seconds), str(bench.args.max)

    def once(np):
        ours = [bench.program("bench_allreduce")]
        mpi = ["mpi", seconds, largest]
        bench.take("allreduce", bench.hvdrun(np) + ours + ["hvd", seconds, largest], {"HVD_CPU_PLANE": "shm"})
        if "openmpi" in peers:
            program = [bench.program("mpi_allreduce.openmpi")] + mpi
            bench.take("allreduce", openmpi(np) + program, peer="openmpi")
            bench.take("allreduce", openmpi_tuned(np) + program, peer="openmpi tuned")
        bench.take("allreduce", bench.hvdrun(np) + ours + ["hvd shared", seconds, largest, "alloc"], {"HVD_CPU_PLANE": "shm"})
        bench.take("allreduce", [bench.program("bench_plane"), "hvd raw", "shm", str(np), seconds, str(64 << 10)])
        if "mpich" in peers and np <= os.cpu_count():  # it spins without yielding
            bench.take("allreduce", mpich(np) + [bench.program("mpi_allreduce.mpich")] + mpi, peer="mpich")
        bench.take("allreduce", bench.hvdrun(np) + ours + ["hvd tcp", seconds, largest], {"HVD_CPU_PLANE": "tcp"})
        bench.take("allreduce", [bench.program("bench_plane"), "hvd raw tcp", "tcp", str(np), seconds, str(64 << 10)])
        if "openmpi" in peers:
            bench.take("allreduce", openmpi_tcp(np) + [bench.program("mpi_allreduce.openmpi")] + mpi, peer="openmpi tcp")
        if "gloo" in peers:
            bench.take("allreduce", [bench.args.python, os.path.join(HERE, "gloo_allreduce.py"), "gloo", str(np), seconds, largest])
        if "horovod" in peers:
            for cycle in ("1", "0"):
                bench.take("allreduce", horovod(bench, np) + ["allreduce", seconds, largest], {"HOROVOD_CYCLE_TIME": cycle},
                           peer="horovod" if cycle == "1" else "horovod cycle 0")

    bench.repeat("allreduce", bench.args.np, once)


def steps(bench, peers):
    seconds = str(bench.args.seconds)

    def once(np):
        for shape in ("resnet50", "small"):
            ours = bench.hvdrun(np) + [bench.program("bench_step")]
            bench.take("steps", ours + ["hvd", shape, seconds])
            if "openmpi" in peers:
                each = [bench.program("mpi_step.openmpi"), "mpi", shape, "each", seconds]
                packed = [bench.program("mpi_step.openmpi"), "mpi", shape, "packed", seconds]
                bench.take("steps", openmpi(np) + each, peer="openmpi")
                bench.take("steps", openmpi_tuned(np) + each, peer="openmpi tuned")
                bench.take("steps", openmpi_tuned(np) + packed, peer="openmpi tuned, packed")
            bench.take("steps", ours + ["hvd shared", shape, seconds, "alloc"])
            if "mpich" in peers and np <= os.cpu_count():
                bench.take("steps", mpich(np) + [bench.program("mpi_step.mpich"), "mpich", shape, "each", seconds])
            if "horovod" in peers:
                bench.take("steps", horovod(bench, np) + [shape, seconds], {"HOROVOD_CYCLE_TIME": "1"}, peer="horovod")

    bench.repeat("steps", bench.args.np, once)


def torch_steps(bench, peers):
    """Rows of the Python packages; empty where torch_rows.py is not there."""
    try:
        import torch_rows  # pylint: disable=import-outside-toplevel
    except ImportError:
        return
    torch_rows.measure(bench, peers)


def tensorflow_steps(bench, peers):
    del peers
    import tensorflow_rows  # pylint: disable=import-outside-toplevel

    tensorflow_rows.measure(bench)


def spawn(n):
    pids = [os.posix_spawn("/usr/bin/true", ["true"], os.environ) for _ in range(n)]
    for pid in pids:
        os.waitpid(pid, 0)


def launch(bench, peers):
    def timed(what, np, peer, command):
        _, took = bench.run(command, limit=60)
        if took is not None:
            bench.note(part="launch", launch=what, np=np, peer=peer, ms=took * 1e3)

    def true(np):
        for _ in range(3):
            began = time.perf_counter()
            spawn(np)
            bench.note(part="launch", launch="true", np=np, peer="spawn", ms=(time.perf_counter() - began) * 1e3)
            timed("true", np, "hvd", bench.hvdrun(np) + ["/usr/bin/true"])
            if "mpich" in peers:
                timed("true", np, "mpich", mpich(np) + ["/usr/bin/true"])

    def init(np):
        for _ in range(2):
            timed("init", np, "hvd", bench.hvdrun(np) + [bench.program("bench_init")])
            if "mpich" in peers and np <= 2 * os.cpu_count():
                timed("init", np, "mpich", mpich(np) + [bench.program("mpi_init.mpich")])
            if "openmpi" in peers:
                timed("init", np, "openmpi", openmpi(np) + [bench.program("mpi_init.openmpi")])

    bench.repeat("launch true", (8, 32, 64), true)
    bench.repeat("launch, init, exit", (2, 64), init)


def launch_hosts(bench, peers):
    """4 hosts in namespaces; every repetition brings them up anew."""
    script = os.path.join(HERE, "launch_hosts.sh")
    who = ["hvd"] + [p for p in ("mpich", "openmpi") if p in peers] + ["ssh"]
    probe = subprocess.run([script, bench.args.build, "0"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    if probe.returncode == 77:
        bench.missing("hosts", (probe.stdout.strip().split("\n") or [""])[-1])
        return
    bench.repeat("launch on hosts", [4], lambda np: bench.take("launch", [script, bench.args.build, "5", *who]))


def output(bench, peers):
    lines = 200000
    program = [bench.program("bench_lines"), str(lines)]

    def once(np):
        commands = [("hvd", bench.hvdrun(np) + program)]
        if "mpich" in peers:
            commands.append(("mpich", mpich(np) + program))
        if "openmpi" in peers:
            commands.append(("openmpi", openmpi(np) + program))
        for peer, command in commands:
            out, took = bench.run(command)
            if out is None:
                continue
            torn = np * lines - out.count(" to the end of line\n")
            if torn and peer == "hvd":
                bench.failures += 1
                print("bench: hvd: %d of %d lines are torn" % (torn, np * lines), file=sys.stderr)
            bench.note(part="output", peer=peer, np=np, mb_s=np * lines * 100 / took / 1e6, torn=torn)

    bench.repeat("output", [4], once)


def idle(bench, peers):
    del peers
    for np in bench.args.np:
        print("idle, np %d" % np, flush=True)
        bench.take("idle", bench.hvdrun(np) + [bench.program("bench_allreduce"), "hvd", "idle", "10"])


def control(bench, peers):
    """The coordinator's part of a step, simulated: a step in 4 portions, and one cached round."""
    del peers
    bench.repeat("control", [0], lambda _: [bench.take("control", [bench.program("bench_coordinator"), "60", "161", portions])
                                            for portions in ("4", "1")])


def sweep(bench, peers):
    """The defaults against hand-set values, each value's turn beside one of the defaults."""
    del peers
    settings = [("default again", {})]  # how far apart two turns of the same are
    settings += [("fusion %s MiB" % m, {"HVD_FUSION_THRESHOLD": str(m * MIB)}) for m in (1, 8, 32, 256)]
    settings += [("slot %d KiB" % k, {"HVD_SHM_SLOT_KIB": str(k)}) for k in (128, 256, 512, 1024)]
    settings += [("spin %d us" % u, {"HVD_SPIN_US": str(u)}) for u in (0, 20, 50, 400)]
    settings += [("plane tcp", {"HVD_CPU_PLANE": "tcp"})]
    programs = [("bench_step", "resnet50", "0.5"), ("bench_step", "small", "0.3"), ("bench_allreduce", "0.3", str(64 * MIB))]
    turn = 0

    def once(np):
        nonlocal turn
        for name, env in settings:
            for program, *words in programs:
                turn += 1
                both = [("default", {}), (name, env)]
                for peer, setting in both if turn % 2 else reversed(both):
                    bench.take("sweep", bench.hvdrun(np) + [bench.program(program), peer, *words], setting, turn=turn, beside=name)

    bench.repeat("sweep", bench.args.np, once)


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).strip().split("\n")[0]


def machine(bench):
    cpu = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    versions = {"hvd": first_line([os.path.join(bench.args.build, "bin", "hvdrun"), "--version"]),
                "openmpi": first_line(["mpirun.openmpi", "--version"]),
                "mpich": re.sub(r"\s+", " ", first_line(["mpichversion"])),
                "torch": first_line([bench.args.python, "-c", "import torch; print(torch.__version__)"])}
    if bench.args.horovod:
        versions["horovod"] = first_line([bench.args.horovod, "-c", "import horovod; print(horovod.__version__)"])
    with open("/proc/loadavg", encoding="utf-8") as f:
        load = float(f.read().split()[0])
    bench.note(machine=cpu, cores=os.cpu_count(), kernel=os.uname().release, load=load, versions=versions,
               reps=bench.args.reps, seconds=bench.args.seconds, when=time.strftime("%Y-%m-%d"),
               waits="hvd: spin, then yield, then sleep (as it comes); Open MPI: yields when oversubscribed; MPICH: spins")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--np", type=lambda s: [int(n) for n in s.replace(",", " ").split()], default=[2, 4])
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--max", type=int, default=64 * MIB)
    p.add_argument("--horovod", default=os.environ.get("BENCH_HOROVOD", ""))
    p.add_argument("--python", default="/usr/bin/python3")
    p.add_argument("--tensorflow", default="")
    p.add_argument("parts", nargs="*")
    args = p.parse_args()
    for part in args.parts:
        if part not in PARTS:
            p.error("there is no part %s; there are: %s" % (part, " ".join(PARTS)))
    os.environ["OMPI_MCA_btl_base_warn_component_unused"] = "0"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    bench = Bench(args)
    machine(bench)
    peers = find_peers(bench)
    work = {"ceilings": ceilings, "allreduce": allreduce, "steps": steps, "torch": torch_steps, "tensorflow": tensorflow_steps, "launch": launch,
            "launch-hosts": launch_hosts,
            "output": output, "idle": idle, "control": control, "sweep": sweep}
    for part in PARTS:
        if part in args.parts or (not args.parts and part != "sweep"):
            work[part](bench, peers)
    if bench.failures:
        print("bench: %d runs gave no result, see above" % bench.failures, file=sys.stderr)
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
