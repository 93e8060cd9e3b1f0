/** What a process does right now, in one word, for the stall inspector. */
#ifndef HVI_IO_PROCSTAT_H
#define HVI_IO_PROCSTAT_H

#include <stdint.h>
#include <sys/types.h>

/** "running", "sleeping", "waiting for disk", "stopped", "traced", "zombie", "gone". */
const char *hvi_procstat(pid_t pid);
#define HVI_PROCSTAT_WORDS_MAX 64
/** The same, and where a debugger holds it also which: "traced by gdb (pid 71)", if that
 * process can be seen from here. Returns out. */
const char *hvi_procstat_words(pid_t pid, char out[HVI_PROCSTAT_WORDS_MAX]);
/** Who traces it; 0: nobody, or it is gone. */
pid_t hvi_procstat_tracer(pid_t pid);
/** Its process group, 0: it is gone. */
pid_t hvi_procstat_group(pid_t pid);
/** Its session, 0: it is gone. */
pid_t hvi_procstat_session(pid_t pid);
/** When it began, in the clock ticks of /proc/PID/stat: tells it from an older one of the
 * same number. 0: it is gone. */
uint64_t hvi_procstat_began(pid_t pid);
/** The word for a state letter of /proc/PID/stat; the line may be damaged: "unknown". */
const char *hvi_procstat_parse(const char *line);

#endif
