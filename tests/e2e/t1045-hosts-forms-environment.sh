#!/bin/bash
# Between hosts: each way to write them gives the ranks that it says, with their local and
# cross numbers; the environment and arguments arrive byte by byte, and -x and --no-env say
# which of it goes along.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
hosts_up 2

cat >who.c <<'E'
#include <hvd/hvd.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    char host[64] = "";

    if (hvd_init(NULL) != HVD_OK) {
        fprintf(stderr, "%s\n", hvd_last_error());
        return 1;
    }
    gethostname(host, sizeof host - 1);
    printf("rank %d/%d local %d/%d cross %d/%d on %s\n", hvd_rank(), hvd_size(), hvd_local_rank(),
           hvd_local_size(), hvd_cross_rank(), hvd_cross_size(), host);
    return hvd_shutdown() != HVD_OK;
}
E
compile who.c who

# $1 = what the ranks must say, blank for "rank L/LS C/CS host" from rank 0 on; rest: options
places() {
    local want=$1
    shift
    run hosts_exec 1 hvdrun --prefix none "$@" ./who
    [ "$status" = 0 ] || die "$*: status $status"
    [ -s err ] && die "$*: nothing expected on stderr"
    sort -t ' ' -k 2n out | sed -E 's|.* local (\S+) cross (\S+) on host|\1 \2 |' | tr '\n' ',' >said
    [ "$(cat said)" = "$want" ] || die "$*: $(cat said), not $want"
}
two='0/2 0/2 1,1/2 0/2 1,0/2 1/2 2,1/2 1/2 2,'
places "$two" -np 4 -H host1,host2
places "$two" -H host1:2,host2:2
places "$two" -H 'host[1-2]:2'
places "$two" -H host1:2,root@host2:2
places '0/2 0/2 1,1/2 0/1 1,0/1 1/2 2,' -np 3 -H host1,host2
places '0/3 0/2 1,1/3 0/2 1,2/3 0/1 1,0/2 1/2 2,1/2 1/2 2,' -np 5 -H host1,host2
places '0/1 0/2 1,0/3 1/2 2,1/3 0/1 2,2/3 0/1 2,' -H host1:1,host2:3
places '0/2 0/1 1,1/2 0/1 1,' -np 2 -H host1:4,host2:4
places '0/2 0/1 2,1/2 0/1 2,' -np 2 -H host2:4
places '0/2 0/1 1,1/2 0/1 1,' -H '[::1]:2'
places '0/1 0/2 2,0/1 1/2 1,' -H host2,host1
echo "ok blocks, even, the first take the remainder; -np is exact; ranges, user@, addresses"

# $1 = a file's text; host1 and host2 get two ranks each from all of them
from_file() {
    printf '%b' "$1" >hostfile
    places "$two" --hostfile hostfile
    places "$two" -H @hostfile
}
from_file '# Open MPI\n\nhost1 slots=2 max_slots=4   # two\n   host2\tslots = 2\r\n'
from_file '# MPICH\nhost1:2\n\nhost2:2'
from_file 'host1 slots=2\nhost2 slots=2\n'
from_file 'host1\nhost1\nhost2\nhost2\n'
from_file '\n#\nhost1\nhost2\nhost1\nhost2\n'
from_file 'host[1-2] slots=2\n'
from_file 'host1 slots=2\nhost2 slots=2 user=root\n'
printf '# one\nhost1 slots=2\n  host2 slots=two\n' >hostfile
run hosts_exec 1 hvdrun --hostfile hostfile ./who
expect_status 2
expect_line err "^hvdrun: hostfile:3:15: number of slots: 'two' is not a whole number$"
echo "ok host files of Open MPI, MPICH, DeepSpeed and PBS; an error has its line and column"

cat >bytes.py <<'E'
"""bytes.py send SEED COUNT WORDS...: runs WORDS with COUNT random arguments behind them and
COUNT random variables; bytes.py take: says that both are those of the SEED"""
import os, random, sys

def texts(rng, count, without):
    letters = [b for b in range(1, 256) if b not in without]
    return [bytes(rng.choices(letters, k=rng.randrange(1, 60))) for _ in range(count)]

def made(seed, count):
    rng = random.Random(seed)
    names = [b"X" + n for n in texts(rng, count, b"=")]
    variables = dict(zip(names, texts(rng, count, b"")))
    variables[b"dots.and-dashes.in a name"] = b"a 'b' \"c\"\n\n$(d) `e` \\f\t\x1b[1m"
    variables[b"X_EMPTY"] = b""
    for i in range(2):  # the kernel takes 128 KiB a string
        variables[b"X_BIG_%d" % i] = bytes(rng.choices(range(1, 256), k=100 * 1024))
    return variables, texts(rng, count, b"")

if sys.argv[1] == "send":
    seed, count, words = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    variables, arguments = made(seed, count)
    os.execvpe(words[0], [os.fsencode(w) for w in words] + [b"take", str(seed).encode(), str(count).encode()] + arguments,
               {**os.environb, **variables})
variables, arguments = made(int(sys.argv[2]), int(sys.argv[3]))
lost = [n for n in variables if os.environb.get(n) != variables[n]]
more = [n for n in os.environb if n.startswith(b"X") and n not in variables and not n.startswith(b"XDG")]
assert not lost and not more, (lost[:3], more[:3])
assert [os.fsencode(a) for a in sys.argv[4:]] == arguments
print("%d variables, %d arguments, %d bytes" % (len(variables), len(arguments), sum(map(len, variables.values()))))
E
rounds=3
[ "${HVD_SOAK:-0}" = 1 ] && rounds=100
for ((k = 0; k < rounds; k++)); do
    seed=$((RANDOM * 32768 + RANDOM))
    run hosts_exec 1 python3 bytes.py send $seed 1700 hvdrun -H host1:1,host2:1 python3 bytes.py
    [ "$status" = 0 ] || die "seed $seed: status $status"
    [ "$(grep -cE ':170[0-9] variables, 1700 arguments, 2[0-9]{5} bytes$' out)" = 2 ] || die "seed $seed"
done
echo "ok 200 KiB of environment, $((rounds * 3400)) random variables and arguments, unchanged"

# What a rank on host 2 has of the variables named V_... and NCCL_..., in one line
variables() {
    run hosts_exec 1 env V_A=1 V_B='b  b' NCCL_X=x NCCL_Y=y hvdrun --prefix none -H host2:1 "$@" \
        sh -c 'env | LC_ALL=C sort | grep -E "^(V_|NCCL_)" | tr "\n" ,; echo "PATH ${PATH:+is set}"'
    expect_status 0
    cat out
}
# $1 = what they must be; rest: options
has() {
    local want=$1
    shift
    [ "$(variables "$@")" = "$want" ] || die "$*: $(cat out), not $want"
}
has 'NCCL_X=x,NCCL_Y=y,V_A=1,V_B=b  b,PATH is set'
has 'NCCL_X=x,NCCL_Y=y,V_A=2,V_B=b  b,V_C=,PATH is set' -x V_A=2 -x V_C=
has 'PATH is set' --no-env
has 'V_A=1,PATH is set' --no-env --env V_A
has 'V_A=1,V_B==,PATH is set' --no-env -x V_A -x V_B==
has 'NCCL_X=x,NCCL_Y=y,PATH is set' --no-env -x 'NCCL_*'
has 'NCCL_X=z,NCCL_Y=y,PATH is set' --no-env -x 'NCCL_*' -x NCCL_X=z
has 'PATH is set' --no-env -x V_NONE
expect_line err '^hvdrun: -x V_NONE: not set in this environment'
run hosts_exec 1 env SSH_AUTH_SOCK=/x DISPLAY=:7 OLDPWD=/y CUDA_VISIBLE_DEVICES=3 'BASH_FUNC_f%%=() { :; }' hvdrun -H host2:1 env
expect_status 0
refuse_line out ':(DISPLAY|OLDPWD|SSH_AUTH_SOCK|BASH_FUNC_.*|CUDA_VISIBLE_DEVICES)='
run hosts_exec 1 env DISPLAY=:7 CUDA_VISIBLE_DEVICES=3 hvdrun -H host2:1 -x DISPLAY -x CUDA_VISIBLE_DEVICES env
expect_line out ':DISPLAY=:7$'
expect_line out ':CUDA_VISIBLE_DEVICES=3$'
echo "ok -x NAME, -x NAME=VALUE, -x 'NAME*', --no-env, and what stays at home"
