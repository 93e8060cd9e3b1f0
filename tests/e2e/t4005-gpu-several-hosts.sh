#!/bin/bash
# deadline: 90
# Every collective on GPU tensors with ranks that say that they are on several hosts, each with GPUs
# of its own (fakes): equal and uneven hosts, by NCCL and through the host.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile "$HVD_SRC/tests/e2e/gpu_all.c" all
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake

listens() { addr=$(grep -os 'tcp:127.0.0.1:[0-9]*' coord.out | head -n 1) && [ -n "$addr" ]; }

# $1 = host of every rank, as in "a a b"
run_on() {
    local hosts=$1 rank=0 host pids='' np coordinator rc=0
    np=$(wc -w <<<"$hosts")
    rm -f coord.out out.* key
    hvd-coordinator --np "$np" --listen 127.0.0.1:0 --key-file key >coord.out 2>coord.err &
    coordinator=$!
    await 10 "the coordinator" listens
    for host in $hosts; do
        HVD_COORDINATOR=$addr HVD_KEY_FILE=key HVD_RANK=$rank HVD_HOSTNAME=$host FAKE_CUDA_HOST=$host \
            HVD_LOG=gpu:warn ./all >out.$rank 2>&1 &
        pids+=" $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do
        wait "$pid" || rc=$?
    done
    kill $coordinator 2>/dev/null
    wait $coordinator
    [ $rc = 0 ] || die "hosts $hosts: status $rc: $(tail -n 3 out.*)"
    grep -q "rank 1 of $np fine" out.1 || die "hosts $hosts: $(cat out.1)"
}

for hosts in "a b" "a a b b" "a b b"; do
    echo "-- $hosts"
    run_on "$hosts"
    ! grep -q 'through the host' out.0 || die "not by NCCL: $(cat out.0)"
done
HVD_GPU_PLANE=host run_on "a a b"
