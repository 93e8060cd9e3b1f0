"""The wheel in a fresh environment, without the network and without the source tree."""

import os
import subprocess
import sys
import zipfile

import pytest

WHEEL = os.environ.get("HVD_TEST_WHEEL")
pytestmark = pytest.mark.skipif(not WHEEL, reason="HVD_TEST_WHEEL names no wheel")


def test_tag_and_contents():
    name = os.path.basename(WHEEL)
    assert name.startswith("hvd-") and "-py3-none-" in name
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
    for wanted in ("horovod/py.typed", "horovod/torch/__init__.py",
                   "horovod/_dist/lib/libhvd.so.1", "horovod/_dist/bin/hvdrun",
                   "horovod/_dist/bin/hvd-agent", "horovod/_dist/bin/hvd-coordinator"):
        assert wanted in names
    assert not [n for n in names if "__pycache__" in n or n.startswith("/")]


def test_each_bundled_library_has_its_license():
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
        texts = [wheel.read(n).decode("utf-8", "replace") for n in names
                 if "/licenses/" in n and not n.endswith("/LICENSE")]
        assert b"Apache License" in wheel.read(
            next(n for n in names if n.endswith("dist-info/licenses/LICENSE")))
    bundled = [n.rsplit("/", 1)[1] for n in names
               if n.startswith("horovod/_dist/lib/") and "libhvd" not in n]
    assert bundled
    for library in bundled:
        text = [t for t in texts if t.startswith(library)]
        assert text and len(text[0]) > 500, library


def test_install_and_run(tmp_path):
    venv = tmp_path / "venv"
    made = subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(venv)])
    if made.returncode != 0:
        pytest.skip("this Python cannot make virtual environments")
    # a virtual environment made from one does not see its packages: name them
    env = {k: v for k, v in os.environ.items()
           if k not in ("HVD_LIBRARY", "PYTHONPATH", "HVD_TEST_RESULTS")}
    env["PATH"] = "%s:/usr/bin:/bin" % (venv / "bin")
    import torch

    site = os.path.dirname(os.path.dirname(torch.__file__))
    python = str(venv / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", WHEEL],
                   check=True, env=env)
    env["PYTHONPATH"] = site
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, horovod, horovod.torch as hvd\n"
        "assert %r in horovod.__file__, horovod.__file__\n"
        "hvd.init()\n"
        "print('sum', float(hvd.allreduce(torch.ones(1), op=hvd.Sum)))\n" % str(venv)
    )
    done = subprocess.run(["hvdrun", "-np", "2", python, str(script)], env=env, cwd=str(tmp_path),
                          stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().count("sum 2.0") == 2
    done = subprocess.run(["horovodrun", "--check-build"], env=env, stdout=subprocess.PIPE,
                          check=True)
    report = subprocess.run([python, "-m", "horovod.check"], env=env, stdout=subprocess.PIPE,
                            check=True)
    assert done.stdout == report.stdout and b"[X] PyTorch" in done.stdout
    assert b" in %s\n" % str(venv).encode() in done.stdout
    # the launcher itself, where another Python comes first on PATH
    inner = venv / "lib" / ("python%d.%d" % sys.version_info[:2]) / "site-packages" / "horovod"
    done = subprocess.run([str(inner / "_dist" / "bin" / "hvdrun"), "--check-build"],
                          env=dict(env, PATH="/usr/bin:/bin"), stdout=subprocess.PIPE, check=True)
    assert done.stdout == report.stdout
