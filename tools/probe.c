/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Probing. libblkid reads with buffers of its own alignment, so it gets a descriptor without
 * O_DIRECT, opened through /proc/self/fd: that reaches the very file that the caller holds
 * exclusively, whatever its name leads to by now.
 */
#include "probe.h"
#include "raid/label.h"
#include <blkid/blkid.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static int probe_size(int fd, uint64_t *ret)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISBLK(st.st_mode))
		return ioctl(fd, BLKGETSIZE64, ret) < 0 ? -errno : 0;
	*ret = (uint64_t)st.st_size;
	return 0;
}

static int probe_ours(int fd, uint64_t size, char found[PROBE_TEXT_BYTES])
{
	struct label label;
	char uuid[UUID_TEXT_BYTES];

	if (size < 2 * LABEL_AREA_BYTES)
		return 0;
	memset(&label, 0, sizeof(label));
	int r = label_probe_fd(fd, ROUND_DOWN(size, BLOCK_BYTES), &label);
	switch (r) {
	case 0:
		snprintf(found, PROBE_TEXT_BYTES, "member %u of a trussfs filesystem%s%s (UUID %s)",
			 label.member_index, label.name[0] ? " labelled " : "", label.name,
			 uuid_text(&label.fs, uuid));
		label_clear(&label);
		return 1;
	case -EBADMSG:
		snprintf(found, PROBE_TEXT_BYTES, "a damaged trussfs label");
		return 1;
	case -ENOTSUP:
		snprintf(found, PROBE_TEXT_BYTES, "a trussfs label of a newer version");
		return 1;
	case -ENODATA:
		return 0;
	default:
		return r;
	}
}

static const char *probe_value(blkid_probe pr, const char *name)
{
	const char *value;

	return blkid_probe_lookup_value(pr, name, &value, NULL) == 0 ? value : NULL;
}

static int probe_others(int fd, char found[PROBE_TEXT_BYTES])
{
	blkid_probe pr = blkid_new_probe();
	int r = -ENOMEM;

	if (!pr)
		return r;
	errno = 0;
	if (blkid_probe_set_device(pr, fd, 0, 0) == 0) {
		blkid_probe_enable_superblocks(pr, 1);
		blkid_probe_set_superblocks_flags(pr, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE |
							  BLKID_SUBLKS_LABEL);
		blkid_probe_enable_partitions(pr, 1);
		r = blkid_do_fullprobe(pr);
		/* 0: found; 1: nothing; -2: contradictory signatures, so certainly not nothing. */
		r = r == 1 ? 0 : r == -1 ? (errno ? -errno : -EIO) : 1;
	} else {
		r = errno ? -errno : -EIO;
	}
	if (r == 1) {
		const char *type = probe_value(pr, "TYPE"), *usage = probe_value(pr, "USAGE");
		const char *label = probe_value(pr, "LABEL"), *table = probe_value(pr, "PTTYPE");
		if (type)
			snprintf(found, PROBE_TEXT_BYTES, "%s %s%s%s", type,
				 usage && !strcmp(usage, "raid")     ? "RAID or LVM member"
				 : usage && !strcmp(usage, "crypto") ? "encrypted volume"
				 : usage && !strcmp(usage, "other")  ? "signature"
								     : "filesystem",
				 label ? " labelled " : "", label ? label : "");
		else if (table)
			snprintf(found, PROBE_TEXT_BYTES, "%s partition table", table);
		else
			snprintf(found, PROBE_TEXT_BYTES, "contradictory signatures");
	}
	blkid_free_probe(pr);
	return r;
}

int probe_fd(int fd, char found[PROBE_TEXT_BYTES])
{
	char path[64];
	uint64_t size;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int plain = open(path, O_RDONLY | O_CLOEXEC);
	if (plain < 0)
		return -errno;
	int r = probe_size(plain, &size);
	if (r == 0)
		r = probe_ours(plain, size, found);
	if (r == 0)
		r = probe_others(plain, found);
	close(plain);
	return r;
}
