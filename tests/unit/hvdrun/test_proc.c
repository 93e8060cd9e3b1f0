#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/spawn.h"
#include "hvdrun/job/proc.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>

static char *words(const char *text)
{
    return (char *)(uintptr_t)text;
}

/* All that comes until the end of file. */
static const char *read_all(int fd)
{
    static char text[4096];
    size_t n = 0;
    ssize_t got;

    while (n < sizeof text - 1 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    close(fd);
    return text;
}

Test(proc, a_program_gets_our_pipes_and_a_group_of_its_own, .timeout = 20)
{
    char *argv[] = {words("sh"), words("-c"), words("cat; ps -o pgid= -p $$"), NULL};
    struct hvi_proc p;
    struct hvi_err err = {""};
    const char *text;
    int status;

    cr_assert_eq(hvi_proc_start(argv, &p, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(write(p.to_fd, "hello ", 6), 6);
    close(p.to_fd);
    text = read_all(p.from_fd);
    cr_assert_eq(strncmp(text, "hello ", 6), 0, "%s", text);
    cr_assert_eq(atoi(text + 6), (int)p.pid);
    cr_assert_eq(waitpid(p.pid, &status, 0), p.pid);
    cr_assert_eq(status, 0);
}

Test(proc, a_program_that_cannot_be_executed_is_an_error_with_its_reason, .timeout = 20)
{
    char *argv[] = {words("/nonexistent/program"), NULL};
    struct hvi_proc p;
    struct hvi_err err = {""};

    cr_assert_eq(hvi_proc_start(argv, &p, &err), HVD_EIO);
    cr_assert(strstr(err.text, "/nonexistent/program: No such file") != NULL, "%s",
              err.text);
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1); /* no zombie */
}

Test(proc, ignored_signals_are_not_inherited, .timeout = 20)
{
    char *argv[] = {words("sh"), words("-c"), words("kill -TERM $$; echo alive"), NULL};
    struct hvi_proc p;
    struct hvi_err err = {""};
    int status;

    signal(SIGTERM, SIG_IGN);
    cr_assert_eq(hvi_proc_start(argv, &p, &err), HVD_OK);
    signal(SIGTERM, SIG_DFL);
    close(p.to_fd);
    cr_assert_str_eq(read_all(p.from_fd), "");
    cr_assert_eq(waitpid(p.pid, &status, 0), p.pid);
    cr_assert(WIFSIGNALED(status));
}

Test(proc, finds_programs_on_absolute_path_entries_only, .timeout = 20)
{
    char dir[] = "/tmp/path-XXXXXX", file[64], path[256], out[PATH_MAX];
    struct hvi_err err = {""};

    cr_assert_not_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/hvi-tool", dir);
    close(open(file, O_WRONLY | O_CREAT, 0700));
    snprintf(path, sizeof path, "/nonexistent:%s:/bin", dir);
    setenv("PATH", path, 1);
    cr_assert_eq(hvi_proc_find("hvi-tool", out, &err), HVD_OK, "%s", err.text);
    cr_assert_str_eq(out, file);
    cr_assert_eq(chdir(dir), 0);
    setenv("PATH", ".:/bin", 1);
    cr_assert_eq(hvi_proc_find("hvi-tool", out, &err), HVD_EIO);
    cr_assert(strstr(err.text, "hvi-tool is neither beside hvdrun") != NULL, "%s",
              err.text);
    unlink(file);
    cr_assert_eq(chdir("/"), 0);
    rmdir(dir);
}

/* ---- spawn: workers under the agent */

static int out_pipe[2];

static struct hvi_spawned spawn_as(struct hvi_spawn_plan plan)
{
    static char env_text[] = "HVI_TEST=yes";
    static char path_text[] = "PATH=/usr/bin:/bin";
    static char *env[] = {env_text, path_text, NULL};
    struct hvi_spawned child;
    struct hvi_err err = {""};
    int error = 0;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    cr_assert_eq(pipe2(out_pipe, O_CLOEXEC), 0);
    if (plan.envp == NULL)
        plan.envp = env;
    plan.cgroup_fd = -1;
    plan.in_fd = null;
    plan.out_fd = out_pipe[1];
    plan.err_fd = null;
    cr_assert_eq(hvi_spawn(&plan, &child, &error, &err), HVD_OK, "%s", err.text);
    close(out_pipe[1]);
    close(null);
    return child;
}

static struct hvi_spawned spawn_under(char **argv, const char *cwd,
                                      const struct hvi_keeper *keeper)
{
    return spawn_as(
        (struct hvi_spawn_plan){.argv = argv, .cwd = cwd, .keeper = keeper});
}

static struct hvi_spawned spawn(char **argv, const char *cwd)
{
    return spawn_under(argv, cwd, NULL);
}

static int ended(struct hvi_spawned *child, struct hvi_spawn_failure *f)
{
    struct pollfd told = {.fd = child->fail_fd, .events = POLLIN};
    int status = -1;

    memset(f, 0, sizeof *f);
    cr_assert_eq(poll(&told, 1, 5000), 1, "neither an exec nor a failure");
    if (read(child->fail_fd, f, sizeof *f) != (ssize_t)sizeof *f)
        f->stage = f->error = 0;
    close(child->fail_fd);
    cr_assert_eq(waitpid(child->pid, &status, 0), child->pid);
    return status;
}

Test(spawn, a_worker_has_its_place_and_leaves_ours, .timeout = 20)
{
    char *argv[] = {words("sh"), words("-c"),
                    words("echo $HVI_TEST $(pwd) $(ps -o pgid= -p $$)"), NULL};
    char **ours = environ;
    char before[PATH_MAX], after[PATH_MAX];
    struct hvi_spawned child;
    struct hvi_spawn_failure f;
    char want[64];

    cr_assert_not_null(getcwd(before, sizeof before));
    child = spawn(argv, "/usr");
    cr_assert_not_null(getcwd(after, sizeof after));
    cr_assert_str_eq(after, before);
    cr_assert_eq(environ, ours);
    cr_assert_eq(ended(&child, &f), 0);
    cr_assert_eq(f.stage, 0);
    snprintf(want, sizeof want, "yes /usr %d\n", (int)child.pid);
    cr_assert_str_eq(read_all(out_pipe[0]), want);
}

/* A number or a letter behind a name in /proc/PID/status; "" when it is gone. */
static const char *status_of(pid_t pid, const char *name)
{
    static char line[256];
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, name, strlen(name)) == 0) {
            fclose(f);
            return line + strlen(name) + strspn(line + strlen(name), ":\t");
        }
    if (f != NULL)
        fclose(f);
    return "";
}

static enum hvi_spawn_hold hold(const struct hvi_spawned *child)
{
    enum hvi_spawn_hold how = HVI_SPAWN_HOLD_UNSET;

    while (how == HVI_SPAWN_HOLD_UNSET) {
        how = hvi_spawn_hold(child->pid, child->fail_fd);
        poll(NULL, 0, 1);
    }
    return how;
}

/* However late the first look comes: nothing was read of fail_fd before. */
Test(spawn, an_exec_that_has_stopped_before_anybody_looked_is_held, .timeout = 20)
{
    char *argv[] = {words("true"), NULL};
    struct hvi_spawned child =
        spawn_as((struct hvi_spawn_plan){.argv = argv, .cwd = "/", .hold = true});
    struct hvi_spawn_failure f;
    int status = 0;

    while (status_of(child.pid, "State")[0] != 't')
        poll(NULL, 0, 1);
    cr_assert_eq(hvi_spawn_hold(child.pid, child.fail_fd), HVI_SPAWN_HELD);
    cr_assert_eq(read(child.fail_fd, &f, sizeof f), 0);
    while (status_of(child.pid, "State")[0] != 'T')
        poll(NULL, 0, 1);
    kill(child.pid, SIGCONT);
    cr_assert_eq(waitpid(child.pid, &status, 0), child.pid);
    cr_assert_eq(status, 0);
    close(child.fail_fd);
}

/* A trap from outside while the exec has not happened: the program is run on to it. */
Test(spawn, a_trap_before_the_exec_is_not_taken_for_it, .timeout = 20)
{
    struct hvi_spawn_failure f = {0, 0};
    int pipe_fd[2], status = 0;
    pid_t pid;

    cr_assert_eq(pipe2(pipe_fd, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGTRAP);
        _exit(write(pipe_fd[1], &f, sizeof f) == sizeof f ? 7 : 1);
    }
    close(pipe_fd[1]);
    while (status_of(pid, "State")[0] != 't')
        poll(NULL, 0, 1);
    cr_assert_eq(hvi_spawn_hold(pid, pipe_fd[0]), HVI_SPAWN_HOLD_UNSET);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(WEXITSTATUS(status), 7);
    close(pipe_fd[0]);
}

/* PATH is so long that the exec takes a while: what comes meanwhile must not stop it. */
Test(spawn, what_is_sent_before_the_exec_does_not_keep_it_from_being_held,
     .timeout = 20)
{
    static char path[120000] = "PATH=";
    char *env[] = {path, NULL};
    char *argv[] = {words("true"), NULL};
    struct hvi_spawned child;
    int status = 0;

    while (strlen(path) + 16 < sizeof path)
        strcat(path + strlen(path), "/x:");
    strcat(path, "/usr/bin:/bin");
    child = spawn_as(
        (struct hvi_spawn_plan){.argv = argv, .envp = env, .cwd = "/", .hold = true});
    while (atoi(status_of(child.pid, "TracerPid")) == 0)
        ;
    cr_assert_eq(kill(child.pid, SIGTERM), 0);
    cr_assert_eq(kill(child.pid, SIGSTOP), 0);
    cr_assert_eq(hold(&child), HVI_SPAWN_HELD);
    while (status_of(child.pid, "State")[0] != 'T')
        poll(NULL, 0, 1);
    cr_assert_eq(atoi(status_of(child.pid, "TracerPid")), 0);
    cr_assert_str_eq(status_of(child.pid, "SigBlk"), "0000000000000000\n");
    cr_assert_str_eq(status_of(child.pid, "Name"), "true\n");
    kill(child.pid, SIGCONT);
    cr_assert_eq(waitpid(child.pid, &status, 0), child.pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "status %x", status);
    close(child.fail_fd);
}

Test(spawn, one_to_be_held_that_ends_before_its_exec_is_not_awaited, .timeout = 20)
{
    char *argv[] = {words("no-such-program"), NULL};
    struct hvi_spawned child =
        spawn_as((struct hvi_spawn_plan){.argv = argv, .cwd = "/", .hold = true});
    struct hvi_spawn_failure f;

    cr_assert_eq(hold(&child), HVI_SPAWN_HOLD_ENDED);
    cr_assert_eq(WEXITSTATUS(ended(&child, &f)), 127);
}

Test(spawn, the_keeper_is_told_before_the_program_runs, .timeout = 20)
{
    char *argv[] = {words("echo"), words("ran"), NULL};
    struct hvi_spawn_failure f;
    struct hvi_spawned child;
    struct hvi_keeper keeper;
    int sv[2], told[128] = {0};

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    keeper = (struct hvi_keeper){0, sv[0], 0};
    child = spawn_under(argv, "/", &keeper);
    cr_assert_eq(ended(&child, &f), 0);
    cr_assert_str_eq(read_all(out_pipe[0]), "ran\n");
    cr_assert(recv(sv[1], told, sizeof told, MSG_DONTWAIT) > 0);
    cr_assert_eq(told[1], (int)child.pid);
    close(sv[0]);
    close(sv[1]);
}

Test(spawn, without_a_keeper_that_takes_it_the_program_does_not_run, .timeout = 20)
{
    char *argv[] = {words("echo"), words("ran"), NULL};
    struct hvi_spawn_failure f;
    struct hvi_spawned child;
    struct hvi_keeper keeper;
    int sv[2], status;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    close(sv[1]);
    keeper = (struct hvi_keeper){0, sv[0], 0};
    child = spawn_under(argv, "/", &keeper);
    status = ended(&child, &f);
    cr_assert_eq(f.stage, HVI_SPAWN_KEEPER);
    cr_assert_eq(f.error, EPIPE);
    cr_assert_eq(WEXITSTATUS(status), 125);
    cr_assert_str_eq(read_all(out_pipe[0]), "");
    close(sv[0]);
}

Test(spawn, failures_name_their_stage, .timeout = 20)
{
    static const struct {
        const char *program, *cwd;
        int stage, error, status;
    } rows[] = {{"/nonexistent", "/", HVI_SPAWN_EXEC, ENOENT, 127},
                {"/etc/passwd", "/", HVI_SPAWN_EXEC, EACCES, 126},
                {"no-such-program", "/", HVI_SPAWN_EXEC, ENOENT, 127},
                {"true", "/nonexistent", HVI_SPAWN_CHDIR, ENOENT, 125}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *argv[] = {words(rows[i].program), NULL};
        struct hvi_spawned child = spawn(argv, rows[i].cwd);
        struct hvi_spawn_failure f;
        int status;

        status = ended(&child, &f);
        cr_assert_eq(f.stage, rows[i].stage, "%s", rows[i].program);
        cr_assert_eq(f.error, rows[i].error, "%s: %d", rows[i].program, f.error);
        cr_assert_eq(WEXITSTATUS(status), rows[i].status, "%s", rows[i].program);
        close(out_pipe[0]);
    }
}
