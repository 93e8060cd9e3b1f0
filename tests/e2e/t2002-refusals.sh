#!/bin/bash
# deadline: 90
# What is wrong with a standalone coordinator's start, or with a worker's, is one clear line and
# a documented status: 2 usage, 125 it cannot start or the job cannot.
set -eu
fail() {
    echo "not so: $*"
    for f in *.out *.err; do [ -s "$f" ] && sed "s/^/$f: /" "$f"; done
    exit 1
}

# $1 = status, $2 = words on stderr; the rest is the command. One line, no more.
refuses() {
    local want=$1 words=$2 status=0
    shift 2
    timeout 20 "$@" >r.out 2>r.err </dev/null || status=$?
    [ $status = "$want" ] || fail "'$*' ended with $status, not $want"
    grep -qF -- "$words" r.err || fail "'$*' does not say '$words'"
    [ "$(wc -l <r.err)" = 1 ] || fail "'$*' says more than one line"
}

endpoint() {
    local until=$((SECONDS + 10)) where
    while [ $SECONDS -lt $until ]; do
        where=$(sed -n 's/.*HVD_COORDINATOR=\([^ ]*\) .*/\1/p' "$1" 2>/dev/null || true)
        [ -n "$where" ] && echo "$where" && return
        sleep 0.02
    done
    return 1
}

c=hvd-coordinator
refuses 2 '--bogus' $c --bogus
refuses 2 '--np N is missing' $c --listen 127.0.0.1:0 --key-file key
refuses 2 '--np: 0 is out of range (1 to 1024)' $c --np 0 --listen 127.0.0.1:0 --key-file key
refuses 2 '--np: 1025 is out of range (1 to 1024)' $c --np 1025 --listen 127.0.0.1:0 --key-file key
refuses 2 "--np: 'x' is not a whole number" $c --np x --listen 127.0.0.1:0 --key-file key
refuses 2 '--listen' $c --np 2 --key-file key
refuses 2 '--key-file' $c --np 2 --listen 127.0.0.1:0
refuses 2 'unexpected argument' $c --np 2 --listen 127.0.0.1:0 --key-file key more
refuses 2 '--cache-capacity' $c --np 2 --listen 127.0.0.1:0 --key-file key --cache-capacity 9999
refuses 125 'is not an endpoint' $c --np 2 --listen nowhere --key-file key
refuses 125 'cannot listen on unix:/nonexistent/dir/sock: no such file or directory' $c --np 2 --listen unix:/nonexistent/dir/sock --key-file key

refuses 2 'stdin and stdout must be pipes' $c --stdio

# key files that somebody else could read, or that are none
echo short >short && chmod 600 short
refuses 125 'short' $c --np 2 --listen 127.0.0.1:0 --key-file short
cp key open && chmod 644 open
refuses 125 'open' $c --np 2 --listen 127.0.0.1:0 --key-file open
ln -s key link
refuses 125 'link' $c --np 2 --listen 127.0.0.1:0 --key-file link
refuses 125 'nonexistent' $c --np 2 --listen 127.0.0.1:0 --key-file /nonexistent/key

# a file limit that the ranks do not fit in
refuses 125 'open files is too small for 100 ranks' \
    bash -c "ulimit -n 64; exec $c --np 100 --listen 127.0.0.1:0 --key-file key"

# a port in use
$c --np 2 --listen 127.0.0.1:0 --key-file key --start-timeout 2 >c.out 2>c.err &
coord=$!
where=$(endpoint c.out)
refuses 125 'address already in use' $c --np 2 --listen "$where" --key-file key

# the start timeout names who is missing; the coordinator gives up as well
export HVD_COORDINATOR=$where HVD_KEY_FILE=$T/key
# a connection of a worker to the coordinator, with a keep-alive timer (/proc/net/tcp: 02)
port=$(printf %04X "${where##*:}")
kept_alive() { awk -v to=":$port" '$4 == "01" && index($3, to) && $6 ~ /^02:/ { n++ } END { exit !n }' /proc/net/tcp; }
status=0
HVD_RANK=1 timeout 20 "$HVD_BUILD/examples/allreduce" >w.out 2>w.err &
worker=$!
until kept_alive; do
    kill -0 $worker 2>/dev/null || fail "no connection with keep-alive was seen"
    sleep 0.01
done
wait $worker || status=$?
[ $status = 1 ] || fail "a lonely worker ended with $status"
grep -q 'start timeout after 2 s: rank 0: has not connected' w.err || fail "no missing rank named"
status=0
wait $coord || status=$?
[ $status = 125 ] || fail "after a start timeout the coordinator ended with $status"
grep -q 'rank 0: has not connected' c.err || fail "the coordinator names nobody"

# workers that are one too many, twice the same, or of another job
$c --np 2 --listen 127.0.0.1:0 --key-file key --linger 0.2 >c2.out 2>c2.err &
coord=$!
HVD_COORDINATOR=$(endpoint c2.out)
declare -A rank0
for i in a b; do # one of them comes first, and waits for rank 1
    HVD_RANK=0 "$HVD_BUILD/examples/allreduce" >w$i.out 2>w$i.err &
    rank0[$!]=$i
done
status=0
wait -n -p gone "${!rank0[@]}" || status=$?
[ $status = 1 ] || fail "the second rank 0 ended with $status"
grep -q 'rank 0 is taken: rank 0 (host .*) came first' w"${rank0[$gone]}".err ||
    fail "the second rank 0 is not told"
unset "rank0[$gone]"
w0=${!rank0[*]}
refuses 1 'HVD_RANK=7, but the job has 2 ranks (0 to 1)' env HVD_RANK=7 "$HVD_BUILD/examples/allreduce"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >other && chmod 600 other
refuses 1 'another key' env HVD_KEY_FILE="$T/other" "$HVD_BUILD/examples/allreduce"
HVD_RANK=1 timeout 20 "$HVD_BUILD/examples/allreduce" >w1.out 2>w1.err || fail "rank 1 is disturbed"
wait $w0 || fail "rank 0 is disturbed"
wait $coord || fail "the coordinator ended with $?"
[ "$(grep -c 'without this job.s key' c2.err)" = 1 ] || fail "one line about the stranger expected"
refuses 1 'write unix:path' env HVD_COORDINATOR=unix: "$HVD_BUILD/examples/allreduce"
for where in 127.0.0.1:x 127.0.0.1:0 127.0.0.1:99999 127.0.0.1 :1; do
    refuses 1 'write host:port' env HVD_COORDINATOR="$where" "$HVD_BUILD/examples/allreduce"
done
echo "refusals are well"
