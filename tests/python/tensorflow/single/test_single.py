"""Without a launcher: imports, the surface, examples, fallbacks. Each job is one more start."""

import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, "..", "..", "..", "..")
EXAMPLES = os.path.join(TREE, "worker", "examples", "tensorflow")


def python(code, expect=0, **env):
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=170)
    assert done.returncode == expect, done.stdout[-3000:]
    return done.stdout


def hvdrun(np, arguments, **env):
    done = subprocess.run(["hvdrun", "--timeout", "160s", "-np", str(np), sys.executable]
                          + arguments, env={**os.environ, **env}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=170,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_before_init():
    import tensorflow as tf

    import horovod.tensorflow as hvd

    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
        hvd.allreduce(tf.ones([2]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
        tf.function(lambda: hvd.allgather(tf.ones([2])))()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.size()
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
        hvd.size_op()
    assert not hvd.is_initialized()


def test_the_surface():
    sys.path.insert(0, os.path.join(HERE, "..", ".."))
    import surface

    modules = [m for m in surface.modules() if "tensorflow" in m or "keras" in m]
    assert surface.stale(modules) == []
    found = [surface.differences(m) for m in modules]
    assert [text for _, texts in found for text in texts] == []
    assert sum(count for count, _ in found) > 250


def test_a_library_that_is_not_there_is_an_import_error():
    text = python("import horovod.tensorflow", 1, HVD_TF_LIBRARY="/nonexistent/libhvd_tf.so")
    assert "ImportError: horovod.tensorflow: the op library /nonexistent/libhvd_tf.so" in text
    assert "HVD_TF_FALLBACK=1" in text


@pytest.mark.parametrize("name, value, text", [
    ("HVD_TF_GPU", "maybe", "HVD_TF_GPU=maybe: write host or gpu"),
    ("HVD_TF_FALLBACK", "maybe", "HVD_TF_FALLBACK: 'maybe' is not 0 or 1"),
])
def test_a_value_that_nobody_knows_is_named(name, value, text):
    assert "ValueError: " + text in python("import horovod.tensorflow", 1, **{name: value})


def test_one_inter_op_thread_becomes_two():
    python("import os, tensorflow as tf\n"
           "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
           "import horovod.tensorflow as hvd\nhvd.init()\n"
           "assert tf.config.threading.get_inter_op_parallelism_threads() == 2")


def test_fallback_gives_the_same_results():
    suite = os.path.join(HERE, "..", "ranks", "test_ops.py")
    text = hvdrun(2, ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k",
                      "function", suite], HVD_TF_FALLBACK="1", HVD_TEST_RESULTS="")
    assert "failed" not in text


def test_separate_operations_in_opposite_order():
    """Two threads are enough, and hvd.init() sees to two."""
    code = """
import os
os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[0]])
import tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
@tf.function
def call(x):
    order = range(4) if hvd.rank() == 0 else reversed(range(4))
    return tf.add_n([hvd.allreduce(x * float(i), name="op%d" % i) for i in order])
for _ in range(20):
    assert float(call(tf.ones([]))) == 6.0
print("done")
"""
    assert hvdrun(2, ["-c", code]).count("done") == 2


def test_example_with_a_loop(tmp_path):
    text = hvdrun(2, [os.path.join(EXAMPLES, "tensorflow2_mnist.py"), "--steps", "160",
                      "--checkpoint-dir", str(tmp_path)])
    assert float(text.split("accuracy ")[1].split()[0]) > 75
    assert os.path.exists(str(tmp_path / "ckpt-1.index"))


def test_example_with_fit():
    text = hvdrun(2, [os.path.join(EXAMPLES, "tensorflow2_keras_mnist.py"), "--epochs", "1"])
    assert float(text.split("accuracy ")[1].split()[0]) > 75


def test_example_with_a_session():
    text = hvdrun(2, [os.path.join(EXAMPLES, "tensorflow_mnist.py"), "--steps", "200"])
    assert float(text.split("accuracy ")[1].split()[0]) > 75


def test_example_of_speed():
    text = hvdrun(2, [os.path.join(EXAMPLES, "tensorflow2_synthetic_benchmark.py"),
                      "--num-iters", "2", "--num-batches-per-iter", "2"])
    assert "Total img/sec on 2 rank(s)" in text


FIT = """
import numpy as np
import keras
import horovod.keras as hvd
from horovod._keras.callbacks import _value
hvd.init()
keras.utils.set_random_seed(hvd.rank())
if %r:
    keras.config.set_dtype_policy("mixed_float16")
model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.02),
                                                 compression=hvd.Compression.fp16), loss="mse")
x = np.random.RandomState(hvd.rank()).randn(64, 6).astype("float32")
history = model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=4, verbose=0, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=1)]).history
assert history["loss"][-1] < history["loss"][0], history
every = hvd.allgather_object([_value(v) for v in model.trainable_variables])
assert all((a == b).all() for one in every for a, b in zip(one, every[0]))
assert float(hvd.allreduce(float(hvd.rank()))) == 0.5
import sys
assert "horovod.tensorflow" not in sys.modules  # Keras itself may import TensorFlow
print("done", keras.backend.backend())
"""


PASSES = """
import numpy as np
import keras
import horovod.keras as hvd
hvd.init()
x = np.ones((8, 1), "float32") * (hvd.rank() + 1)

def moved(**kwargs):
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    # the gradient of the loss is the mean of x: 1 on rank 0, 2 on rank 1
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **kwargs),
                  loss=lambda y, p: p)
    model.fit(x, x, batch_size=2, verbose=0, shuffle=False)
    return -float(np.asarray(keras.ops.convert_to_numpy(layer.kernel))[0, 0])

for kwargs, want in (({}, 6.0), ({"backward_passes_per_step": 2}, 6.0),
                     ({"backward_passes_per_step": 2, "average_aggregated_gradients": True}, 3.0),
                     ({"backward_passes_per_step": 4, "op": hvd.Sum}, 12.0)):
    assert abs(moved(**kwargs) - want) < 1e-5, (kwargs, moved(**kwargs))
print("done", keras.backend.backend())
"""


@pytest.mark.parametrize("program", [FIT % False, FIT % True, PASSES],
                         ids=["fit", "mixed", "passes"])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras_on_other_backends(backend, program):
    pytest.importorskip("jax", reason="not in this environment: no Keras 3")
    path = os.environ.get("PYTHONPATH", "")
    if backend == "torch":
        found = subprocess.run([os.path.join(TREE, "scripts", "python-env.sh"), "--check",
                                "torch-current"], stdout=subprocess.PIPE, text=True)
        if found.returncode != 0:
            pytest.skip("scripts/python-env.sh torch-current makes it")
        site = subprocess.run([found.stdout.strip(), "-c",
                               "import sysconfig; print(sysconfig.get_path('purelib'))"],
                              stdout=subprocess.PIPE, text=True).stdout.strip()
        path += ":" + site
    text = hvdrun(2, ["-c", program], KERAS_BACKEND=backend, PYTHONPATH=path)
    assert text.count("done " + backend) == 2
