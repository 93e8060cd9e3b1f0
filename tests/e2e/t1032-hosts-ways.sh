#!/bin/bash
# Ways between hosts, with real sshd: a password-only host, a server with few places
# (MaxStartups), a fixed port, interfaces of different names, a host that knows the
# launcher by another address, and hosts with IPv6 alone.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 3
compile "$HVD_SRC/tests/e2e/sum.c" sum

# A further sshd on host 2. $1 = port, rest = settings that come first
server() {
    local port=$1
    shift
    printf '%s\n' "$@" "Port $port" "PidFile none" "HostKey $HOSTS_STATE/2.key" "StrictModes no" \
        "AuthorizedKeysFile $HOSTS_STATE/id.pub" "UsePAM no" "PermitRootLogin yes" \
        "KbdInteractiveAuthentication no" "UseDNS no" >"$port.conf"
    hosts_exec 2 setsid "$(command -v sshd)" -D -f "$T/$port.conf" -E "$T/$port.log" </dev/null >/dev/null 2>&1 &
    disown
    await 5 "sshd on port $port" ip netns exec "$HOSTS_NAME-1" \
        bash -c "exec 3<>/dev/tcp/$HOSTS_NET.2/$port" 2>/dev/null
    printf '[host2]:%s,[a1]:%s,[a2]:%s,[a3]:%s,[a4]:%s,[a5]:%s,[a6]:%s %s\n' "$port" "$port" "$port" "$port" "$port" "$port" "$port" \
        "$(cut -d' ' -f1,2 "$HOSTS_STATE/2.key.pub")" >>"$HOSTS_STATE/known_hosts"
}

server 2201 'PubkeyAuthentication no' 'PasswordAuthentication yes'
run hosts_exec 1 hvdrun -np 2 -p 2201 -H host1,host2 true
expect_status 125
expect_within 8000
expect_line err '^hvdrun: host2: permission denied for root@host2 \(it accepts: password\)'
expect_line err 'ssh-copy-id -p 2201 host2'
[ "$(wc -l <err)" -le 3 ] || die "more than three lines"
run hosts_exec 1 hvdrun doctor -p 2201 -H host1,host2
expect_status 1
expect_line out '^host2 +ssh +FAILED +host2: permission denied for root@host2 \(it accepts: password\)'
echo "ok a host that wants a password: the fix, and no question"

server 2202 'PasswordAuthentication no' 'MaxStartups 2:100:2'
for i in 1 2 3 4 5 6; do echo "$HOSTS_NET.2 a$i" >>"$HOSTS_STATE/hosts"; done
run hosts_exec 1 hvdrun -np 6 -p 2202 -H a1,a2,a3,a4,a5,a6 true
expect_status 0
[ -s err ] && die "nothing expected on stderr"
run hosts_exec 1 hvdrun -np 6 -p 2202 --fanout 2 -H a1,a2,a3,a4,a5,a6 true
expect_status 0
echo "ok MaxStartups: connections that were dropped are tried again"

run hosts_exec 1 hvdrun -np 4 --port 17000 --port-range 17010-17019 -H host1:2,host2:2 sh -c 'echo "$HVD_COORDINATOR"; exec ./sum'
expect_status 0
[ "$(grep -c ':tcp:10\.78\.0\.1:17000$' out)" = 4 ] || die "port 17000 expected"
[ "$(grep -c ':sum 6 of 4 on ' out)" = 4 ] || die "four sums expected"
run hosts_exec 1 hvdrun -np 4 --port-range 17010-17010 -H host1:2,host2:2 ./sum
[ "$status" != 0 ] || die "two ranks on one port, and status 0"
expect_line err 'all ports of 17010-17010 are taken'
run hosts_exec 1 hvdrun -np 2 --port 22 -H host1,host2 true
expect_status 125
expect_line err '^hvdrun: --port: port 22 of this host is taken$'
run hosts_exec 1 hvdrun -np 2 --advertise-address 10.78.0.99 -H host1,host2 true
expect_status 125
expect_line err 'host[12]: cannot reach the coordinator at 10\.78\.0\.99:'
echo "ok --port, --port-range, --advertise-address"

# host2 calls its interface ib7; host3 has a network of its own with the launcher
ip -n "$HOSTS_NAME-2" link set eth0 down
ip -n "$HOSTS_NAME-2" link set eth0 name ib7
ip -n "$HOSTS_NAME-2" link set ib7 up
ip -n "$HOSTS_NAME-1" link add lan9 type veth peer name wan3 netns "$HOSTS_NAME-3"
ip -n "$HOSTS_NAME-1" addr add 10.79.0.1/24 dev lan9
ip -n "$HOSTS_NAME-3" addr add 10.79.0.3/24 dev wan3
ip -n "$HOSTS_NAME-1" link set lan9 up
ip -n "$HOSTS_NAME-3" link set wan3 up
hosts_unplug 3
sed 's|^10\.78\.0\.3 |10.79.0.3 |' "$HOSTS_STATE/hosts" >edited
cat edited >"$HOSTS_STATE/hosts" # the same file: it is mounted
run hosts_exec 1 hvdrun -np 3 -H host1,host2,host3 sh -c 'echo "$HVD_RANK $HVD_COORDINATOR"'
expect_status 0
expect_line out ':0 tcp:10\.78\.0\.1:[0-9]+$'
expect_line out ':1 tcp:10\.78\.0\.1:[0-9]+$'
expect_line out ':2 tcp:10\.79\.0\.1:[0-9]+$'
run hosts_exec 1 hvdrun -np 4 -H host1:2,host2:2 ./sum
expect_status 0
[ "$(grep -c ':sum 6 of 4 on ' out)" = 4 ] || die "four sums expected"
run hosts_exec 1 hvdrun doctor -H host1,host2,host3
expect_status 0
expect_line out '^host2 +networks +ok +ib7 10\.78\.0\.2'
expect_line out '^host3 +call back +ok +10\.79\.0\.1 answers'
echo "ok interfaces of different names; each host calls back by its own way"

for i in 1 2; do
    dev=eth0
    [ $i = 1 ] || dev=ib7
    ip -n "$HOSTS_NAME-$i" -4 addr flush dev $dev
    ip -n "$HOSTS_NAME-$i" -6 addr add "fd78::$i/64" dev $dev nodad
    sed "s|^10\.78\.0\.$i host$i\$|fd78::$i host$i|" "$HOSTS_STATE/hosts" >edited
    cat edited >"$HOSTS_STATE/hosts"
    printf 'fd78::%s %s\n' "$i" "$(cut -d' ' -f1,2 "$HOSTS_STATE/$i.key.pub")" >>"$HOSTS_STATE/known_hosts"
done
for hosts in host1:2,host2:2 'host1:2,[fd78::2]:2'; do
    run hosts_exec 1 hvdrun -np 4 -H "$hosts" sh -c 'echo "$HVD_COORDINATOR $MASTER_ADDR"; exec ./sum'
    expect_status 0
    [ "$(grep -c ':tcp:\[fd78::1\]:[0-9]* fd78::1$' out)" = 4 ] || die "the IPv6 address expected"
    [ "$(grep -c ':sum 6 of 4 on ' out)" = 4 ] || die "four sums expected"
done
run hosts_exec 1 hvdrun doctor -H 'host1,[fd78::2]'
expect_status 0
expect_line out '^fd78::2 +call back +ok +fd78::1 answers'
echo "ok hosts with IPv6 alone"
