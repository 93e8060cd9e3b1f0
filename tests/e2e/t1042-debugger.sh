#!/bin/bash
# Ranks under gdb: on this terminal and by hvdrun attach, in panes of tmux, on another host;
# ranks that wait for a debugger. The terminal is as before whatever ends the job, and nothing
# of it stays.
# deadline: 240
. "$HVD_SRC/tests/e2e/lib.sh"
command -v gdb >/dev/null || { echo "gdb is not installed; scripts/deps.sh --test"; exit 77; }
compile "$HVD_SRC/tests/e2e/debugged.c" debugged
gdb -nx -q -batch -ex run ./debugged >gdb.out 2>&1 </dev/null
grep -q 'exited normally' gdb.out || { echo "gdb cannot run a program here"; exit 77; }
export TERM=dumb HOME=$T XDG_RUNTIME_DIR=$T/run # gdb: no colors, no .gdbinit
mkdir -m 700 "$T/run"
unset TMUX TMUX_PANE

# A terminal with a command; its script is stdin. $1 = log
terminal() { python3 "$HVD_SRC/tests/e2e/terminal.py" "$@" || die "$1"; }
nothing_stays() {
    await 5 "the end of all processes" nobody_carries HVD_E2E_MARK "$HVD_E2E_MARK-job"
    await 5 "the end of the runtime directory" rmdir "$T/run"
    mkdir -m 700 "$T/run"
}
as_job=(env HVD_E2E_MARK="$HVD_E2E_MARK-job")

# ---- one line, status 2
bad() {
    run setsid -w hvdrun -np 2 "${@:2}"
    expect_status 2
    [ "$(wc -l <err)" = 1 ] || die "$* says more than one line"
    expect_line err "$1"
}
bad 'the job has ranks 0 to 1' --debug=2 gdb ./debugged
bad 'not a rank' --debug=x gdb ./debugged
bad 'right behind --debug' --debug -np 2 gdb ./debugged
bad "ranks are given with '='" --debug 0 ./debugged
bad 'two debuggers' --debugger lldb --debug gdb ./debugged
bad 'valgrind.*--debugger COMMAND' --debug valgrind ./debugged
bad 'rank 1 is in both' --debug=0,1 --wait-for-debugger=1 ./debugged
bad '--debugger needs' --debugger gdb ./debugged
bad 'needs a terminal .* or tmux' --debug gdb ./debugged
run hvdrun --dry-run -np 2 --debug=1 lldb ./debugged
expect_status 0
expect_line out 'debug ranks 1 under lldb'
run hvdrun attach 0
expect_status 2
expect_line err 'no job of yours'
run hvdrun attach
expect_status 2
echo "ok wrong usage"

# ---- on this terminal
terminal log "${as_job[@]}" hvdrun -np 2 --debug=0 gdb ./debugged <<'EOF'
expect 20 (gdb) 
send break main\r
expect 10 Breakpoint 1 at
send run\r
expect 30 Breakpoint 1, main
expect 10 (gdb) 
send print answer\r
expect 10 = 42
size 50 132
send shell until [ "$(stty size)" = "50 132" ]; do sleep 0.05; done; echo it "has" it\r
expect 10 it has it
send show height\r
expect 5 in a page is 50.
send set var answer = 43\r
send continue\r
expect 20 exited normally
expect 5 (gdb) 
send quit\r
expect 5 rank 0 exited with status 0
end 10 0
EOF
grep -q '^answer 43, sum 2' log || die "the rank under gdb says nothing"
grep -q '^\[1\]<stdout>:answer 42, sum 2' log || die "the other rank says nothing"
nothing_stays
echo "ok a breakpoint, a variable, the window's size on this terminal"

# ---- detach, attach, attach again; two at once; ^C is the debugger's; its status counts
cat >first <<'EOF'
expect 10 d detaches
send print answer\r
expect 10 = 42
shell hvdrun attach 1 </dev/null 2>two; [ $? = 2 ] && grep -q 'rank 1 is attached by process' two
send \x1dx\x1d\x1d
send \x1dd
expect 5 detached
sane
end 5 0
EOF
cat >second <<'EOF'
expect 10 = 42
send \x15
send run\r
expect 20 begins
send \x03
expect 10 SIGINT
expect 5 (gdb) 
send kill\r
expect 5 (y or n)
send y\r
send quit 7\r
expect 10 rank 1 exited with status 7
sane
end 5 7
EOF
terminal log "${as_job[@]}" hvdrun -np 2 --debug gdb ./debugged <<'EOF'
expect 20 hvdrun attach
expect 20 (gdb) 
shell hvdrun attach 5 2>five; [ $? = 2 ] && grep -q 'ranks 0 to 1' five
shell python3 "$HVD_SRC/tests/e2e/terminal.py" log1 hvdrun attach 1 <first
shell python3 "$HVD_SRC/tests/e2e/terminal.py" log2 hvdrun attach 1 <second
expect 10 rank 1
end 10 7
sane
EOF
nothing_stays
echo "ok attach, detach, attach; a second one is refused; ^C is gdb's; its status counts"

# ---- hvdrun is killed, ended, or its attacher is
terminal log "${as_job[@]}" hvdrun -np 2 --debug gdb ./debugged <<'EOF'
expect 20 (gdb) 
send run\r
expect 20 Starting program
kill SIGKILL
sane
end 5 137
EOF
nothing_stays
terminal log "${as_job[@]}" hvdrun -np 2 --debug gdb ./debugged <<'EOF'
expect 20 (gdb) 
kill SIGTERM
end 15 143
sane
EOF
nothing_stays
terminal log "${as_job[@]}" hvdrun -np 1 --debug gdb ./debugged <<'EOF'
expect 20 (gdb) 
shell kill -KILL "$(pgrep -f "attach --shared $T/run")"
sane
expect 5 nobody is attached
kill SIGTERM
end 15 143
EOF
nothing_stays
echo "ok the end of hvdrun and of its attacher leave the terminal as it was, and nothing else"

# ---- a debugger that is not there; another one
terminal log "${as_job[@]}" hvdrun -np 1 --debugger ./none --debug ./debugged <<'EOF'
expect 20 the debugger './none' is not there
end 10 127
EOF
cat >script.py <<'EOF'
word = input("say: ")
print("said", word)
EOF
terminal log "${as_job[@]}" hvdrun -np 1 --debugger 'python3 -m pdb' --debug script.py <<'EOF'
expect 20 (Pdb) 
send continue\r
expect 10 say: 
send hello\r
expect 10 said hello
send q\r
end 20 0
EOF
nothing_stays
echo "ok other debuggers"

# ---- a megabyte of any bytes, by a pipe and by a terminal
cat >eater.py <<'EOF'
import hashlib, os, tty
tty.setraw(0)
os.write(1, b"ready\r\n")
n, digest = 0, hashlib.sha256()
while n < 1000000:
    data = os.read(0, 65536)
    n += len(data)
    digest.update(data)
os.write(1, b"got %d %s\r\n" % (n, digest.hexdigest().encode()))
EOF
python3 - >keys.txt <<'EOF'
import random
random.seed(1042)
data = bytes(random.randrange(256) for _ in range(1000000)).replace(b"\x1d", b"\x1e")
open("blob", "wb").write(data)
print("expect 20 ready\nsend " + "".join("\\x%02x" % byte for byte in data) + "\nend 20 0")
EOF
got="got 1000000 $(sha256sum <blob | cut -d' ' -f1)"
terminal log "${as_job[@]}" hvdrun -np 1 --debugger env --debug python3 eater.py <keys.txt
grep -q "$got" log || die "what was pasted came otherwise"
terminal log "${as_job[@]}" hvdrun -np 1 --debugger env --debug python3 eater.py <<'EOF'
expect 20 ready
send \x1dd
expect 5 detached
shell hvdrun attach 0 <blob >log1
end 20 0
EOF
grep -q "$got" log1 || die "what came by a pipe came otherwise"
nothing_stays
echo "ok a megabyte of keys"

# ---- a rank waits for one
waiting_pid() { pid=$(sed -n "s/.*rank $1 on .*(pid \([0-9]*\)) waits for a debugger: gdb -p .*/\1/p" err) && [ -n "$pid" ]; }
HVD_START_TIMEOUT=1 "${as_job[@]}" hvdrun -np 2 --wait-for-debugger ./debugged >out 2>err &
job=$!
await 20 "rank 1" waiting_pid 1
await 5 "rank 1 to be stopped" grep -q '^State:.T' "/proc/$pid/status"
gdb -nx -q -batch -p "$pid" -ex 'handle SIGSTOP nostop noprint nopass' -ex 'break main' -ex continue \
    -ex 'set var answer = 44' -ex continue >gdb.out 2>&1 </dev/null &
gdb=$!
await 20 "rank 0" waiting_pid 0
await 20 "gdb to be at main" grep -q 'Breakpoint 1, main' gdb.out
kill -0 $job || die "the job did not wait for rank 0"
kill -CONT "$pid"
wait $gdb
wait $job
# shellcheck disable=SC2034 # expect_status reads it
status=$?
expect_status 0
expect_line out '^\[1\]<stdout>:answer 44, sum 2'
expect_line out '^\[0\]<stdout>:answer 42, sum 2'
nothing_stays
echo "ok ranks wait for a debugger, one goes on with gdb, one with SIGCONT"

# ---- tmux
if command -v tmux >/dev/null; then
    tm() { tmux -L "hvd$$" -f /dev/null "$@"; }
    trap 'tm kill-server 2>/dev/null' EXIT
    TERM=screen tm new-session -d -x 160 -y 48 \
        "HVD_E2E_MARK=$HVD_E2E_MARK-job PATH=$PATH hvdrun -np 3 --debug=0,2 gdb ./debugged >out 2>err; echo \$? >status"
    panes() { [ "$(tm list-panes -F x | wc -l)" = "$1" ]; }
    shows() { tm capture-pane -p -t "$1" | grep -q "$2"; }
    await 20 "two more panes" panes 3
    for pane in 1 2; do
        await 10 "gdb in pane $pane" shows $pane '(gdb)'
        tm send-keys -t $pane 'run' Enter
    done
    await 20 "the end in pane 1" shows 1 'exited normally'
    await 20 "the end in pane 2" shows 2 'exited normally'
    tm kill-pane -t 2
    await 5 "word of it" grep -q 'nobody is attached to rank [02] any more' err
    tm send-keys -t 1 'quit' Enter
    hvdrun=$(sed -n "s/.*hvdrun attach \([0-9]* [02]\)'.*/\1/p" err | head -n 1)
    # shellcheck disable=SC2086
    echo quit | hvdrun attach $hvdrun >/dev/null || die "attach to what the pane has left"
    await 10 "the end of the job" test -s status
    [ "$(cat status)" = 0 ] || die "status $(cat status) in tmux"
    nothing_stays
    echo "ok panes of tmux; one that is closed leaves its debugger"
else
    echo "ok without tmux, which is not installed"
fi

# ---- on another host
# shellcheck source=tests/e2e/hosts.sh
. "$HVD_SRC/tests/e2e/hosts.sh"
(hosts_need) >why || { echo "ok without other hosts: $(tail -n 1 why)"; exit 0; }
hosts_need
hosts_up 2
chmod 755 "$T"
cat >job <<'EOF'
exec hvdrun -H host1:1,host2:1 --debug=1 gdb ./debugged
EOF
terminal log "${as_job[@]}" nsenter --target "$(tr -d ' ' <"$HOSTS_STATE/1.pid")" --mount --uts --ipc --net --pid \
    --wd="$T" bash job <<'EOF'
expect 30 rank 1 on host2
expect 20 (gdb) 
size 41 123
send break main\r
expect 10 Breakpoint 1 at
send run\r
expect 30 Breakpoint 1, main
send shell until [ "$(stty size)" = "41 123" ]; do sleep 0.05; done; echo on "$(hostname)"\r
expect 10 on host2
send print answer\r
expect 10 = 42
send continue\r
expect 20 exited normally
send quit\r
end 15 0
EOF
echo "ok on another host"

# a debugger that is not on one of them, and one that is attached as the line says
mkdir only1
ln -s "$(command -v gdb)" only1/gdb-here
cat >job <<'EOF'
exec hvdrun -H host1:1,host2:1 --debugger "$PWD/only1/gdb-here --args" --debug ./debugged
EOF
hosts_exec 2 mount -t tmpfs none "$T/only1"
terminal log "${as_job[@]}" nsenter --target "$(tr -d ' ' <"$HOSTS_STATE/1.pid")" --mount --uts --ipc --net --pid \
    --wd="$T" bash job <<'EOF'
end 20 127
sane
EOF
grep -q "hvdrun: host2: the debugger '$T/only1/gdb-here' is not there" log || die "host2 and its debugger are not named"
hosts_exec 1 "${as_job[@]}" hvdrun -H host1:1,host2:1 --wait-for-debugger=1 ./debugged >out 2>err &
job=$!
await 30 "the line about rank 1" grep -q 'rank 1 on host2 .* waits for a debugger: ssh -t host2' err
sed -n 's/.*debugger: ssh -t \(.* "gdb\) \(.*\)"$/ssh -T \1 -nx -q -batch \2 -ex continue"/p' err >attach
hosts_exec 1 bash attach >gdb.out 2>&1 </dev/null
wait $job
status=$?
expect_status 0
grep -q 'exited normally' gdb.out || die "gdb by ssh says: $(tail -n 3 gdb.out)"
echo "ok a debugger that is missing there, one by ssh"
