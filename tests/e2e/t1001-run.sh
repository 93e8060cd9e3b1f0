#!/bin/bash
# What a rank finds: arguments, environment, working directory, stdin; and what hvdrun
# returns: the first failing rank's status, as a shell would say it.
. "$HVD_SRC/tests/e2e/lib.sh"

run hvdrun -np 4 sh -c 'echo "$HVD_RANK $HOROVOD_RANK $RANK $HOROVOD_SIZE $HVD_LOCAL_RANK $LOCAL_RANK $HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK $HOROVOD_CROSS_SIZE $WORLD_SIZE $LOCAL_WORLD_SIZE $HOROVOD_HOSTNAME"'
expect_status 0
for r in 0 1 2 3; do
    expect_line out "^\[$r\]<stdout>:$r $r $r 4 $r $r 4 0 1 4 4 localhost$"
done
[ "$(wc -l <out)" = 4 ] || die "four lines expected"
[ -s err ] && die "nothing expected on stderr"
echo "ok rank, size and friends"

run hvdrun -np 1 sh -c 'echo "$MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS $PYTHONUNBUFFERED"'
expect_line out '^\[0\]<stdout>:127\.0\.0\.1 [0-9]+ [0-9]+ 1$'
OMP_NUM_THREADS=7 MASTER_PORT=1234 run hvdrun -np 1 sh -c 'echo "$MASTER_PORT $OMP_NUM_THREADS"'
expect_line out ':1234 7$'
echo "ok MASTER_ADDR, MASTER_PORT, OMP_NUM_THREADS; what the user set stays"

FROM_OUTSIDE='a b' run hvdrun -np 1 -x FOO=bar=baz -x FROM_OUTSIDE -x EMPTY= sh -c 'echo "$FOO|$FROM_OUTSIDE|${EMPTY-unset}|"'
expect_line out ':bar=baz\|a b\|\|$'
run hvdrun -np 1 -x HVD_NOT_SET_ANYWHERE true
expect_status 0
expect_line err 'HVD_NOT_SET_ANYWHERE'
echo "ok -x"

OLDPWD=/x CUDA_VISIBLE_DEVICES=2,3 _HOROVOD_SECRET_KEY=s run hvdrun -np 1 sh -c 'echo "$_HOROVOD_SECRET_KEY|$CUDA_VISIBLE_DEVICES|"'
expect_line out ':\|2,3\|$'
echo "ok secrets do not travel, GPU masks of the host do"

run hvdrun -np 2 sh -c 'echo "$0 $*"' 'one  two' --np 3 -x ''
expect_line out '^\[0\]<stdout>:one  two --np 3 -x $'
run hvdrun -np 1 -- echo -n x
expect_line out '^\[0\]<stdout>:x$'
echo "ok arguments after the program are the program's"

mkdir there
run hvdrun -np 1 pwd
expect_line out ":$T$"
run hvdrun --wdir there -np 1 pwd
expect_line out ":$T/there$"
run hvdrun -np 1 --wdir /nonexistent pwd
expect_status 125
expect_line err '^hvdrun: working directory /nonexistent: No such file'
[ "$(wc -l <err)" = 1 ] || die "one line expected"
echo "ok working directory"

for host in localhost:2 localhost '127.0.0.1:2' "$(hostname):2"; do
    run hvdrun -np 2 -H "$host" echo hi
    expect_status 0
    [ "$(wc -l <out)" = 2 ] || die "-H $host: two lines expected"
done
run hvdrun -H localhost:3 echo hi
[ "$(wc -l <out)" = 3 ] || die "three lines expected"
printf '# hosts\nlocalhost slots=2\n\n127.0.0.1:1\n' >hosts
run hvdrun -hostfile hosts sh -c 'echo $HVD_RANK $HVD_LOCAL_RANK $HVD_CROSS_RANK $HVD_CROSS_SIZE $HVD_HOSTNAME'
expect_status 0
expect_line out '^\[0\]<stdout>:0 0 0 2 localhost$'
expect_line out '^\[1\]<stdout>:1 1 0 1 localhost$'
expect_line out '^\[2\]<stdout>:2 0 1 2 127.0.0.1$'
echo "ok -H and --hostfile on this machine"

printf 'hello\nworld' >in
run hvdrun -np 2 cat <in
[ "$(cat out)" = $'[0]<stdout>:hello\n[0]<stdout>:world' ] || die "stdin goes to rank 0 alone"
run hvdrun -np 2 --stdin all cat <in
[ "$(sort out | tr '\n' ,)" = '[0]<stdout>:hello,[0]<stdout>:world,[1]<stdout>:hello,[1]<stdout>:world,' ] || die "stdin to all"
run hvdrun -np 2 --stdin none cat <in
[ -s out ] && die "no stdin expected"
head -c 5000000 /dev/urandom >big
run hvdrun -np 1 sha1sum < <(cat big)
[ "$(sed 's/.*://; s/ .*//' out)" = "$(sha1sum <big | cut -d' ' -f1)" ] || die "5 MB of stdin arrive damaged"
run hvdrun -np 2 head -n 1 < <(timeout 20 yes)
expect_status 0
run hvdrun -np 1 cat <&-
expect_status 0
echo "ok stdin: rank 0, all, none, large, endless, closed"

run hvdrun -np 3 true
expect_status 0
run hvdrun -np 3 sh -c 'exit $((HVD_RANK == 1 ? 7 : 0))'
expect_status 7
expect_line err '^hvdrun: rank 1 on localhost \(pid [0-9]+\) exited with status 7 after'
run hvdrun -np 3 sh -c 'if [ $HVD_RANK = 2 ]; then kill -SEGV $$; fi'
expect_status 139
expect_line err '^hvdrun: rank 2 on localhost \(pid [0-9]+\) was killed by signal 11 \(SIGSEGV\)'
run hvdrun -np 3 --grace 3 sh -c 'if [ $HVD_RANK = 2 ]; then exit 9; fi; sleep 100'
expect_status 9
expect_within 2500
expect_line err '2 other ranks are being stopped'
run hvdrun -np 2 --grace 1 sh -c 'trap "" TERM; if [ $HVD_RANK = 1 ]; then exit 9; fi; sleep 100; sleep 100'
expect_status 9
expect_within 4000
echo "ok the first failing rank decides the status, the others are stopped"

run hvdrun -np 2 sh -c 'if [ $HVD_RANK = 1 ]; then for i in 1 2 3; do echo "line $i" >&2; done; printf "tail\033[1m" >&2; exit 3; fi; sleep 60'
expect_status 3
for text in 'line 1' 'line 3' 'tail\\x1b\[1m'; do
    expect_line err "^  \| $text$"
done
echo "ok the report shows the end of its stderr, control characters made visible"

run hvdrun --timeout 0.3 -np 2 sleep 60
expect_status 124
expect_within 2500
expect_line err 'time limit of 0\.3 s'
echo "ok --timeout: 124"
