#!/bin/bash
# The user's own ssh configuration, with real sshd: what it sets for terminals, masters, ways,
# forwarding and logging changes neither what a job prints nor when it ends.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 3

# $1 = name, $2 = lines of the configuration, rest = options and hosts. Rank 0 is heard, there is
# nothing on stderr, and soon nothing holds hvdrun's output.
works() {
    local name=$1 lines=$2 begun
    shift 2
    printf '%s\n' "$lines" "Host *" "Include $HOSTS_STATE/ssh_config" >config
    begun=$(now_ms)
    hosts_exec 1 hvdrun --ssh-arg=-F"$T/config" "$@" sh -c 'echo "rank $HVD_RANK"' </dev/null 2>err | cat >out
    status=${PIPESTATUS[0]} took_ms=$(($(now_ms) - begun))
    [ "$status" = 0 ] || { cat err; die "$name: status $status"; }
    [ ! -s err ] || { head -5 err; die "$name: nothing expected on stderr"; }
    grep -q "rank 0" out || { cat -A out; die "$name: not what rank 0 said"; }
    [ "$took_ms" -lt 6000 ] || die "$name: $took_ms ms"
    echo "ok $name ($took_ms ms)"
}

works "ControlMaster auto" "Host host*
ControlMaster auto
ControlPath /run/own-%C
ControlPersist 30" -H host2,host3
works "ControlMaster auto, again" "Host host*
ControlMaster auto
ControlPath /run/own-%C
ControlPersist yes" -H host2,host3
hosts_exec 1 ssh -F"$T/config" host2 true 2>/dev/null
works "ControlMaster auto, with a master" "Host host*
ControlMaster auto
ControlPath /run/own-%C
ControlPersist yes" -H host2,host3
hosts_exec 1 ssh -F"$T/config" -O check host2 || die "the master has gone"
hosts_exec 1 ssh -F"$T/config" -O exit host2
works "RequestTTY force" "Host *
RequestTTY force" -H host2
works "ProxyJump" "Host host2
ProxyJump host3" -H host2
works "ProxyCommand" "Host host2
ProxyCommand ssh -F $HOSTS_STATE/ssh_config -W %h:%p host3" -H host2
works "RemoteCommand" "Host *
RemoteCommand echo gone" -H host2
works "StdinNull" "Host *
StdinNull yes" -H host2
works "SessionType none" "Host *
SessionType none" -H host2
works "ForkAfterAuthentication, an alias" "Host gpu-node
HostName $HOSTS_NET.2
HostKeyAlias host2
Host *
ForkAfterAuthentication yes" -H gpu-node
works "SendEnv, forwarding, BatchMode, ServerAlive" "Host *
SendEnv LANG LC_* HVD_*
SetEnv FOO=bar
ForwardAgent yes
ForwardX11 yes
ForwardX11Trusted yes
BatchMode yes
ServerAliveInterval 1
LocalForward 2222 host3:22
RemoteForward 2222 host3:22
ExitOnForwardFailure yes
Compression yes
VisualHostKey yes
PermitLocalCommand yes
Tunnel no" -H host2
works "Include of a missing file" "Include /no/such/file
Include /no/such/dir/*" -H host2
works "LogLevel QUIET" "Host *
LogLevel QUIET" -H host2
works "LocalCommand" "Host *
PermitLocalCommand yes
LocalCommand echo gone" -H host2
works "LogLevel DEBUG3" "Host *
LogLevel DEBUG3" -H host2
for again in first second; do
    works "ProxyJump, its $again use of a master" "Host host3
ControlMaster auto
ControlPath /run/jump-%C
ControlPersist 30
LogLevel DEBUG1
Host host2
ProxyJump host3" -H host2
done
works "a master asked for" "Host *
ControlPath /run/asked-%C" --ssh-arg=-oControlMaster=auto --ssh-arg=-oControlPersist=yes -H host2,host3
works "a master asked for, verbose" "Host *
ControlPath /run/verbose-%C" --ssh-arg=-oControlMaster=auto --ssh-arg=-oControlPersist=yes --ssh-arg=-v -H host2
ssh-keygen -q -t ed25519 -N '' -f mine
cp "$HOSTS_STATE/id.pub" both
cat mine.pub >>both
sed "s|id.pub|../both|; s|^Port 22|Port 2299|" "$HOSTS_STATE/2.sshd_config" >2299.conf
hosts_exec 2 setsid "$(command -v sshd)" -D -f "$T/2299.conf" -E "$T/2299.log" </dev/null >/dev/null 2>&1 &
disown
await 5 "sshd on port 2299" ip netns exec "$HOSTS_NAME-1" bash -c "exec 3<>/dev/tcp/$HOSTS_NET.2/2299" 2>/dev/null
works "an alias with Port, User, IdentityFile" "Host gpu-box
HostName $HOSTS_NET.2
HostKeyAlias host2
Port 2299
User root
IdentityFile $T/mine" -H gpu-box
works "-p, -i" "Host host2
HostKeyAlias host2
User nobody
IdentityFile /no/such" -p 2299 -i "$T/mine" -H root@host2:2
