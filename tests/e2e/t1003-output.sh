#!/bin/bash
# Joined output: whole lines with Horovod's prefix, order kept for each rank, nothing lost,
# also when a line comes in pieces, is very long, or nobody reads for a while.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"

cat >pieces.py <<'END'
import os, sys
rank = os.environ["HVD_RANK"]
for i in range(int(sys.argv[1])):
    line = b"rank%s line %d %s\n" % (rank.encode(), i, b"x" * (i % 50))
    cut = i % len(line)
    os.write(1, line[:cut])
    os.write(1, line[cut:])
END
run hvdrun -np 8 python3 pieces.py 2000
expect_status 0
[ "$(wc -l <out)" = 16000 ] || die "$(wc -l <out) lines, not 16000"
for r in 0 1 2 3 4 5 6 7; do
    grep "^\[$r\]<stdout>:rank$r line" out | sed 's/.* line \([0-9]*\) .*/\1/' | cmp -s - <(seq 0 1999) ||
        die "lines of rank $r are not whole or not in order"
done
echo "ok 8 ranks writing lines in two pieces"

run hvdrun -np 2 sh -c 'echo out; echo err >&2; printf "no newline"'
expect_status 0
expect_line out '^\[0\]<stdout>:out$'
expect_line out '^\[1\]<stdout>:no newline$'
expect_line err '^\[1\]<stderr>:err$'
refuse_line out stderr
refuse_line err stdout
echo "ok stdout and stderr stay apart; an unfinished last line is completed"

run hvdrun -np 1 sh -c 'printf "a\rb\r\nc\n"'
[ "$(od -An -c out | tr -d ' \n')" = '[0]<stdout>:a\r[0]<stdout>:b\r\n[0]<stdout>:c\n' ] || die "carriage returns"
run hvdrun --prefix rank -np 1 echo x
[ "$(cat out)" = '0: x' ] || die "--prefix rank"
run hvdrun --prefix none -np 1 echo x
[ "$(cat out)" = x ] || die "--prefix none"
run hvdrun --prefix host -np 1 echo x
[ "$(cat out)" = '0@localhost: x' ] || die "--prefix host"
run hvdrun --color always -np 1 echo x
[ "$(cat -v out)" = '^[[32m[0]<stdout>:^[[0mx' ] || die "--color always"
run hvdrun --merge-stderr -np 1 sh -c 'echo x >&2'
[ "$(cat out)" = '[0]<stdout>:x' ] || die "--merge-stderr"
run hvdrun --only-rank 1-2 -np 4 echo x
[ "$(sort out | tr '\n' ' ')" = '[1]<stdout>:x [2]<stdout>:x ' ] || die "--only-rank"
run hvdrun --only-rank 4 -np 4 echo x
expect_status 2
run hvdrun --output-dir files -np 11 echo x
[ ! -s out ] && [ "$(cat files/rank.*/stdout | wc -l)" = 11 ] && [ -s files/rank.03/stdout ] ||
    die "--output-dir"
run hvdrun --output-dir files --tee -np 1 echo x
[ "$(cat out)" = '[0]<stdout>:x' ] && [ "$(cat files/rank.0/stdout)" = x ] || die "--tee"
run hvdrun -prefix-timestamp -np 1 echo x
expect_line out '^[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}\[0\]<stdout>:x$'
echo "ok carriage returns, prefixes, timestamps"

rm -f out
run hvdrun -np 1 sh -c 'printf "question? "; sleep 3; echo answered' &
pid=$!
await 3 "an unfinished line after its second" grep -qs '^\[0\]<stdout>:question? $' out
wait $pid
[ "$(cat out)" = '[0]<stdout>:question? answered' ] || die "prompt: $(cat out)"
run hvdrun -np 1 python3 -c 'import sys; sys.stdout.write("y" * 5000000 + "\n" + "z\n")'
expect_status 0
[ "$(head -n 1 out | wc -c)" = 5000013 ] || die "a line of 5 MB"
[ "$(tail -n 1 out)" = '[0]<stdout>:z' ] || die "the line after it"
echo "ok prompts, lines of 5 MB"

run hvdrun -np 12 --output-filename logs sh -c 'echo out $HVD_RANK; echo err $HVD_RANK >&2'
expect_status 0
for r in 00 05 11; do
    [ "$(cat logs/rank.$r/stdout)" = "out $((10#$r))" ] || die "logs/rank.$r/stdout"
    [ "$(cat logs/rank.$r/stderr)" = "err $((10#$r))" ] || die "logs/rank.$r/stderr"
done
[ "$(wc -l <out)" = 12 ] || die "output is printed too"
run hvdrun -np 1 --output-filename /proc/no true
expect_status 125
expect_line err '^hvdrun: --output-filename: /proc/no'
mkdir -p waits/rank.0 && mkfifo waits/rank.0/stderr
run timeout -s KILL 10 hvdrun -np 1 --output-filename waits true
expect_status 125
expect_line err '^hvdrun: --output-filename: waits/rank.0/stderr: a FIFO that nobody reads$'
echo "ok --output-filename"

cat >terminal.py <<'END'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
while True:
    try:
        seen += os.read(fd, 65536)
    except OSError:
        break
    if b"name? " in seen and b"Ann" not in seen:
        os.write(fd, b"Ann\n")
sys.stdout.buffer.write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
run python3 terminal.py hvdrun -np 2 sh -c 'echo tty=$HVD_TTY; [ $HVD_RANK = 0 ] || exit 0; printf "name? "; read -r name; echo "hello $name" >&2'
expect_status 0
expect_line out '^\[1\]<stdout>:tty=1'
expect_line out '^\[0\]<stderr>:hello Ann'
run env -u NO_COLOR TERM=xterm python3 terminal.py hvdrun -np 1 sh -c 'echo "name? x"'
grep -qF "$(printf '\033[32m[0]<stdout>:\033[0mname? x')" out || die "no color on a terminal"
run hvdrun -np 1 sh -c 'echo "tty=$HVD_TTY"'
expect_line out ':tty=$'
echo "ok on a terminal: a question is seen and its answer read"

# a reader that is slow: hvdrun holds back the ranks and keeps its memory small
mkfifo go
hvdrun -np 2 sh -c 'yes 0123456789012345678901234567890123456789 | head -n 2000000' | (
    read -r _ <go
    wc -l >count
) &
reader=$!
# held back: yes and head of both ranks sleep, which they do only in write()
held_back() {
    local pid n=0
    for pid in $(carrying HVD_E2E_MARK "$HVD_E2E_MARK"); do
        grep -qE '^[0-9]+ \((yes|head)\) S ' "/proc/$pid/stat" 2>/dev/null && n=$((n + 1))
    done
    [ $n = 4 ]
}
still_held_back() {
    local i
    for ((i = 0; i < 20; i++)); do held_back || return 1; done
}
await 10 "both ranks held back by the reader" still_held_back
rss=0
for pid in $(carrying HVD_E2E_MARK "$HVD_E2E_MARK"); do
    case $(cat "/proc/$pid/comm" 2>/dev/null) in
    hvdrun | hvd-agent) rss=$((rss + $(awk '$1 == "VmRSS:" { print $2 }' "/proc/$pid/status"))) ;;
    esac
done
echo now >go
wait $reader
[ "$(cat count)" = 4000000 ] || die "slow reader got $(cat count) lines"
[ $rss -gt 0 ] || die "hvdrun and its agent are not there"
[ $rss -lt 120000 ] || die "hvdrun and its agent hold $rss KiB for a slow reader"
echo "ok a slow reader loses nothing; hvdrun and agent hold $rss KiB"

run hvdrun -np 2 sh -c 'yes | head -n 300000' > >(head -n 1 >first)
hvdrun -np 2 sh -c 'yes | head -n 300000' 2>err | head -n 1 >first
[ "${PIPESTATUS[0]}" = 0 ] || die "status ${PIPESTATUS[0]} when the reader goes away"
echo "ok a reader that goes away does not end the job"

# $1 = stdout or stderr, $2 = status of the ranks; the last run lost what they wrote there
lost() {
    expect_status "$2"
    expect_line err "^hvdrun: $1: No space left on device: [0-9]+ bytes of output were lost$"
    [ "$(grep -c 'bytes of output' err)" = 1 ] || die "not once"
}
run eval 'hvdrun -np 2 echo hello >/dev/full'
lost stdout 125
grep -q ': 36 bytes' err || die "two lines of 18 bytes were lost"
run eval 'hvdrun -np 1 sh -c "yes | head -c 3000000; exit 3" >/dev/full'
lost stdout 3
run eval 'hvdrun -np 1 sh -c "echo hello; echo word >&2" 2>/dev/full'
expect_status 125
expect_line out hello
run eval 'hvdrun -np 1 echo hello >/dev/full 2>&1'
expect_status 125
mkdir -p full/rank.0 && ln -s /dev/full full/rank.0/stdout
run hvdrun -np 1 --output-filename full sh -c 'echo hello; echo hello'
expect_status 125
expect_line out hello
[ "$(cat err)" = "hvdrun: --output-filename: rank 0's stdout: No space left on device: 12 bytes of output were lost" ] ||
    die "a file on a full disk"
echo "ok output that cannot be written is named once, with its bytes; status 125 when the ranks did well"

start=$(now_ms)
hvdrun -np 2 sh -c 'yes 0123456789012345678901234567890123456789 | head -n 1500000' >big
rate=$((3000000 * 1000 / ($(now_ms) - start)))
[ "$(wc -l <big)" = 3000000 ] || die "lines lost"
[ "$(sort -u big | wc -l)" = 2 ] || die "lines mangled"
echo "ok 3,000,000 lines, $rate lines/s"
