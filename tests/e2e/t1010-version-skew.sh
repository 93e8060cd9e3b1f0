#!/bin/bash
# Programs and library of two versions: refused in one line that names both. The other
# version is made by changing the version text inside a copy of the built file.
set -eu
other=$(hvdrun --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)
older=${other%.*}.9
mkdir -p tree/bin

fresh() {
    cp "$HVD_BUILD"/bin/hvdrun "$HVD_BUILD"/bin/hvd-agent "$HVD_BUILD"/bin/hvd-coordinator tree/bin/
}

# $1 = program to age
refused() {
    local rc=0
    fresh
    sed -i "s/${other//./\\.}/$older/g" "tree/bin/$1"
    timeout 30 tree/bin/hvdrun -np 2 true >out 2>err || rc=$?
    cat err
    [ $rc = 125 ] || { echo "status $rc, not 125"; exit 1; }
    [ "$(wc -l <err)" = 1 ] || { echo "more than one line"; exit 1; }
    grep -q "$other" err && grep -q "$older" err || { echo "not both versions"; exit 1; }
}

fresh
tree/bin/hvdrun -np 2 true
refused hvd-coordinator
refused hvd-agent

echo "-- a program with another libhvd"
fresh
mkdir -p tree/lib tree/examples
cp "$HVD_BUILD/examples/allreduce" tree/examples/
cp -P "$HVD_BUILD"/lib/libhvd.so* tree/lib/
sed -i "s/${other//./\\.}/$older/g" "tree/lib/libhvd.so.$other"
if timeout 30 tree/bin/hvdrun -np 2 tree/examples/allreduce >out 2>err; then
    echo "was not refused"
    exit 1
fi
cat err
grep -q "version mismatch: libhvd $older.*, hvd-coordinator $other" err
