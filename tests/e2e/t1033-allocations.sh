#!/bin/bash
# The hosts of a batch job are used when none are named: what --dry-run says for each
# scheduler's variables is compared with tests/e2e/golden/alloc, byte for byte. HVD_GOLDEN=1
# writes those files anew.
. "$HVD_SRC/tests/e2e/lib.sh"
golden=$HVD_SRC/tests/e2e/golden/alloc

# $1 = golden file, $2 = file that must be the same
same() {
    [ "${HVD_GOLDEN:-0}" = 1 ] && cp "$2" "$golden/$1"
    cmp "$2" "$golden/$1" || { diff "$golden/$1" "$2" >&2; die "not as in golden/alloc/$1"; }
}

# The last run's plan, without what this machine's processors and GPUs make of it (t1040)
same_json() {
    sed '/^      "placing": {/,/^      }/c\      "placing": "of this host"' out >plan
    same "$1" plan
}

# A plan. $1 = name, $2 = options of hvdrun, $3... = NAME=VALUE
plan() {
    local name=$1 options=$2
    shift 2
    # shellcheck disable=SC2086
    run env "$@" hvdrun --dry-run $options ./train --lr 0.1
    expect_status 0
    [ -s err ] && die "$name: something on stderr"
    same "$name.txt" out
    # shellcheck disable=SC2086
    run env "$@" hvdrun --dry-run --json $options ./train --lr 0.1
    expect_status 0
    same_json "$name.json"
}

# A refusal: one line, status 2. $1... as above
refusal() {
    local name=$1 options=$2
    shift 2
    # shellcheck disable=SC2086
    run env "$@" hvdrun --dry-run $options ./train
    expect_status 2
    [ -s out ] && die "$name: something on stdout"
    [ "$(wc -l <err)" = 1 ] || die "$name: not one line"
    same "$name.txt" err
}

# ---- Slurm
mkdir slurm
printf '#!/bin/sh\nexit 1\n' >slurm/srun # what counts is that it is there
chmod +x slurm/srun
export PATH=$T/slurm:$PATH
slurm='SLURM_JOB_ID=7 SLURM_JOB_NODELIST'
# shellcheck disable=SC2086
{
    plan slurm-tasks '' $slurm='n[01-03,7],gpu-[a]-[1-2]x' 'SLURM_TASKS_PER_NODE=4(x2),3,1(x3)'
    plan slurm-ntasks '-np 3' $slurm='n[1-2]' SLURM_NTASKS_PER_NODE=2
    plan slurm-cpus '' $slurm='n[1-2]' 'SLURM_JOB_CPUS_PER_NODE=8,4' SLURM_CPUS_PER_TASK=4
    plan slurm-even '-np 5' $slurm='n[1-2]'
    plan slurm-oversubscribe '-np 5 --oversubscribe' $slurm='n[1-2]' 'SLURM_TASKS_PER_NODE=1(x2)'
    plan slurm-off '-np 2 --no-allocation' $slurm='n[1-2]'
    plan slurm-not-asked '-H m:2' $slurm='n['
    refusal slurm-slots '-np 5' $slurm='n[1-2]' 'SLURM_TASKS_PER_NODE=2(x2)'
    refusal slurm-half '' SLURM_JOB_ID=7
    refusal slurm-nodelist '' $slurm='n1,n[2-'
    refusal slurm-numbers '' $slurm='n[1-2]' SLURM_TASKS_PER_NODE=4x2
    refusal slurm-too-few '' $slurm='n[1-3]' 'SLURM_TASKS_PER_NODE=4(x2)'
}
run hvdrun --dry-run --rsh 'rlogin -x %h' -np 2 -H m:2 ./train
expect_line out '^  m: ranks 0-1 \(by rlogin -x %h\)$'
run hvdrun --dry-run -np 2 -H m:2 ./train
expect_line out '^  m: ranks 0-1 \(by ssh\)$'
run hvdrun --dry-run -np 2 -H ann@m:1,n:1 ./train
expect_line out '^  ann@m: rank 0 \(by ssh\)$'
expect_line out '^  n: rank 1 \(by ssh\)$'
TOKEN=secret run hvdrun --verbose -np 1 -x TOKEN -x A=b true
expect_line err '^  env TOKEN, as it is here$'
expect_line err '^  env A=b$'
refuse_line err 'secret'
echo "ok Slurm; the way to a host is named"

# ---- PBS
printf 'p1\np1\np2\np2\np1\n' >nodes
plan pbs '' PBS_JOBID=7.server PBS_NODEFILE=nodes
printf 'p1\np2\n' >once
plan pbs-ppn '' PBS_NODEFILE=once PBS_NUM_PPN=3
printf 'p1\np 2 x\n' >wrong
refusal pbs-wrong '' PBS_NODEFILE=wrong
refusal pbs-half '' PBS_JOBID=7.server
refusal pbs-missing '' PBS_NODEFILE=/nonexistent/nodes
echo "ok PBS"

# ---- LSF
printf 'l1\nl1\nl2\n' >djob
plan lsf-file '' LSB_JOBID=7 LSB_DJOB_HOSTFILE=djob LSB_MCPU_HOSTS='x 9'
plan lsf-mcpu '' LSB_JOBID=7 LSB_MCPU_HOSTS='l1 2 l2 1'
plan lsf-hosts '' LSB_JOBID=7 LSB_HOSTS='l1 l1 l2'
plan lsf-launch-node '' LSB_MCPU_HOSTS='batch 1 l1 2 l2 2' CSM_ALLOCATION_ID=9
refusal lsf-wrong '' LSB_MCPU_HOSTS='l1 2 l2'
refusal lsf-half '' LSB_JOBID=7
echo "ok LSF"

# ---- SGE
printf 's1 2 all.q@s1 UNDEFINED\ns2 1 all.q@s2 0,1\n' >pe
plan sge '' PE_HOSTFILE=pe NSLOTS=3
printf 's1 2 all.q@s1 UNDEFINED\ns2 all.q@s2 0,1\n' >pe-wrong
refusal sge-wrong '' PE_HOSTFILE=pe-wrong
echo "ok SGE"

# ---- Flux: its program is asked
mkdir bin old
cat >bin/flux <<'END'
#!/bin/sh
[ "$*" = "resource R" ] || exit 1
cat <<'JSON'
{"version": 1, "execution": {"R_lite": [
  {"rank": "0-1", "children": {"core": "0-1"}}, {"rank": "2", "children": {"core": "0-7", "gpu": "0"}}],
  "nodelist": ["f[1-3]"]}}
JSON
END
cat >old/flux <<'END'
#!/bin/sh
[ "$*" = "hostlist local" ] && echo 'f[1-2]'
END
chmod +x bin/flux old/flux
plan flux '' FLUX_URI=local:///run/flux PATH="$T/bin:$PATH" SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n1
plan flux-old '-np 3' FLUX_URI=local:///run/flux PATH="$T/old:$PATH"
refusal flux-without '' FLUX_URI=local:///run/flux
echo "ok Flux"

# ---- Kubernetes
printf 'w-0.w slots=2\nw-1.w slots=2\n' >ompi
printf 'w-0.w:2\nw-1.w:2\n' >hydra
plan kubernetes-openmpi '' OMPI_MCA_orte_default_hostfile=ompi
plan kubernetes-mpich '' HYDRA_HOST_FILE=hydra
printf 'w-0.w slots=two\n' >ompi-wrong
refusal kubernetes-wrong '' OMPI_MCA_orte_default_hostfile=ompi-wrong
echo "ok Kubernetes"

# ---- what does not fit into JSON as it is
run hvdrun --dry-run --json -np 3 -H 'a:1,b:2,me@c:4,[::1]:1' -x "A=$(printf '\377')" ./train "$(printf 'a\376\nb')" ü
expect_status 0
same_json words.json
python3 -c 'import json; json.load(open("out"))' || die "no JSON"
echo "ok JSON"

# ---- an allocation of this host alone runs here, without ssh
mkdir none && printf '#!/bin/sh\necho ssh was called >&2\nexit 1\n' >none/ssh && chmod +x none/ssh
me=$(uname -n)
PATH=$T/none:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST=${me%%.*} SLURM_TASKS_PER_NODE=2 run hvdrun sh -c 'echo $HVD_RANK of $HVD_SIZE'
expect_status 0
expect_line out '^\[1\]<stdout>:1 of 2$'
PATH=$T/none:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST=gpu9 SLURMD_NODENAME=gpu9 SLURM_TASKS_PER_NODE=2 run hvdrun sh -c 'echo $HVD_RANK of $HVD_SIZE'
expect_status 0
expect_line out '^\[1\]<stdout>:1 of 2$'
PATH=$T/none:$PATH PBS_NODEFILE=nodes run hvdrun --no-allocation -np 2 true
expect_status 0
PATH=$T/none:$PATH PBS_NODEFILE=nodes run hvdrun -H localhost -np 2 true
expect_status 0
echo "ok this host alone"
