# shellcheck shell=bash
# Texts for the user, compared byte for byte with tests/e2e/golden/texts/NAME.txt: the exit
# status, then stdout where that is asked for, then stderr. What differs from run to run is
# written as a word: T, BUILD, SRC (directories), PID, PORT, TIME, VERSION, RUNDIR; WORDS is
# what ssh itself said. To write the files anew, after reading the difference:
#   HVD_GOLDEN=1 tests/e2e/run.sh 't1034*' 't1035*'
#
#   . "$HVD_SRC/tests/e2e/golden.sh"
#   golden NAME [LIMIT_MS [LINES]]   the last run (lib.sh) is as in NAME.txt: it took at most
#                                    LIMIT_MS (6000), its stderr has at most LINES (3)

# stdin to stdout
golden_plain() {
    sed -E \
        -e "s|$T|T|g; s|$HVD_BUILD|BUILD|g; s|$HVD_SRC|SRC|g" \
        -e 's/\(pid [0-9]+\)/(pid PID)/g; s/-CONT [0-9]+/-CONT PID/g; s/, pid [0-9]+\)/, pid PID)/g' \
        -e 's/[0-9]+ bytes of output/N bytes of output/' \
        -e 's/after [0-9]+\.[0-9]+ s/after TIME/g; s/for [0-9.]+ (s|seconds)\b/for TIME/g' \
        -e "s/this hvdrun of [0-9]+\.[0-9]+\.[0-9]+[^;]*/this hvdrun of VERSION/" \
        -e 's|/[^ ]*/hvd-[A-Za-z0-9]{6}\b|RUNDIR|g' \
        -e 's/:[1-9][0-9]{4}\b/:PORT/g' \
        -e 's/\(ssh: .*\)$/(ssh: WORDS)/; s|\(.*/no/such/proxy.*\)|(WORDS)|' \
        -e 's/\((Name or service not known|Temporary failure in name resolution)\)/(WHY)/'
}

golden() {
    local file=$HVD_SRC/tests/e2e/golden/texts/$1.txt
    {
        # shellcheck disable=SC2154
        echo "status $status"
        golden_plain <err
    } >text
    if [ "${HVD_GOLDEN:-0}" = 1 ]; then
        mkdir -p "${file%/*}"
        cp text "$file"
    fi
    [ -r "$file" ] || die "$1: there is no $file; HVD_GOLDEN=1 writes it"
    diff -u --label "golden/texts/$1.txt" --label "this run" "$file" text >&2 ||
        die "$1: not as in golden/texts/$1.txt"
    [ "$(wc -l <err)" -le "${3:-3}" ] || die "$1: more than ${3:-3} lines"
    expect_within "${2:-6000}"
}
