#!/bin/bash
# --bind-to and --report-bindings, inside the processors that hvdrun was given.
# deadline: 60
. "$HVD_SRC/tests/e2e/lib.sh"

"$HVD_BUILD/bin/hvdrun" --dry-run -np 1 true >/dev/null || die "hvdrun does not run"
ldd "$HVD_BUILD/bin/hvd-agent" | grep -q hwloc || { echo "skipped: built without hwloc"; exit 0; }
read -r first second <<<"$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2])')"
show=(sh -c 'grep Cpus_allowed_list /proc/self/status')

run taskset -c "$first" hvdrun -np 1 --bind-to core --report-bindings "${show[@]}"
expect_status 0
expect_line out "Cpus_allowed_list:[[:space:]]*$first\$"
expect_line err "rank 0 on localhost: bound to core, processors $first\$"
echo "ok one rank, one processor"

run taskset -c "$first" hvdrun -np 2 --bind-to core true
expect_status 0
expect_line err "not bound \(fewer cores than ranks\), processors $first\$"
echo "ok more ranks than cores: not bound, and said"

run hvdrun -np 1 --report-bindings true
expect_status 0
expect_line err 'rank 0 on localhost: not bound \(not asked for\), processors'
run hvdrun -np 1 true
refuse_line err bound
echo "ok nothing asked for, nothing done"

run hvdrun -np 1 --bind-to nmua true
expect_status 2
expect_line err "'nmua' is not one of: none core numa socket"
echo "ok a wrong word"

HVD_BIND_TO=nmua run hvdrun -np 1 true
expect_status 2
expect_line err "HVD_BIND_TO: 'nmua' is not one of: none core numa socket"
echo "ok a wrong word in the environment"

HOROVOD_BIND_TO=nmua run hvdrun -np 1 true
expect_status 0
HVD_BIND_TO=core HVD_REPORT_BINDINGS=1 run taskset -c "$first" hvdrun --no-env -np 1 true
expect_status 0
expect_line err "rank 0 on localhost: bound to core, processors $first\$"
HVD_REPORT_BINDINGS=true run hvdrun -np 1 true
expect_line err 'rank 0 on localhost: not bound'
HVD_REPORT_BINDINGS=maybe run hvdrun -np 1 true
expect_status 2
expect_line err "HVD_REPORT_BINDINGS: 'maybe' is not 0 or 1"
HVD_BIND_TO=none run hvdrun -np 1 --bind-to core sh -c 'env | grep BIND_TO || echo nothing'
expect_line out '^\[0\]<stdout>:nothing$'
run hvdrun --dry-run --bind-to numa -np 1 ./nothing
expect_line out '^  bind to numa$'
run hvdrun --dry-run --json --bind-to numa -np 1 ./nothing
expect_line out '"bind_to": "numa"'
echo "ok a name of hvd alone, past --no-env, shown by --dry-run"

[ -n "$second" ] || exit 0
run taskset -c "$first,$second" hvdrun -np 2 --bind-to core "${show[@]}"
expect_status 0
if grep -q 'fewer cores' err; then
    echo "skipped: the two processors are one core"
    exit 0
fi
expect_line out "^\[0\].*:[[:space:]]*$first\$"
expect_line out "^\[1\].*:[[:space:]]*$second\$"
echo "ok two ranks, a core each"
