#!/bin/bash
# What README.md shows works as written: its C program, its options, its variables.
set -eu
readme=$HVD_SRC/README.md
echo "-- the C program"
awk '/^```c$/ { n++; on = n == 1; next } /^```$/ { on = 0 } on' "$readme" >first.c
grep -q hvd_init first.c
cc -std=c11 -Wall -Wextra -Werror -I"$HVD_SRC/worker/include" first.c -o first \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
hvdrun -np 4 ./first >out 2>err || { cat out err; exit 1; }
cat out
[ "$(grep -c 'rank [0-3] of 4: average 2.5 25 250, sum 10 100 1000' out)" = 4 ]
echo "-- the same without a launcher is a job of one"
./first | grep -x 'rank 0 of 1: average 1 10 100, sum 1 10 100'

echo "-- the C program is the example, so that both stay right"
cmp first.c "$HVD_SRC/worker/examples/allreduce.c"

if python=$("$HVD_SRC/scripts/python-env.sh" --check torch-debian); then
    echo "-- the PyTorch program: all ranks end with the same weights"
    awk '/^```python$/ { n++; on = n == 1; next } /^```$/ { on = 0 } on' "$readme" >train.py
    PYTHONPATH=$HVD_SRC/worker/python hvdrun -np 3 "$python" train.py >out 2>err ||
        { cat out err; exit 1; }
    cat out
    [ "$(grep -c 'rank [0-2] has' out)" = 3 ]
    [ "$(sed 's/.* has //' out | sort -u | wc -l)" = 1 ]
fi

if python=$("$HVD_SRC/scripts/python-env.sh" --check tf-current); then
    echo "-- the TensorFlow program: all ranks end with the same weights"
    awk '/^```python$/ { n++; on = n == 2; next } /^```$/ { on = 0 } on' "$readme" >step.py
    PYTHONPATH=$HVD_SRC/worker/python hvdrun -np 2 "$python" step.py >out 2>err ||
        { cat out err; exit 1; }
    cat out
    [ "$(grep -c 'rank [01] has' out)" = 2 ]
    [ "$(sed 's/.* has //' out | sort -u | wc -l)" = 1 ]
fi

echo "-- every option and file that README names is there"
hvdrun --help >help
for option in $(grep -o '`-\{1,2\}[a-z][a-z-]*' "$readme" | tr -d '`' | sort -u); do
    grep -q -- "$option" help || { echo "README names $option, hvdrun --help does not"; exit 1; }
done
for path in $(grep -oE '`(scripts|tests|worker|proto|coordinator|hvdrun)/[A-Za-z0-9_./-]*' "$readme" |
    tr -d '`' | sort -u); do
    [ -e "$HVD_SRC/$path" ] || { echo "README names $path, which is not there"; exit 1; }
done
echo "-- every variable that README lists is read somewhere"
for variable in $(grep -oE '^\| `(HVD|HOROVOD)_[A-Z_]*' "$readme" | grep -oE '(HVD|HOROVOD)_[A-Z_]*'); do
    grep -rqE "\"${variable}\"|\"${variable#H*_}\"|$variable" --include='*.c' --include='*.h' \
        "$HVD_SRC/proto" "$HVD_SRC/hvdrun" "$HVD_SRC/coordinator" "$HVD_SRC/worker" ||
        { echo "README lists $variable, no source has it"; exit 1; }
done
