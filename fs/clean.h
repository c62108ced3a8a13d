/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The cleaner: moves the last live blocks of sparsely used stripes together in the background.
 */
#ifndef FS_CLEAN_H
#define FS_CLEAN_H

#include "private.h"

/* Something was written or freed: there may be work. Never yields. */
void cleaner_kick(struct fs *fs);
/*
 * What is being moved holds old places and new ones at once: waits for the end of that. Whether there was any. Yields; with no
 * inode's lock held.
 */
bool cleaner_wait(struct fs *fs);

#endif
