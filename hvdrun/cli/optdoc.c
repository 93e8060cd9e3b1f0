#include "hvdrun/cli/optdoc.h"

#include <string.h>

#include "hvdrun/cli/opttab.h"

#define COLUMNS 88
#define INDENT 30
#define TEXT_DATE "2026-12-02" /* of the texts below; mandoc wants one */

/* What stands for the argument: "N", "0|all|none"; "" when there is none. */
static const char *arg_text(const struct hvi_opt *o, char out[64])
{
    const char *name = o->arg == HVI_ARG_WORD ? o->words : hvi_opt_arg_name(o);

    snprintf(out, 64, "%s", name != NULL ? name : "");
    for (char *p = out; o->arg == HVI_ARG_WORD && *p != '\0'; p++)
        if (*p == ' ')
            *p = '|';
    return out;
}

/* "-n, -np, --num-proc N" */
static void spell(const struct hvi_opt *o, char *out, size_t cap)
{
    char room[64];
    const char *arg = arg_text(o, room);
    int n = 0;

    if (o->letter != '\0')
        n += snprintf(out + n, cap - (size_t)n, "-%c, ", o->letter);
    if (o->single != NULL)
        n += snprintf(out + n, cap - (size_t)n, "-%s, ", o->single);
    if (o->optional)
        snprintf(out + n, cap - (size_t)n, "--%s[=%s]", o->name, arg);
    else
        snprintf(out + n, cap - (size_t)n, "--%s%s%s", o->name,
                 arg[0] != '\0' ? " " : "", arg);
}

/* Words of text from column `at` on, continued at `indent`. */
static void wrap(FILE *out, const char *text, int at, int indent)
{
    while (*text != '\0') {
        int len = (int)strcspn(text, " ");

        if (at + 1 + len > COLUMNS && at > indent) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", len, text);
        at += len;
        text += len;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void help_row(FILE *out, const struct hvi_opt *o)
{
    char left[128];
    int n;

    spell(o, left, sizeof left);
    n = fprintf(out, "  %s", left);
    if (n > INDENT - 2) {
        fputc('\n', out);
        n = 0;
    }
    fprintf(out, "%*s", INDENT - n, "");
    wrap(out, o->help, INDENT, INDENT);
}

/* Only the names: what they did is history. */
static void help_obsolete(FILE *out)
{
    char all[2048] = "";
    size_t n = 0;

    for (size_t i = 0; i < hvi_opt_count; i++)
        if (hvi_opt_table[i].section == HVI_OPT_OBSOLETE && n + 64 < sizeof all)
            n += (size_t)snprintf(all + n, sizeof all - n, "--%s ",
                                  hvi_opt_table[i].name);
    fputs("  ", out);
    wrap(out, all, 2, 2);
}

void hvi_optdoc_help(FILE *out)
{
    fputs(
        "usage: hvdrun [-np N] [options] PROGRAM [arguments]\n"
        "Runs PROGRAM N times as the ranks of one data-parallel job, joins their "
        "output,\n"
        "and returns the status of the rank that failed first.\n"
        "\n"
        "  hvdrun -np 4 ./train                 four ranks on this host\n"
        "  hvdrun -H localhost:4 python t.py    the same, written as for horovodrun\n"
        "  hvdrun -np 8 -H a:4,b:4 ./train      four on each of two hosts, by ssh\n"
        "  hvdrun doctor -H a,b                 can a job run on these hosts?\n"
        "  hvdrun -np 4 --debug=1 gdb ./train   rank 1 under gdb, on a terminal of "
        "its own\n"
        "  hvdrun attach [JOB] RANK             this terminal to a rank that is under "
        "one\n",
        out);
    for (int s = HVI_OPT_JOB; s < HVI_OPT_SECTIONS; s++) {
        fprintf(out, "\n%s:\n", hvi_opt_section_name((enum hvi_opt_section)s));
        if (s == HVI_OPT_OBSOLETE) {
            help_obsolete(out);
            continue;
        }
        for (size_t i = 0; i < hvi_opt_count; i++)
            if ((int)hvi_opt_table[i].section == s && !hvi_opt_table[i].hidden)
                help_row(out, &hvi_opt_table[i]);
    }
    fputs("\nTimes are seconds, or have ms, s, m or h behind. Exit status: 0; the "
          "first failed\n"
          "rank's status, or 128 + the signal that killed it; 2 bad usage, 124 time "
          "limit,\n"
          "125 hvdrun or a helper failed, the ranks did not come together, or their "
          "output\n"
          "could not be written; 126 the program cannot be executed, 127 it was not "
          "found,\n"
          "130 after Ctrl-C.\n",
          out);
}

/* ---- man(7) */

/* Escapes what troff would take for itself. */
static void roff(FILE *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '-')
            fputs("\\-", out);
        else if (*p == '\\')
            fputs("\\e", out);
        else if ((*p == '.' || *p == '\'') && p == text)
            fprintf(out, "\\&%c", *p);
        else
            fputc(*p, out);
    }
}

static void man_row(FILE *out, const struct hvi_opt *o)
{
    char room[64];
    const char *arg = arg_text(o, room);

    fputs(".TP\n", out);
    if (o->letter != '\0')
        fprintf(out, "\\fB\\-%c\\fR, ", o->letter);
    fputs("\\fB", out);
    if (o->single != NULL) {
        fputs("\\-", out);
        roff(out, o->single);
        fputs("\\fR, \\fB", out);
    }
    fputs("\\-\\-", out);
    roff(out, o->name);
    fputs("\\fR", out);
    if (arg[0] != '\0') {
        fputs(o->optional ? "[=\\fI" : " \\fI", out);
        roff(out, arg);
        fputs(o->optional ? "\\fR]" : "\\fR", out);
    }
    fputc('\n', out);
    if (o->section == HVI_OPT_OBSOLETE)
        fputs("No effect: ", out);
    roff(out, o->help);
    fputs(".\n", out);
}

void hvi_optdoc_man(FILE *out)
{
    fputs(
        ".TH HVDRUN 1 \"" TEXT_DATE "\" \"hvd " HVI_VERSION "\" \"User Commands\"\n"
        ".SH NAME\n"
        "hvdrun \\- run a program as the ranks of one data\\-parallel job\n"
        ".SH SYNOPSIS\n"
        ".B hvdrun\n"
        ".RB [ \\-np\n"
        ".IR N ]\n"
        ".RI [ options ]\n"
        ".I program\n"
        ".RI [ arguments ]\n"
        ".SH DESCRIPTION\n"
        "Starts the program once for each rank, joins the output of all ranks line by "
        "line,\n"
        "gives standard input to rank 0, carries signals, and returns the status of "
        "the rank\n"
        "that failed first.\n"
        "When a rank fails, the others are asked to end (SIGTERM) and killed after the "
        "grace\n"
        "time; no process of the job outlives it, not even when hvdrun itself is "
        "killed.\n"
        ".PP\n"
        "Options stand before the program; all that follows it is the program\\(aqs.\n",
        out);
    fputs(".SH OPTIONS\n"
          "Times are seconds, or have ms, s, m or h behind.\n",
          out);
    for (int s = HVI_OPT_JOB; s < HVI_OPT_SECTIONS; s++) {
        fprintf(out, ".SS %s\n", hvi_opt_section_name((enum hvi_opt_section)s));
        for (size_t i = 0; i < hvi_opt_count; i++)
            if ((int)hvi_opt_table[i].section == s && !hvi_opt_table[i].hidden)
                man_row(out, &hvi_opt_table[i]);
    }
    fputs(
        ".SH HOSTS OF A BATCH JOB\n"
        "Without \\-H, \\-\\-hostfile and \\-\\-no\\-allocation the hosts and slots of "
        "the job\n"
        "that a scheduler started are used; the first that is there counts:\n"
        ".TP\nFlux\nFLUX_URI: what \\(aqflux resource R\\(aq says, GPUs, else cores, "
        "as "
        "slots; with an\n"
        "older flux \\(aqflux hostlist local\\(aq, without slots.\n"
        ".TP\nSlurm\nSLURM_JOB_NODELIST; the slots from SLURM_TASKS_PER_NODE, else\n"
        "SLURM_NTASKS_PER_NODE, else SLURM_JOB_CPUS_PER_NODE over "
        "SLURM_CPUS_PER_TASK.\n"
        ".TP\nPBS, Torque\nPBS_NODEFILE, one line a slot; where each host has one "
        "line,\n"
        "PBS_NUM_PPN slots.\n"
        ".TP\nLSF\nLSB_DJOB_HOSTFILE, else LSB_MCPU_HOSTS, else LSB_HOSTS. With\n"
        "CSM_ALLOCATION_ID a first host of one slot before larger ones is the launch\n"
        "node and left out.\n"
        ".TP\nSGE\nPE_HOSTFILE.\n"
        ".TP\nKubernetes MPIJob\nOMPI_MCA_orte_default_hostfile, "
        "PRTE_MCA_prte_default_hostfile,\n"
        "HYDRA_HOST_FILE, I_MPI_HYDRA_HOST_FILE; in a pod /etc/mpi/hostfile.\n"
        ".PP\n"
        "A variable that is malformed, or a job whose hosts are not said, ends in "
        "status "
        "2.\n",
        out);
    fputs(
        ".SH THE PLAN AS JSON\n"
        "\\-\\-dry\\-run \\-\\-json prints one object; further members may come.\n"
        ".TP\nversion\n1.\n"
        ".TP\nsource\n"
        "Where the hosts come from: kind is command\\-line, host\\-file, flux, slurm, "
        "pbs, lsf,\n"
        "sge, kubernetes, or none (this host); from is the option, the file or the "
        "variables.\n"
        ".TP\nnp\nThe number of ranks.\n"
        ".TP\nhosts\n"
        "All hosts that were named, in order: name, user (or null), slots, ranks "
        "(how many\n"
        "run there), first_rank (null without ranks), remote (not this machine).\n"
        ".TP\nranks\n"
        "In order: rank, host, host_index (from 0, in hosts), local_rank, local_size,\n"
        "cross_rank, cross_size.\n"
        ".TP\ncommand\nThe words of the program and its arguments.\n"
        ".TP\nenvironment\nThe variables that options set for the ranks.\n"
        ".TP\ndebug, wait_for_debugger\nWith these options: ranks, and the words of "
        "the debugger.\n",
        out);
    fputs(
        ".SH ENVIRONMENT\n"
        "The ranks get hvdrun\\(aqs environment, without secrets and GPU masks, and\n"
        "HVD_RANK, HVD_SIZE, HVD_LOCAL_RANK, HVD_LOCAL_SIZE, HVD_CROSS_RANK,\n"
        "HVD_CROSS_SIZE, HVD_HOSTNAME, the same with HOROVOD_ before them, RANK,\n"
        "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and\n"
        "OMP_NUM_THREADS unless it is set.\n"
        "Settings are read from HVD_NAME, else HOROVOD_NAME; an option wins over "
        "both.\n"
        "HVD_LOG=debug shows what the programs do.\n"
        ".SH EXIT STATUS\n"
        ".TP\n0\nAll ranks ended well.\n"
        ".TP\n1\nA rank left with status 0 while others needed it.\n"
        ".TP\n2\nThe command line, a host file or the configuration is wrong.\n"
        ".TP\n124\nThe time limit was reached.\n"
        ".TP\n125\nhvdrun or one of its helpers failed, or the ranks did not come "
        "together, or output of theirs could not be written (a full disk). A reader "
        "that "
        "goes away (| head) is no failure: the job goes on, what comes later is "
        "dropped.\n"
        ".TP\n126, 127\nThe program cannot be executed, or was not found.\n"
        ".TP\n128+n\nA rank was killed by signal n, or hvdrun was asked to end by it.\n"
        ".PP\nAny other status is that of the rank that failed first.\n"
        ".SH EXAMPLES\n"
        ".nf\n"
        "hvdrun \\-np 4 ./train \\-\\-epochs 3\n"
        "hvdrun \\-H localhost:4 \\-x OMP_NUM_THREADS=2 python train.py\n"
        "hvdrun \\-np 2 \\-\\-dry\\-run ./train\n"
        ".fi\n",
        out);
}

/* ---- bash */

static void spellings(FILE *out, const struct hvi_opt *o, const char *sep)
{
    fprintf(out, "--%s", o->name);
    if (o->also != NULL)
        fprintf(out, "%s--%s", sep, o->also);
    if (o->single != NULL)
        fprintf(out, "%s-%s", sep, o->single);
    if (o->letter != '\0')
        fprintf(out, "%s-%c", sep, o->letter);
}

static void list_spellings(FILE *out, bool with_arg, const char *sep)
{
    bool first = true;

    for (size_t i = 0; i < hvi_opt_count; i++) {
        const struct hvi_opt *o = &hvi_opt_table[i];

        if (o->hidden || (with_arg && (o->arg == HVI_ARG_NONE || o->optional)))
            continue;
        if (!first)
            fputs(sep, out);
        first = false;
        spellings(out, o, sep);
    }
}

static void case_row(FILE *out, const struct hvi_opt *o)
{
    if (o->hidden || o->arg == HVI_ARG_NONE || o->optional)
        return;
    fputs("    ", out);
    spellings(out, o, "|");
    fputs(")\n        ", out);
    if (o->arg == HVI_ARG_WORD)
        fprintf(out, "mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\")", o->words);
    else if (o->arg == HVI_ARG_FILE)
        fputs("mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")", out);
    else if (o->arg == HVI_ARG_DIR)
        fputs("mapfile -t COMPREPLY < <(compgen -d -- \"$cur\")", out);
    else if (o->arg == HVI_ARG_HOSTS)
        fputs("mapfile -t COMPREPLY < <(compgen -A hostname -- \"$cur\")", out);
    else if (o->id == HVI_OPT_X)
        fputs("mapfile -t COMPREPLY < <(compgen -v -- \"$cur\")", out);
    else
        fputs("COMPREPLY=()", out);
    fputs("\n        return\n        ;;\n", out);
}

void hvi_optdoc_completion(FILE *out)
{
    fputs("# bash completion for hvdrun, made by: hvdrun --generate-completion\n"
          "_hvdrun() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} i\n"
          "    COMPREPLY=()\n"
          "    # behind the program's name the words are the program's\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n"
          "        ",
          out);
    list_spellings(out, true, "|");
    fputs(") ((i++)) ;;\n"
          "        -*) ;;\n"
          "        *)\n"
          "            mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
          "            return\n"
          "            ;;\n"
          "        esac\n"
          "    done\n"
          "    case $prev in\n",
          out);
    for (size_t i = 0; i < hvi_opt_count; i++)
        case_row(out, &hvi_opt_table[i]);
    fputs("    esac\n"
          "    if [[ $cur == -* ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W '",
          out);
    list_spellings(out, false, " ");
    fputs("' -- \"$cur\")\n"
          "    else\n"
          "        mapfile -t COMPREPLY < <(compgen -c -- \"$cur\"; compgen -f -- "
          "\"$cur\")\n"
          "    fi\n"
          "}\n"
          "complete -o filenames -F _hvdrun hvdrun\n",
          out);
}
