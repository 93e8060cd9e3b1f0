"""What a type checker says of programs: nothing of a right one, something of each wrong line."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.normpath(os.path.join(HERE, "..", "..", "..", "worker", "python"))


def test_mypy(tmp_path):
    """One run: it reads torch, which takes most of the time."""
    files = [os.path.join(HERE, "typed", name) for name in ("right.py", "wrong.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary",
         "--cache-dir", str(tmp_path)] + files,
        env=dict(os.environ, MYPYPATH=PACKAGE),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode()
    assert "right.py" not in said, said
    with open(files[1], encoding="utf-8") as f:
        lines = f.read().splitlines()
    missed = [text for number, text in enumerate(lines, 1)
              if number > lines.index("# wrong") + 1 and "wrong.py:%d: error" % number not in said]
    assert not missed, said
