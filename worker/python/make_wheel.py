"""Write the wheel of the package: python3 make_wheel.py VERSION STAGE OUT

STAGE  folder that holds lib/ and bin/, which become horovod/_dist, and licenses/
OUT    folder for hvd-VERSION-py3-none-PLATFORM.whl

Needs nothing but Python: the package holds no compiled Python, so there is nothing to
build. The same input gives the same bytes.
"""

import base64
import hashlib
import os
import platform
import stat
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
DATE = (2020, 1, 1, 0, 0, 0)

METADATA = """Metadata-Version: 2.1
Name: hvd
Version: %(version)s
Summary: Data-parallel training for programs written for Horovod
License: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.8
Provides-Extra: run
Requires-Dist: cloudpickle; extra == "run"
Provides-Extra: torch
Requires-Dist: torch>=1.13; extra == "torch"
Requires-Dist: cloudpickle; extra == "torch"
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

%(readme)s"""

WHEEL = """Wheel-Version: 1.0
Generator: make_wheel.py
Root-Is-Purelib: false
Tag: py3-none-%s
"""

ENTRY_POINTS = """[console_scripts]
hvdrun = horovod.runner.launch:run_commandline
horovodrun = horovod.runner.launch:run_commandline
hvd-coordinator = horovod.runner.launch:coordinator_commandline
"""


def platform_tag():
    """What the C library of this machine allows: manylinux_2_36_x86_64."""
    libc, version = platform.libc_ver()
    if libc != "glibc":
        return "linux_" + platform.machine()
    return "manylinux_%s_%s" % ("_".join(version.split(".")[:2]), platform.machine())


def package_files(stage):
    """{name in the wheel: path}"""
    found = {}
    for root, folders, files in os.walk(os.path.join(HERE, "horovod")):
        folders[:] = [f for f in folders if f not in ("__pycache__", "_dist")]
        for name in files:
            path = os.path.join(root, name)
            found[os.path.relpath(path, HERE)] = path
    for part in ("lib", "bin"):
        for name in os.listdir(os.path.join(stage, part)):
            found["horovod/_dist/%s/%s" % (part, name)] = os.path.join(stage, part, name)
    return found


def main(version, stage, out):
    tag = platform_tag()
    info = "hvd-%s.dist-info" % version
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "hvd-%s-py3-none-%s.whl" % (version, tag))
    record = []
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name, data, executable=False):
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            record.append("%s,sha256=%s,%d" % (name, digest.decode(), len(data)))

        for name, source in sorted(package_files(stage).items()):
            with open(source, "rb") as f:
                add(name, f.read(), name.startswith("horovod/_dist/bin/"))
        for name in sorted(os.listdir(os.path.join(stage, "licenses"))):
            with open(os.path.join(stage, "licenses", name), "rb") as f:
                add("%s/licenses/%s" % (info, name), f.read())
        add(info + "/METADATA", (METADATA % {"version": version, "readme": readme}).encode())
        add(info + "/WHEEL", (WHEEL % tag).encode())
        add(info + "/entry_points.txt", ENTRY_POINTS.encode())
        add(info + "/top_level.txt", b"horovod\n")
        record.append(info + "/RECORD,,")
        wheel.writestr(zipfile.ZipInfo(info + "/RECORD", DATE), "\n".join(record) + "\n")
    os.replace(path + ".part", path)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
