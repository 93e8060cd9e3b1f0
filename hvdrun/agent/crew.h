/** Threads beside the caller's for what keeps its caller waiting: a vfork does, until the
 * exec. */
#ifndef HVI_AGENT_CREW_H
#define HVI_AGENT_CREW_H

/**
 * Calls work(arg, i) once for each i below njobs, at most nthreads at the same time; one of
 * these is the caller's. Returns when all have returned.
 *
 * The others block all signals, and wait for ever when they have no more to do: a child of
 * theirs that has asked to die with its parent (PR_SET_PDEATHSIG) would die with the thread.
 * So call it once. Where no thread can be had, the caller does all.
 */
void hvi_crew_run(int nthreads, int njobs, void (*work)(void *arg, int i), void *arg);

#endif
