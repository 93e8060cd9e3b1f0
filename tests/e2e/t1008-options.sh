#!/bin/bash
# horovodrun lines work as they are: each flag is accepted and sets its variables; help, man
# page and completion know every option; the configuration file gives way to the line.
. "$HVD_SRC/tests/e2e/lib.sh"

# $1 = flags, $2... = variables the rank must see
line() {
    local flags=$1 var
    shift
    # shellcheck disable=SC2086
    run hvdrun -np 1 $flags env
    [ "$status" = 0 ] || die "hvdrun -np 1 $flags: status $status"
    for var in "$@"; do
        grep -qxF "[0]<stdout>:HOROVOD_$var" out || die "$flags does not set HOROVOD_$var"
        grep -qxF "[0]<stdout>:HVD_$var" out || die "$flags does not set HVD_$var"
    done
}

line '--fusion-threshold-mb 32' FUSION_THRESHOLD=33554432
line '--fusion-threshold-mb=0' FUSION_THRESHOLD=0
line '--cycle-time-ms 3.5' CYCLE_TIME=3.5
line '--cache-capacity 2048' CACHE_CAPACITY=2048
line '--hierarchical-allreduce --hierarchical-allgather --torus-allreduce' HIERARCHICAL_ALLREDUCE=1 HIERARCHICAL_ALLGATHER=1 TORUS_ALLREDUCE=1
line '--no-hierarchical-allreduce --no-hierarchical-allgather --no-torus-allreduce' HIERARCHICAL_ALLREDUCE=0 HIERARCHICAL_ALLGATHER=0 TORUS_ALLREDUCE=0
line '--autotune --autotune-log-file a.csv --autotune-warmup-samples 1 --autotune-steps-per-sample 2 --autotune-bayes-opt-max-samples 3 --autotune-gaussian-process-noise 0.5' \
    AUTOTUNE=1 AUTOTUNE_LOG=a.csv AUTOTUNE_WARMUP_SAMPLES=1 AUTOTUNE_STEPS_PER_SAMPLE=2 AUTOTUNE_BAYES_OPT_MAX_SAMPLES=3 AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.5
line '--no-autotune'
line '--timeline-filename t.json --timeline-mark-cycles' TIMELINE=t.json TIMELINE_MARK_CYCLES=1
line '--no-timeline-mark-cycles'
line '--no-stall-check' STALL_CHECK_DISABLE=1
line '--stall-check --stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 50' STALL_CHECK_TIME_SECONDS=5 STALL_SHUTDOWN_TIME_SECONDS=50
line '--mpi-threads-disable' MPI_THREADS_DISABLE=1
line '--num-nccl-streams 2 --thread-affinity 1 --gloo-timeout-seconds 60' NUM_NCCL_STREAMS=2 THREAD_AFFINITY=1 GLOO_TIMEOUT_SECONDS=60
line '--log-level DEBUG --log-without-timestamp' LOG_HIDE_TIME=1 LOG_LEVEL=DEBUG
line '--log-hide-timestamp' LOG_HIDE_TIME=1
line '--log-with-timestamp' LOG_HIDE_TIME=0
line '--start-timeout 20' START_TIMEOUT=20
line '--network-interfaces lo,eth0' GLOO_IFACE=lo
expect_line out 'NCCL_SOCKET_IFNAME=lo,eth0$'
line '--network-interface lo --network-interface eth1' GLOO_IFACE=lo
expect_line out 'NCCL_SOCKET_IFNAME=lo,eth1$'
line --tcp
expect_line out 'NCCL_IB_DISABLE=1$'
line '--gloo --disable-cache --verbose -p 22 -i key -H localhost:1 --output-filename logs'
line '--mpi --mpi-args=-x --binding-args=-y'
line --jsrun
for flag in '--min-np 1' '--max-np 4' '--min-np 2 --max-np 2' '--slots-per-host 2' '--elastic-timeout 10' '--reset-limit 3' \
    '--blacklist-cooldown-range 1 10' '--host-discovery-script ./x'; do
    # shellcheck disable=SC2086
    run hvdrun -np 2 $flag true
    [ "$status" = 2 ] || die "$flag: status $status, not 2"
    [ "$(wc -l <err)" = 1 ] || die "$flag: not one line"
    expect_line err "^hvdrun: ${flag%% *}: not yet: elastic jobs"
done
line --autotune
expect_line err '^hvdrun: --autotune has no effect'
line '--hierarchical-allreduce --torus-allreduce --num-nccl-streams 2' NUM_NCCL_STREAMS=2
expect_line err '^hvdrun: --hierarchical-allreduce has no effect: .* on GPUs by NCCL'
expect_line err '^hvdrun: --num-nccl-streams has no effect: NCCL chooses its channels itself'
line '--gloo-timeout-seconds 60'
expect_line err '^hvdrun: --gloo-timeout-seconds has no effect: '
HOROVOD_CACHE_CAPACITY=7 line '--cache-capacity 9' CACHE_CAPACITY=9
cat >threads.c <<'END'
#define _GNU_SOURCE
#include <dirent.h>
#include <hvd/hvd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

/* How many threads may use nothing but the core that argv[1] names */
int main(int argc, char **argv)
{
    struct dirent *e;
    DIR *d;
    int n = 0, bound = 0;

    if (argc != 2 || hvd_init(NULL) != HVD_OK) {
        fprintf(stderr, "%s\n", hvd_last_error());
        return 1;
    }
    d = opendir("/proc/self/task");
    while ((e = readdir(d)) != NULL) {
        cpu_set_t set;

        if (atoi(e->d_name) == 0)
            continue;
        sched_getaffinity(atoi(e->d_name), sizeof set, &set);
        n++;
        bound += CPU_COUNT(&set) == 1 && CPU_ISSET((size_t)atoi(argv[1]), &set);
    }
    printf("%d of %d threads on that core\n", bound, n);
    return hvd_shutdown() != HVD_OK;
}
END
compile threads.c threads
core=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status)
run hvdrun -np 1 --thread-affinity "$core" ./threads "$core"
expect_status 0
[ "$(nproc)" = 1 ] || expect_line out '2 of 3 threads on that core$'
run hvdrun -np 2 --thread-affinity "$core" ./threads "$core"
expect_status 0
[ "$(nproc)" = 1 ] || expect_line out '0 of 3 threads on that core$' # a list too short
expect_line err '^hvdrun: --thread-affinity names 1 core and is ignored on hosts with more ranks; one has 2$'
run hvdrun -np 2 --thread-affinity "$core,$core" ./threads "$core"
[ "$(nproc)" = 1 ] || [ "$(grep -c '2 of 3 threads on that core$' out)" = 2 ] || die "--thread-affinity, a core a rank"
run hvdrun -np 1 --thread-affinity 0, ./threads 0
expect_status 2
expect_line err "^hvdrun: --thread-affinity: '0,' is not a list of cores"
run hvdrun -np 1 --thread-affinity 1023 ./threads 0
expect_status 1
expect_line err 'HVD_THREAD_AFFINITY .*: core 1023: Invalid argument'
echo "ok horovodrun's flags"

cat >config.yaml <<'END'
controller: gloo
params:
    fusion_threshold_mb: 16
    cache_capacity: 512
stall_check:
    enabled: false
timeline:
    filename: x.json
    mark_cycles: true
logging:
    level: INFO
END
line '--config-file config.yaml' FUSION_THRESHOLD=16777216 CACHE_CAPACITY=512 STALL_CHECK_DISABLE=1 TIMELINE=x.json TIMELINE_MARK_CYCLES=1 LOG_LEVEL=INFO
line '--cache-capacity 9 --config-file config.yaml' CACHE_CAPACITY=9 FUSION_THRESHOLD=16777216
line '--config-file config.yaml --cache-capacity 9' CACHE_CAPACITY=9
printf 'params:\n  cache_capacity: many\n' >bad.yaml
run hvdrun -np 1 --config-file bad.yaml true
expect_status 2
expect_line err "^hvdrun: bad.yaml:2: --cache-capacity: 'many' is not a whole number"
printf 'params:\n  chunk: 1\n' >bad.yaml
run hvdrun -np 1 --config-file bad.yaml true
expect_status 2
expect_line err "^hvdrun: bad.yaml:2: unknown key 'params.chunk'"
printf 'params: [1, 2\n' >bad.yaml
run hvdrun -np 1 --config-file bad.yaml true
expect_status 2
expect_line err "^hvdrun: bad.yaml:1: "
echo "ok --config-file; the line wins"

run hvdrun --help
expect_status 0
[ -s err ] && die "--help: something on stderr"
cp out help
[ "$(awk '{ if (length($0) > 100) n++ } END { print n + 0 }' help)" = 0 ] || die "--help has lines over 100 columns"
hvdrun --generate-man >page || die "--generate-man"
hvdrun --generate-completion >completion || die "--generate-completion"
for option in $(grep -oE '(^|[ ,])--[a-z-]+' help | tr -d ' ,' | sort -u); do
    grep -qF -- "${option//-/\\-}" page || die "the man page does not know $option"
    grep -qF -- "$option" completion || die "completion does not know $option"
done
[ "$(grep -cE -- '--' help)" -gt 40 ] || die "--help is short"
if command -v mandoc >/dev/null; then
    mandoc -T lint -W warning page || die "mandoc finds fault"
fi
words() {
    bash -c '. ./completion; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hvdrun; echo "${COMPREPLY[*]}"' x "$@"
}
words hvdrun --time | grep -q -- '--timeline-filename' || die "completion of --time"
[ "$(words hvdrun --stdin '')" = '0 all none' ] || die "completion of --stdin"
[ -z "$(words hvdrun -np 2 ./train --ti)" ] || die "completion meddles with the program's words"
echo "ok help, man page, completion"

run hvdrun --version
expect_status 0
expect_line out '^hvdrun [0-9]+\.[0-9]+\.[0-9]+$'
run hvdrun --check-build
expect_status 0
for text in 'Available Frameworks:' 'Available Controllers:' 'Available Tensor Operations:' '\[X\]'; do
    expect_line out "$text"
done
mkdir -p fake/torch fake/mxnet && touch fake/torch/__init__.py fake/mxnet/__init__.py
PYTHONPATH=$T/fake run hvdrun --check-build
expect_line out '\[X\] PyTorch'
expect_line out '\[ \] MXNet' # installed, and the package has nothing for it
expect_line out '\[X\] shared memory'
expect_line out '\[X\] TCP'
expect_line out '\[X\] NCCL'
# what programs look for: CPU collectives without MPI, under the name that gloo_built() answers to
[ "$(grep -c '\[X\] Gloo' out)" = 2 ] || die "no Gloo among controllers and operations"
expect_line out '\[ \] DDL'
expect_line out '\[ \] CCL'
PYTHONPATH=$T/fake:$HVD_SRC/worker/python HVD_LIBRARY=$HVD_BUILD/lib/libhvd.so.1 python3 -m horovod.check >said
cmp out said || die "python -m horovod.check says something else"

# whose frameworks: what HVD_PYTHON names, what the package is installed for, VIRTUAL_ENV, PATH
python3 -m venv --without-pip venv
site=$(echo "$T"/venv/lib/python*/site-packages)
cp -r fake/torch "$site"
PYTHONPATH=$HVD_SRC/worker/python HVD_LIBRARY=$HVD_BUILD/lib/libhvd.so.1 venv/bin/python -m horovod.check >said
{ grep -q "^Python .* in $T/venv\$" said && grep -q "\[X\] PyTorch" said; } || die "another Python was asked: $(cat said)"
HVD_PYTHON=$T/venv/bin/python3 run hvdrun --check-build
cmp out said || die "hvdrun and python -m horovod.check differ about one Python"
VIRTUAL_ENV=$T/venv run hvdrun --check-build
cmp out said || die "VIRTUAL_ENV does not count"
mkdir -p "$site/horovod/_dist/bin" && cp "$HVD_BUILD/bin/hvdrun" "$site/horovod/_dist/bin"
cp -r "$HVD_SRC"/worker/python/horovod/{*.py,torch} "$site/horovod"
LD_LIBRARY_PATH=$HVD_BUILD/lib VIRTUAL_ENV=/nowhere run "$site/horovod/_dist/bin/hvdrun" --check-build
sed 1d out | cmp - <(sed 1d said) || die "the Python of the package does not count: $(cat out)"
HVD_PYTHON=$T/none run hvdrun --check-build
expect_line out "^No Python: '$T/none -m horovod.check' does not run"
(
    PATH=$HVD_BUILD/bin
    run hvdrun --check-build
    [ "$status" = 0 ] || exit 1
) || die "without python3: not status 0"
expect_line out '\[ \] PyTorch'
run hvdrun --dry-run -np 3 -H localhost:2,127.0.0.1:2 ./nothing
expect_status 0
expect_line out 'localhost: ranks 0-1'
expect_line out '127.0.0.1: rank 2'
run hvdrun --dry-run ./nothing
expect_status 0
echo "ok version, check-build, dry-run"
