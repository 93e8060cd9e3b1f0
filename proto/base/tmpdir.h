/** Private directories hvd-XXXXXX: removing them, and those that the dead have left. */
#ifndef HVI_BASE_TMPDIR_H
#define HVI_BASE_TMPDIR_H

/**
 * Removes it with all in it. Refuses what mkdtemp() cannot have made for us: another
 * owner, other rights, a symbolic link, another name. Silent.
 */
void hvi_tmpdir_remove(const char *path);

/** Marks it as in use while the descriptor is open in some process. -1: cannot. */
int hvi_tmpdir_lock(const char *path);

/**
 * Removes the directories of ours in base that nobody uses any more: a minute old, and
 * with a lock that nobody holds, or with nothing but sockets that nobody serves. Looks
 * at a bounded number of names.
 */
void hvi_tmpdir_sweep(const char *base);

#endif
