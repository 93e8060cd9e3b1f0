#!/bin/bash
# Bad input: one clear line on stderr, nothing on stdout, and the documented status.
. "$HVD_SRC/tests/e2e/lib.sh"

# $1 = status, $2 = expression for the line, $3... = arguments of hvdrun
bad() {
    local want=$1 line=$2
    shift 2
    run hvdrun "$@"
    [ "$status" = "$want" ] || die "hvdrun $*: status $status, not $want"
    [ -s out ] && die "hvdrun $*: something on stdout"
    [ "$(wc -l <err)" = 1 ] || die "hvdrun $*: not one line"
    expect_line err "^hvdrun: $line"
    expect_within 2000
}

touch not-executable
echo '#!/no/such/interpreter' >script && chmod +x script
printf '#!/bin/sh\r\necho hi\r\n' >windows && chmod +x windows
mkdir directory
head -c 200000 /dev/zero | tr '\0' x >blob

bad 2 "unknown option '--wrong'" --wrong true
bad 2 "unknown option '-Z'" -Z true
bad 2 "unknown option '--hostsfile'; did you mean --hostfile\?" --hostsfile x true
bad 2 "no program to run" -np 2
bad 2 "no program to run"
bad 2 "-np: 0 is out of range" -np 0 true
bad 2 "-np: 'x' is not a whole number" -np x true
bad 2 "-np: -3 is out of range" -np -3 true
bad 2 "-np: '2.5' is not a whole number" -np 2.5 true
bad 2 "-np: 99999999999999999999 is out of range" -np 99999999999999999999 true
bad 2 "-np: 5000 is out of range" -np 5000 true
bad 2 "option '-np' needs an argument" -np
bad 2 "-np 4 needs 4 slots, hosts offer 2 \(localhost:2\)" -np 4 -H localhost:2 true
bad 2 "'localhost:': number of slots: '' is not" -np 2 -H localhost: true
bad 2 "'localhost:0': number of slots: 0 is out of range" -np 2 -H localhost:0 true
bad 2 "-H @: the name of a host file goes behind it" -H @ true
bad 2 "'' is not a host" -np 2 -H localhost,,localhost true
bad 2 "'a b' is not a host" -np 2 -H 'a b' true
bad 2 "-H and --hostfile exclude each other" -np 2 -H localhost --hostfile x true
bad 2 "host file /nonexistent: No such file" --hostfile /nonexistent true
printf 'localhost\nlocalhost slots=x\n' >hosts
bad 2 "hosts:2:17: number of slots: 'x'" --hostfile hosts true
for key in slot Slots solts max-slot; do
    echo "localhost $key=2" >hosts
    bad 2 "hosts:1:11: '$key=' is not known; did you mean (max_)?slots=\?" --hostfile hosts true
done
printf 'localhost slots=x\n' >$'two\nlines'
bad 2 'two\\x0alines:1:17: number of slots' --hostfile $'two\nlines' true
bad 2 'host file no\\x0afile: No such file' --hostfile $'no\nfile' true
bad 2 'configuration file no\\x0afile: No such file' --config-file $'no\nfile' true
bad 2 'two\\x0alines:1: ' --config-file $'two\nlines' true
bad 2 'hosts/..: Not a directory|host file hosts/..: Not a directory' --hostfile hosts/.. true
run hvdrun --dry-run --hostfile <(sleep 0.2; echo localhost:3) true
expect_status 0
expect_line out 'localhost: ranks 0-2'
mkfifo late
(sleep 0.3; echo localhost:5 >late) & # who writes comes later than who reads
run hvdrun --dry-run --hostfile late true
expect_status 0
expect_line out 'localhost: ranks 0-4'
bad 2 "--stdin: 'sometimes' is not one of: 0 all none" --stdin sometimes true
bad 2 "--timeout: 'soon' is not a time" --timeout soon true
bad 2 "--fusion-threshold-mb: -1 is out of range" --fusion-threshold-mb=-1 true
bad 2 "--autotune-gaussian-process-noise: 2 is out of range" --autotune-gaussian-process-noise 2 true
bad 2 "--host-discovery-script: not yet: elastic jobs are not supported" --host-discovery-script ./x true
bad 2 "configuration file /nonexistent" --config-file /nonexistent true
echo "ok command line: status 2"

HOROVOD_STALL_CHECK_TIME_SECONDS=abc bad 2 "HVD_STALL_CHECK_TIME_SECONDS \(or HOROVOD_" -np 1 true
echo "ok environment: status 2"

bad 127 "command 'no-such-command-here' is not on PATH" -np 3 no-such-command-here
bad 127 "cannot run './nothing': No such file" -np 3 ./nothing
bad 127 "cannot run './script': the interpreter" -np 3 ./script
bad 127 "cannot run './windows': the interpreter .*; that line ends with a carriage return, .*remove" -np 3 ./windows
bad 126 "cannot run './not-executable': Permission denied" -np 3 ./not-executable
bad 126 "cannot run './directory'" -np 3 ./directory
echo "ok command: not found 127, not executable 126"

ulimit -S -n 1024
(
    ulimit -n 16
    bad 125 ".*(open files|file descriptors)" -np 32 true
) || exit 1
echo "ok descriptor limit: status 125"

(
    for i in $(seq 9); do export HVD_BIG_$i="$(cat blob | head -c 130000)"; done
    bad 125 "the command \(5 bytes\) and the environment \([0-9]+ variables, 11[0-9]{5} bytes\) do not fit into 1 MiB" -np 1 true
) || exit 1
echo "ok environment larger than a message: status 125"

# shellcheck disable=SC2046
bad 125 "the command has 16400 arguments; at most 16384 are possible" -np 1 echo $(seq 16399)
run hvdrun -np 1 sh -c 'echo $#' sh $(seq 16380)
expect_status 0
expect_line out ':16380$'
(
    for i in $(seq 8200); do export "V$i="; done
    bad 125 "the environment has 8[0-9]{3} variables; at most 8192 are possible" -np 1 true
) || exit 1
echo "ok more arguments or variables than a message may have: the limit is named"

(
    cp "$HVD_BUILD/bin/hvdrun" . || exit 1
    PATH=/usr/bin:/bin
    run ./hvdrun -np 1 true
    expect_status 125
    expect_line err '^hvdrun: hvd-coordinator is neither beside hvdrun .* nor on PATH'
    [ "$(wc -l <err)" = 1 ] || die "not one line"
    if unshare -m mount -t tmpfs none /proc 2>/dev/null; then
        run unshare -m sh -c 'mount -t tmpfs none /proc && exec ./hvdrun -np 1 true'
        # a sanitizer has a status of its own, or does not start
        [ -n "$HVD_E2E_CFLAGS" ] && ! grep -q '^hvdrun' err ||
            expect_line err '^hvdrun: hvd-coordinator is not on PATH, .* is /proc mounted\?$'
    else
        echo "not checked: hvdrun without /proc; nothing can be mounted here"
    fi
) || exit 1
echo "ok helpers missing: status 125"

cat >limited.py <<'END'
import os, resource, sys
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
os.execvp(sys.argv[2], sys.argv[2:])
END
# through pipes: the test's own files would meet the limit too
said=$(python3 limited.py 0 hvdrun -np 2 true 2>&1) && die "no room for the key, and status 0"
[[ $said == *'key: File too large' ]] || die "no room for the key: $said"
said=$(python3 limited.py 10240 hvdrun --output-filename small -np 1 sh -c 'head -c 100000 /dev/zero; echo' 2>&1 >/dev/null)
status=$?
[ $status = 125 ] || die "a full output file: status $status, not 125"
[ "$said" = "hvdrun: --output-filename: rank 0's stdout: File too large: 89761 bytes of output were lost" ] ||
    die "a full output file: $said"
echo "ok the file size limit is an error with a line, not a signal"

# helpers of another version say so in their first message
cat >other.py <<'END'
import os, struct, sys
# AGENT_UP (113) or COORD_UP (97): a frame with version "9.9.9"
kind, field = (113, 1) if sys.argv[1] == "agent" else (97, 2)
body = bytes([field << 3 | 2, 5]) + b"9.9.9"
os.write(1, struct.pack("<HBBHHI", 0x4856, 1, 0, kind, 0, len(body)) + body)
sys.stdin.buffer.read()
END
for part in agent coordinator; do
    mkdir bin-$part
    cp "$HVD_BUILD"/bin/hvdrun "$HVD_BUILD"/bin/hvd-* bin-$part/
    printf '#!/bin/sh\nexec python3 %s/other.py %s\n' "$T" $part >bin-$part/hvd-$part
    chmod +x bin-$part/hvd-$part
    run bin-$part/hvdrun -np 2 true
    expect_status 125
    expect_line err "^hvdrun: the $part.* is of version 9.9.9, this hvdrun of [0-9.]+; install the same"
    [ "$(wc -l <err)" = 1 ] || die "not one line"
    echo "ok $part of another version: both are named, status 125"
done
