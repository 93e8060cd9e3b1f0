#!/bin/bash
# deadline: 90
# The timeline is valid JSON while it grows and at the end, names are escaped, all ranks are
# in it, and starting and stopping it from the program works.
set -eu
cat >traced.c <<'C'
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define LARGE (1 << 20)
static float large[LARGE];

static void some(const char *name, int times)
{
    float v[64] = {1};

    for (int i = 0; i < times; i++)
        IS(hvd_allreduce(v, v, 64, HVD_FLOAT32, HVD_MAX, name) == HVD_OK);
}

int main(int argc, char **argv)
{
    IS(hvd_init(NULL) == HVD_OK);
    some("before \"start\"\\\n\t\x01", 20);
    IS(hvd_allreduce(large, large, LARGE, HVD_FLOAT32, HVD_SUM, "large") == HVD_OK);
    if (argc > 1) {
        IS(hvd_barrier(0) == HVD_OK);
        IS(hvd_timeline_start(argv[1], 1) == HVD_OK);
        IS(hvd_barrier(0) == HVD_OK);
        some("between", 20);
        IS(hvd_barrier(0) == HVD_OK);
        IS(hvd_timeline_stop() == HVD_OK);
        IS(hvd_barrier(0) == HVD_OK);
        some("after", 20);
    } else {
        printf("running\n");
        fflush(stdout);
        for (int i = 0; i < 4; i++) { /* about 2 s, while somebody reads the file */
            struct timespec half = {.tv_nsec = 500000000};

            some("slow", 50);
            nanosleep(&half, NULL);
        }
    }
    IS(hvd_shutdown() == HVD_OK);
    return 0;
}
C
sed -i 's/#include <string.h>/&\n#include <time.h>/' traced.c
cc -std=gnu11 -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" traced.c -o traced \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
cat >look.py <<'P'
"""look.py FILE NAME_IN... [-- NAME_OUT...]: valid, and whose names are (not) there"""
import json
import os
import sys

with open(sys.argv[1], "rb") as f:
    data = json.loads(f.read().decode("utf-8"))
events = data if isinstance(data, list) else data["traceEvents"]
text = json.dumps(events)
args = sys.argv[2:]
cut = args.index("--") if "--" in args else len(args)
for name in args[:cut]:
    assert json.dumps(name)[1:-1] in text, "no event of %r" % name
for name in args[cut + 1:]:
    assert json.dumps(name)[1:-1] not in text, "%r should not be there" % name
if args:
    stamps = [e["ts"] for e in events if "ts" in e]
    assert stamps and max(stamps) - min(stamps) < 60e6, "not one clock"
for rank in range(int(os.environ.get("NP", "0"))):
    assert "rank %d ready" % rank in text, "rank %d is not in it" % rank
for phase in ("NEGOTIATE_ALLREDUCE", "QUEUE", "ALLREDUCE"):
    assert not args or any(e.get("name") == phase and e.get("ph") == "X" for e in events), phase
if "large" in args[:cut]: # copying lies inside the collective of the same rank
    pid = [e["pid"] for e in events if e["ph"] == "M" and e["args"].get("name") == "large"]
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == pid[0]]
    copies = [e for e in spans if e["name"].startswith("MEMCPY_")]
    for rank in range(int(os.environ["NP"])):
        whole = [e for e in spans if e["name"] == "ALLREDUCE" and e["tid"] == rank][0]
        mine = [e for e in copies if e["tid"] == rank]
        assert {e["name"] for e in mine} == {
            "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"}, (rank, mine)
        for e in mine:
            assert e["ts"] >= whole["ts"], e
            assert e["ts"] + e["dur"] <= whole["ts"] + whole["dur"], (e, whole)
print(len(events), "events")
P
strange='before "start"\' # and some control characters

echo "-- from the environment, read while it grows"
hvdrun -np 3 --timeline-filename "$T/trace.json" ./traced >out 2>err &
job=$!
until grep -qs running out; do
    kill -0 $job 2>/dev/null || { cat out err; exit 1; }
    sleep 0.05
done
reads=0
while kill -0 $job 2>/dev/null; do
    if [ -s trace.json ]; then
        python3 look.py trace.json >/dev/null || { echo "not valid while it grows"; exit 1; }
        reads=$((reads + 1))
    fi
    sleep 0.1
done
wait $job || { cat out err; exit 1; }
echo "read $reads times while it grew"
[ $reads -ge 1 ]
NP=3 python3 look.py trace.json "$strange" slow large

echo "-- from the program"
hvdrun -np 3 ./traced "$T/part.json" >out 2>err || { cat out err; exit 1; }
NP=3 python3 look.py part.json between -- after "$strange"

echo "-- alone"
HVD_TIMELINE=$T/alone.json ./traced >out
NP=1 python3 look.py alone.json "$strange" slow
echo "-- a place that cannot be written: hvd_init fails and names it"
if HVD_TIMELINE=/nonexistent/trace.json hvdrun -np 2 ./traced >out 2>err; then exit 1; fi
cat out
grep -q 'not hvd_init.*/nonexistent/trace.json' out
