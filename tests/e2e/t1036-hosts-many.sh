#!/bin/bash
# Many hosts whose ssh servers have little room: each takes one login at a time (MaxStartups)
# and is known by two names; 64 ranks on one of them; one that wants a password. 6 hosts
# here, 16 with make soak.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
n=6
[ "${HVD_SOAK:-0}" = 1 ] && n=16
export HOSTS_SSHD='MaxStartups 1:100:1'
hosts_up $n
compile "$HVD_SRC/tests/e2e/sum.c" sum
for i in $(seq "$n"); do echo "$HOSTS_NET.$i alias$i"; done >>"$HOSTS_STATE/hosts"
sed -i 's/^host\([0-9]*\),/host\1,alias\1,/' "$HOSTS_STATE/known_hosts"

all=$(for i in $(seq 2 "$n"); do printf 'host%s,alias%s,' "$i" "$i"; done)
all=${all%,}
np=$((2 * (n - 1)))
run hosts_exec 1 hvdrun -np $np -H "$all" ./sum
expect_status 0
[ "$(grep -c ":sum $((np * (np - 1) / 2)) of $np on " out)" = $np ] || die "$np sums expected"
[ -s err ] && die "nothing expected on stderr"
# shellcheck disable=SC2154
echo "ok $np logins at $((n - 1)) servers that take one at a time, $took_ms ms"

run hosts_exec 1 hvdrun -np 64 -H host2:64 ./sum
expect_status 0
[ "$(grep -c ':sum 2016 of 64 on host2$' out)" = 64 ] || die "64 sums expected"
[ -s err ] && die "nothing expected on stderr"
echo "ok 64 ranks on one host, $took_ms ms"

hosts_exec "$n" setsid "$(command -v sshd)" -D -p 2201 -o "HostKey=$HOSTS_STATE/$n.key" -o PidFile=none -o UsePAM=no \
    -o PubkeyAuthentication=no -o PasswordAuthentication=yes -o KbdInteractiveAuthentication=no -f /dev/null \
    </dev/null >/dev/null 2>&1 &
disown
await 5 "a server that wants a password" ip netns exec "$HOSTS_NAME-1" \
    bash -c "exec 3<>/dev/tcp/$HOSTS_NET.$n/2201" 2>/dev/null
printf '%s\n' "Include $HOSTS_STATE/ssh_config" "Host alias$n" "  Port 2201" "  HostKeyAlias host$n" >config
run hosts_exec 1 hvdrun -np $np --ssh-arg=-F"$T/config" -H "$all" sleep 60
expect_status 125
expect_within 10000
expect_line err "^hvdrun: alias$n: permission denied for root@alias$n \(it accepts: password\)"
[ "$(wc -l <err)" -le 3 ] || die "more than three lines"
nobody_there() { ! cat /proc/[0-9]*/comm 2>/dev/null | grep -qx hvd-agent || [ -z "$(for i in $(seq "$n"); do for p in $(hosts_pids "$i"); do cat "/proc/$p/comm"; done; done 2>/dev/null | grep -x hvd-agent)" ]; }
await 5 "the end of all agents" nobody_there
echo "ok one host of many wants a password: named, and nobody stays"
