#!/bin/bash
# deadline: 300
# The demo ends well, says so line by line, and leaves nothing behind.
set -eu
cd "$HVD_SRC"
TMPDIR=$T B=$HVD_BUILD scripts/demo.sh >"$T/out" 2>&1 || { cat "$T/out"; exit 1; }
cat "$T/out"
grep -q '^All of it holds' "$T/out"
[ "$(grep -c '^ok ' "$T/out")" = 6 ]
if grep -q '^WRONG' "$T/out"; then exit 1; fi
# loss, accuracy and images/s for each epoch, from one rank
[ "$(grep -c 'epoch [0-9]*/5  loss [0-9.]*  accuracy [0-9.]* %  [0-9]* images/s' "$T/out")" = 5 ]
# it learned: better than nine in ten
accuracy=$(sed -n 's/.*test accuracy \([0-9]*\)\.[0-9]* %.*/\1/p' "$T/out" | head -n 1)
[ "$accuracy" -ge 90 ] || { echo "test accuracy is only $accuracy %"; exit 1; }
[ -z "$(find "$T" -mindepth 1 -name 'hvd-demo-*')" ]
