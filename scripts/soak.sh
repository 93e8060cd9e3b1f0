#!/bin/bash
# The tests with their long counts (hours), which scripts/test.sh runs in small.
#   scripts/soak.sh [PART...]      parts as scripts/test.sh; default: unit e2e
# Tests see HVD_SOAK=1; fuzz targets get an hour each. HVD_SOAK_MINUTES: for all (1440).
set -u
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in
-h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- unit e2e
export HVD_SOAK=1
export HVD_FUZZ_SECONDS=${HVD_FUZZ_SECONDS:-3600}
export HVD_TEST_MINUTES=${HVD_SOAK_MINUTES:-1440}
exec scripts/test.sh "$@"
