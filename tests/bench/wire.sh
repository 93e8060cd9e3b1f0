#!/bin/bash
# Networks of hosts for bench_plane: HOSTS network namespaces on one bridge, each with a
# cable of so many Mbit/s both ways, for as long as COMMAND runs. Needs root and iproute2.
#
#   tests/bench/wire.sh HOSTS MBITS bench_plane -w WIRE NAME hosts HOSTSxRANKS ...
#
# WIRE, wherever it stands in the command, becomes the name of these networks.
[ $# -ge 3 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
hosts=$1 mbits=$2 wire=hvdwire$$
shift 2
PATH=$PATH:/usr/sbin:/sbin
cleanup() {
    for ns in sw $(seq "$hosts"); do ip netns del "$wire-$ns" 2>/dev/null; done
}
trap cleanup EXIT
limit() { # namespace, interface
    [ "$mbits" = 0 ] || ip netns exec "$1" tc qdisc add dev "$2" root \
        tbf rate "${mbits}mbit" burst $((mbits * 125 < 65536 ? 65536 : mbits * 125)) limit 1m
}
set -e
ip netns add "$wire-sw"
ip -n "$wire-sw" link add br0 type bridge
ip -n "$wire-sw" link set br0 up
for i in $(seq "$hosts"); do
    ns=$wire-$i
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    ip -n "$wire-sw" link add "p$i" type veth peer name eth0 netns "$ns"
    ip -n "$ns" addr add "10.79.0.$i/24" dev eth0
    ip -n "$ns" link set eth0 up
    ip -n "$wire-sw" link set "p$i" master br0 up
    limit "$ns" eth0
    limit "$wire-sw" "p$i"
done
"${@//WIRE/$wire}"
