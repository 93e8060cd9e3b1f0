#!/bin/bash
# deadline: 120
# train_mnist: bad input is one line and a status; uneven shares and the checkpoint are right.
set -eu
train=$HVD_BUILD/examples/train_mnist
compare=$HVD_BUILD/examples/compare_params
export HVD_EXAMPLES_DATA=$HVD_SRC/worker/examples/data # the build tree may lie elsewhere

# $1 = status, $2 = text, rest = arguments
refused() {
    local want=$1 text=$2 status=0
    shift 2
    "$train" "$@" >out 2>err || status=$?
    echo "$* -> $status: $(cat err)"
    [ $status = "$want" ] && [ "$(wc -l <err)" = 1 ] && grep -q -- "$text" err
}
refused 2 "--epochs '0'" --epochs 0
refused 2 "--batch '-3'" --batch -3
refused 2 "--lr 'x'" --lr x
refused 2 "'--nope'" --nope
refused 2 "'stray'" stray
refused 1 'not there' --data /nonexistent
mkdir bad
cp "$HVD_SRC"/worker/examples/data/*.gz bad
head -c 20000 "$HVD_SRC/worker/examples/data/train-images-idx3-ubyte.gz" >bad/train-images-idx3-ubyte.gz
refused 1 'ends early or is damaged' --data bad
cp "$HVD_SRC/worker/examples/data/t10k-labels-idx1-ubyte.gz" bad/train-images-idx3-ubyte.gz
refused 1 'not an IDX file' --data bad
refused 1 'No such file' --epochs 1 --checkpoint /nonexistent/model

echo "-- 1, 3 and 5 ranks, and a batch smaller than the number of ranks"
for np in 1 3 5; do
    hvdrun -np $np "$train" --epochs 1 --batch 100 --dump-grads g$np --checkpoint p$np >out$np 2>&1 ||
        { cat out$np; exit 1; }
    grep "bit-identical on $np rank" out$np
done
for np in 3 5; do
    "$compare" g1 g$np 1e-5
    "$compare" p1 p$np 1e-3
done
for np in 1 6; do
    hvdrun -np $np "$train" --epochs 1 --batch 4 --lr 0.01 --dump-grads s$np >out 2>&1 || { cat out; exit 1; }
done
"$compare" s1 s6 1e-5
echo "-- a progress line on a terminal, also through hvdrun; none elsewhere"
script -qec "hvdrun -np 2 $train --epochs 1" typescript >/dev/null
grep -q $'epoch 1/1: [0-9]* of 8000 images\033\\[K\r' typescript
hvdrun -np 2 "$train" --epochs 1 >out
if grep -q $'\r' out; then exit 1; fi
echo "-- the comparison itself can fail"
if "$compare" p1 g1 1e-3; then exit 1; fi
if "$compare" p1 /dev/null 1e-3; then exit 1; fi
echo "-- no half-written file stays"
[ -z "$(find . -name '*.tmp')" ]
