# shellcheck shell=bash
# "Hosts" for tests, on one machine: each has its own network, hostname, processes and
# mounts, a private /run and /dev/shm, and a real sshd on port 22. A bridge inside one more
# network namespace joins them, so nothing is added to the machine's own network and no
# packet leaves. The files are shared: a program is at the same path on every host.
# Needs root, iproute2, util-linux and sshd.
#
#   . "$HVD_SRC/tests/e2e/hosts.sh"
#   hosts_need                 exit 77 with the reason where this is not possible
#   hosts_up N                 host1 (10.78.0.1) .. hostN; all gone when the script exits
#   hosts_exec I COMMAND...    run it on host I, in this directory, with this environment
#   hosts_pids I               its processes, as seen from outside
#   hosts_unplug I             nothing reaches it or leaves it any more; no link-down event
#   hosts_kill I               unplug it and kill all that runs there: the power fails
#   hosts_partition I J [oneway]   nothing goes from I to J (and from J to I) any more
#   hosts_heal I               its link is as new
#   hosts_freeze I, hosts_thaw I   stop, continue all that runs there
#   hosts_shape I DELAY JITTER LOSS   ms, ms, percent: to what I sends, and the loss to what
#                              it receives too; the traffic goes through tests/e2e/relay.c
#
# HOSTS_SSHD: a further line for sshd_config
# HOSTS_IFACE: what the interface is called, with I for the number: HOSTS_IFACE=netI

HOSTS_NET=10.78.0
HOSTS_NAME=hvd$$
HOSTS_STATE=$T/hosts
HOSTS_IFACE=${HOSTS_IFACE-eth0}

hosts_need() {
    local tool
    [ "$(id -u)" = 0 ] || { echo "namespaces need root"; exit 77; }
    PATH=$PATH:/usr/sbin:/sbin
    for tool in ip unshare nsenter setsid ssh ssh-keygen sshd; do
        command -v "$tool" >/dev/null ||
            { echo "$tool is not installed; scripts/deps.sh --test --hosts"; exit 77; }
    done
    if ! ip netns add "$HOSTS_NAME-sw" 2>"$T/why" ||
        ! ip -n "$HOSTS_NAME-sw" link add br0 type bridge 2>"$T/why" ||
        ! ip netns exec "$HOSTS_NAME-sw" unshare --mount --uts --ipc --pid --fork true 2>"$T/why"; then
        ip netns del "$HOSTS_NAME-sw" 2>/dev/null
        echo "namespaces are not possible here: $(head -n 1 "$T/why")"
        exit 77
    fi
    trap hosts_down EXIT
    trap 'exit 1' TERM INT
}

# Runs as the first process of host $1, inside its namespaces. $2 = state directory
hosts_init() {
    mount -t tmpfs -o mode=755 run /run
    mkdir -p /run/sshd
    mount -t tmpfs -o mode=1777 shm /dev/shm
    mount --bind "$2/hosts" /etc/hosts
    mount --bind "$2/resolv.conf" /etc/resolv.conf
    mount --bind "$2/ssh_config" /etc/ssh/ssh_config
    # what a login runs there may take its time, or wait for a lock that a kill has left
    for rc in /root/.bashrc /root/.bash_profile /root/.bash_login /root/.profile; do
        [ -f "$rc" ] && mount --bind /dev/null "$rc"
    done
    echo "host$1" >/proc/sys/kernel/hostname
    "$(command -v sshd)" -D -f "$2/$1.sshd_config" -E "$2/$1.log" &
    trap : TERM INT HUP
    sleep infinity &
    while :; do wait; done
}

hosts_create() {
    local i=$1 ns=$HOSTS_NAME-$1 iface=${HOSTS_IFACE//I/$1} launcher
    ip netns add "$ns"
    ip -n "$ns" link set lo up
    ip -n "$HOSTS_NAME-sw" link add "p$i" type veth peer name "$iface" netns "$ns"
    ip -n "$ns" addr add "$HOSTS_NET.$i/24" dev "$iface"
    ip -n "$ns" link set "$iface" up
    ip -n "$HOSTS_NAME-sw" link set "p$i" master br0 up
    ssh-keygen -q -t ed25519 -N '' -f "$HOSTS_STATE/$i.key"
    printf '%s\n' "Port 22" "PidFile none" "HostKey $HOSTS_STATE/$i.key" "StrictModes no" \
        "AuthorizedKeysFile $HOSTS_STATE/id.pub" "UsePAM no" "PermitRootLogin prohibit-password" \
        "PasswordAuthentication no" "KbdInteractiveAuthentication no" "UseDNS no" \
        "Banner $HOSTS_STATE/banner" ${HOSTS_SSHD:+"$HOSTS_SSHD"} >"$HOSTS_STATE/$i.sshd_config"
    printf '%s,%s %s\n' "host$i" "$HOSTS_NET.$i" "$(cut -d' ' -f1,2 "$HOSTS_STATE/$i.key.pub")" \
        >>"$HOSTS_STATE/known_hosts"
    setsid ip netns exec "$ns" unshare --mount --uts --ipc --pid --fork --kill-child=KILL \
        --mount-proc bash "$HVD_SRC/tests/e2e/hosts.sh" init "$i" "$HOSTS_STATE" \
        </dev/null >"$HOSTS_STATE/$i.init" 2>&1 &
    launcher=$!
    disown
    await 5 "the first process of host$i" eval \
        "cat /proc/$launcher/task/$launcher/children >'$HOSTS_STATE/$i.pid' && [ -s '$HOSTS_STATE/$i.pid' ]"
}

hosts_up() {
    local i n=$1
    mkdir "$HOSTS_STATE"
    ip -n "$HOSTS_NAME-sw" link set br0 up
    {
        echo "127.0.0.1 localhost"
        for i in $(seq "$n"); do echo "$HOSTS_NET.$i host$i"; done
    } >"$HOSTS_STATE/hosts"
    : >"$HOSTS_STATE/resolv.conf" # no name server: questions fail at once
    echo "Only for those who are allowed to." >"$HOSTS_STATE/banner"
    ssh-keygen -q -t ed25519 -N '' -f "$HOSTS_STATE/id"
    printf '%s\n' "Host *" "  User root" "  IdentityFile $HOSTS_STATE/id" "  IdentitiesOnly yes" \
        "  UserKnownHostsFile $HOSTS_STATE/known_hosts" "  GlobalKnownHostsFile /dev/null" \
        "  StrictHostKeyChecking yes" "Host other" "  HostName $HOSTS_NET.2" \
        "  HostKeyAlias host2" >"$HOSTS_STATE/ssh_config"
    for i in $(seq "$n"); do hosts_create "$i"; done
    for i in $(seq "$n"); do
        await 10 "sshd of host$i" hosts_answers "$i"
    done
}

hosts_answers() {
    ip netns exec "$HOSTS_NAME-$1" bash -c "exec 3<>/dev/tcp/$HOSTS_NET.$1/22" 2>/dev/null
}

hosts_exec() {
    local pid
    pid=$(tr -d ' ' <"$HOSTS_STATE/$1.pid")
    shift
    nsenter --target "$pid" --mount --uts --ipc --net --pid \
        bash -c 'cd "$1" && shift && exec "$@"' - "$PWD" "$@"
}

hosts_pids() { ip netns pids "$HOSTS_NAME-$1"; }

hosts_unplug() { ip -n "$HOSTS_NAME-sw" link set "p$1" nomaster; }

# Packets from $1 to $2 go to an address that no interface has.
hosts_cut() {
    ip -n "$HOSTS_NAME-$1" neigh replace "$HOSTS_NET.$2" lladdr 02:00:00:00:de:ad \
        dev "${HOSTS_IFACE//I/$1}" nud permanent
}

hosts_partition() {
    hosts_cut "$1" "$2"
    [ "${3-}" = oneway ] || hosts_cut "$2" "$1"
}

hosts_heal() {
    local i
    ip -n "$HOSTS_NAME-$1" neigh flush dev "${HOSTS_IFACE//I/$1}" nud permanent 2>/dev/null
    for i in "$HOSTS_STATE"/*.pid; do
        i=${i##*/}
        i=${i%.pid}
        ip -n "$HOSTS_NAME-$i" neigh del "$HOSTS_NET.$1" dev "${HOSTS_IFACE//I/$i}" 2>/dev/null
    done
    ip -n "$HOSTS_NAME-sw" link set "p$1" master br0
}

# shellcheck disable=SC2046
hosts_freeze() { kill -STOP $(hosts_pids "$1"); }
# More than once: nsenter stops itself when it sees its child stopped, maybe only now.
hosts_thaw() {
    local pid stopped=1 until=$(($(now_ms) + 3000))
    while [ -n "$stopped" ] && [ "$(now_ms)" -lt $until ]; do
        stopped=
        for pid in $(hosts_pids "$1"); do
            grep -qs '^State:.T' "/proc/$pid/status" && stopped=1
            kill -CONT "$pid" 2>/dev/null
        done
        sleep 0.1
    done
}

# pI <- relay -> rI = bI -> bridge
hosts_shape() {
    local i=$1 sw=$HOSTS_NAME-sw
    [ -x "$HOSTS_STATE/relay" ] ||
        "${CC:-cc}" -O2 -o "$HOSTS_STATE/relay" "$HVD_SRC/tests/e2e/relay.c" || die "cannot compile relay.c"
    ip -n "$sw" link set "p$i" nomaster
    ip -n "$sw" link add "r$i" type veth peer name "b$i"
    ip -n "$sw" link set "r$i" up
    ip -n "$sw" link set "b$i" master br0 up
    shift
    setsid ip netns exec "$sw" "$HOSTS_STATE/relay" "p$i" "r$i" "$@" \
        </dev/null >"$HOSTS_STATE/$i.relay" 2>&1 &
    disown
    await 5 "the relay of host$i" grep -q ready "$HOSTS_STATE/$i.relay"
}

hosts_kill() {
    hosts_unplug "$1"
    kill -KILL "$(tr -d ' ' <"$HOSTS_STATE/$1.pid")"
}

hosts_down() {
    local ns pids
    for ns in /run/netns/"$HOSTS_NAME"-*; do
        ns=${ns##*/}
        pids=$(ip netns pids "$ns" 2>/dev/null)
        # shellcheck disable=SC2086
        [ -z "$pids" ] || kill -KILL $pids 2>/dev/null
        ip netns del "$ns" 2>/dev/null
    done
}

[ "${1-}" != init ] || [ "$#" != 3 ] || [ "$$" != 1 ] || hosts_init "$2" "$3"
