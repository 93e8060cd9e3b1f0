#!/bin/bash
# deadline: 120
# A job whose ranks say that they are on several hosts (HVD_HOSTNAME), under a standalone
# coordinator: shared memory inside each "host", TCP between them. Everything at once
# (chaos.c) with equal and uneven hosts, then the demo: bit-equal on all ranks.
set -eu
cc -O1 -g ${HVD_E2E_CFLAGS:-} -I"$HVD_SRC/worker/include" "$HVD_SRC/tests/e2e/chaos.c" -o chaos \
    -L"$HVD_BUILD/lib" -lhvd -pthread -Wl,-rpath,"$HVD_BUILD/lib"

# $1 = host of every rank, as in "a a b"; rest = program; out.R is rank R's output
run_on() {
    local hosts=$1 pids= rank=0 rc=0 host addr= until=$((SECONDS + 10))
    shift
    # shellcheck disable=SC2086
    set -- $(printf '%s\n' $hosts | wc -l) "$@"
    rm -f coord.out out.*
    hvd-coordinator --np "$1" --listen 127.0.0.1:0 --key-file key >coord.out 2>coord.err &
    local coordinator=$!
    shift
    while [ -z "$addr" ]; do
        [ $SECONDS -lt $until ] || { echo "the coordinator did not come up"; cat coord.*; return 1; }
        addr=$(grep -os 'tcp:127.0.0.1:[0-9]*' coord.out | head -1) || :
        sleep 0.05
    done
    for host in $hosts; do
        HVD_COORDINATOR=$addr HVD_KEY_FILE=key HVD_RANK=$rank HVD_HOSTNAME=$host "$@" >out.$rank 2>&1 &
        pids+=" $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do
        wait "$pid" || rc=$?
    done
    kill $coordinator 2>/dev/null || :
    wait $coordinator || :
    rm -f key
    [ $rc = 0 ] || { echo "hosts $hosts: status $rc"; tail -n 3 out.*; cat coord.err; }
    return $rc
}

seed=${CHAOS_SEED:-$(($(date +%s) % 100000))}
echo "seed $seed"
for hosts in "a b" "a a b b" "a a b" "a b b b c" "a a a b b b c c"; do
    run_on "$hosts" ./chaos "${CHAOS_ROUNDS:-4}" "$seed"
done
run_on "a a b b" "$HVD_BUILD/examples/train_mnist" --data "$HVD_SRC/worker/examples/data" --epochs 2
grep -h 'bit-identical on 4 ranks' out.0
