#!/bin/bash
# deadline: 100
# horovod.run() with ranks on two hosts: function, results and tracebacks travel over the
# network, and no command line shows the key.
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 2
mkdir here
cat >here/work.py <<'P'
import os
import socket
import sys


def where(add):
    mine = open("/proc/self/cmdline").read() + open("/proc/%d/cmdline" % os.getppid()).read()
    assert os.environ["HVD_RUN_FUNCTION"] not in mine
    return socket.gethostname(), int(os.environ["HOROVOD_RANK"]) + add


def fails(add):
    if os.environ["HOROVOD_RANK"] == "2":
        raise KeyError("on " + socket.gethostname())
    return add


if __name__ == "__main__":
    import horovod
    import work

    run = dict(args=(10,), num_proc=4, hosts="host1:2,host2:2", start_timeout=40)
    print(horovod.run(work.where, **run))
    try:
        horovod.run(work.fails, **run)
    except RuntimeError as error:
        print([line for line in str(error).splitlines() if "KeyError:" in line or "rank 2" in line])
P
export PYTHONPATH=$T/here:$HVD_SRC/worker/python PYTHONDONTWRITEBYTECODE=1 HVD_LIBRARY=$HVD_BUILD/lib/libhvd.so
run hosts_exec 1 python3 here/work.py
expect_status 0
grep -qF "[('host1', 10), ('host1', 11), ('host2', 12), ('host2', 13)]" out || die "results"
grep -qF "['rank 2: Traceback (most recent call last):', \"KeyError: 'on host2'\"]" out || die "results"

cat >probe.py <<'P'
from horovod.runner.common.util.settings import Settings
from horovod.runner.driver.driver_service import get_common_interfaces

print(sorted(get_common_interfaces(Settings(), ["host1", "host2"])))
P
run hosts_exec 1 python3 probe.py
expect_status 0
grep -qF "['eth0']" out || die "interfaces"
