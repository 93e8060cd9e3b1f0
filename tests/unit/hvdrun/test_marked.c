#include "test.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hvdrun/agent/marked.h"

/* A process in a session of its own, with so many bytes of environment before `entry`. */
static pid_t start(const char *entry, size_t before)
{
    int ready[2];
    char byte;
    pid_t pid;

    cr_assert(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
        char *filler = malloc(before + 3);
        char *argv[] = {(char[]){"sh"}, (char[]){"-c"},
                        (char[]){"echo; exec sleep 300 >&-"}, NULL};
        char *envp[] = {filler, (char *)(uintptr_t)entry, NULL};

        memset(filler, 'x', before + 2);
        memcpy(filler, "A=", 2);
        filler[before + 2] = '\0';
        setsid();
        dup2(ready[1], 1);
        close(ready[0]);
        close(ready[1]);
        execve("/bin/sh", argv, envp);
        _exit(127);
    }
    cr_assert(pid > 0);
    close(ready[1]);
    cr_assert(read(ready[0], &byte, 1) == 1); /* it runs, with that environment */
    close(ready[0]);
    return pid;
}

static void expect_killed(pid_t pid, size_t before)
{
    int status = 0;

    cr_assert_eq(waitpid(pid, &status, 0), pid, "%zu bytes before", before);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(marked, who_has_the_entry_is_killed_wherever_it_stands, .timeout = 30)
{
    static const size_t before[] = {0, 100, 65500, 65536, 100000};
    char entry[64], longer[80];
    pid_t other;

    snprintf(entry, sizeof entry, "HVD_MARK=%d", (int)getpid());
    snprintf(longer, sizeof longer, "%s0", entry);
    other = start(longer, 10);
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        pid_t pid = start(entry, before[i]);

        hvi_marked_kill(entry, 2000);
        expect_killed(pid, before[i]);
    }
    cr_assert_eq(waitpid(other, NULL, WNOHANG), 0, "another entry was taken for it");
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}
