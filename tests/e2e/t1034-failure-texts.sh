#!/bin/bash
# What hvdrun says when a job fails, on this machine and with a fake remote shell: the files
# of tests/e2e/golden/texts, word for word.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/golden.sh"

# $1 = golden file, $2 = at most ms, $3 = at most lines; rest: arguments of hvdrun
says() {
    local name=$1 limit=$2 lines=$3
    shift 3
    run hvdrun "$@"
    golden "$name" "$limit" "$lines"
}

# ---- a rank ends
says rank-status 4000 5 -np 2 sh -c '[ $HVD_RANK = 1 ] || exec sleep 50; echo why >&2; exit 7'
says rank-status-others 4000 4 -np 4 --grace 1 sh -c '[ $HVD_RANK != 0 ] || exit 3; exec sleep 50'
says rank-signal 4000 2 -np 2 sh -c '[ $HVD_RANK = 1 ] || exec sleep 50; ulimit -c 0; kill -SEGV $$'
says rank-sigkill 4000 2 -np 2 sh -c '[ $HVD_RANK = 0 ] || exec sleep 50; kill -KILL $$'
says program-not-found 3000 1 -np 2 no-such-program
says program-no-file 3000 1 -np 2 ./no-such-program
mkdir directory
says program-directory 3000 1 -np 2 ./directory
: >plain
says program-not-executable 3000 1 -np 2 ./plain
cp /bin/true foreign
printf '\010' | dd of=foreign bs=1 seek=18 conv=notrunc status=none # ELF for another machine
says program-format 3000 1 -np 2 ./foreign
PATH=$PWD:$PATH run hvdrun -np 1 foreign
expect_status 126
refuse_line err 'not found'
echo 'exit 5' >text-only
chmod +x text-only
says program-without-first-line 3000 3 -np 1 ./text-only
mkdir below
printf '#!/usr/bin/no-such-interpreter\n' >below/script
chmod +x below/script
says program-interpreter 3000 1 -np 2 --wdir below ./script
says wdir-missing 3000 1 -np 2 --wdir /nonexistent true
echo "ok ranks that fail, programs that cannot run"

# ---- time
says time-limit 4000 1 -np 2 --timeout 0.5 sleep 50
printf '#!/bin/sh\nexec sleep 50\n' >slow
chmod +x slow
says start-timeout-rsh 4000 1 --rsh "$T/slow" --start-timeout 0.5 -H far1,far2 true
echo "ok limits of time"

# ---- the job's own processes
# $1 = golden file, $2 = lines at most, $3 = name of the process to kill
loses() {
    local hvdrun
    hvdrun -np 2 --grace 1 sh -c 'echo up; exec sleep 50' >out 2>err &
    hvdrun=$!
    await 10 "both ranks" eval '[ "$(grep -c up out)" = 2 ]'
    kill -KILL "$(child $hvdrun "$3")"
    wait $hvdrun
    status=$?
    export took_ms=0
    golden "$1" 0 "$2"
}
loses agent-lost 1 hvd-agent
loses coordinator-lost 1 hvd-coordinator
for signal in INT TERM; do
    hvdrun -np 2 --grace 1 sh -c 'echo up; exec sleep 50' >out 2>err &
    hvdrun=$!
    await 10 "both ranks" eval '[ "$(grep -c up out)" = 2 ]'
    kill -$signal $hvdrun
    wait $hvdrun
    export status=$?
    golden "signal-${signal,,}" 99999 1
done
printf '#!/bin/sh\nexit 9\n' >broken
chmod +x broken
says rsh-fails 3000 1 --rsh "$T/broken" -H far true
says rsh-missing 2000 1 --rsh /no/such/rsh -H far true
(PATH=$HVD_BUILD/bin:$T/none
    run hvdrun -np 1 -H far true
    PATH=/usr/bin:/bin
    golden ssh-not-installed 2000 1) || exit 1
echo "ok processes of the job that end, signals, remote shells"

# ---- output
run sh -c 'hvdrun -np 1 echo text >/dev/full'
golden output-full 4000 1
: >file
says output-no-directory 3000 1 -np 2 --output-filename file/x echo text
says output-not-writable 3000 1 -np 2 --output-filename /proc/x echo text
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
    mkdir small
    run unshare --mount sh -c 'mount -t tmpfs -o size=16k none small && exec hvdrun -np 1 --output-filename small/x sh -c "seq 100000"'
    golden output-file-full 6000 2
fi
echo "ok output that cannot be written"

# ---- usage: the text alone, no processes
says usage-no-command 1000 2
says usage-option 1000 2 -np 2 --no-such-option true
says usage-option-near 1000 2 -np 2 --start-timout 3 true
says usage-number 1000 2 -np two true
says usage-value-missing 1000 2 -np
says usage-slots 1000 2 -np 8 -H a:4,b:2 true
says usage-host 1000 2 -H -oProxyCommand=x true
says usage-slots-wrong 1000 2 -H a:x true
says usage-hostfile-missing 1000 2 --hostfile not-there true
printf 'a slots=2\nb slots=many\n' >hosts
says usage-hostfile 1000 2 --hostfile hosts true
says usage-grace 1000 2 --grace -3 true
echo "ok usage"

# ---- memory
cg=/sys/fs/cgroup/memory/hvd-e2e-$$
if [ "$(id -u)" = 0 ] && mkdir "$cg" 2>/dev/null; then
    limit=memory.limit_in_bytes
elif cg=/sys/fs/cgroup/hvd-e2e-$$ && [ "$(id -u)" = 0 ] && mkdir "$cg" 2>/dev/null; then
    limit=memory.max
    [ -e "$cg/$limit" ] || { rmdir "$cg"; limit=; }
else
    limit=
fi
if [ -n "$limit" ]; then
    # shellcheck disable=SC2064
    trap "rmdir '$cg'" EXIT
    echo 60000000 >"$cg/$limit"
    # shellcheck disable=SC2016
    run hvdrun -np 2 --grace 1 sh -c '[ $HVD_RANK = 1 ] || exec sleep 50
        echo $$ >'"$cg"'/cgroup.procs && exec tail /dev/zero'
    golden out-of-memory 20000 4
    echo "ok a rank that had no memory left"
else
    echo "no memory cgroup can be made here: a rank without memory was not tried"
fi
