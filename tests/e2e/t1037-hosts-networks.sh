#!/bin/bash
# Two hosts that reach the launcher by different networks, and each other by a third one; an
# address that is the same on every host (a bridge of each one's own); one where somebody
# else answers; a way that swallows everything. Data finds its way by connecting.
# deadline: 90
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 3
compile "$HVD_SRC/tests/e2e/sum.c" sum
ns() { echo "$HOSTS_NAME-$1"; }

# $1, $2 = hosts, $3 = interface on both, $4 = network: a cable between them
cable() {
    ip -n "$(ns "$1")" link add "$3" type veth peer name "$3" netns "$(ns "$2")"
    for i in "$1" "$2"; do
        ip -n "$(ns "$i")" addr add "$4.$i/24" dev "$3"
        ip -n "$(ns "$i")" link set "$3" up
    done
}
# host1 - host2 by the bridge, host1 - host3 by lan9, host2 - host3 by ib0
hosts_unplug 3
ip -n "$(ns 3)" link set eth0 down
cable 1 3 lan9 10.79.0
sed 's|^10\.78\.0\.3 |10.79.0.3 |' "$HOSTS_STATE/hosts" >edited
cat edited >"$HOSTS_STATE/hosts"
sed 's|^host3,|host3,10.79.0.3,|' -i "$HOSTS_STATE/known_hosts"

run hosts_exec 1 hvdrun -np 3 --start-timeout 4 -H host1,host2,host3 ./sum
[ "$status" != 0 ] || die "no way from host2 to host3, and status 0"
expect_line err 'rank [12].*cannot reach a peer at (tcp:)?10\.7[89]\.0\.[23]:[0-9]+.* (Network is unreachable|no data connection)'
echo "ok hosts without a way to one another: named"

cable 2 3 ib0 10.80.0
# an address that all have; nobody else is there
for i in 1 2 3; do
    ip -n "$(ns $i)" link add docker0 type bridge
    ip -n "$(ns $i)" addr add 172.17.0.1/16 dev docker0
    ip -n "$(ns $i)" link set docker0 up
done
for plane in auto tcp; do
    run hosts_exec 1 hvdrun -np 6 --port-range 17010-17019 -x HVD_CPU_PLANE=$plane -H host1:2,host2:2,host3:2 ./sum
    expect_status 0
    [ "$(grep -c ':sum 15 of 6 on ' out)" = 6 ] || die "six sums expected"
    [ -s err ] && die "nothing expected on stderr"
    expect_within 6000
done
echo "ok hosts that reach the launcher by different networks exchange data by a third"

run hosts_exec 1 hvdrun -np 3 --network-interfaces eth0,lan9 --start-timeout 4 -H host1,host2,host3 ./sum
[ "$status" != 0 ] || die "ib0 was used, which was not named"
run hosts_exec 1 hvdrun -np 3 --network-interfaces eth0,lan9,ib0 -H host1,host2,host3 ./sum
expect_status 0
echo "ok --network-interfaces chooses among them"

# Where anything listens on host $1, but for sshd: its addresses
listens() { ip netns exec "$(ns "$1")" ss -Hltn | awk '{print $4}' | grep -v ':22$' | sed 's/:[0-9]*$//' | sort | tr '\n' ' '; }
same() { [ "$(listens "$1")" = "$2" ]; }
rm -f go
# shellcheck disable=SC2016
hosts_exec 1 hvdrun -np 3 --network-interfaces eth0,lan9,ib0 -H host1,host2,host3 \
    sh -c 'until [ "$HVD_RANK" != 2 ] || [ -e go ]; do sleep 0.1; done; exec ./sum' >out 2>err &
job=$!
await 10 "host1: coordinator and rank 0 on the addresses of eth0 and lan9, nobody elsewhere" \
    same 1 "10.78.0.1 10.78.0.1 10.79.0.1 10.79.0.1 "
await 10 "host2: rank 1 on those of eth0 and ib0, nobody elsewhere" same 2 "10.78.0.2 10.80.0.2 "
touch go
wait $job || die "status $?, not 0"
run hosts_exec 1 hvdrun -np 3 --network-interfaces eth0,lan9 -x HVD_NETWORK_INTERFACES=lan9 -H host1,host2,host3 ./sum
expect_line err '^.1.<stderr>.*no interface of this host with an address is named .lan9.'
echo "ok nothing listens on the addresses of other interfaces"

# The first way that host3 is offered to host2 swallows what is sent: a route to nowhere.
ip -n "$(ns 3)" route add 10.78.0.0/24 via 10.80.0.77
ip -n "$(ns 3)" neigh replace 10.80.0.77 lladdr 02:00:00:00:de:ad dev ib0 nud permanent
run hosts_exec 1 hvdrun -np 3 -H host1,host2,host3 ./sum
expect_status 0
[ "$(grep -c ':sum 3 of 3 on ' out)" = 3 ] || die "three sums expected"
expect_within 6000
echo "ok a way that answers nothing: the next one after a moment ($took_ms ms)"

