#!/bin/bash
# deadline: 180
# make install, then a program outside the tree: cc train.c $(pkg-config --cflags --libs hvd)
set -eu
prefix=$T/opt/hvd
make -s -C "$HVD_SRC" B="$HVD_BUILD" PREFIX="$prefix" install >"$T/install.log" 2>&1 ||
    { cat "$T/install.log"; exit 1; }
for file in bin/hvdrun bin/horovodrun bin/hvd-agent bin/hvd-coordinator lib/libhvd.so include/hvd/hvd.h \
    lib/pkgconfig/hvd.pc share/man/man1/hvdrun.1 share/man/man1/horovodrun.1 share/bash-completion/completions/hvdrun; do
    [ -s "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done

echo "-- only hvd_ symbols, only the libraries that are promised, no path of the build"
nm -D --defined-only "$prefix/lib/libhvd.so" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' >symbols
grep -q '^hvd_init$' symbols
if grep -v '^hvd_' symbols; then echo "these are exported too"; exit 1; fi
readelf -d "$prefix/lib/libhvd.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' >needed
if grep -vE '^(libsodium|libprotobuf-c|libxxhash|libm|libdl|libc|libpthread|ld-linux.*)\.so' needed; then
    echo "libhvd needs these too"
    exit 1
fi
readelf -d "$prefix/lib/libhvd.so" | grep -q 'SONAME.*\[libhvd.so.1\]'
if readelf -d "$prefix"/bin/* "$prefix/lib/libhvd.so" | grep -E 'RPATH|RUNPATH'; then exit 1; fi

echo "-- DESTDIR stages the same files and hvd.pc does not mention it"
make -s -C "$HVD_SRC" B="$HVD_BUILD" PREFIX=/usr DESTDIR="$T/stage" install >>"$T/install.log" 2>&1
[ -x "$T/stage/usr/bin/hvdrun" ]
[ "$T/stage/usr/bin/horovodrun" -ef "$T/stage/usr/bin/hvdrun" ]
grep -qx 'prefix=/usr' "$T/stage/usr/lib/pkgconfig/hvd.pc"
if grep -rl "$T/stage" "$T/stage"; then exit 1; fi

echo "-- the horovodrun of Horovod stays"
rm "$T/stage/usr/bin/horovodrun" && echo theirs >"$T/stage/usr/bin/horovodrun"
make -s -C "$HVD_SRC" B="$HVD_BUILD" PREFIX=/usr DESTDIR="$T/stage" install >out
grep -q '/usr/bin/horovodrun is another program.s' out && grep -q theirs "$T/stage/usr/bin/horovodrun"

echo "-- manual and completion"
if command -v mandoc >/dev/null; then
    mandoc -T lint -W warning "$prefix/share/man/man1/hvdrun.1" || exit 1
fi
bash -c ". '$prefix/share/bash-completion/completions/hvdrun' && complete -p hvdrun"

echo "-- a program outside the tree"
# as a user whose shell finds the installed programs and library
export PATH="$prefix/bin:${PATH#"$HVD_BUILD/bin:"}" LD_LIBRARY_PATH="$prefix/lib"
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
cp "$HVD_SRC/worker/examples/allreduce.c" train.c
# shellcheck disable=SC2046
cc train.c $(pkg-config --cflags --libs hvd) -o train
[ "$(command -v hvdrun)" = "$prefix/bin/hvdrun" ]
horovodrun -np 3 ./train >out 2>err || { cat out err; exit 1; }
cat out
[ "$(grep -c 'rank [012] of 3: average 2 20 200, sum 6 60 600' out)" = 3 ]
[ "$(pkg-config --modversion hvd)" = "$(hvdrun --version | grep -o '[0-9]*\.[0-9]*\.[0-9]*' | head -n 1)" ]
