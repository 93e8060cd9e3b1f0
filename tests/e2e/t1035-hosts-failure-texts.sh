#!/bin/bash
# What hvdrun says when a host cannot be used, with real sshd: tests/e2e/golden/texts/ssh-*
# word for word, each within the time it takes to know. The login's shell, its rc files, its
# key files, the ssh configuration, the file system and the agent there, as users have them.
# deadline: 200
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
. "$HVD_SRC/tests/e2e/golden.sh"
hosts_need
hosts_up 3

# $1 = golden file, $2 = at most ms, rest: options of hvdrun
fails() {
    local name=$1 limit=$2
    shift 2
    run hosts_exec 1 hvdrun "$@" true
    golden "ssh-$name" "$limit"
    grep -qE 'host[23]|nowhere|odd|jump' err || die "$name: no host is named"
}
# rest: options
works() {
    run hosts_exec 1 hvdrun "$@" true
    expect_status 0
    [ -s err ] && die "nothing expected on stderr"
}

# A further sshd on host 2. $1 = port, rest = settings that come first
server() {
    local port=$1
    shift
    printf '%s\n' "$@" "Port $port" "PidFile none" "HostKey $HOSTS_STATE/2.key" "StrictModes no" \
        "AuthorizedKeysFile $HOSTS_STATE/id.pub" "UsePAM no" "PermitRootLogin yes" \
        "PasswordAuthentication no" "KbdInteractiveAuthentication no" "UseDNS no" >"$port.conf"
    hosts_exec 2 setsid "$(command -v sshd)" -D -f "$T/$port.conf" -E "$T/$port.log" </dev/null >/dev/null 2>&1 &
    disown
    await 5 "sshd on port $port" ip netns exec "$HOSTS_NAME-1" \
        bash -c "exec 3<>/dev/tcp/$HOSTS_NET.2/$port" 2>/dev/null
    printf '[host2]:%s %s\n' "$port" "$(cut -d' ' -f1,2 "$HOSTS_STATE/2.key.pub")" >>"$HOSTS_STATE/known_hosts"
}

# ---- the name, the way
fails unknown-host 3000 -H host2,nowhere
fails refused 3000 -p 23 -H host2
echo "10.78.0.2 faraway" >>"$HOSTS_STATE/hosts"
printf '%s\n' "Host host2" "  Port 24" "Host odd" "  HostName typo" "Host jump" "  HostName host3" \
    "  HostKeyAlias host3" "  ProxyJump nowhere" "Host jump2" "  HostName host3" "  HostKeyAlias host3" \
    "  ProxyJump faraway:25" "Include $HOSTS_STATE/ssh_config" >config
fails refused-configured 3000 --ssh-arg=-F"$T/config" -H host2
fails unknown-configured 3000 --ssh-arg=-F"$T/config" -H odd
fails jump-unknown 6000 --ssh-arg=-F"$T/config" -H jump
fails jump-refused 6000 --ssh-arg=-F"$T/config" -H jump2
fails proxy-missing 6000 --ssh-arg=-oProxyCommand=/no/such/proxy -H host2
hosts_cut 1 3
fails timed-out 14000 -H host3
hosts_heal 3
hosts_unplug 3
fails unreachable 8000 -H host3
hosts_heal 3
printf '%s\n' "10.78.0.99 two" "10.78.0.2 two" >>"$HOSTS_STATE/hosts"
works --ssh-arg=-oHostKeyAlias=host2 -H two
echo "ok names and ways"

# ---- keys of hosts and users
fails key-unknown 3000 --ssh-arg=-oUserKnownHostsFile=/dev/null -H host2
ssh-keygen -q -t ed25519 -N '' -f other
sed "s|^host2.*|host2,10.78.0.2 $(cut -d' ' -f1,2 other.pub)|" "$HOSTS_STATE/known_hosts" >known
fails key-changed 3000 --ssh-arg=-oUserKnownHostsFile="$T/known" -H host2
ssh-keygen -q -H -f known 2>/dev/null
fails key-changed-hashed 3000 --ssh-arg=-oUserKnownHostsFile="$T/known" -H host2
server 2203
printf '[host2]:2203 %s\n' "$(cut -d' ' -f1,2 other.pub)" >known
fails key-changed-port 3000 -p 2203 --ssh-arg=-oUserKnownHostsFile="$T/known" -H host2
fails host-key-algorithm 3000 --ssh-arg=-oHostKeyAlgorithms=ssh-rsa -H host2
fails denied 3000 --ssh-arg=-oPubkeyAuthentication=no -H host2
server 2201 'PubkeyAuthentication no' 'PasswordAuthentication yes'
fails password-only 3000 -p 2201 -H host2
ssh-keygen -q -t ed25519 -N 'a passphrase' -f locked
fails passphrase 3000 --ssh-arg=-F/dev/null --ssh-arg=-oUserKnownHostsFile="$HOSTS_STATE/known_hosts" --ssh-arg=-oIdentitiesOnly=yes -i "$T/locked" -H host2
install -m 644 "$HOSTS_STATE/id" open
fails key-open 3000 --ssh-arg=-F/dev/null --ssh-arg=-oUserKnownHostsFile="$HOSTS_STATE/known_hosts" --ssh-arg=-oIdentitiesOnly=yes -i "$T/open" -H host2
fails key-missing 3000 --ssh-arg=-F/dev/null --ssh-arg=-oUserKnownHostsFile="$HOSTS_STATE/known_hosts" --ssh-arg=-oIdentitiesOnly=yes -i "$T/not-there" -H host2
printf '%s\n' "Host *" "  Colour blue" >bad
fails config-wrong 3000 --ssh-arg=-F"$T/bad" -H host2
echo "ok keys"

# ---- how many
server 2204 'MaxSessions 0'
fails no-sessions 3000 -p 2204 -H host2
server 2202 'MaxStartups 1:100:1'
hosts_exec 1 bash -c 'until [[ ${hello-} = SSH-* ]]; do exec 3<>/dev/tcp/10.78.0.2/2202; read -r hello <&3; done
    echo "$hello" >held; exec sleep 100' &
disown
await 5 "a connection that takes the only place" test -s held
fails crowded 10000 -p 2202 -H host2
sock=/run/mux
works --ssh-arg=-oControlMaster=auto --ssh-arg=-oControlPath=$sock --ssh-arg=-oControlPersist=20 -H host2
server 2205 'MaxSessions 1'
hosts_exec 1 ssh -p 2205 -M -S $sock -fN -o ControlPersist=60 host2
works -p 2205 --ssh-arg=-S$sock -H host2
hosts_exec 1 ssh -p 2205 -S $sock -O exit host2 2>/dev/null
hosts_exec 1 bash -c "rm -f $sock; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"$sock\")' 2>/dev/null || : >$sock"
run hosts_exec 1 hvdrun --ssh-arg=-S$sock -H host2 true
expect_status 0
echo "ok few places; a master connection"

# ---- the shell there. $1 = shell; the home directory is $T/home
mkdir home
login_shell() {
    sed "s|^root:.*|root:x:0:0:root:$T/home:$1|" /etc/passwd >passwd
    hosts_exec 2 umount /etc/passwd 2>/dev/null
    hosts_exec 2 mount --bind "$T/passwd" /etc/passwd
}
for shell in csh tcsh fish zsh ksh dash; do
    path=$(command -v $shell) || continue
    login_shell "$path"
    works -H host2
    fails agent-missing-named 4000 --agent-path /no/hvd-agent -H host2
done
login_shell "$(command -v bash)"
echo 'echo "Welcome!"; echo "to this host" >&2; stty erase ^H' >home/.bashrc
run hosts_exec 1 hvdrun -H host2 true
expect_status 0
echo 'exit 3' >home/.bashrc
fails rc-exits 4000 -H host2
echo 'exit 0' >home/.bashrc
fails rc-exits-0 4000 -H host2
echo 'echo "quota exceeded: no logins"; exit 1' >home/.bashrc
fails rc-says 4000 -H host2
echo 'exec sh' >home/.bashrc
fails rc-execs 6000 --start-timeout 3 -H host2
echo 'read -r answer' >home/.bashrc
fails rc-asks 6000 --start-timeout 3 -H host2
rm home/.bashrc
login_shell /usr/sbin/nologin
fails nologin 4000 -H host2
login_shell /bin/false
fails false 4000 -H host2
login_shell "$(command -v bash)"
echo "ok shells and their rc files"

# ---- the agent there
fails agent-missing-named 4000 --agent-path /no/hvd-agent -H host2
hosts_exec 2 mount -t tmpfs none "$HVD_BUILD/bin"
fails agent-missing 4000 -H host2
hosts_exec 2 umount "$HVD_BUILD/bin"
cp "$HVD_BUILD/bin/hvd-agent" agent
printf '\x08' | dd of=agent bs=1 seek=18 conv=notrunc status=none # ELF for another machine
fails agent-foreign 4000 --agent-path "$T/agent" -H host2
hosts_exec 2 mount --bind "$T/agent" "$HVD_BUILD/bin/hvd-agent"
fails agent-foreign-found 4000 -H host2
hosts_exec 2 umount "$HVD_BUILD/bin/hvd-agent"
cp "$HVD_BUILD/bin/hvd-agent" agent
chmod -x agent
fails agent-not-executable 4000 --agent-path "$T/agent" -H host2
hosts_exec 2 mount --bind "$T/agent" "$HVD_BUILD/bin/hvd-agent"
fails agent-not-executable-found 4000 -H host2
hosts_exec 2 umount "$HVD_BUILD/bin/hvd-agent"
hosts_exec 2 sh -c "mkdir /run/noexec && mount -t tmpfs -o noexec none /run/noexec && cp '$HVD_BUILD/bin/hvd-agent' /run/noexec"
fails agent-noexec 4000 --agent-path /run/noexec/hvd-agent -H host2
cat >agent <<'EOF'
#!/bin/sh
echo "$0: /lib/x86_64-linux-gnu/libc.so.6: version \`GLIBC_2.38' not found (required by $0)" >&2
exit 1
EOF
chmod +x agent
fails agent-glibc 4000 --agent-path "$T/agent" -H host2
cat >agent <<'EOF'
#!/bin/sh
echo "$0: error while loading shared libraries: libuv.so.1: cannot open shared object file: No such file or directory" >&2
exit 127
EOF
fails agent-library 4000 --agent-path "$T/agent" -H host2
printf '#!/bin/sh\nprintf "VH\\001\\000\\161\\000\\000\\000\\007\\000\\000\\000\\012\\0050.0.9"\nexec sleep 60\n' >agent
fails agent-version 4000 --agent-path "$T/agent" -H host2
echo "ok the agent there"

# ---- its files
# $1 = options of a tmpfs for /tmp of host 2; what tests need of /tmp stays
small_tmp() {
    hosts_exec 2 sh -c '
        opts=$1; shift
        for dir; do mkdir -p "/run/keep$dir" && mount --bind "$dir" "/run/keep$dir"; done
        mount -t tmpfs -o "$opts" none /tmp
        for dir; do mkdir -p "$dir" && mount --bind "/run/keep$dir" "$dir"; done' - "$1" "$T" "$HVD_BUILD"
}
small_tmp size=8k
hosts_exec 2 sh -c 'cat /dev/zero >/tmp/full 2>/dev/null'
fails tmp-full 4000 -H host2
hosts_exec 2 mount -o remount,ro /tmp
fails tmp-read-only 4000 -H host2
hosts_exec 2 umount -l /tmp
hosts_exec 1 mkdir /run/here
fails wdir-missing 4000 --wdir /run/here -H host1,host2
run hosts_exec 1 hvdrun -H host1,host2 no-such-python
golden hosts-program-missing
printf '#!/usr/bin/no-such-python\n' >script
chmod +x script
run hosts_exec 1 hvdrun -H host2 ./script
golden hosts-program-interpreter
echo "ok its files"

# ---- later
ends() { # $1 = golden file, $2 = lines at most; rest: what breaks it
    local name=$1 lines=$2 job
    shift 2
    (
        HVD_LEASE_SECONDS=5 hosts_exec 1 hvdrun --grace 1 -H host2,host3 sh -c 'echo up; exec sleep 100' >out 2>err
        echo $? >code
    ) &
    job=$!
    await 10 "both ranks" eval '[ "$(grep -c up out)" = 2 ]'
    "$@"
    wait $job
    # shellcheck disable=SC2034
    status=$(cat code)
    export took_ms=0
    golden "$name" 0 "$lines"
}
on() { # processes named $2 on host $1
    local pid
    for pid in $(hosts_pids "$1"); do [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && echo "$pid"; done
}
ends hosts-agent-lost 1 eval 'kill -KILL $(on 3 hvd-agent)'
ends hosts-sshd-lost 1 eval 'kill -KILL $(for p in $(on 3 sshd); do grep -qa notty "/proc/$p/cmdline" && echo $p; done)'
rank_on() { # of this job: $1 = host
    local pid
    for pid in $(on "$1" sleep); do grep -qzx 'HVD_RANK=1' "/proc/$pid/environ" 2>/dev/null && echo "$pid" && return 0; done
    return 1
}
kill_rank() {
    await 5 "the program of rank 1" eval 'victim=$(rank_on 3)'
    # shellcheck disable=SC2154
    kill -KILL "$victim"
}
ends hosts-rank-killed 2 kill_rank
ends hosts-cut-off 2 hosts_unplug 3
echo "ok what is lost later"
