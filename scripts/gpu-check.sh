#!/bin/bash
# Is the GPU plane right on this machine? Prints what it has and one line a check; status 0 when
# all passed, 77 with the reason where there is no GPU.
#   scripts/gpu-check.sh
# It runs tests/e2e/t4010 (every collective, checked), not the fakes, and measures nothing.
set -u
cd "$(dirname "$0")/.." || exit 1
export B=${B:-build}
make -s all || exit 1
out=$(tests/e2e/run.sh t4010 2>&1)
status=$?
echo "$out"
case $out in *SKIP*) exit 77 ;; esac
exit $status
