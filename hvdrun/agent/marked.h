/** Processes that carry a mark in their environment: what left its process group. */
#ifndef HVI_AGENT_MARKED_H
#define HVI_AGENT_MARKED_H

/**
 * Kill every process that was started with this entry ("NAME=value") in its environment,
 * and those that they start meanwhile. The entry must be of this job alone. Blocks at
 * most limit_ms.
 */
void hvi_marked_kill(const char *entry, int limit_ms);

#endif
