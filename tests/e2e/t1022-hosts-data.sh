#!/bin/bash
# The data plane between hosts: four hosts in namespaces, each with an interface of another
# name. The demo, all collectives, everything at once; equal and uneven slots, one rank a
# host, 16 hosts; planes hosts and tcp.
# deadline: 180
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
HOSTS_IFACE=netI
hosts_up 4
for program in kinds chaos; do compile "$HVD_SRC/tests/e2e/$program.c" $program; done
train=$HVD_BUILD/examples/train_mnist
export HVD_EXAMPLES_DATA=$HVD_SRC/worker/examples/data
rounds=3
[ "${HVD_SOAK:-0}" = 1 ] && rounds=300

# $1 = options of hvdrun; the rest is the program
on_hosts() {
    local options=$1
    shift
    # shellcheck disable=SC2086
    run hosts_exec 1 timeout 60 hvdrun $options "$@"
    expect_status 0
}

run hvdrun -np 4 "$train" --epochs 1 --checkpoint one-host
expect_status 0
for layout in "host1,host2,host3,host4" "host1:2,host2:2" "host2:1,host3:3"; do
    on_hosts "-np 4 -H $layout" "$train" --epochs 1 --checkpoint across
    expect_line out 'bit-identical on 4 ranks'
    "$HVD_BUILD/examples/compare_params" one-host across 1e-3 || die "-H $layout: another model"
done
on_hosts "-np 4 -H host1:2,host2:2 -x HVD_CPU_PLANE=tcp" "$train" --epochs 1 --checkpoint across
"$HVD_BUILD/examples/compare_params" one-host across 1e-3 || die "plane tcp: another model"
echo "ok the demo on hosts gives the model of one host, with equal bits on all ranks"

# $1 = ranks, $2... = options for as many ranks on hosts
same_results() {
    local np=$1 want options
    shift
    run hvdrun -np "$np" ./kinds
    expect_status 0
    want=$(grep 'all collectives' out) || die "no result"
    for options in "$@"; do
        on_hosts "-np $np $options" ./kinds
        grep -qF "${want#*:}" out || die "$options: results differ from those of one host"
    done
}
same_results 4 "-H host1:2,host2:2" "-H host1,host2,host3,host4" "-H host1:1,host2:3" \
    "-H host1:2,host2:2 -x HVD_CPU_PLANE=tcp"
same_results 6 "-H host1:1,host2:3,host3:2" "-H host1:2,host2:2,host4:2"
echo "ok all collectives, types and reductions: the bits of one host"

for layout in "host1:1,host2:2,host3:1,host4:3" "host3:2,host4:2"; do
    on_hosts "-H $layout" ./chaos $rounds 1
done
on_hosts "-H host1:2,host2:2 -x HVD_CPU_PLANE=tcp" ./chaos $rounds 1
echo "ok everything at once on uneven hosts"
hosts_down

HOSTS_NAME=${HOSTS_NAME}b
hosts_need
rm -rf "$HOSTS_STATE"
hosts_up 16
compile "$HVD_SRC/tests/e2e/sum.c" sum
on_hosts "-H host[1-16]:1" ./sum
[ "$(grep -c ':sum 120 of 16 on host' out)" = 16 ] || die "16 sums expected"
on_hosts "-H host[1-16]:2" ./sum
[ "$(grep -c ':sum 496 of 32 on host' out)" = 32 ] || die "32 sums expected"
echo "ok 16 hosts"
