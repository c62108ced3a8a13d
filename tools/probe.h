/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a device holds already, by libblkid and by our own label: asked before anything is written
 * to it.
 */
#ifndef TOOLS_PROBE_H
#define TOOLS_PROBE_H

#include "raid/base.h"

#define PROBE_TEXT_BYTES 256

/*
 * fd may be open in any mode, also O_DIRECT. 1: found says what, "an ext4 filesystem labelled
 * backup"; 0: nothing known; -errno.
 */
int probe_fd(int fd, char found[PROBE_TEXT_BYTES]);

#endif
