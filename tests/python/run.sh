#!/bin/bash
# Tests of the Python package; ends with "N passed, N failed, N skipped".
#   tests/python/run.sh [--python NAME]... [--np N]... [--results FILE] [pytest arguments]
# NAME  an environment of scripts/python-env.sh (torch-debian, torch-current, tf-current,
#       tf-keras2), or the path of an interpreter with torch; without --python: all, each only
#       if it is already there (run python-env.sh first)
# N     ranks; without --np: 1 2 3 4, TensorFlow's 1 2 3
# B     build directory (default build) with lib/libhvd.so and bin/hvdrun
# FILE  gets a line "pass|fail|skip<TAB>name<TAB>reason" for each test and job size
# A test passes when it passes in every rank. Nothing is installed.
set -u
cd "$(dirname "$0")/../.." || exit 1
b=$(cd "${B:-build}" 2>/dev/null && pwd) || { echo "run.sh: no build directory ${B:-build}" >&2; exit 1; }
export HVD_LIBRARY=$b/lib/libhvd.so
export PATH=$b/bin:$PATH PYTHONPATH=$PWD/worker/python PYTHONDONTWRITEBYTECODE=1
export OMP_NUM_THREADS=1

pythons=() sizes=() rest=() results=
while [ $# -gt 0 ]; do
    case $1 in
    --python) pythons+=("$2"); shift 2 ;;
    --np) sizes+=("$2"); shift 2 ;;
    --results) results=$2; shift 2 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) rest+=("$1"); shift ;;
    esac
done
given_sizes=${#sizes[@]}
[ "$given_sizes" -gt 0 ] || sizes=(1 2 3 4)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
: >"$work/all"

record() {
    printf '%s\t%s\t%s\n' "$1" "$2" "${3:-}" >>"$work/all"
    # after the first failure a job ends: what then did not run is only counted
    if [ "$1" = fail ] && [ "${3:-}" != "did not end in every rank" ]; then
        printf 'FAIL %s%s\n' "$2" "${3:+: $3}"
    fi
}

# Of one job: $1 = label, $2 = records of its ranks, $3 = number of ranks
merge() {
    awk -F'\t' -v label="$1" -v ranks="$3" '
        $1 == "collected" { if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } next }
        { if (!($2 in seen)) { seen[$2] = 1; order[++n] = $2 } count[$1 "\t" $2]++; why[$2] = $3 }
        END {
            for (i = 1; i <= n; i++) {
                t = order[i]
                if (count["failed\t" t]) verdict = "fail"
                else if (count["passed\t" t] + count["skipped\t" t] < ranks) {
                    verdict = "fail"; why[t] = "did not end in every rank"
                } else if (count["passed\t" t]) { verdict = "pass"; why[t] = "" }
                else verdict = "skip"
                sub(/.*tests\/python\//, "", t)
                printf "%s\t%s/%s\t%s\n", verdict, label, t, why[order[i]]
            }
            if (n == 0) printf "fail\t%s\tno test has run\n", label
        }' "$2".* 2>/dev/null
}

run_job() {
    local python=$1 label=$2 ranks=$3 folder=$4 log=$work/log command
    rm -f "$work"/records.*
    export HVD_TEST_RESULTS=$work/records
    command=("$python" -m pytest -q -x -p no:cacheprovider --rootdir tests/python "tests/python/$folder")
    [ ${#rest[@]} -eq 0 ] || command+=("${rest[@]}")
    if [ "$ranks" -gt 0 ]; then
        timeout -k 5 400 hvdrun --timeout 390s -np "$ranks" "${command[@]}" >"$log" 2>&1
    else
        timeout -k 5 400 "${command[@]}" >"$log" 2>&1
    fi
    local status=$? lines
    lines=$(merge "$label" "$work/records" $((ranks > 0 ? ranks : 1)))
    while IFS=$'\t' read -r verdict name reason; do
        record "$verdict" "$name" "$reason"
    done <<<"$lines"
    grep -q 'did not end in every rank' <<<"$lines" &&
        echo "FAIL $label: $(grep -c 'did not end in every rank' <<<"$lines") tests did not end in every rank"
    if [ $status != 0 ] && ! grep -q ^fail <<<"$lines"; then
        record fail "$label/exit" "status $status"
    fi
    if [ $status != 0 ]; then
        tail -n 60 "$log" | sed 's/^/  | /'
    fi
    echo "-- $label: $(grep -c ^pass <<<"$lines") passed, $(grep -c ^fail <<<"$lines") failed ($SECONDS s)"
}

# tests/python/single/test_wheel.py installs it
HVD_TEST_WHEEL=$(make -s B="$b" wheel 2>"$work/wheel.log" | grep '\.whl$')
export HVD_TEST_WHEEL
[ -n "$HVD_TEST_WHEEL" ] || { record fail wheel "make wheel failed"; tail -n 5 "$work/wheel.log"; }

if [ ${#pythons[@]} -eq 0 ]; then
    for name in torch-debian torch-current tf-current tf-keras2; do
        if scripts/python-env.sh --check "$name" >/dev/null; then
            pythons+=("$name")
        else
            record skip "$name" "not there; scripts/python-env.sh $name makes it"
        fi
    done
fi
[ ${#pythons[@]} -gt 0 ] && for name in "${pythons[@]}"; do
    case $name in
    torch-* | tf-*) python=$(scripts/python-env.sh --check "$name") ||
        { record skip "$name" "not there; scripts/python-env.sh $name makes it"; continue; } ;;
    *) python=$name ;;
    esac
    label=$(basename "$name")
    case $name in
    tf-*)
        # importing TensorFlow takes seconds: few processes, many tests in each
        export TF_CPP_MIN_LOG_LEVEL=2
        run_job "$python" "$label/single" 0 tensorflow/single
        [ "$given_sizes" -gt 0 ] || sizes=(1 2 3)
        for ranks in "${sizes[@]}"; do
            run_job "$python" "$label/np$ranks" "$ranks" tensorflow/ranks
        done
        if [ "$name" = tf-current ] && [[ " ${sizes[*]} " == *" 2 "* ]]; then
            TF_USE_LEGACY_KERAS=1 run_job "$python" "$label/tf_keras/np2" 2 tensorflow/ranks/test_keras.py
        fi
        [ "$given_sizes" -gt 0 ] || sizes=(1 2 3 4)
        continue
        ;;
    esac
    run_job "$python" "$label/single" 0 single
    for ranks in "${sizes[@]}"; do
        run_job "$python" "$label/np$ranks" "$ranks" ranks
    done
done
[ -z "$results" ] || cat "$work/all" >>"$results"
awk -F'\t' '$1 == "skip" { n[$3]++ } END { for (r in n) printf "SKIP %d: %s\n", n[r], r }' "$work/all"
passed=$(grep -c ^pass "$work/all")
failed=$(grep -c ^fail "$work/all")
skipped=$(grep -c ^skip "$work/all")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
