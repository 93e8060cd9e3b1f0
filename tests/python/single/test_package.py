"""What programs ask the package itself, before any of its modules."""

import os
import re
import subprocess
import sys

import horovod
from horovod.common.util import is_version_greater_equal_than


def python(text):
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


def test_version_is_that_of_the_interface():
    # as texts, as numbers, by the package's own function: what programs do
    assert re.fullmatch(r"\d+\.\d+\.\d+", horovod.__version__)
    assert "0.27.0" <= horovod.__version__
    assert tuple(int(n) for n in horovod.__version__.split(".")[:3]) >= (0, 28, 1)
    assert is_version_greater_equal_than(horovod.__version__, "0.28.0")


def test_frameworks_are_attributes_of_the_package():
    # "is it there?" by hasattr(), after no more than import horovod
    python("import horovod, sys\n"
           "assert 'torch' not in sys.modules\n"
           "assert hasattr(horovod, 'torch') and horovod.torch.SyncBatchNorm\n"
           "assert horovod.torch is sys.modules['horovod.torch']\n"
           "assert not hasattr(horovod, 'mxnet') and not hasattr(horovod, 'torch2')\n")


def test_a_framework_that_is_not_installed_is_no_attribute():
    said = python("import sys\n"
                  "sys.modules['torch'] = None\n"
                  "import horovod\n"
                  "assert not hasattr(horovod, 'torch')\n"
                  "try:\n"
                  "    horovod.torch\n"
                  "except AttributeError as error:\n"
                  "    print(error)\n")
    assert "horovod.torch needs PyTorch" in said


def test_a_switch_that_is_neither_on_nor_off_is_named():
    done = subprocess.run([sys.executable, "-c", "import horovod.torch"],
                          env={**os.environ, "HVD_EXACT_GRADIENTS": "maybe"},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "ValueError: HVD_EXACT_GRADIENTS: 'maybe' is not 0 or 1" in done.stderr
