#!/bin/bash
# Ranks on other hosts, with a fake ssh first on PATH that runs the command here: one ssh a
# host, nothing secret in its words, banners skipped, failures worded, and the death of an
# ssh or of hvdrun leaves nothing.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"

mkdir bin elsewhere
cat >bin/ssh <<'END'
#!/bin/bash
# The host's name says how it behaves; each call is a line of $T/calls.
printf '%s\n' "$*" >>"$T/calls"
case ${FAKE_OLD:-0}$* in
1*StdinNull*) # before 8.7
    echo "command-line: line 0: Bad configuration option: stdinnull" >&2
    exit 255
    ;;
esac
settings=
while [ $# -gt 0 ]; do
    case $1 in
    -G) settings=1 ;;
    -o | -p | -i) shift ;;
    -*) ;;
    *) break ;;
    esac
    shift
done
host=${1#*@}
if [ -n "$settings" ]; then
    printf 'user me\nhostname %s\nport 22\n' "${FAKE_ADDRESS:-127.0.0.1}"
    exit 0
fi
fail() {
    printf '%s\r\n' "$@" >&2
    exit 255
}
case $host in
unknown*) fail "ssh: Could not resolve hostname $host: Name or service not known" ;;
refuses*) fail "ssh: connect to host $host port 22: Connection refused" ;;
silent*) fail "ssh: connect to host $host port 22: Connection timed out" ;;
denies*) fail "me@$host: Permission denied (publickey,password)." ;;
newkey*) fail "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @" "Host key verification failed." ;;
nokey*) fail "No ED25519 host key is known for $host and you have requested strict checking." "Host key verification failed." ;;
crowded*) # the third time there is room
    touch "$T/crowd.$host"
    [ "$(wc -l <"$T/crowd.$host")" = 2 ] || {
        echo again >>"$T/crowd.$host"
        fail "kex_exchange_identification: read: Connection reset by peer"
    }
    ;;
moved*) # hvd is somewhere else there
    ln -sf "$HVD_BUILD/bin/hvd-agent" "$T/elsewhere/hvd-agent"
    exec env PATH="$T/elsewhere:$PATH" SHELL=/bin/sh sh -c "${2//$HVD_BUILD//nowhere}"
    ;;
busy*) fail "kex_exchange_identification: Connection closed by remote host" ;;
empty*) echo "sh: 1: exec: hvd-agent: not found" >&2; exit 127 ;;
slow*) exec sleep 60 ;;
old*)
    printf 'VH\001\000\161\000\000\000\007\000\000\000\012\0050.0.9'
    exec sleep 60
    ;;
strange*)
    printf 'VH\011\000\161\000\000\000\007\000\000\000whatever'
    exec sleep 60
    ;;
noisy*) printf 'Welcome to %s\nVH\001\nVH is a magic word\n' "$host"; echo "a banner" >&2 ;;
endless*) yes 'still talking' ;;
esac
# another login: other variables than hvdrun's
exec env -u MARKED SHELL=/bin/sh SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22' sh -c "$2"
END
chmod +x bin/ssh
export PATH=$T/bin:$PATH T
compile "$HVD_SRC/tests/e2e/sum.c" sum

export MARKED='dots.and "quotes"
and a newline'
SSH_TTY=/dev/x run hvdrun -np 4 -H host1:2,me@host2:2 sh -c 'echo "$HVD_RANK $HVD_LOCAL_RANK $HVD_LOCAL_SIZE $HVD_CROSS_RANK $HVD_CROSS_SIZE $HVD_HOSTNAME $HOROVOD_HOSTNAME|$SSH_TTY|$PWD"; printf %s "$MARKED" >marked.$HVD_RANK'
expect_status 0
expect_line out "^\[0\]<stdout>:0 0 2 0 2 host1 host1\|\|$T$"
expect_line out "^\[1\]<stdout>:1 1 2 0 2 host1 host1\|\|$T$"
expect_line out "^\[2\]<stdout>:2 0 2 1 2 host2 host2\|\|$T$"
expect_line out "^\[3\]<stdout>:3 1 2 1 2 host2 host2\|\|$T$"
[ -s err ] && die "nothing expected on stderr"
for r in 0 1 2 3; do
    [ "$(cat marked.$r)" = "$MARKED" ] || die "the environment arrives changed"
done
[ "$(grep -c -- --stdin calls)" = 2 ] || die "one ssh a host expected: $(cat calls)"
grep -q -- "-o BatchMode=yes .* me@host2 exec sh -c '.* --stdin' '$HVD_BUILD/bin/hvd-agent'" calls ||
    die "not the words expected: $(cat calls)"
grep -qi 'marked\|quotes\|key=' calls && die "the environment is in the words of ssh"
echo "ok one ssh a host; plan, environment and directory arrive"

rm calls
run hvdrun -np 2 -p 2222 -i /some/key --ssh-arg -v --ssh-arg=-oUser=you -H host1,host2 true
expect_status 0
grep -q -- "^-v -oUser=you -p 2222 -i /some/key -T -x -o BatchMode" calls ||
    die "not the words expected: $(cat calls)"
echo "ok -p, -i, --ssh-arg"

FAKE_OLD=1 run hvdrun -np 2 -H host1,host2 true
expect_status 0
FAKE_OLD=1 run hvdrun doctor -H host1,host2
expect_line out "^host1 .*ok"
[ "$(grep -c -- '--stdin\|--check' calls)" = 6 ] || die "another try of an ssh: $(cat calls)"
echo "ok an old ssh is not given options that it does not know"

run hvdrun -np 5 -H host1:2,localhost:1,noisy:2 ./sum
expect_status 0
[ "$(grep -c ':sum 10 of 5 on ' out)" = 5 ] || die "five sums expected"
[ -s err ] && die "nothing expected on stderr"
run hvdrun -np 2 -H host1,host2 sh -c 'echo "$MASTER_ADDR $HVD_COORDINATOR"; stat -c "%a %n" "$HVD_KEY_FILE" "${HVD_KEY_FILE%/*}"'
expect_line out ':127\.0\.0\.1 tcp:127\.0\.0\.1:[0-9]+$'
expect_line out ':600 /.*/hvd-[^/]*/key$'
expect_line out ':700 /.*/hvd-[^/]*$'
[ "$(grep -c ':600 ' out)" = 2 ] || die "two key files expected"
sed -n 's/.*:700 //p' out | while read -r dir; do
    await 2 "the end of $dir" test ! -e "$dir"
done || exit 1
echo "ok shared memory inside, TCP between; banners are skipped; key file and directory"

printf 'input' >in
run hvdrun -np 2 -H localhost,host2 --stdin all cat <in
[ "$(sort out | tr '\n' ,)" = '[0]<stdout>:input,[1]<stdout>:input,' ] || die "stdin to all"
run hvdrun -np 4 -H host1:2,host2:2 --grace 3 sh -c 'if [ $HVD_RANK = 3 ]; then exit 9; fi; sleep 100'
expect_status 9
expect_within 2500
expect_line err '^hvdrun: rank 3 on host2 \(pid [0-9]+\) exited with status 9 after'
run hvdrun -np 2 -H host1,host2 --wdir /nonexistent true
expect_status 125
expect_line err '^hvdrun: host[12]: working directory /nonexistent: No such file'
run hvdrun -np 2 -H host1,host2 no-such-program
expect_status 127
expect_line err "^hvdrun: host[12]: command 'no-such-program' is not on PATH"
echo "ok input, failing ranks, a missing directory or program name the host"

# $1 = host, $2 = expression for stderr
fails() {
    run hvdrun -np 2 -H "host1,$1" sleep 60
    expect_status 125
    expect_line err "^hvdrun: $2"
    [ "$(wc -l <err)" -le 2 ] || die "more than two lines"
    expect_within 4000
}
fails unknown1 'unknown host unknown1:'
fails refuses1 'refuses1: connection refused: no ssh server listens on port 22 there'
fails silent1 'silent1: no answer from the ssh server there within 10 s'
fails denies1 'denies1: permission denied for me@denies1 \(it accepts: publickey,password\)'
expect_line err "ssh-copy-id denies1"
fails newkey1 'newkey1: its host key has changed'
expect_line err "ssh-keygen -R newkey1"
fails nokey1 'nokey1: its host key is not known here'
fails busy1 'busy1: its ssh server closed the connection before the login'
fails empty1 "empty1: there is no $HVD_BUILD/bin/hvd-agent there, nor hvd-agent on PATH;$"
fails old1 'the agent on old1 is of version 0\.0\.9, this hvdrun of [0-9.]+; install the same'
fails strange1 'the agent on strange1 sent what cannot be read \(not an hvd frame'
fails endless1 'the agent on endless1 sent what cannot be read \(64 KiB of text and no frame'
run hvdrun -np 1 --agent-path /my/agent -H empty1 true
expect_line err '^hvdrun: empty1: there is no /my/agent there \(--agent-path\)$'
PATH=$HVD_BUILD/bin run hvdrun -np 1 -H host1 true
expect_status 125
expect_line err '^hvdrun: host1: cannot start ssh: No such file or directory; ranks on other hosts need ssh'
echo "ok failures of ssh name the host and the fix"

run hvdrun -np 3 -H host1,crowded1,crowded2 ./sum
expect_status 0
[ "$(grep -c ':sum 3 of 3 on ' out)" = 3 ] || die "three sums expected"
run hvdrun -np 1 -H moved1 echo x
expect_status 0
run hvdrun --fanout 1 -np 4 -H host1,host2,host3,host4 ./sum
expect_status 0
echo "ok a busy server gets another try; hvd-agent is found on PATH; one host after another"

cat >bin/srun <<'END'
#!/bin/bash
printf '%s\n' "$*" >>"$T/steps"
while [ "${1#-}" != "$1" ]; do shift; done
exec "$@"
END
chmod +x bin/srun
rm calls
SLURM_JOB_ID=1 run hvdrun -np 2 -H host1,host2 ./sum
expect_status 0
[ "$(grep -c -- '--overlap .*--nodelist=host[12] sh -c' steps)" = 2 ] || die "two steps expected: $(cat steps)"
printf '#!/bin/sh\necho "$1" >>"$T/hops"\nshift\nexec "$@"\n' >bin/hop
chmod +x bin/hop
HVD_RSH='hop to-%h' run hvdrun -np 2 -H host1,host2 true
expect_status 0
[ "$(sort hops | tr '\n' ' ')" = 'to-host1 to-host2 ' ] || die "two hops expected: $(cat hops)"
run hvdrun --rsh 'false -x' -np 1 -H host1 true
expect_status 125
expect_line err "^hvdrun: host1: 'false -x' exited with status 1 before hvd-agent answered$"
[ ! -e calls ] || die "ssh was called: $(cat calls)"
rm bin/srun
echo "ok srun inside a Slurm job; --rsh and HVD_RSH"

# ssh is hvd-agent here, because of exec
hvdrun -x SSH_RUN=$$ -np 4 -H host1:2,host2:2 sh -c 'sleep 300; true' >out 2>err &
hvdrun=$!
ranks_are_up() { [ "$(carrying SSH_RUN $$ | wc -l)" -ge 8 ]; }
await 10 "the ranks" ranks_are_up
kill -KILL "$(children $hvdrun hvd-agent | head -n 1)"
wait $hvdrun
[ $? = 125 ] || die "another status than 125"
expect_line err '^hvdrun: the ssh to host[12] was killed by signal 9 \(SIGKILL\); the job ends'
await 3 "the end of all ranks" nobody_carries SSH_RUN $$
echo "ok the death of an ssh ends the job"

hvdrun -x SSH_RUN=$$ -np 4 -H host1:2,host2:2 sh -c 'sleep 300; true' >out 2>err &
hvdrun=$!
await 10 "the ranks" ranks_are_up
kill -KILL $hvdrun
wait $hvdrun 2>/dev/null
await 3 "the end of all ranks" nobody_carries SSH_RUN $$
echo "ok the death of hvdrun leaves no rank"

run hvdrun -np 3 --start-timeout 1.5 -H host1,slow1,slow2 true
expect_status 125
expect_within 5000
expect_line err '^hvdrun: not all ranks started within 1\.5 s \(--start-timeout\): slow1 \(logging in and starting hvd-agent\), slow2 \(logging in'
[ "$(wc -l <err)" = 2 ] || die "not two lines"
echo "ok the start timeout names hosts and step"

rm -f calls
(hvdrun -np 2 -H host1,slow1 true >out 2>err; echo $? >status) &
job=$!
await 5 "the slow ssh" grep -qs 'slow1.*--stdin' calls
kill -INT "$(child $job hvdrun)"
await 5 "the end after ^C" test -s status
[ "$(cat status)" = 130 ] || die "status $(cat status), not 130"
echo "ok ^C while ssh connects"
