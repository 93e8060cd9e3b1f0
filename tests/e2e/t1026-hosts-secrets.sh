#!/bin/bash
# What others can see and do while a job runs on three hosts: the key and the environment are
# in no command line, log, file of output, plan or core; who listens where; what another user gets at. Arguments and
# environment of all bytes arrive unchanged; a host that is an option of ssh is refused.
# deadline: 120
. "$HVD_SRC/tests/e2e/lib.sh"
. "$HVD_SRC/tests/e2e/hosts.sh"
hosts_need
for tool in ss setpriv; do command -v $tool >/dev/null || { echo "$tool is not installed"; exit 77; }; done
hosts_up 3
compile "$HVD_SRC/tests/e2e/loop.c" steps

secret=s3cret-$RANDOM$RANDOM-marker
(
    export TOKEN=$secret HVD_LOG=debug
    # shellcheck disable=SC2016
    hosts_exec 1 hvdrun -H host1:2,host2:2,host3:1 sh -c 'echo "$HVD_KEY_FILE"; exec ./steps' >out 2>err
    echo $? >status
) &
await 20 "the first steps" grep -qs running out
key_file=$(sed -n 's/^\[4\]<stdout>:\(.*\)/\1/p' out | head -n 1)
hosts_exec 3 cat "$key_file" >key || die "no key file $key_file on host3"
key=$(tr -d '\n' <key)
raw=$(printf '%s' "$key" | sed 's/../\\x&/g')
base64=$(printf '%b' "$raw" | base64 -w 0)
[ ${#key} -ge 64 ] || die "no key in $key_file"

seen() { # a process of any host whose command line has $1
    local f
    for f in /proc/[0-9]*/cmdline; do
        tr '\0' ' ' 2>/dev/null <"$f" | grep -qF -- "$1" && [ "${f//[^0-9]/}" != $$ ] && echo "$f"
    done
}
for text in "$secret" "$key" "${base64%=*}"; do
    [ -z "$(seen "$text" | head -n 1)" ] || die "a command line shows the ${#text} characters that nobody should see"
done

listeners() { ip netns exec "$HOSTS_NAME-$1" ss -ltnH | awk '$4 !~ /:22$/ { print $4 }'; }
[ "$(listeners 1 | wc -l)" = 1 ] || die "host1 should have one listener: $(listeners 1)"
listeners 1 | grep -q '^10\.78\.0\.1:' || die "the coordinator listens on $(listeners 1)"
for host in 2 3; do
    [ -z "$(listeners $host)" ] || die "host$host listens: $(listeners $host)"
done

other() { hosts_exec 3 setpriv --reuid=65534 --regid=65534 --clear-groups "$@" >/dev/null 2>&1; }
other cat "$key_file" && die "another user reads the key"
other ls "${key_file%/*}" && die "another user lists the runtime directory"
worker=$(hosts_exec 3 sh -c 'for p in /proc/[0-9]*; do [ "$(cat "$p/comm")" = steps ] && echo "${p#/proc/}"; done' 2>/dev/null | head -n 1)
other cat "/proc/${worker:?}/environ" && die "another user reads the environment"
other kill -TERM "$worker" && die "another user ends a worker"
for fd in $(hosts_exec 3 sh -c "ls /proc/$worker/fd"); do
    other cat "/proc/$worker/fd/$fd" && die "another user opens descriptor $fd of a worker"
done
# cores: a rank's has no key; the coordinator makes none, also where cores go to a program
cat >has.c <<'END'
#include <stdio.h>
#include <string.h>

/* has FILE HEX: those bytes are in it */
int main(int argc, char **argv)
{
    static unsigned char last[64], want[64];
    size_t n = strlen(argv[2]) / 2;
    FILE *f = fopen(argv[1], "rb");
    int c;

    for (size_t i = 0; argc == 3 && i < n; i++)
        sscanf(argv[2] + 2 * i, "%2hhx", &want[i]);
    while (f != NULL && (c = getc(f)) != EOF) {
        memmove(last, last + 1, n - 1);
        last[n - 1] = (unsigned char)c;
        if (c == want[n - 1] && memcmp(last, want, n) == 0)
            return 0;
    }
    return f != NULL ? 1 : 2;
}
END
"${CC:-cc}" -O2 -o has has.c || die "cannot compile has.c"
if command -v gcore >/dev/null && [ -z "$HVD_E2E_CFLAGS" ]; then
    rank=$(carrying HVD_RANK 4 | while read -r p; do [ "$(cat "/proc/$p/comm")" = steps ] && echo "$p"; done | head -n 1)
    gcore -o core "${rank:?}" >gcore.out 2>&1 || die "no core of rank 4: $(tail -n 1 gcore.out)"
    ./has "core.$rank" "$(printf '%s' "TOKEN=$secret" | od -An -tx1 | tr -d ' \n')" || die "the core of a rank lacks its environment"
    ./has "core.$rank" "$key"
    [ $? = 1 ] || die "the core of a rank has the key"
    rm "core.$rank"
fi
touch enough
await 20 "the end of the job" test -s status
[ "$(cat status)" = 0 ] || die "status $(cat status)"
for text in "$secret" "$key" "${base64%=*}"; do
    grep -qF -- "$text" err && die "a debug log shows what nobody should see"
done
for host in 1 2 3; do
    [ -z "$(listeners $host)" ] || die "after the end host$host listens: $(listeners $host)"
done
await 3 "the removal of host3's runtime directory" hosts_exec 3 test ! -e "${key_file%/*}"
for json in '' --json; do
    # shellcheck disable=SC2086 # no word at all
    TOKEN=$secret run hosts_exec 1 hvdrun --dry-run $json -x TOKEN -H host1:2,host2:2 true
    expect_status 0
    grep -qF TOKEN out || die "a plan does not say that TOKEN goes along"
    grep -qF -- "$secret" out err && die "a plan shows the environment"
done
TOKEN=$secret run hosts_exec 1 hvdrun --output-filename "$T/files" --json-events "$T/events" -H host1:2,host2:2 sh -c 'cat "$HVD_KEY_FILE" >"key.$HVD_RANK"; echo text'
expect_status 0
for text in "$secret" "$(cat key.0)" "$(cat key.3)"; do
    grep -rqF -- "$text" files events out err && die "files of output show what nobody should see"
done
cp "$HVD_BUILD/bin/hvd-coordinator" . && chmod 755 . hvd-coordinator && mkdir -m 777 others
setpriv --reuid=65534 --regid=65534 --clear-groups ./hvd-coordinator --np 1 --listen 127.0.0.1:0 --key-file others/key >c.out 2>c.err &
coordinator=$!
await 5 "the coordinator of another user" grep -qs HVD_COORDINATOR c.out
setpriv --reuid=65534 --regid=65534 --clear-groups cat "/proc/$coordinator/environ" >/dev/null 2>&1 && die "a coordinator can be dumped"
kill -TERM $coordinator
wait $coordinator
echo "ok key and environment are seen by nobody; one listener; another user gets at nothing"

cat >args.c <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 25 };

static char *make(unsigned *seed, int env)
{
    int n = rand_r(seed) % 200;
    char *s = malloc(256);
    int at = env ? sprintf(s, "V%u_x=", rand_r(seed) % 1000000) : 0;

    for (int i = 0; i < n; i++)
        s[at++] = (char)(1 + rand_r(seed) % 255);
    s[at] = '\0';
    return s;
}

/* args run SEED HVDRUN HOSTS: start it; args SEED texts...: are they those of the seed? */
int main(int argc, char **argv)
{
    unsigned seed = (unsigned)atoi(argv[argc > 2 && strcmp(argv[1], "run") == 0 ? 2 : 1]);
    char text[16], *list[N + 12];
    int n = 0;

    snprintf(text, sizeof text, "%u", seed);
    if (strcmp(argv[1], "run") == 0) {
        char *start[] = {argv[3], "-H", argv[4], "./args", text};

        for (int i = 0; i < 5; i++)
            list[n++] = start[i];
        for (int i = 0; i < N; i++)
            list[n++] = make(&seed, 0);
        list[n] = NULL;
        for (int i = 0; i < N; i++)
            putenv(make(&seed, 1));
        execvp(list[0], list);
        return 99;
    }
    if (argc != N + 2)
        return 10;
    for (int i = 0; i < N; i++)
        if (strcmp(argv[i + 2], make(&seed, 0)) != 0)
            return 11;
    for (int i = 0; i < N; i++) {
        char *want = make(&seed, 1), *eq = strchr(want, '=');

        *eq = '\0';
        if (getenv(want) == NULL || strcmp(getenv(want), eq + 1) != 0)
            return 12;
    }
    return 0;
}
END
"${CC:-cc}" -O1 -D_GNU_SOURCE -w -o args args.c || die "cannot compile args.c"
rounds=10
[ "${HVD_SOAK:-0}" = 1 ] && rounds=200
for ((k = 1; k <= rounds; k++)); do
    run hosts_exec 1 ./args run $((RANDOM * 7 + k)) hvdrun host2,host3
    [ "$status" = 0 ] || die "round $k: status $status (10, 11: arguments, 12: environment)"
done
echo "ok $((rounds * 50)) arguments and variables of all bytes arrive unchanged through ssh"

for host in -oProxyCommand=touch$IFS"$T/hit" '-oProxyCommand=x' 'host2;id' '$(id)' 'a b'; do
    run hosts_exec 1 hvdrun -np 1 -H "$host" true
    [ "$status" = 2 ] || die "-H '$host': status $status, not 2"
done
[ -e hit ] && die "a command was run"
echo "ok hosts that are none are refused"
