"""Steps of gradient exchange in TensorFlow, beside the same exchange called from C."""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "worker", "python")


def measure(bench):
    """Rows "steps" of the shape "tensorflow resnet50"; empty without TensorFlow."""
    python = bench.args.tensorflow
    if not python:
        bench.missing("tensorflow", "scripts/python-env.sh tf-current makes its environment; "
                      "or --tensorflow PYTHON names an interpreter that has it")
        return
    seconds = str(3 * bench.args.seconds)
    # as many threads as a rank has cores of its own when each core has a rank
    env = {
        "HVD_LIBRARY": os.path.abspath(os.path.join(bench.args.build, "lib", "libhvd.so")),
        "PYTHONPATH": os.path.abspath(PACKAGE),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
    }
    program = os.path.join(HERE, "tf_step.py")

    def once(np):
        bench.take("tensorflow", bench.hvdrun(np) + [python, program, bench.program("libstep.so"),
                                                     seconds], env)
        bench.take("tensorflow", bench.hvdrun(np) + [bench.program("bench_step"), "c alone",
                                                     "resnet50", str(bench.args.seconds)],
                   step="tensorflow resnet50")

    bench.repeat("TensorFlow steps", [2], once)
