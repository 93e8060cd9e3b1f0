#!/bin/bash
# Those who attach to a debugged rank, at their worst: one that reads late gets all there was,
# one that pastes behind another's unread paste loses nothing, more than there are descriptors
# for do not keep hvdrun busy, and one whose hvdrun is stopped is told so.
# deadline: 90
. "$HVD_SRC/tests/e2e/lib.sh"
export XDG_RUNTIME_DIR=$T/run TMUX=none TMUX_PANE=%0
mkdir -m 700 run bin
printf '#!/bin/sh\nexit 0\n' >bin/tmux # opens no pane: ranks wait for hvdrun attach
chmod +x bin/tmux
PATH=$T/bin:$PATH

# An attacher of our own. usage: attacher.py DIR RANK FUNCTION
cat >attacher.py <<'END_PY'
import os, re, select, signal, socket, struct, subprocess, sys, time

def frame(kind, body):
    return struct.pack("<HBBHHI", 0x4856, 1, 0, kind, 0, len(body)) + body

def number(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])

def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(sys.argv[1] + "/debug")
    return s

def attach(rank):
    version = subprocess.check_output(["hvdrun", "--version"]).split()[1]
    s = connect()
    s.sendall(frame(123, b"\x0a" + number(len(version)) + version + b"\x10" + number(rank)))
    return s

def frames(s):
    with s.makefile("rb") as f:
        while len(head := f.read(12)) == 12:
            kind, size = struct.unpack("<4xH2xI", head)
            yield kind, f.read(size)

def data_of(output):
    at = output.index(b"\x1a") + 1 # its third field, behind small numbers
    while output[at] > 127:
        at += 1
    return output[at + 1:]

def await_end(seconds, what, pid):
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([fd], [], [], seconds)[0], "did not come within %d s: the end of %s" % (seconds, what)
    os.close(fd)

def attach_and_be_late(rank):
    """Attached, with all that the rank wrote unread, and nobody else whom hvdrun waits for."""
    s = attach(rank)
    children = open("/proc/%s/task/%s/children" % (os.environ["JOB"], os.environ["JOB"])).read()
    assert len(children.split()) >= 2, "hvdrun has no agent and coordinator: " + children
    open("attached", "w").close()
    for pid in map(int, children.split()):
        await_end(15, "agent and coordinator", pid)
    return s

def late(rank):
    """Reads only when the rank has ended; everything is there, and how it ended."""
    got = list(frames(attach_and_be_late(rank)))
    print(sum(len(data_of(body)) for kind, body in got if kind == 115), got[-1][0])

def holds(rank):
    """Reads late all that there is, and then neither ends nor closes."""
    s = attach_and_be_late(rank)
    last = 0
    for last, body in frames(s):
        if last == 116:
            break
    print(last, flush=True)
    begun = time.monotonic()
    await_end(10, "hvdrun", int(os.environ["JOB"]))
    print(int(1000 * (time.monotonic() - begun)))

def paste(rank):
    """Sends 200 KiB that nobody reads, and goes."""
    s = attach(rank)
    assert next(frames(s))[0] == 124
    for i in range(200):
        data = (b"y" * 63 + b"\n") * 16
        s.sendall(frame(118, b"\x08" + number(rank) + b"\x12" + number(len(data)) + data))
    s.shutdown(socket.SHUT_WR)
    while s.recv(65536):
        pass

def crowd(rank):
    """More than hvdrun has descriptors for; tells how much processor time it takes."""
    many = []
    for i in range(60):
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect(sys.argv[1] + "/debug")
        except BlockingIOError:
            break
        many.append(s)
    pid = int(os.environ["JOB"])
    def ticks():
        return sum(map(int, open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[11:13]))
    begin = ticks()
    time.sleep(1) # the second that is measured
    print(ticks() - begin)

globals()[sys.argv[3]](int(sys.argv[2]))
END_PY
dir_of_job() { dir=$(echo run/hvd-*) && [ -S "$dir/debug" ]; }
# $1... = options and program of a job whose ranks are "debugged" by env, in the background
start() {
    "$@" >out 2>err &
    job=$!
    await 10 "the socket" dir_of_job
}
stays_nothing() { [ "$(ls run)" = "" ]; }

# ---- reads late
cat >prints <<'END_SH'
#!/bin/sh
until [ -e attached ]; do sleep 0.01; done
stty raw
head -c 330000 /dev/zero | tr '\0' x
END_SH
chmod +x prints
start hvdrun -np 1 --debug --debugger env ./prints
got=$(JOB=$job timeout 40 python3 attacher.py "$dir" 0 late) || die "the late reader"
wait $job
status=$?
expect_status 0
[ "$got" = "330000 116" ] || die "of 330000 bytes and EXITED the late reader got $got"
await 5 "the end of the runtime directory" stays_nothing
echo "ok who reads late gets all that a rank has written before its end"

# ---- holds on
rm -f attached
start hvdrun -np 1 --debug --debugger env ./prints
got=$(JOB=$job timeout 50 python3 attacher.py "$dir" 0 holds) || die "who does not close: $got"
wait $job
status=$?
expect_status 0
[ "${got%%$'\n'*}" = 116 ] || die "no EXITED: $got"
[ "${got##*$'\n'}" -lt $((15 * $(slowed))) ] || die "hvdrun waited ${got##*$'\n'} ms for one that had read all"
echo "ok who has read all and does not close is not waited for"

# ---- pastes
cat >reads <<'END_SH'
#!/bin/sh
stty raw -echo
touch ready
until [ -e go ]; do sleep 0.01; done
head -c 304800 >taken
END_SH
chmod +x reads
start hvdrun -np 1 --debug --debugger env ./reads
await 10 "the rank" test -e ready
timeout 20 python3 attacher.py "$dir" 0 paste || die "the first paste"
head -c 100000 /dev/zero | tr '\0' z >second
setsid -w hvdrun attach "$dir" 0 <second >attach.out 2>&1 &
attach=$!
# were it to send its own at once, hvdrun would close it within that time
for _ in {1..25}; do kill -0 $attach 2>/dev/null && sleep 0.02; done
touch go
wait $attach
status=$?
expect_status 0
wait $job
status=$?
expect_status 0
[ "$(tr -dc y <taken | wc -c)" = 201600 ] || die "of the first paste $(tr -dc y <taken | wc -c) bytes came"
[ "$(tr -dc z <taken | wc -c)" = 100000 ] || die "of the second paste $(tr -dc z <taken | wc -c) bytes came"
echo "ok a paste behind another one that nobody has read yet comes whole"

# ---- a stopped hvdrun
printf '#!/bin/sh\necho hello\nuntil [ -e over ]; do sleep 0.01; done\nexit 7\n' >greets
chmod +x greets
start hvdrun -np 1 --debug --debugger env ./greets
greets_is_up() { rank_of "$job" greets >pid; }
await 10 "the rank" greets_is_up
kill -STOP $job
setsid -w hvdrun attach "$dir" 0 </dev/null >attach.out 2>attach.err &
attach=$!
is_told() { [ -s attach.err ]; }
await 10 "the word of a stopped hvdrun" is_told
expect_line attach.err "^hvdrun attach: hvdrun is stopped; waiting for it to go on \\(kill -CONT $job\\)$"
kill -CONT $job
is_greeted() { grep -q hello attach.out; }
await 10 "the rank's output" is_greeted
touch over
wait $attach
status=$?
expect_status 7
wait $job
status=$?
expect_status 7
[ "$(wc -l <attach.err)" = 1 ] || die "more than one line"
echo "ok who attaches to a stopped hvdrun is told so, and attached when it goes on"

# ---- a crowd, and a stopped hvdrun whose queue is full
start hvdrun -np 1 --debug --debugger env sleep 60
is_up() { rank_of "$job" sleep >pid; }
await 10 "the rank" is_up
open=$(find "/proc/$job/fd" -type l | wc -l)
for spare in 8 9; do # each attacher takes two: the last one finds none or one
    prlimit --pid "$job" --nofile=$((open + spare)):
    ticks=$(JOB=$job timeout 20 python3 attacher.py "$dir" 0 crowd) || die "the crowd"
    [ "$ticks" -le 20 ] || die "$ticks ticks of a second in which nothing happens"
done
kill -STOP $job
timeout 20 python3 - "$dir" <<'END_PY' || die "filling the queue of a stopped hvdrun"
import os, socket, subprocess, sys
many = []
while True:
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    try:
        s.connect(sys.argv[1] + "/debug")
    except BlockingIOError:
        break
    many.append(s)
for job in [], [sys.argv[1]]:
    done = subprocess.run(["hvdrun", "attach"] + job + ["0"], stderr=subprocess.PIPE, timeout=15)
    assert done.returncode == 2, done
    assert b"its hvdrun does not answer; is it stopped?" in done.stderr, done
    assert done.stderr.count(b"\n") == 1, done
done = subprocess.run(["hvdrun", "attach", "1", "0"], stderr=subprocess.PIPE, timeout=15)
assert done.returncode == 2 and b"no hvdrun of pid 1 that answers has" in done.stderr, done
assert done.stderr.count(b"\n") == 1, done
END_PY
kill -CONT $job
kill $job
wait $job
status=$?
expect_status 143
echo "ok more attachers than descriptors: no busy loop; a stopped hvdrun is named"
