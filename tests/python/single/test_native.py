"""The layouts that the package packs are those of hvd.h."""

import ctypes
import os
import re
import shutil
import subprocess

import pytest

HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "..", "worker", "include")

PROGRAM = r"""
#include <stdio.h>
#include <stddef.h>
#include <hvd/hvd.h>
#define AT(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(struct t, f))
int main(void)
{
    printf("hvd_op %zu\nhvd_tensor %zu\nhvd_config %zu\nhvd_stats %zu\n",
           sizeof(struct hvd_op), sizeof(struct hvd_tensor), sizeof(struct hvd_config),
           sizeof(struct hvd_stats));
    AT(hvd_op, name); AT(hvd_op, prescale); AT(hvd_op, in); AT(hvd_op, out);
    AT(hvd_op, out_capacity_bytes); AT(hvd_op, splits); AT(hvd_op, nsplits);
    AT(hvd_op, ready); AT(hvd_op, done); AT(hvd_op, arg); AT(hvd_tensor, dims);
    AT(hvd_tensor, ndim); AT(hvd_tensor, device_id); AT(hvd_config, ranks);
    AT(hvd_config, set_ranks); AT(hvd_config, nranks); AT(hvd_stats, groups_run);
    return 0;
}
"""


def test_layouts(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    from horovod import _native

    source = tmp_path / "layout.c"
    source.write_text(PROGRAM)
    subprocess.run(["gcc", "-I", HEADER, str(source), "-o", str(tmp_path / "layout")], check=True)
    out = subprocess.run([str(tmp_path / "layout")], check=True, stdout=subprocess.PIPE)
    at = dict(line.split() for line in out.stdout.decode().splitlines())
    at = {name: int(value) for name, value in at.items()}
    assert _native.OP_SIZE == at["hvd_op"] and _native.OP_IN_DATA == at["hvd_op.in"]
    assert _native.OP_OUT_DATA == at["hvd_op.out"]
    assert _native.OP_READY_OBJECT == at["hvd_op.ready"] + 8
    for name, cls in (("hvd_tensor", _native.Tensor), ("hvd_config", _native.Config),
                      ("hvd_stats", _native.Stats)):
        assert ctypes.sizeof(cls) == at[name]
        for field, _ in cls._fields_:
            if "%s.%s" % (name, field) in at:
                assert getattr(cls, field).offset == at["%s.%s" % (name, field)]
    # every field of the packed operation, by filling it with a number of its own
    buffer = ctypes.create_string_buffer(4096)
    base = ctypes.addressof(buffer)
    _native.pack_ops(buffer, base, 1024, 3, [(11, 12, 13, (2, 5), 9, 1, 4, 15)], 1, 6, 7, 0.5,
                     2.0, [8, 9], 10)
    read = lambda kind, where: kind.from_buffer(buffer, where).value  # noqa: E731
    i32, u64 = ctypes.c_int32, ctypes.c_uint64
    assert [read(i32, 4 * i) for i in range(6)] == [at["hvd_op"], 3, 1, 6, 7, 0]
    assert read(u64, at["hvd_op.name"]) == 10
    assert read(ctypes.c_double, at["hvd_op.prescale"]) == 0.5
    for tensor, data in (("hvd_op.in", 11), ("hvd_op.out", 12)):
        assert read(u64, at[tensor]) == data
        assert read(u64, at[tensor] + at["hvd_tensor.dims"]) == base + 1024
        assert read(i32, at[tensor] + at["hvd_tensor.ndim"]) == 2
        assert read(i32, at[tensor] + at["hvd_tensor.device_id"]) == 4
    assert read(u64, at["hvd_op.out_capacity_bytes"]) == 13
    assert read(u64, at["hvd_op.splits"]) == base + 1040 and read(i32, at["hvd_op.nsplits"]) == 2
    assert read(i32, at["hvd_op.ready"]) == 1 and read(u64, at["hvd_op.ready"] + 8) == 15
    assert list((ctypes.c_int64 * 4).from_buffer(buffer, 1024)) == [2, 5, 8, 9]


def test_numbers_are_those_of_the_header():
    from horovod import _native

    with open(os.path.join(HEADER, "hvd", "hvd.h"), encoding="utf-8") as f:
        text = f.read()
    numbers = dict(re.findall(r"\bHVD_([A-Z0-9_]+) = (-?\d+)", text))
    numbers.update(re.findall(r"X\(HVD_([A-Z]+), (-?\d+),", text))
    checked = 0
    for name, value in numbers.items():
        if isinstance(getattr(_native, name, None), int):
            assert getattr(_native, name) == int(value), name
            checked += 1
    assert checked > 30
