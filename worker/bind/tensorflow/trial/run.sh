#!/bin/sh
# Repeat the trial: fresh virtual environment, build, count exports, run the scenarios.
#
#   trial/run.sh [SCENARIO...]
#
# TF_VERSION   tensorflow-cpu release to install (2.21.0)
# PYTHON       interpreter (python3)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
version=${TF_VERSION:-2.21.0}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd
venv=$cache/tf-trial-$version

if [ ! -e "$venv/installed" ]; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install -q "tensorflow-cpu==$version"
    touch "$venv/installed"
fi
cc -std=c11 -O2 -g -fPIC -shared -fvisibility=hidden -Wall -Wextra -Wshadow \
    -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wformat=2 \
    -Werror -o "$venv/libhvd_tf_trial.so" "$here/ops.c" "$here/pair.c" -lpthread -ldl
framework=$(find "$venv/lib" -name libtensorflow_framework.so.2)
echo "TF_* symbols exported: $(nm -D --defined-only "$framework" | grep -c ' T TF_')"
echo "needed by the op library: $(readelf -d "$venv/libhvd_tf_trial.so" |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' ')"
exec "$venv/bin/python" "$here/trial.py" "$venv/libhvd_tf_trial.so" "$@"
