#!/bin/bash
# deadline: 120
# Everything at once: several threads a rank submit named, unnamed and grouped collectives
# of all kinds in orders of their own, waiting in every way, over the whole job and a
# process set, with a cache far too small and shapes that change; every result is checked.
# Both planes, more ranks than cores. CHAOS_SEED repeats a run.
set -eu
cc -O1 -g ${HVD_E2E_CFLAGS:-} -I"$HVD_SRC/worker/include" "$HVD_SRC/tests/e2e/chaos.c" -o chaos -L"$HVD_BUILD/lib" -lhvd -pthread \
    -Wl,-rpath,"$HVD_BUILD/lib"
seed=${CHAOS_SEED:-$(($(date +%s) % 100000))}
for plane in shm tcp; do
    for np in 2 3 5; do
        for cache in 1024 7; do
            if ! HVD_CPU_PLANE=$plane HVD_CACHE_CAPACITY=$cache timeout 50 \
                hvdrun -np $np ./chaos "${CHAOS_ROUNDS:-6}" "$seed" >out 2>&1; then
                echo "plane $plane, np $np, cache capacity $cache, CHAOS_SEED=$seed"
                tail -20 out
                exit 1
            fi
        done
    done
done
echo "seed $seed"
