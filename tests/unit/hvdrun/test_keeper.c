#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/keeper.h"
#include "hvdrun/job/rundir.h"
#include "proto/base/clock.h"

/* A process group of two that waits to be killed. without: a descriptor it closes, or -1 */
static pid_t start_without(int without)
{
    pid_t pid = fork();

    if (pid == 0) {
        close(without);
        setpgid(0, 0);
        if (fork() == 0)
            setpgid(0, getppid());
        for (;;)
            pause();
    }
    setpgid(pid, pid);
    return pid;
}

static pid_t start_group(void)
{
    return start_without(-1);
}

/* Waits until pid has ended; its wait status, or -1 after 5 s. */
static int await_end(pid_t pid)
{
    int64_t deadline = hvi_now_ms() + 5000;
    int status;

    while (hvi_now_ms() < deadline) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        poll(NULL, 0, 2);
    }
    return -1;
}

static bool group_gone(pid_t pgid)
{
    int64_t deadline = hvi_now_ms() + 5000;

    while (hvi_now_ms() < deadline) {
        while (waitpid(-pgid, NULL, WNOHANG) > 0)
            ;
        if (kill(-pgid, 0) != 0 && errno == ESRCH)
            return true;
        poll(NULL, 0, 2);
    }
    return false;
}

struct place {
    char dir[HVI_RUNDIR_MAX];
    int line[2]; /* hvdrun's pipe */
    struct hvi_keeper k;
};

static void begin(struct place *p, int own)
{
    struct hvi_err err = {""};

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    cr_assert_eq(hvi_rundir_make(p->dir, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(pipe2(p->line, O_CLOEXEC), 0);
    cr_assert_eq(hvi_keeper_start(p->line[0], p->dir, own, &p->k, &err), HVD_OK, "%s",
                 err.text);
}

static void end(struct place *p)
{
    close(p->line[0]);
    close(p->line[1]);
    hvi_rundir_remove(p->dir);
}

static bool dir_exists(const char *dir)
{
    struct stat st;

    return stat(dir, &st) == 0;
}

Test(keeper, kills_every_group_it_knows_when_the_agent_is_gone, .timeout = 20)
{
    struct place p;
    pid_t a = start_group();
    pid_t b = start_group();

    begin(&p, 0);
    cr_assert_eq(hvi_keeper_add(&p.k, a), 0);
    cr_assert_eq(hvi_keeper_add(&p.k, b), 0);
    close(p.k.fd); /* what the agent's death does */
    cr_assert(group_gone(a), "group a lives");
    cr_assert(group_gone(b), "group b lives");
    cr_assert_eq(await_end(p.k.pid), 0);
    cr_assert(dir_exists(p.dir)); /* hvdrun is there, the directory is its own */
    end(&p);
}

Test(keeper, leaves_a_group_that_was_removed_alone, .timeout = 20)
{
    struct place p;
    pid_t a = start_group();

    begin(&p, 0);
    cr_assert_eq(hvi_keeper_add(&p.k, a), 0);
    hvi_keeper_remove(&p.k, a);
    hvi_keeper_stop(&p.k);
    cr_assert_eq(kill(a, 0), 0);
    cr_assert_eq(waitpid(a, NULL, WNOHANG), 0);
    kill(-a, SIGKILL);
    cr_assert(group_gone(a));
    end(&p);
}

Test(keeper, removes_the_directory_when_hvdrun_is_gone, .timeout = 20)
{
    struct place p;

    begin(&p, 0);
    close(p.line[1]);
    p.line[1] = -1;
    hvi_keeper_stop(&p.k);
    cr_assert_not(dir_exists(p.dir));
    end(&p);
}

Test(keeper, removes_a_directory_of_its_own_always, .timeout = 20)
{
    struct place p;

    begin(&p, 1);
    hvi_keeper_stop(&p.k);
    cr_assert_not(dir_exists(p.dir));
    end(&p);
}

Test(keeper, ignores_the_signals_of_a_terminal, .timeout = 20)
{
    struct place p;
    pid_t a = start_group();

    begin(&p, 0);
    cr_assert_eq(hvi_keeper_add(&p.k, a), 0);
    kill(p.k.pid, SIGINT);
    kill(p.k.pid, SIGTERM);
    kill(p.k.pid, SIGHUP);
    hvi_keeper_stop(&p.k);
    cr_assert(group_gone(a), "the keeper died of a signal and left the group");
    end(&p);
}

Test(keeper, its_death_is_seen, .timeout = 20)
{
    struct place p;
    struct pollfd poll_fd;

    begin(&p, 0);
    kill(p.k.pid, SIGKILL);
    poll_fd = (struct pollfd){.fd = p.k.fd, .events = 0};
    cr_assert_eq(poll(&poll_fd, 1, 5000), 1);
    cr_assert(poll_fd.revents & POLLHUP);
    cr_assert_eq(hvi_keeper_add(&p.k, 4711), EPIPE);
    hvi_keeper_stop(&p.k);
    end(&p);
}

/* A new leader with a number that was used before; -1: the system does not let us. */
static pid_t start_as(pid_t wanted, int without)
{
    for (int i = 0; i < 200; i++) {
        FILE *f = fopen("/proc/sys/kernel/ns_last_pid", "w");
        pid_t pid;

        if (f == NULL)
            return -1;
        fprintf(f, "%d", (int)wanted - 1);
        if (fclose(f) != 0)
            return -1;
        pid = start_without(without);
        if (pid == wanted)
            return pid;
        kill(-pid, SIGKILL);
        (void)group_gone(pid);
    }
    return -1;
}

Test(keeper, leaves_a_group_alone_that_has_the_number_of_one_that_is_gone,
     .timeout = 30)
{
    struct place p;
    pid_t a = start_group();
    pid_t b;

    begin(&p, 0);
    cr_assert_eq(hvi_keeper_add(&p.k, a), 0);
    kill(-a, SIGKILL);
    cr_assert(group_gone(a));
    poll(NULL, 0, 20); /* starts are told apart by clock ticks of 10 ms */
    b = start_as(a, p.k.fd);
    close(p.k.fd);
    cr_assert_eq(await_end(p.k.pid), 0);
    end(&p);
    if (b < 0)
        cr_skip_test("only root can choose a process's number, and not everywhere");
    cr_assert_eq(waitpid(b, NULL, WNOHANG), 0, "a stranger was killed");
    kill(-b, SIGKILL);
    cr_assert(group_gone(b));
}
