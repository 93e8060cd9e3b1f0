"""Steps of gradient exchange in PyTorch: DistributedOptimizer, DDP over Gloo, Horovod."""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "worker", "python")


def measure(bench, peers):
    """Rows "steps" of the shapes "torch resnet50" and "torch small"."""
    if "gloo" not in peers:
        return  # no PyTorch: said already
    seconds = str(bench.args.seconds)
    program = [os.path.join(HERE, "torch_step.py")]
    ours = {
        "HVD_LIBRARY": os.path.abspath(os.path.join(bench.args.build, "lib", "libhvd.so")),
        "PYTHONPATH": os.path.abspath(PACKAGE),
        "OMP_NUM_THREADS": "1",
    }

    def once(np):
        for shape in ("resnet50", "small"):
            # "none" is what the step costs without an exchange
            for what in ("none", "hvd", "ddp"):
                bench.take("torch", bench.hvdrun(np) + [bench.args.python] + program
                           + [what, shape, seconds], ours)
            if "horovod" in peers:
                bench.take("torch", [
                    bench.args.horovod, "-m", "horovod.runner.launch", "--gloo", "-np", str(np),
                    "-H", "localhost:%d" % np, "--network-interface", "lo", bench.args.horovod,
                ] + program + ["hvd", shape, seconds], {"OMP_NUM_THREADS": "1"}, peer="horovod")

    bench.repeat("PyTorch steps", bench.args.np, once)
