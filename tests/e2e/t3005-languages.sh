#!/bin/bash
# hvd.h from C++ and from Python's ctypes; the header and the library agree about the ABI.
set -eu
cat >plus.cc <<'C'
#include <hvd/hvd.h>
#include <cstdio>
#include <vector>

int main()
{
    if (hvd_init(nullptr) != HVD_OK || hvd_abi_version() != HVD_ABI_VERSION)
        return 1;
    std::vector<double> v(1000, hvd_rank() + 1.0);
    if (hvd_allreduce(v.data(), v.data(), (int64_t)v.size(), HVD_FLOAT64, HVD_SUM, "v") != HVD_OK)
        return 1;
    std::printf("%g\n", v[999]);
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
C
g++ -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" plus.cc -o plus -L"$HVD_BUILD/lib" -lhvd \
    -Wl,-rpath,"$HVD_BUILD/lib"
hvdrun -np 2 ./plus >out 2>err || { cat out err; exit 1; }
[ "$(grep -c '3$' out)" = 2 ]

cat >bare.py <<'P'
import array
import ctypes
import os

hvd = ctypes.CDLL(os.environ["HVD_BUILD"] + "/lib/libhvd.so")
hvd.hvd_last_error.restype = ctypes.c_char_p
assert hvd.hvd_init(None) == 0, hvd.hvd_last_error()
v = array.array("f", [hvd.hvd_rank() + 1.0] * 10)
address, count = v.buffer_info()
status = hvd.hvd_allreduce(ctypes.c_void_p(address), ctypes.c_void_p(address), ctypes.c_int64(count), 9, 1, b"v")
assert status == 0, hvd.hvd_last_error()
print("sum", v[9])
P
hvdrun -np 3 python3 bare.py >out 2>err || { cat out err; exit 1; }
[ "$(grep -c 'sum 6.0' out)" = 3 ] || { cat out err; exit 1; }
