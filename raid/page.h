/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Making the pages of a new chunk, before there is a volume. All yield; none flushes.
 */
#ifndef RAID_PAGE_H
#define RAID_PAGE_H

#include "loop.h"
#include "table.h"

/* Initial bitmap pages: nothing is live, no checksum page was ever written. */
int page_format_chunk(struct loop *loop, struct table *t, struct chunk *c);
/* Makes block 0 of a metadata chunk live, with zeros. */
int page_format_root(struct loop *loop, struct table *t, struct chunk *c);

#endif
