"""Every name that programs written for Horovod use is there, with its arguments."""

import importlib
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)


sys.path.insert(0, os.path.join(HERE, ".."))
import surface  # noqa: E402

MODULES = [m for m in surface.modules() if "tensorflow" not in m and "keras" not in m]


@pytest.mark.parametrize("module", MODULES)
def test_names_and_arguments(module):
    compared, differences = surface.differences(module)
    assert differences == []
    assert compared or module in ("horovod.runner.run_task", "horovod.runner.task_fn")


def test_no_difference_is_listed_that_is_none():
    assert surface.stale(MODULES) == []


def test_the_comparison_sees_differences():
    import types

    module = types.ModuleType("one")
    exec("def f(a, b=1): pass\nclass C: pass\nx = 2", vars(module))
    seen = surface._differences
    assert seen(module, "function", "f", "a, b=1") == []
    assert seen(module, "function", "f", "b=1, a") == ["order of parameters: a, b"]
    assert seen(module, "function", "f", "a, b=2") == ["default of b is 1, not 2"]
    assert seen(module, "function", "f", "a, c, b=1") == ["no parameter c"]
    assert seen(module, "function", "f", "b=1") == ["needs a further argument a"]
    assert seen(module, "class", "C", "Exception") == ["does not derive from Exception"]
    assert seen(module, "attribute", "x", "3") == ["is 2, not 3"]
    assert seen(module, "function", "g", "") == ["missing"]


def test_import_starts_nothing():
    code = (
        "import threading, horovod.torch as hvd\n"
        "assert not hvd.is_initialized() and threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_original_horovod_is_refused(tmp_path):
    (tmp_path / "horovod-0.28.1.dist-info").mkdir()
    env = dict(os.environ, PYTHONPATH=os.environ["PYTHONPATH"] + os.pathsep + str(tmp_path))
    done = subprocess.run([sys.executable, "-c", "import horovod"], env=env,
                          stderr=subprocess.PIPE)
    assert done.returncode != 0
    assert b"pip uninstall horovod" in done.stderr


def test_missing_library_is_said(tmp_path):
    env = dict(os.environ, HVD_LIBRARY=str(tmp_path / "libhvd.so"))
    done = subprocess.run([sys.executable, "-c", "import horovod.torch"], env=env,
                          stderr=subprocess.PIPE)
    assert done.returncode != 0
    assert b"HVD_LIBRARY" in done.stderr


def test_check_report():
    done = subprocess.run([sys.executable, "-m", "horovod.check"], stdout=subprocess.PIPE,
                          check=True)
    text = done.stdout.decode()
    for heading in ("Available Frameworks", "Available Controllers", "Available Tensor Operations"):
        assert heading in text
    assert "[X] PyTorch" in text


def test_hosts():
    from horovod.runner.common.util import hosts

    slots = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:4,c:1"), 7)
    assert [s.cross_size for s in slots] == [3, 2, 3, 2, 1, 1, 3]
    assert [s.local_rank for s in slots] == [0, 1, 0, 1, 2, 3, 0]


def test_one_process_without_a_launcher():
    code = (
        "import horovod.torch as hvd, torch\n"
        "hvd.init()\n"
        "assert hvd.size() == 1 and hvd.rank() == 0 and hvd.local_rank() == 0\n"
        "assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]\n"
        "m = torch.nn.Linear(2, 1)\n"
        "o = hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1))\n"
        "m(torch.ones(1, 2)).sum().backward(); o.step()\n"
        "hvd.shutdown()\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HVD_C", "HOROVOD_"))}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


@pytest.mark.parametrize("module", ["mxnet", "spark", "ray"])
def test_what_is_not_there_says_so(module, tmp_path, monkeypatch):
    from horovod.common.util import extension_available

    with pytest.raises(ImportError, match="Extension horovod.%s has not been built" % module):
        importlib.import_module("horovod." + module)
    # with the framework the text is another one
    package = {"mxnet": "mxnet", "spark": "pyspark", "ray": "ray"}[module]
    (tmp_path / (package + ".py")).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="does not support %s yet" % package):
        importlib.import_module("horovod." + module)
    assert not extension_available(module)
