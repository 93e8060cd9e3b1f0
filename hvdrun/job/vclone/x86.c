#include "hvdrun/job/vclone.h"

#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>

/* What comes back from the system call in the child must not return from a function: the
 * caller's frames are below its feet. So it goes on from here, past the 128 bytes under
 * the stack pointer that the compiler may use without telling. */
long hvi_vclone(int cgroup_fd, void (*fn)(void *), void *arg)
{
    struct clone_args args = {.flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD};
    long rc = SYS_clone3;

    if (cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)cgroup_fd;
    }
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "subq $128, %%rsp\n\t"
                     "andq $-16, %%rsp\n\t"
                     "movq %[arg], %%rdi\n\t"
                     "call *%[fn]\n\t"
                     "ud2\n"
                     "1:"
                     : "+a"(rc)
                     : "D"(&args), "S"(sizeof args), [fn] "r"(fn), [arg] "r"(arg)
                     : "rcx", "r11", "memory", "cc");
    return rc;
}
