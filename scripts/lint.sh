#!/bin/bash
# What reads the code without running it; status 1 when something is to be mended.
#   scripts/lint.sh [--changed] [FILE...]
# clang-format (dry run), clang-tidy (.clang-tidy), gcc -fanalyzer, headers alone, include
# arrows, scripts. --changed: only C files that differ from the last commit.
# HVD_LINT_SKIP="analyzer tidy" leaves out the slow ones.
set -u
cd "$(dirname "$0")/.." || exit 1
B=${B:-build}
jobs=${JOBS:-$(nproc)}
bad=0

all_files() {
    find proto coordinator hvdrun worker tests -name '*.[ch]' -not -path '*/trial/*' |
        LC_ALL=C sort
}

changed=
while [ $# -gt 0 ]; do
    case $1 in
    --changed) changed=1 ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "lint.sh: unknown option '$1'" >&2; exit 2 ;;
    *) break ;;
    esac
    shift
done
if [ $# -gt 0 ]; then
    files=("$@")
elif [ -n "$changed" ]; then
    mapfile -t files < <({ git diff --name-only HEAD; git ls-files -o --exclude-standard; } |
        sort -u | grep -Fxf <(all_files))
else
    mapfile -t files < <(all_files)
fi
sources=()
for file in "${files[@]}"; do
    [ "${file%.c}" = "$file" ] || sources+=("$file")
done

skips() {
    case " ${HVD_LINT_SKIP:-} " in *" $1 "*) return 0 ;; esac
    return 1
}

# $1 = what, rest = command
run() {
    local what=$1
    shift
    if "$@"; then
        echo "ok    $what"
    else
        echo "WRONG $what"
        bad=1
    fi
}

make -s B="$B" "$B/gen/proto/msg/hvd.pb-c.h" || exit 1
export FLAGS="-std=c11 -D_GNU_SOURCE -I. -Iworker/include -I$B/gen -Itests/unit/support"

format() {
    [ ${#files[@]} = 0 ] || clang-format --dry-run -Werror "${files[@]}"
}

# Programs' and libraries' sources that this processor's compiler takes.
readable() {
    local other='/arm64/' # and what needs a toolkit's headers
    [ "$(uname -m)" = aarch64 ] && other='/x86/'
    printf '%s\n' "${sources[@]}" | grep -v -e '^tests/' -e nccl/headers.c -e "$other"
}

# Flags for a file: what the Makefile adds, and lint.h where hvi_fail() is not the program's.
flags_of() {
    case $1 in
    */avx2.c) echo "$FLAGS -mavx2 -mf16c" ;;
    */avx512.c) echo "$FLAGS -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c" ;;
    proto/base/err.c | worker/examples/*) echo "$FLAGS" ;;
    *) echo "$FLAGS -include scripts/lint.h" ;;
    esac
}
# shellcheck disable=SC2046
tidy_one() {
    local out
    out=$(clang-tidy --quiet "$1" -- $(flags_of "$1") '-DHVI_VERSION="lint"' 2>/dev/null) ||
        { printf '%s\n' "$out"; return 1; }
}
# shellcheck disable=SC2046
analyze_one() {
    "${CC:-gcc}" $(flags_of "$1") '-DHVI_VERSION="lint"' -O2 -fanalyzer -Wno-analyzer-malloc-leak \
        -Werror -c -o /dev/null "$1"
}
export -f flags_of tidy_one analyze_one

# shellcheck disable=SC2016
tidy() {
    readable | xargs -r -P "$jobs" -n 1 bash -c 'tidy_one "$1"' _
}
# The analyzer is gcc's own. Tests trip it with their macros; it takes what hangs in a list or
# hash table for leaked (leaks are looked for when tests run).
# shellcheck disable=SC2016
analyzer() {
    readable | xargs -r -P "$jobs" -n 1 bash -c 'analyze_one "$1"' _
}
scripts_read() {
    if ! command -v shellcheck >/dev/null; then
        echo "lint.sh: no shellcheck here; scripts/deps.sh --lint installs it" >&2
        return 1
    fi
    shellcheck -S warning -e SC1007,SC2046,SC2216 .ci/run scripts/*.sh scripts/run-unit scripts/check-headers \
        scripts/top-length tests/e2e/*.sh tests/python/*.sh
}

run "include arrows" scripts/check-includes
run "headers alone" scripts/check-headers
if command -v clang-format >/dev/null && command -v clang-tidy >/dev/null; then
    run "clang-format" format
    skips tidy || run "clang-tidy" tidy
else
    echo "lint.sh: no clang-format or clang-tidy here; scripts/deps.sh --lint installs them" >&2
    bad=1
fi
run "shellcheck" scripts_read
skips analyzer || run "gcc -fanalyzer" analyzer
exit $bad
