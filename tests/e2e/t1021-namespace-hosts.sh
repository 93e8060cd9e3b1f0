#!/bin/bash
# Ranks on other hosts by real ssh: three hosts in namespaces of their own, hvdrun on the
# first. The job across hosts; failures of ssh in its own words; a host that is cut off.
# deadline: 150
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 3
compile "$HVD_SRC/tests/e2e/sum.c" sum
export SSH_RUN=$$

run hosts_exec 1 hvdrun -np 4 -H host1:2,host2:2 ./sum
expect_status 0
[ "$(grep -c ':sum 6 of 4 on host1$' out)$(grep -c ':sum 6 of 4 on host2$' out)" = 22 ] || die "four sums expected"
[ -s err ] && die "nothing expected on stderr"
run hosts_exec 1 hvdrun -np 3 -H host1,host2,host3 sh -c 'echo "$HVD_RANK on $(hostname) $MASTER_ADDR $HVD_COORDINATOR"; stat -c "%a" "$HVD_KEY_FILE" "${HVD_KEY_FILE%/*}"'
expect_status 0
for r in 0 1 2; do
    expect_line out "^\[$r\]<stdout>:$r on host$((r + 1)) 10\.78\.0\.1 tcp:10\.78\.0\.1:[0-9]+$"
    expect_line out "^\[$r\]<stdout>:600$"
    expect_line out "^\[$r\]<stdout>:700$"
done
run hosts_exec 1 hvdrun -np 2 -H other,host3 sh -c 'echo "$HVD_HOSTNAME on $(hostname) $MASTER_ADDR"'
expect_status 0
expect_line out '^\[0\]<stdout>:other on host2 10\.78\.0\.2$'
expect_line out '^\[1\]<stdout>:host3 on host3 10\.78\.0\.2$'
run hosts_exec 1 hvdrun -np 2 -H host3,other sh -c 'echo "$HVD_HOSTNAME on $(hostname) $MASTER_ADDR"'
expect_status 0
expect_line out '^\[1\]<stdout>:other on host2 10\.78\.0\.3$'
echo "ok a job on hosts with real ssh, one named by its alias"

run hosts_exec 1 hvdrun -np 5 -H host1:1,host2:2,host3:2 "$HVD_BUILD/examples/train_mnist" --data "$HVD_SRC/worker/examples/data" --epochs 1
expect_status 0
expect_line out 'bit-identical on 5 ranks'
echo "ok the demo on three uneven hosts: the same bits everywhere"

# $1 = expression for stderr; rest: options
fails() {
    local text=$1
    shift
    run hosts_exec 1 hvdrun -np 2 "$@" sleep 60
    expect_status 125
    expect_line err "^hvdrun: $text"
    [ "$(wc -l <err)" -le 2 ] || die "more than two lines"
    expect_within 6000
}
fails 'unknown host nowhere:' -H host2,nowhere
fails 'host2: connection refused: no ssh server listens on port 23 there' -p 23 -H host1,host2
fails 'host2: permission denied for root@host2 \(it accepts: publickey\)' --ssh-arg=-oPubkeyAuthentication=no -H host1,host2
fails 'host2: its host key is not known here' --ssh-arg=-oUserKnownHostsFile=/dev/null -H host1,host2
ssh-keygen -q -t ed25519 -N '' -f other
sed "s|^host2.*|host2,10.78.0.2 $(cut -d' ' -f1,2 other.pub)|" "$HOSTS_STATE/known_hosts" >known
fails 'host2: its host key has changed' "--ssh-arg=-oUserKnownHostsFile=$T/known" -H host1,host2
hosts_exec 3 mount -t tmpfs none "$HVD_BUILD/bin"
fails "host3: there is no $HVD_BUILD/bin/hvd-agent there" -H host2,host3
hosts_exec 3 umount "$HVD_BUILD/bin"
fails '--network-interfaces: no interface of this host' --network-interfaces nope0 -H host1,host2
expect_within 2000
run hosts_exec 1 hvdrun -np 2 --network-interfaces nope0,eth0 -H host1,host2 true
expect_status 0
echo "ok what ssh says becomes a line that names host and fix"

# $1 = number of processes with our mark that must be there
running() { [ "$(carrying SSH_RUN $$ | while read -r p; do cat "/proc/$p/comm"; done 2>/dev/null | grep -c '^sleep$')" = "$1" ]; }
start() {
    (
        hosts_exec 1 hvdrun -np 6 -H host1:2,host2:2,host3:2 sh -c 'sleep 400; true' >out 2>err
        echo $? >status
    ) &
    await 10 "the ranks" running 6
}
on() { # the process named $2 on host $1
    local pid
    for pid in $(hosts_pids "$1"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && echo "$pid" && return 0
    done
    return 1
}
for victim in '1 ssh' '2 hvd-agent' '1 hvdrun'; do
    rm -f status
    start
    # shellcheck disable=SC2086
    kill -KILL "$(on $victim)"
    await 5 "the end of all ranks after SIGKILL of $victim" running 0
    await 5 "the end of hvdrun" test -s status
    case $victim in
    *hvdrun) [ "$(cat status)" = 137 ] || die "status $(cat status)" ;;
    *) [ "$(cat status)" = 125 ] || die "status $(cat status), not 125" ;;
    esac
done
echo "ok SIGKILL of ssh, an agent, hvdrun: no rank stays on any host"

# Two jobs: one loses a host, the other, on hosts 3 and 2, is cut off from its launcher.
rm -f status
start
(
    SSH_RUN=other hosts_exec 3 hvdrun -np 2 -H host3,host2 -x LAUNCHER=3.$$ sleep 400 >out3 2>err3
    echo $? >status3
) &
their_ranks() { [ "$(carrying LAUNCHER 3.$$ | wc -l)" = "$1" ]; }
await 10 "the ranks of the second job" their_ranks 2
hosts_unplug 3
await 20 "the end of all ranks after a host was cut off" running 0
await 5 "the end of hvdrun" test -s status
[ "$(cat status)" = 125 ] || die "status $(cat status), not 125"
expect_line err '^hvdrun: .*host3'
await 5 "the end of the second job's ranks" their_ranks 0
await 5 "the end of the hvdrun that was cut off" test -s status3
[ "$(cat status3)" = 125 ] || die "status $(cat status3), not 125: $(cat err3)"
no_agent() { ! on 3 hvd-agent >/dev/null && ! on 2 hvd-agent >/dev/null; }
await 8 "the end of all agents" no_agent
echo "ok a host that is cut off ends the job, and its own ranks, within 20 s"
