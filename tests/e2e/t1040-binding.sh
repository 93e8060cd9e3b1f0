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
expect_line err "rank 0 on localhost: bound to core: 1 core, processors $first\$"
echo "ok one rank, one processor"

run taskset -c "$first" hvdrun -np 2 --bind-to core true
expect_status 0
expect_line err "rank 0 on localhost: bound to core: 1 core, processors $first; ranks share cores\$"
refuse_line err 'rank 1'
run taskset -c "$first" hvdrun -np 2 "${show[@]}"
refuse_line err bound
echo "ok more ranks than cores: they share, and it is said once"

run hvdrun -np 1 --report-bindings true
expect_status 0
expect_line err 'rank 0 on localhost: not bound \(.*\): [0-9]+ cores?, processors'
run hvdrun -np 1 true
refuse_line err bound
echo "ok nothing asked for, nothing done"

run hvdrun -np 1 --bind-to nmua true
expect_status 2
expect_line err "'nmua' is not one of: none core numa socket gpu auto"
echo "ok a wrong word"

HVD_BIND_TO=nmua run hvdrun -np 1 true
expect_status 2
expect_line err "HVD_BIND_TO: 'nmua' is not one of: none core numa socket gpu auto"
echo "ok a wrong word in the environment"

HOROVOD_BIND_TO=nmua run hvdrun -np 1 true
expect_status 0
HVD_BIND_TO=core HVD_REPORT_BINDINGS=1 run taskset -c "$first" hvdrun --no-env -np 1 true
expect_status 0
expect_line err "rank 0 on localhost: bound to core: 1 core, processors $first\$"
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

# option value: what the line says
while IFS='|' read -r option text; do
    # shellcheck disable=SC2086
    run hvdrun -np 1 $option true
    expect_status 2
    expect_line err "$text"
    [ "$(wc -l <err)" = 1 ] || die "more than one line"
done <<'END2'
--map-by node|--map-by: 'node' is not one of: .*; the nearest is slot: .* -H a:2,b:2$
--map-by l3cache|the nearest is numa
--map-by ppr:2:socket|'ppr:2:socket': how many ranks a host has is said by -H host:N
--map-by socket:PE=4|only the word before the ':' is possible.*PE=N is -c N
--map-by sideways|'sideways' is not one of: slot core numa socket auto$
--bind-to hwthread|the nearest is core
--bind-to package|the word here is socket
-c 0|-c|--cores-per-rank
--gpus-per-rank none|'none'
END2
echo "ok words of other launchers"

run taskset -c "$first" hvdrun -np 1 -c 1 sh -c 'echo threads=$OMP_NUM_THREADS'
expect_line out ':threads=1$'
OMP_NUM_THREADS=7 run hvdrun -np 1 -c 1 sh -c 'echo threads=$OMP_NUM_THREADS'
expect_line out ':threads=7$'

# GPUs of a tree, and the mask
gpu() { # index address
    mkdir -p "root/proc/driver/nvidia/gpus/$2" root/dev root/sys/module/nvidia
    printf 'GPU UUID: \t GPU-%s\nDevice Minor: \t %s\n' "aaaaaa$1" "$1" >"root/proc/driver/nvidia/gpus/$2/information"
    : >"root/dev/nvidia$1"
    echo 550.54 >root/sys/module/nvidia/version
}
gpu 0 0000:17:00.0
gpu 1 0000:b3:00.0
export HVD_GPU_ROOT=$T/root
mask=(sh -c 'echo "see=$CUDA_VISIBLE_DEVICES order=$CUDA_DEVICE_ORDER"')
run hvdrun -np 2 --report-bindings "${mask[@]}"
expect_status 0
expect_line out '^\[1\]<stdout>:see= order=$'
expect_line err 'rank 1 on localhost: .*; GPU 1 \(0000:b3:00\.0\)$'
run hvdrun -np 2 --gpus-per-rank 1 "${mask[@]}"
expect_status 0
expect_line out '^\[0\]<stdout>:see=0 order=PCI_BUS_ID$'
expect_line out '^\[1\]<stdout>:see=1 order=PCI_BUS_ID$'
CUDA_VISIBLE_DEVICES=GPU-aaaaaa1,0 run hvdrun -np 2 --gpus-per-task 1 --report-bindings "${mask[@]}"
expect_line out '^\[0\]<stdout>:see=GPU-aaaaaa1 order=$'
expect_line out '^\[1\]<stdout>:see=0 order=$'
expect_line err 'rank 0 on .*; GPU GPU-aaaaaa1 \(0000:b3:00\.0\)$'
run hvdrun -np 1 --gpus-per-rank 2 "${mask[@]}"
expect_line out 'see=0,1 order'
run hvdrun -np 2 -x CUDA_VISIBLE_DEVICES=1 --gpus-per-rank 1 true
expect_status 125
expect_line err '--gpus-per-rank: 2 ranks on this host need 2 GPUs, 1 are visible: CUDA_VISIBLE_DEVICES=1; .*--oversubscribe-gpu'
run hvdrun -np 2 -x CUDA_VISIBLE_DEVICES=1 --gpus-per-rank 1 --oversubscribe-gpu "${mask[@]}"
expect_status 0
expect_line out '^\[1\]<stdout>:see=1 '
CUDA_VISIBLE_DEVICES='' run hvdrun -np 1 --bind-to gpu true
expect_status 125
expect_line err '--bind-to gpu: a rank needs 1 GPU, 0 visible'
run hvdrun -np 3 true # nobody asked for GPUs
expect_status 0
run hvdrun --dry-run -np 2 --gpus-per-rank 1 true
expect_line out '^    rank 1: .*; GPU 1 \(0000:b3:00\.0\)$'
run hvdrun --dry-run --json -np 2 --gpus-per-rank 1 -c 1 --map-by core true
expect_line out '"gpus_per_rank": 1'
expect_line out '"map_by": "core"'
python3 - <<'END' || die "the plan's placing is not what it should be"
import json
ranks = json.load(open("out"))["ranks"]
for i, rank in enumerate(ranks):
    placing = rank["placing"]
    assert placing["bound_to"] == "core" and placing["why_not"] is None, placing
    assert placing["cores"] == placing["threads"] == 1 and placing["processors"], placing
    assert [gpu["name"] for gpu in placing["gpus"]] == [str(i)], placing
    assert placing["gpus"][0]["pci"].startswith("0000:"), placing
END
run hvdrun --dry-run --json -np 3 --gpus-per-rank 1 true
expect_line out '"error": "--gpus-per-rank: 3 ranks on this host need 3 GPUs'
run hvdrun doctor
expect_line out 'GPUs +ok +2, driver 550\.54$'
expect_line out 'NCCL +(warning +libnccl\.so\.2 not found|ok )'
CUDA_VISIBLE_DEVICES=1 LD_LIBRARY_PATH=$HVD_BUILD/tests/fake run hvdrun doctor
expect_line out 'GPUs +ok +2, driver 550\.54, 1 visible'
expect_line out 'NCCL +ok +[0-9.]+ \(libnccl\.so\.2\)'
rm -r root/proc root/dev
mkdir -p root/sys/bus/pci/devices/0000:17:00.0
echo 0x10de >root/sys/bus/pci/devices/0000:17:00.0/vendor
echo 0x030200 >root/sys/bus/pci/devices/0000:17:00.0/class
run hvdrun doctor
expect_line out 'GPUs +warning +none usable: 1 on the PCI bus'
unset HVD_GPU_ROOT
LD_LIBRARY_PATH=$HVD_BUILD/tests/fake run hvdrun --check-build
expect_status 0
expect_line out '\[X\] NCCL'
echo "ok GPUs: seen, dealt, refused, doctor"

[ -n "$second" ] || exit 0
run taskset -c "$first,$second" hvdrun -np 2 --bind-to core "${show[@]}"
expect_status 0
if grep -q 'share cores' err; then
    echo "skipped: the two processors are one core"
    exit 0
fi
expect_line out "^\[0\].*:[[:space:]]*$first\$"
expect_line out "^\[1\].*:[[:space:]]*$second\$"
echo "ok two ranks, a core each"
run taskset -c "$first,$second" hvdrun -np 1 -c 1 sh -c 'grep Cpus_allowed_list /proc/self/status; echo threads=$OMP_NUM_THREADS'
expect_line out "Cpus_allowed_list:[[:space:]]*$first\$"
expect_line out 'threads=1$'
run taskset -c "$first,$second" hvdrun -np 1 --bind-to none -c 2 sh -c 'echo threads=$OMP_NUM_THREADS'
expect_line out 'threads=2$'
echo "ok -c: cores and threads"

two_sockets() {
    local n bus=(b3 17) cpu=(1 2)
    printf '%s\n' '<?xml version="1.0" encoding="UTF-8"?>' '<!DOCTYPE topology SYSTEM "hwloc2.dtd">' '<topology version="2.0">'
    sets() { echo "cpuset=\"0x$1\" complete_cpuset=\"0x$1\" nodeset=\"0x$1\" complete_nodeset=\"0x$1\""; }
    echo "<object type=\"Machine\" os_index=\"0\" $(sets 3) allowed_cpuset=\"0x3\" allowed_nodeset=\"0x3\" gp_index=\"1\">"
    for n in 0 1; do
        echo "<object type=\"Package\" os_index=\"$n\" $(sets "${cpu[n]}") gp_index=\"1${n}2\">"
        echo "<object type=\"NUMANode\" os_index=\"$n\" $(sets "${cpu[n]}") gp_index=\"1${n}3\"/>"
        echo "<object type=\"Core\" os_index=\"$n\" $(sets "${cpu[n]}") gp_index=\"1${n}4\">"
        echo "<object type=\"PU\" os_index=\"$n\" $(sets "${cpu[n]}") gp_index=\"1${n}5\"/></object>"
        echo "<object type=\"Bridge\" gp_index=\"1${n}6\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[${bus[n]}-${bus[n]}]\">"
        echo "<object type=\"PCIDev\" gp_index=\"1${n}7\" pci_busid=\"0000:${bus[n]}:00.0\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0.000000\"/></object>"
        echo '</object>'
    done
    echo '</object></topology>'
}

# two sockets of a core each, the GPU of each: as a topology file has it
if [ "$first,$second" = 0,1 ]; then
    gpu 0 0000:17:00.0
    gpu 1 0000:b3:00.0
    two_sockets >two.xml
    export HVD_GPU_ROOT=$T/root HWLOC_XMLFILE=$T/two.xml
    run taskset -c 0,1 hvdrun -np 2 --bind-to gpu --report-bindings "${show[@]}"
    expect_line out '^\[0\].*:[[:space:]]*1$'
    expect_line out '^\[1\].*:[[:space:]]*0$'
    expect_line err 'rank 0 on localhost: bound to gpu: 1 core, processors 1; GPU 0 \(0000:17'
    run taskset -c 0,1 hvdrun -np 2 "${show[@]}"
    expect_line out '^\[0\].*:[[:space:]]*1$'
    run taskset -c 0,1 hvdrun -np 1 "${show[@]}"
    expect_line out '^\[0\].*:[[:space:]]*0-1$'
    OMP_PLACES=cores run taskset -c 0,1 hvdrun -np 2 "${show[@]}"
    expect_line out '^\[0\].*:[[:space:]]*0-1$'
    run hvdrun -np 2 --bind-to none "${show[@]}"
    expect_line out '^\[0\].*:[[:space:]]*0-1$'
    echo "ok near the GPU, by default where each rank has one"
fi

mkdir none
uuids=$(printf 'GPU-%08x-1111-2222-3333-444444444444\n' {1..80} | paste -sd,)
# shellcheck disable=SC2016
HVD_GPU_ROOT=$T/none CUDA_VISIBLE_DEVICES=$uuids run hvdrun -np 2 --gpus-per-rank 40 sh -c 'echo "$CUDA_VISIBLE_DEVICES"'
expect_status 0
for rank in 0 1; do
    grep -qxF "[$rank]<stdout>:$(cut -d, -f$((rank * 40 + 1))-$((rank * 40 + 40)) <<<"$uuids")" out ||
        die "rank $rank does not see its 40 GPUs"
done
echo "ok forty GPUs a rank, by UUID"

# shellcheck disable=SC2016
OMP_NUM_THREADS=7 run hvdrun --no-env -x A=1 -np 1 sh -c 'echo "threads $OMP_NUM_THREADS"'
expect_line out 'threads 7$'
# shellcheck disable=SC2016
HVD_GPU_ROOT=$T/none CUDA_VISIBLE_DEVICES=0,1 CUDA_DEVICE_ORDER=FASTEST_FIRST run hvdrun --no-env -np 2 \
    --gpus-per-rank 1 sh -c 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"'
expect_line out '^\[1\]<stdout>:1 FASTEST_FIRST$'
echo "ok what the host's own environment says of threads and GPUs counts"
