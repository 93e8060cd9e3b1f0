#!/bin/bash
# scripts/deps.sh: reports what is missing, refuses in one line without root and sudo.
set -eu
deps=$HVD_SRC/scripts/deps.sh
"$deps" --check
status=0
"$deps" --wrong >out 2>&1 || status=$?
[ $status = 2 ]
[ "$(wc -l <out)" = 1 ]

# a machine on which one package is not installed and the user is not root
mkdir bin
real=$(command -v dpkg-query)
printf '#!/bin/sh\nfor a; do [ "$a" != libpopt-dev ] || exit 1; done\nexec %s "$@"\n' "$real" >bin/dpkg-query
printf '#!/bin/sh\necho 1000\n' >bin/id
chmod +x bin/dpkg-query bin/id
for tool in bash env sed awk sort grep printf cat; do
    ln -s "$(command -v $tool)" bin/$tool
done
status=0
PATH=$PWD/bin "$deps" --check >out 2>&1 || status=$?
cat out
[ $status = 1 ]
grep -qx 'deps.sh: missing: libpopt-dev' out
status=0
PATH=$PWD/bin "$deps" >out 2>&1 || status=$?
cat out
[ $status = 1 ]
grep -qx 'deps.sh: needs root or sudo to install: libpopt-dev' out

# as root it asks apt-get for that one package and passes its failure on
printf '#!/bin/sh\necho 0\n' >bin/id
printf '#!/bin/sh\necho "$@" >>%s/asked\nexit ${APT_STATUS:-0}\n' "$PWD" >bin/apt-get
chmod +x bin/apt-get
PATH=$PWD/bin "$deps"
grep -q 'install .* libpopt-dev$' asked
status=0
APT_STATUS=1 PATH=$PWD/bin "$deps" >out 2>&1 || status=$?
cat out
[ $status = 1 ]
grep -q 'could not install: libpopt-dev' out
