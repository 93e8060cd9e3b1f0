#!/bin/bash
# From a bare Debian 12 machine to four ranks training on handwritten digits:
#   scripts/demo.sh [NP]         NP: how many ranks, 4
# 1. installs what is missing  2. builds  3. trains  4. shows that NP ranks do what one does.
# Prints one line per check; status 0 only when all hold. Needs root or sudo once, and about
# a minute.
set -u
cd "$(dirname "$0")/.." || exit 1
np=${1:-4}
case $np in
'' | *[!0-9]* | 0*) echo "demo.sh: '$np' is not a number of ranks" >&2; exit 2 ;;
esac
B=${B:-build}
work=$(mktemp -d "${TMPDIR:-/tmp}/hvd-demo-XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

step() {
    printf '\n== %s\n' "$*"
}

die() {
    echo "demo.sh: $*" >&2
    exit 1
}

# $1 = what holds, rest = the command that shows it
holds() {
    local what=$1 out
    shift
    if out=$("$@" 2>&1); then
        printf 'ok    %s%s\n' "$what" "${out:+ ($out)}"
    else
        printf 'WRONG %s%s\n' "$what" "${out:+ ($out)}"
        failed=$((failed + 1))
    fi
}

# Test accuracy that a run printed. $1 = its output
accuracy() {
    sed -n 's/.*test accuracy \([0-9.]*\) %.*/\1/p' "$1"
}

accuracy_within() {
    awk -v a="$(accuracy "$1")" -v b="$(accuracy "$2")" -v limit="$3" 'BEGIN {
        if (a == "" || b == "") { print "no accuracy was printed"; exit 1 }
        d = a > b ? a - b : b - a
        printf "%.2f %% and %.2f %%\n", a, b
        exit d > limit
    }'
}

# $1 = name, $2 = ranks: one epoch that leaves its first gradients and its parameters
one_epoch() {
    "$B/bin/hvdrun" -np "$2" "$B/examples/train_mnist" --epochs 1 \
        --dump-grads "$work/$1.grads" --checkpoint "$work/$1.params" >"$work/$1.out" 2>&1 || {
        cat "$work/$1.out" >&2
        die "training with $2 ranks failed"
    }
}

step "1. What is needed"
scripts/deps.sh || exit 1

step "2. Build"
make -j"$(nproc)" B="$B" || die "the build failed"

step "3. Train: $B/bin/hvdrun -np $np $B/examples/train_mnist"
"$B/bin/hvdrun" -np "$np" "$B/examples/train_mnist" --checkpoint "$work/model" ||
    die "training failed"

step "4. $np ranks do what 1 does"
one_epoch one 1
one_epoch many "$np"
compare=$B/examples/compare_params
holds "the first step's gradients agree within 1e-5" \
    "$compare" "$work/one.grads" "$work/many.grads" 1e-5
holds "the parameters after one epoch agree within 1e-3" \
    "$compare" "$work/one.params" "$work/many.params" 1e-3
holds "the test accuracies agree within 0.5 points" \
    accuracy_within "$work/one.out" "$work/many.out" 0.5
holds "all ranks hold the same bits" \
    grep -o "bit-identical on $np rank.*" "$work/many.out"
one_epoch again "$np"
holds "a second run gives the same bits" cmp "$work/many.params" "$work/again.params"
holds "the checkpoint is there, once" test -s "$work/model"

echo
[ $failed = 0 ] || die "$failed of the checks above did not hold"
echo "All of it holds. Next: README.md, and worker/examples/train_mnist.c."
