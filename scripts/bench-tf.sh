#!/bin/bash
# One step of 161 gradients with ResNet-50's shapes at np 2: what TensorFlow's binding adds to
# libhvd called from C. The two take turns; compare only within one run.
#   scripts/bench-tf.sh [REPS [SECONDS]]
# Skips, and says so, where `scripts/python-env.sh tf-current` has not made its environment.
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
reps=${1:-3}
seconds=${2:-3}
bench=$B/tests/bench

tf=$(scripts/python-env.sh --check tf-current) || {
    echo "bench-tf.sh: no TensorFlow; scripts/python-env.sh tf-current makes it" >&2
    exit 0
}
make -s -j"$(nproc)" B="$B" all >/dev/null || exit 1
mkdir -p "$bench"
"${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O2 -Itests/bench -Iworker/include \
    tests/bench/bench_gradients.c -o "$bench/bench_gradients" -L"$B/lib" -lhvd \
    -Wl,-rpath,"\$ORIGIN/../../lib" || exit 1
export HVD_LIBRARY=$B/lib/libhvd.so PYTHONPATH=worker/python TF_CPP_MIN_LOG_LEVEL=2

step_of() {
    timeout -k 5 300 "$B/bin/hvdrun" -np 2 "$@" 2>/dev/null | sed -n 's/.*\(step .*\)/\1/p'
}
for ((rep = 1; rep <= reps; rep++)); do
    step_of "$bench/bench_gradients" "$seconds"
    step_of "$tf" tests/bench/tf_step.py "$seconds"
done | awk '
    { print; if ($2 == "c") c = $5; else if (c > 0) { r = $5 / c; sum += r; m++
        if (best == "" || r < best) best = r } }
    END { if (!m) { print "bench-tf.sh: no step of both kinds"; exit 1 }
          printf "a step in TensorFlow takes %.2f times that in C (best pair %.2f, %d pairs, goal 1.25)\n",
              sum / m, best, m }'
