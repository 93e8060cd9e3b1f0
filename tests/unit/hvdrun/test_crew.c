#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/crew.h"
#include "proto/base/clock.h"

static atomic_int calls[100];
static atomic_int present, most;

static void count(void *arg, int i)
{
    cr_assert_eq(arg, calls);
    atomic_fetch_add(&calls[i], 1);
}

Test(crew, does_each_job_once, .timeout = 20)
{
    hvi_crew_run(3, 100, count, calls);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(calls[i], 1, "job %d", i);
}

/* Stays until another one is here too. */
static void meet(void *arg, int i)
{
    int64_t deadline = hvi_now_ms() + 10000;
    int n = atomic_fetch_add(&present, 1) + 1;

    (void)arg;
    (void)i;
    while (n < 2 && atomic_load(&present) < 2 && hvi_now_ms() < deadline)
        poll(NULL, 0, 1);
    if (atomic_load(&present) == 2)
        atomic_store(&most, 2);
}

Test(crew, jobs_run_beside_each_other, .timeout = 20)
{
    hvi_crew_run(2, 2, meet, NULL);
    cr_assert_eq(most, 2);
}

static atomic_int pids[2];

static void start_child(void *arg, int i)
{
    pid_t pid;

    meet(arg, i); /* so that a thread has only one of them */
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    atomic_store(&pids[i], pid);
}

Test(crew, a_child_that_dies_with_its_parent_outlives_the_work, .timeout = 20)
{
    hvi_crew_run(2, 2, start_child, NULL);
    poll(NULL, 0, 50); /* a thread that ended would have taken it along by then */
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(waitpid(pids[i], NULL, WNOHANG), 0, "child %d is gone", i);
        kill(pids[i], SIGKILL);
        cr_assert_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
}
