#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdrun/hosts/alloc.h"

/* "NAME=VALUE" pairs; a name that begins with '/' is a file, one with "flux" a program. */
struct world {
    const char *const *pairs;
};

static const char *value_of(const struct world *w, const char *name)
{
    size_t n = strlen(name);

    for (const char *const *p = w->pairs; *p != NULL; p++)
        if (strncmp(*p, name, n) == 0 && (*p)[n] == '=')
            return *p + n + 1;
    return NULL;
}

static const char *get(void *data, const char *name)
{
    return value_of(data, name);
}

static enum hvd_status copy_of(const char *text, const char *name, char **out,
                               struct hvi_err *err)
{
    if (text == NULL)
        return hvi_fail(err, HVD_EINVAL, "%s: not there", name);
    *out = strdup(text);
    return *out != NULL ? HVD_OK : hvi_fail(err, HVD_ENOMEM, "out of memory");
}

static enum hvd_status read_file(void *data, const char *path, char **text,
                                 size_t *size_bytes, struct hvi_err *err)
{
    enum hvd_status rc = copy_of(value_of(data, path), path, text, err);

    if (rc == HVD_OK)
        *size_bytes = strlen(*text);
    return rc;
}

static enum hvd_status ask(void *data, char *const argv[], char **text,
                           struct hvi_err *err)
{
    char name[64];

    snprintf(name, sizeof name, "%s %s %s", argv[0], argv[1], argv[2]);
    return copy_of(value_of(data, name), name, text, err);
}

/* "key from: host:slots ...", or the error. */
static const char *found(const char *const *pairs)
{
    static char text[2048];
    struct world w = {pairs};
    struct hvi_alloc_sys sys = {get, read_file, ask, &w};
    struct hvi_hosts h = {0};
    struct hvi_alloc a;
    struct hvi_err err = {""};
    int n;

    if (hvi_alloc_find(&sys, &h, &a, &err) != HVD_OK) {
        snprintf(text, sizeof text, "%s", err.text);
        hvi_hosts_fini(&h);
        return text;
    }
    n = snprintf(text, sizeof text, "%s (%s)", a.key != NULL ? a.key : "none", a.from);
    for (size_t i = 0; i < h.n; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %s:%d", h.list[i].name,
                      h.list[i].slots);
    hvi_hosts_fini(&h);
    return text;
}

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

struct row {
    const char *const *pairs;
    const char *want;
};

static void check(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_assert_str_eq(found(rows[i].pairs), rows[i].want, "row %zu gave %s", i,
                         found(rows[i].pairs));
}

#define USE "; name the hosts with -H, or use --no-allocation"
#define NODES(list) "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=" list

Test(alloc, reads_what_slurm_says, .timeout = 5)
{
    static const char mine[] = "SLURM_TASKS_PER_NODE=1";
    const struct row rows[] = {
        {ENV(NODES("n[01-03,7],gpu-[a]-[1-2]x"), "SLURM_TASKS_PER_NODE=4(x2),3,2(x3)"),
         "slurm (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE) n01:4 n02:4 n03:3 n7:2 "
         "gpu-a-1x:2 gpu-a-2x:2"},
        {ENV(NODES("n1"), "SLURM_TASKS_PER_NODE=8", "SLURM_JOB_CPUS_PER_NODE=16"),
         "slurm (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE) n1:8"},
        {ENV(NODES("n[1-2]"), "SLURM_NTASKS_PER_NODE=3"),
         "slurm (SLURM_JOB_NODELIST, SLURM_NTASKS_PER_NODE) n1:3 n2:3"},
        {ENV(NODES("n[1-3]"), "SLURM_JOB_CPUS_PER_NODE=16(x2),1",
             "SLURM_CPUS_PER_TASK=4"),
         "slurm (SLURM_JOB_NODELIST, SLURM_JOB_CPUS_PER_NODE, SLURM_CPUS_PER_TASK) "
         "n1:4 n2:4 n3:1"},
        {ENV(NODES("n[1-2]")), "slurm (SLURM_JOB_NODELIST) n1:0 n2:0"},
        {ENV("SLURM_NODELIST=n1,n3", "SLURM_TASKS_PER_NODE=2(x2)"),
         "slurm (SLURM_NODELIST, SLURM_TASKS_PER_NODE) n1:2 n3:2"},
        /* a step of one host inside a job of two */
        {ENV(NODES("n[1-2]"), "SLURM_STEP_NODELIST=n1", mine,
             "SLURM_JOB_CPUS_PER_NODE=4(x2)"),
         "slurm (SLURM_JOB_NODELIST, SLURM_JOB_CPUS_PER_NODE) n1:4 n2:4"},
        {ENV("SLURM_JOB_ID=", "SLURM_JOB_NODELIST="), "none ()"},
    };

    check(rows, sizeof rows / sizeof rows[0]);
}

Test(alloc, says_what_is_wrong_in_slurms_variables, .timeout = 5){
#define TASKS(t) {ENV(NODES("n[1-2]"), "SLURM_TASKS_PER_NODE=" t),
    const struct row rows[] =
        {{ENV("SLURM_JOB_ID=5"),
          "SLURM_JOB_ID is set, but SLURM_JOB_NODELIST is not" USE},
         {ENV(NODES("n1,n[2-")),
          "SLURM_JOB_NODELIST, character 5: 'n[2-' is not a host: ']' is missing" USE},
         {ENV(NODES("n[1-9999]")),
          "SLURM_JOB_NODELIST, character 3: 'n[1-9999]' is not a host: bad range: too "
          "many hosts" USE},
         {ENV(NODES("a[1-4000],b[1-4000]")),
          "SLURM_JOB_NODELIST: more than 4096 hosts" USE},
         TASKS(
             "x") "SLURM_TASKS_PER_NODE, character 1: a number from 1 on belongs here, "
                  "as in 4(x2),3" USE},
    TASKS("4,") "SLURM_TASKS_PER_NODE, character 3: a number from 1 on belongs here, "
                "as in 4(x2),3" USE},
    TASKS("0(x2)") "SLURM_TASKS_PER_NODE, character 1: a number from 1 on belongs "
                   "here, as in 4(x2),3" USE
}
, TASKS("4(x)") "SLURM_TASKS_PER_NODE, character 4: a repetition is written "
                "4(x2)" USE
}
, TASKS("4(x2") "SLURM_TASKS_PER_NODE, character 4: a repetition is written "
                "4(x2)" USE
}
, TASKS("4;4") "SLURM_TASKS_PER_NODE, character 2: a ',' belongs between the "
               "numbers, as in 4(x2),3" USE
}
, TASKS("4(x3)") "SLURM_TASKS_PER_NODE: '4(x3)' has numbers for 3 hosts, the list "
                 "of hosts has 2" USE
}
,
    {ENV(NODES("n1"), "SLURM_NTASKS_PER_NODE=1,2"),
     "SLURM_NTASKS_PER_NODE, character 1: one number belongs here" USE},
}
;

check(rows, sizeof rows / sizeof rows[0]);
}

Test(alloc, reads_what_pbs_says, .timeout = 5)
{
    const struct row rows[] = {
        {ENV("PBS_JOBID=1", "PBS_NODEFILE=/n", "/n=a\na\na\nb\n"),
         "pbs (PBS_NODEFILE) a:3 b:1"},
        {ENV("PBS_NODEFILE=/n", "/n=a\nb\n", "PBS_NUM_PPN=4"),
         "pbs (PBS_NODEFILE, PBS_NUM_PPN) a:4 b:4"},
        {ENV("PBS_NODEFILE=/n", "/n=a\na\nb\nb\n", "PBS_NUM_PPN=2"),
         "pbs (PBS_NODEFILE) a:2 b:2"},
        {ENV("PBS_JOBID=1"), "PBS_JOBID is set, but PBS_NODEFILE is not" USE},
        {ENV("PBS_NODEFILE=/n"), "PBS_NODEFILE: /n: not there" USE},
        {ENV("PBS_NODEFILE=/n", "/n=\n"), "PBS_NODEFILE names no host" USE},
        {ENV("PBS_NODEFILE=/n", "/n=a\n b;c\n"),
         "PBS_NODEFILE: /n:2:2: 'b;c' is not a host: bad host name" USE},
        {ENV("PBS_NODEFILE=/n", "/n=a\n", "PBS_NUM_PPN=x"),
         "PBS_NUM_PPN: 'x' is not a whole number" USE},
    };

    check(rows, sizeof rows / sizeof rows[0]);
}

Test(alloc, reads_what_lsf_says, .timeout = 5)
{
    const struct row rows[] = {
        {ENV("LSB_DJOB_HOSTFILE=/h", "/h=a\na\nb\n", "LSB_MCPU_HOSTS=a 9"),
         "lsf (LSB_DJOB_HOSTFILE) a:2 b:1"},
        {ENV("LSB_MCPU_HOSTS=a 4  b 2 a 1 ", "LSB_HOSTS=x"),
         "lsf (LSB_MCPU_HOSTS) a:5 b:2"},
        {ENV("LSB_HOSTS=a a b"), "lsf (LSB_HOSTS) a:2 b:1"},
        {ENV("LSB_MCPU_HOSTS=batch2 1 h1 42 h2 42", "CSM_ALLOCATION_ID=7"),
         "lsf (LSB_MCPU_HOSTS, CSM_ALLOCATION_ID) h1:42 h2:42"},
        {ENV("LSB_MCPU_HOSTS=h0 1 h1 42"), "lsf (LSB_MCPU_HOSTS) h0:1 h1:42"},
        {ENV("LSB_MCPU_HOSTS=h0 1 h1 1", "CSM_ALLOCATION_ID=7"),
         "lsf (LSB_MCPU_HOSTS) h0:1 h1:1"},
        {ENV("LSB_JOBID=1"), "LSB_JOBID is set, but LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS "
                             "and LSB_HOSTS are not" USE},
        {ENV("LSB_MCPU_HOSTS=a 4 b"),
         "LSB_MCPU_HOSTS, character 6: a number of slots belongs behind each host" USE},
        {ENV("LSB_MCPU_HOSTS=a 4x"),
         "LSB_MCPU_HOSTS, character 3: a number of slots belongs behind each host" USE},
        {ENV("LSB_HOSTS=a b;c"),
         "LSB_HOSTS, character 3: 'b;c' is not a host: bad host "
         "name" USE},
        {ENV("LSB_HOSTS= "), "LSB_HOSTS names no host" USE},
    };

    check(rows, sizeof rows / sizeof rows[0]);
}

Test(alloc, reads_what_sge_says, .timeout = 5)
{
    const struct row rows[] = {
        {ENV("PE_HOSTFILE=/p", "/p=a 4 all.q@a UNDEFINED\nb 2 all.q@b <NULL>\n"
                               "a 1 gpu.q@a 0,1"),
         "sge (PE_HOSTFILE) a:5 b:2"},
        {ENV("PE_HOSTFILE=/p"), "PE_HOSTFILE: /p: not there" USE},
        {ENV("PE_HOSTFILE=/p", "/p="), "PE_HOSTFILE names no host" USE},
        {ENV("PE_HOSTFILE=/p", "/p=a 4 q r\nb many q r\n"),
         "PE_HOSTFILE: /p:2:3: a number of slots belongs here: HOST SLOTS QUEUE "
         "RANGE" USE},
        {ENV("PE_HOSTFILE=/p", "/p=a 4 q r\n b;c 2 q r\n"),
         "PE_HOSTFILE: /p:2:2: 'b;c' is not a host: bad host name" USE},
    };

    check(rows, sizeof rows / sizeof rows[0]);
}

#define R(lite, names)                                                                 \
    "flux resource R={\"version\":1,\"execution\":{\"R_lite\":[" lite                  \
    "],\"nodelist\":[" names "]}}"

Test(alloc, reads_what_flux_says, .timeout = 5)
{
    static const char uri[] = "FLUX_URI=local:///x";
    const struct row rows[] = {
        {ENV(uri,
             R("{\"rank\":\"0-1\",\"children\":{\"core\":\"0-3\"}},"
               "{\"rank\":\"2\",\"children\":{\"core\":\"0,2-3\"}}",
               "\"n[1-2]\",\"m7\""),
             "SLURM_JOB_ID=1"),
         "flux (FLUX_URI) n1:4 n2:4 m7:3"},
        {ENV(uri, R("{\"rank\":\"3\",\"children\":{\"core\":\"0\"}},"
                    "{\"rank\":\"1\",\"children\":{\"core\":\"0-7\",\"gpu\":\"0-1\"}}",
                    "\"a,b\"")),
         "flux (FLUX_URI) a:2 b:1"},
        {ENV(uri, R("{\"rank\":\"0-1\",\"children\":{\"core\":\"0-3\"}}", "\"a,a\"")),
         "flux (FLUX_URI) a:8"},
        {ENV(uri, "flux hostlist local=n[1-2]\n"), "flux (FLUX_URI) n1:0 n2:0"},
        {ENV(uri), "FLUX_URI is set, but flux does not name the hosts: flux hostlist "
                   "local: not there" USE},
        {ENV(uri, "flux resource R=no"),
         "FLUX_URI: 'flux resource R' gave no JSON" USE},
        {ENV(uri, R("", "")),
         "FLUX_URI: 'flux resource R' gave no ranks (execution.R_lite)" USE},
        {ENV(uri, R("{\"rank\":\"x\",\"children\":{\"core\":\"0-3\"}}", "\"a\"")),
         "FLUX_URI: 'flux resource R' gave no ranks with cores (execution.R_lite)" USE},
        {ENV(uri, R("{\"rank\":\"0-1\",\"children\":{\"core\":\"0-3\"}}", "\"a\"")),
         "FLUX_URI: 'flux resource R' gave no host for each rank "
         "(execution.nodelist)" USE},
        {ENV(uri, R("{\"rank\":\"0\",\"children\":{\"core\":\"0-3\"}}", "\"a,b\"")),
         "FLUX_URI: 'flux resource R': execution.nodelist: more hosts than ranks" USE},
        {ENV(uri, R("{\"rank\":\"0\",\"children\":{\"core\":\"0-3\"}}", "\"a[1\"")),
         "FLUX_URI: 'flux resource R': execution.nodelist: ']' is missing" USE},
        {ENV(uri, R("{\"rank\":\"0\",\"children\":{\"core\":\"0-3\"}}", "\"-oX;y\"")),
         "FLUX_URI: 'flux resource R': execution.nodelist: bad host name" USE},
        {ENV(uri, "flux hostlist local=n[\n"),
         "FLUX_URI: 'flux hostlist local': 'n[' is not a host: ']' is missing" USE},
    };

    check(rows, sizeof rows / sizeof rows[0]);
}

Test(alloc, reads_the_mpi_operators_files, .timeout = 5)
{
    const struct row rows[] = {
        {ENV("OMPI_MCA_orte_default_hostfile=/m", "/m=w-0.w slots=2\nw-1.w slots=2\n"),
         "kubernetes (OMPI_MCA_orte_default_hostfile) w-0.w:2 w-1.w:2"},
        {ENV("HYDRA_HOST_FILE=/m", "/m=w-0:2\nw-1:2\n"),
         "kubernetes (HYDRA_HOST_FILE) w-0:2 w-1:2"},
        {ENV("I_MPI_HYDRA_HOST_FILE=/m", "/m=w-0:2"),
         "kubernetes (I_MPI_HYDRA_HOST_FILE) w-0:2"},
        {ENV("KUBERNETES_SERVICE_HOST=10.0.0.1", "/etc/mpi/hostfile=w-0 slots=1\n"),
         "kubernetes (/etc/mpi/hostfile) w-0:1"},
        {ENV("KUBERNETES_SERVICE_HOST=10.0.0.1"), "none ()"},
        {ENV("/etc/mpi/hostfile=w-0 slots=1\n"), "none ()"},
        {ENV("OMPI_MCA_orte_default_hostfile=/m", "/m=# none\n"), "none ()"},
        {ENV("HYDRA_HOST_FILE=/m"), "HYDRA_HOST_FILE: /m: not there" USE},
        {ENV("HYDRA_HOST_FILE=/m", "/m=a:x\n"),
         "HYDRA_HOST_FILE: /m:1:3: number of slots: 'x' is not a whole number" USE},
    };

    check(rows, sizeof rows / sizeof rows[0]);
}

Test(alloc, looks_in_the_documented_order, .timeout = 5)
{
    const char *all[] = {"FLUX_URI=x",
                         "flux hostlist local=f",
                         "SLURM_JOB_NODELIST=s",
                         "PBS_NODEFILE=/p",
                         "/p=p",
                         "LSB_HOSTS=l",
                         "PE_HOSTFILE=/g",
                         "/g=g 1 q r",
                         "HYDRA_HOST_FILE=/k",
                         "/k=k:1",
                         NULL};
    static const char *const keys[] = {"flux", "slurm", "pbs",
                                       "lsf",  "sge",   "kubernetes"};
    static const int drop[] = {0, 2, 3, 5, 6, 8};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *got = found(all);

        cr_assert(strncmp(got, keys[i], strlen(keys[i])) == 0, "%s, not %s", got,
                  keys[i]);
        all[drop[i]] = "X=";
    }
    cr_assert_str_eq(found(all), "none ()");
}

Test(alloc, knows_this_machine_by_the_schedulers_name, .timeout = 5)
{
    struct hvi_alloc a = {.key = "slurm", .own = "gpu7"};

    cr_assert(hvi_alloc_is_local(&a, "gpu7", "other"));
    cr_assert(hvi_alloc_is_local(&a, "n1", "n1.example.org"));
    cr_assert(hvi_alloc_is_local(&a, "n1.example.org", "n1"));
    cr_assert_not(hvi_alloc_is_local(&a, "n10.example.org", "n1"));
    cr_assert_not(hvi_alloc_is_local(&a, "n1.b.org", "n1.a.org"));
    cr_assert_not(hvi_alloc_is_local(&a, "gpu8", ""));
}
