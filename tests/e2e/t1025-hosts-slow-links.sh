#!/bin/bash
# No false verdict: links that are slow (200 +/- 50 ms) and lose 5 % each way, more ranks
# than cores, workers that stand still for 10 s: the job goes on, every sum is right. 25 s;
# an hour with make soak.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 3
compile "$HVD_SRC/tests/e2e/steps.c" steps
seconds=20 stops=1
[ "${HVD_SOAK:-0}" = 1 ] && seconds=3600 stops=100

steps_on() { # the n-th worker ($2) on host $1
    local pid
    for pid in $(hosts_pids "$1"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = steps ] && echo "$pid"
    done | sed -n "$2p"
}
(
    hosts_exec 1 hvdrun -H host1:2,host2:3,host3:3 ./steps $seconds 20000 >out 2>err
    echo $? >status
) &
await 20 "the first steps" grep -qs running out
hosts_shape 2 200 50 5
hosts_shape 3 200 50 5
for ((k = 0; k < stops; k++)); do
    victim=$(steps_on $((2 + k % 2)) $((1 + k % 3)))
    kill -STOP "${victim:?}" || die "no worker on host $((2 + k % 2))"
    sleep 10 # so long it stands still: not waited for
    kill -CONT "$victim" || die "the worker that stood still is gone"
    [ -s status ] && die "the job ended: $(cat err)"
    [ "$stops" = 1 ] || sleep 20
done
await $((seconds + 60)) "the end of the job: $(cat err)" test -s status
[ "$(cat status)" = 0 ] || die "status $(cat status)"
refuse_line err 'lost|broken|killed|gone'
[ "$(grep -c ' steps$' out)" = 8 ] || die "eight ranks should have ended well"
echo "ok $(sed -n 's/.*rank 0: //p' out) over slow links that lose packets, no false verdict"
