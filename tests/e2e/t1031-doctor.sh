#!/bin/bash
# hvdrun doctor: one line a check, with its fix, for each host; as JSON; what a host that
# cannot be reached lacks.
. "$HVD_SRC/tests/e2e/lib.sh"

mkdir bin
cat >bin/ssh <<'END2'
#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in
    -o | -p | -i) shift ;;
    -*) ;;
    *) break ;;
    esac
    shift
done
case $1 in
denies*) printf 'me@%s: Permission denied (publickey).\r\n' "$1" >&2; exit 255 ;;
empty*) echo "sh: 1: exec: hvd-agent: not found" >&2; exit 127 ;;
slow*) exec sleep 60 ;;
noisy*) echo "Welcome to $1"; echo "a banner" >&2 ;;
old*) echo "usage: hvd-agent --stdin [--runtime-dir DIR]" >&2; exit 2 ;;
cut*) echo "hvd-check: version 0.1.0"; exit 0 ;;
esac
exec env SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22' sh -c "$2"
END2
chmod +x bin/ssh
export PATH=$T/bin:$PATH

run hvdrun doctor
expect_status 0
for check in start version clock cores 'open files' 'locked memory' '/dev/shm' 'runtime directory' 'working directory' GPUs; do
    expect_line out "^localhost +$check +(ok|warning) "
done
expect_line out '^1 host, all can take part in a job$'
[ -s err ] && die "nothing expected on stderr"
run hvdrun doctor -H localhost:2,noisy1,me@host2:4 --wdir /
expect_status 0
expect_line out '^noisy1 +ssh +ok +[0-9.]+ s$'
expect_line out '^host2 +call back +ok +127\.0\.0\.1 answers [0-9]+ ms$'
expect_line out '^host2 +working directory +ok +/$'
expect_line out '^3 hosts, all can take part in a job$'
run hvdrun doctor --start-timeout 20 -H host2 --advertise-address 127.0.0.2 --port 17030-17050
expect_status 0
expect_line out '^host2 +call back +ok +127\.0\.0\.2 answers'
echo "ok hosts that are well"

run hvdrun doctor --start-timeout 2 -H denies1,empty1,slow1,old1,cut1,host2 --wdir /nonexistent ./no-program
expect_status 1
expect_within 8000
expect_line out '^denies1 +ssh +FAILED +denies1: permission denied .*fix: ssh-copy-id denies1'
expect_line out "^empty1 +ssh +FAILED +empty1: there is no .*hvd-agent"
expect_line out '^slow1 +ssh +FAILED +no answer within the start timeout; fix: '
expect_line out '^old1 +ssh +FAILED +old1: hvd-agent cannot work there; is it of another version\?'
expect_line out '^cut1 +ssh +FAILED +it did not finish its answer'
expect_line out '^host2 +working directory +FAILED +/nonexistent: No such file or directory; fix: '
expect_line out '^6 of 6 hosts cannot take part in a job$'
run hvdrun doctor -H host2 ./no-program
expect_status 1
expect_line out '^host2 +program +FAILED +\./no-program: No such file or directory; fix: copy or build'
echo "ok hosts that are not, each with its fix, in time"

run hvdrun doctor --json -H localhost,denies1
expect_status 1
python3 - <<'END2' || die "not the JSON expected"
import json
d = json.load(open("out"))
assert [h["host"] for h in d["hosts"]] == ["localhost", "denies1"], d
assert [h["ok"] for h in d["hosts"]] == [True, False], d
assert d["hosts"][1]["checks"][0]["result"] == "failed" and "ssh-copy-id" in d["hosts"][1]["checks"][0]["fix"]
END2
run hvdrun doctor -H 'a b'
expect_status 2
expect_line err "'a b' is not a host"
run hvdrun -np 1 sh -c 'echo doctor'
expect_line out ':doctor$'
echo "ok JSON; bad lists of hosts; a program's own words"

# More callers than descriptors, and fewer descriptors than places for callers.
mkdir few
cat >few/ssh <<'END2'
#!/usr/bin/env python3
import socket, time
calls = []
try:
    for _ in range(20):
        calls.append(socket.create_connection(("127.0.0.1", 17931), 1))
except OSError:
    pass
time.sleep(1) # how long it holds them; what doctor spends meanwhile is measured
END2
chmod +x few/ssh
TIMEFORMAT='%U %S'
{ time (ulimit -n 24; PATH=$T/few:$PATH; run hvdrun doctor --start-timeout 10 --port 17931 -H host2; cp out few/out); } 2>spent
grep -q '^host2 .*FAILED' few/out || die "no line of host2"
grep -q 'start timeout' few/out && die "its end was not seen"
awk '{ exit !($1 + $2 < 0.9) }' spent || die "it spins: $(cat spent) s of processor time"
echo "ok callers and few descriptors"
