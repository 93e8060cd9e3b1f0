#include "hvdrun/agent/crew.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)128 * 1024)

/* Of the process's life: its threads are never joined. */
static struct {
    void (*work)(void *arg, int i);
    void *arg;
    int njobs;
    atomic_int next;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done; /* jobs */
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void take_jobs(void)
{
    int n = 0;
    int i;

    while ((i = atomic_fetch_add(&crew.next, 1)) < crew.njobs) {
        crew.work(crew.arg, i);
        n++;
    }
    pthread_mutex_lock(&crew.lock);
    crew.done += n;
    if (crew.done == crew.njobs)
        pthread_cond_signal(&crew.cond);
    pthread_mutex_unlock(&crew.lock);
}

static void *serve(void *arg)
{
    (void)arg;
    take_jobs();
    for (;;)
        pause();
    return NULL;
}

static void start_threads(int n)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;

    mallopt(M_ARENA_MAX, 1); /* they allocate little */
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (n > 0 && pthread_create(&thread, &attr, serve, NULL) == 0)
        n--;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

void hvi_crew_run(int nthreads, int njobs, void (*work)(void *arg, int i), void *arg)
{
    crew.work = work;
    crew.arg = arg;
    crew.njobs = njobs;
    atomic_store(&crew.next, 0);
    crew.done = 0;
    start_threads((nthreads < njobs ? nthreads : njobs) - 1);
    take_jobs();
    pthread_mutex_lock(&crew.lock);
    while (crew.done < crew.njobs)
        pthread_cond_wait(&crew.cond, &crew.lock);
    pthread_mutex_unlock(&crew.lock);
}
