"""Every name that programs written for Horovod use is there, with its arguments."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)


def rows():
    with open(os.path.join(HERE, "..", "surface.tsv"), encoding="utf-8") as f:
        for line in f:
            if not line.startswith("#"):
                yield (line.rstrip("\n").split("\t") + [""])[:4]


def find(module, name):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def arguments(text):
    """[(name, text of its default or None)] of a signature's text."""
    inside = text[text.index("(") + 1 : text.rindex(")")]
    inside = re.sub(r"\[[^]]*\]", "", re.sub(r"\[[^][]*\[[^]]*\][^]]*\]", "", inside))
    found = []
    for part in filter(None, (p.strip() for p in inside.split(","))):
        if part.startswith("*"):
            continue
        name, equals, default = part.partition("=")
        found.append((name.split(":")[0].strip(), default.strip() if equals else None))
    return found


def same_default(value, text):
    if value is inspect.Parameter.empty:
        return False
    try:
        return value == ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return True  # a name


MODULES = sorted({row[0] for row in rows()})


@pytest.mark.parametrize("module", MODULES)
def test_names_and_arguments(module):
    checked = 0
    for where, kind, name, signature in rows():
        if where != module:
            continue
        if kind in ("reexport", "attribute", "class", "property"):
            if not hasattr_deep(where, name):
                pytest.fail("%s.%s is missing" % (where, name))
            checked += 1
            continue
        target = find(where, name)
        assert callable(target), (where, name)
        checked += 1
        if name.startswith("_DistributedOptimizer.__init__") or name.startswith(
            "_DistributedAdasumOptimizer.__init__"
        ):
            continue  # made by DistributedOptimizer() only
        try:
            have = inspect.signature(target).parameters
        except (TypeError, ValueError):
            continue
        takes_all = any(p.kind is p.VAR_KEYWORD for p in have.values())
        wanted = arguments(signature.split("  @")[0])
        for argument, default in wanted:
            if argument in ("self", "cls") or takes_all:
                continue
            assert argument in have, "%s.%s has no argument %s" % (where, name, argument)
            if default is not None:
                assert same_default(have[argument].default, default), (name, argument)
        if not takes_all:
            # given by position, they mean the same
            order = [a for a, _ in wanted if a not in ("self", "cls")]
            assert [a for a in have if a in order] == order, (where, name)
    assert checked


def hasattr_deep(module, name):
    try:
        find(module, name)
    except AttributeError:
        return False
    return True


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
