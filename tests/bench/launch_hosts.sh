#!/bin/bash
# Start and end of `true` on 4 hosts by ssh: hvdrun, mpiexec.hydra and mpirun.openmpi in turn,
# and three ssh at once, which is the least that three other hosts cost. The hosts are network
# namespaces with a real sshd each (tests/e2e/hosts.sh). For run.py: prints JSON lines.
#   launch_hosts.sh BUILD ROUNDS PEERS...     PEERS: hvd mpich openmpi ssh
# 77, with the reason as its last line: namespaces are not possible here.
cd "$(dirname "$0")/../.." || exit 1
HVD_SRC=$PWD
HVD_BUILD=$(cd "$1" && pwd) || exit 1
T=$(mktemp -d "${TMPDIR:-/tmp}/hvd-bench-XXXXXX") || exit 1
rounds=$2
shift 2
export HVD_SRC HVD_BUILD T PATH=$HVD_BUILD/bin:$PATH
. tests/e2e/lib.sh
. tests/e2e/hosts.sh
trap 'rm -rf "$T"' EXIT
hosts_need
trap 'hosts_down; rm -rf "$T"' EXIT
hosts_up 4
hosts=host1,host2,host3,host4

command_of() {
    case $1 in
    hvd) echo "hvdrun -np 4 -H $hosts true" ;;
    mpich) echo "mpiexec.hydra -launcher ssh -hosts $hosts -n 4 true" ;;
    openmpi) echo "mpirun.openmpi --allow-run-as-root -H $hosts -np 4 true" ;;
    ssh) echo "sh $T/three" ;;
    esac
}
echo 'for host in host2 host3 host4; do ssh $host true & done; wait' >"$T/three"

# the first of each warms up
# shellcheck disable=SC2154
for ((k = 0; k <= rounds; k++)); do
    for peer; do
        # shellcheck disable=SC2046,SC2154
        run hosts_exec 1 $(command_of "$peer")
        [ "$status" = 0 ] || die "$peer: status $status"
        # shellcheck disable=SC2154
        [ $k = 0 ] || printf '{"peer": "%s", "launch": "true, 4 hosts", "np": 4, "ms": %d}\n' "$peer" "$took_ms"
    done
done
