#!/bin/bash
# Under small limits (memory, open files, processes) hvdrun and what it starts end with a
# status below 128 and say why; the number of open files they ask for is enough.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
if [ -n "$HVD_E2E_CFLAGS" ]; then
    echo "a sanitizer needs more memory than these limits leave"
    exit 77
fi

# The last run: 0, or a status of the table and a line of a program of ours or of the
# system's loader. $1 = what was limited
check() {
    [ "$status" -lt 128 ] || die "$1: status $status"
    [ "$status" = 0 ] && return
    grep -qE '^hvd[a-z-]*: |error while loading shared libraries' err ||
        die "$1: status $status without a line"
    [ "$(wc -l <err)" -le 4 ] || die "$1: more than four lines"
}

# $1 = option of ulimit, $2 = value, $3... = command
limited() {
    local option=$1 value=$2
    shift 2
    (
        exec 3>&- 4>&-
        # shellcheck disable=SC2086
        ulimit $option "$value" && exec timeout -s KILL 20 "$@"
    ) >out 2>err
    status=$?
}

passed=0
for ((mib = 8; mib <= 80; mib += mib < 24 ? 1 : 8)); do
    limited -v $((mib * 1024)) hvdrun -np 2 echo hello
    check "ulimit -v $mib MiB"
    if [ $status = 0 ]; then
        [ "$(grep -c hello out)" = 2 ] || die "ulimit -v $mib MiB: status 0 and no output"
        passed=$((passed + 1))
    fi
done
[ $passed -gt 3 ] || die "80 MiB of memory are not enough"
echo "ok ulimit -v 8..80 MiB: a line or a job"

for ((n = 4; n <= 80; n += n < 52 ? 3 : 9)); do
    limited -n $n hvdrun -np 2 echo hello
    check "ulimit -n $n"
    [ $status != 0 ] || [ "$(grep -c hello out)" = 2 ] || die "ulimit -n $n: no output"
done
[ $status = 0 ] || die "80 open files are not enough"
echo "ok ulimit -n 4..80: a line or a job"

for options in "-np 1" "-np 16" "-np 16 --stdin all" "-np 40 --output-filename files"; do
    # shellcheck disable=SC2086
    limited -n 32 hvdrun $options true
    check "ulimit -n 32"
    [ $status = 125 ] || die "$options: status $status, not 125"
    [ "$(wc -l <err)" = 1 ] || die "$options: not one line"
    need=$(sed -n 's/^hvdrun: the limit of 32 open files is too small for .*, which needs\{0,1\} \([0-9]*\); raise it (ulimit -n)$/\1/p' err)
    [ -n "$need" ] || die "$options: no number"
    # shellcheck disable=SC2086
    limited -n "$need" hvdrun $options true
    [ $status = 0 ] || die "$options: with the $need open files that were asked for: status $status"
    echo "ok hvdrun $options: needs $need open files, and that is enough"
done

limited -Sn 40 hvdrun -np 16 sh -c 'ulimit -Sn'
[ "$status" = 0 ] || die "a soft limit of 40: status $status"
[ "$(grep -c ':40$' out)" = 16 ] || die "the ranks do not have the limit of the user"
echo "ok a soft limit is raised, and the ranks have the user's"

if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    chmod 755 . && mkdir -m 777 tmp
    have=$(ps -L -U 65534 -o lwp= | wc -l)
    for ((n = 1; n <= 12; n++)); do
        limited -u $((have + n)) setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
            --bounding-set=-all env XDG_RUNTIME_DIR="$T/tmp" "$HVD_BUILD/bin/hvdrun" -np 2 echo hello
        check "ulimit -u $n"
    done
    [ $status = 0 ] || die "12 processes are not enough: status $status"
    echo "ok ulimit -u 1..12: a line or a job"
fi

run hvd-agent --stdin </dev/null
expect_status 2
expect_line err 'stdin and stdout must be pipes'
run hvd-coordinator --stdio </dev/null
expect_status 2
expect_line err 'stdin and stdout must be pipes'
echo "ok agent and coordinator refuse what is no pipe"
for program in "hvd-agent --stdin" "hvd-coordinator --stdio"; do
    for limit in "-n "{4..40..3} "-v "{6144..20480..1024}; do
        # shellcheck disable=SC2086
        true | (ulimit $limit && exec timeout -s KILL 20 $program) 2>err | cat >out
        status=${PIPESTATUS[1]}
        # the coordinator has nothing to say of a stdin that ended
        [ "$status" -lt 128 ] || die "$program, ulimit $limit: status $status"
    done
done
echo "ok agent and coordinator alone: no status of 128 or more"
