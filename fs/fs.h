/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The filesystem: what the FUSE front end, the tools and the tests see of fs/. Everything here runs in a
 * coroutine on the loop thread and may yield, unless it says otherwise. Errors are 0 or -errno as the system call
 * would report them. Permission checks are the kernel's (default_permissions), but for what only the filesystem can
 * know; sticky directories, suid clearing and group inheritance are done here.
 *
 * Durability: an operation is durable when fs_fsync of the file (or directory) it touched, or fs_sync, has returned,
 * or at the latest 5 s later by the commit timer. What was done before is durable too: order is kept.
 */
#ifndef FS_FS_H
#define FS_FS_H

#include "format.h"
#include "raid/raid.h"
#include <sys/stat.h>
#include <time.h>

struct fs;

struct fs_options {
	uint64_t dirty_bytes_max; /* write buffer; 0: a quarter of the buffer pool */
	uint64_t node_cache_bytes; /* clean nodes kept; 0: 64 MiB */
	bool read_only;
	/* wall clock for time stamps only; NULL: clock_gettime. Never decides anything about data. */
	void (*now)(struct timespec *ret);
};

/* Empty filesystem on a fresh volume (its LBA_ROOT is live). */
int fs_format(struct raid *raid);
/* -EBADMSG: not a trussfs filesystem or damaged; -ENOTSUP: unknown feature, named in the log. Starts raid's background work. */
int fs_mount(struct raid *raid, const struct fs_options *options, struct fs **ret);
/* Everything to the members; frees orphans that nobody holds. The volume stays the caller's (raid_close next). */
int fs_unmount(struct fs *fs);
/*
 * Frees memory; nothing more is staged or committed. For tests: after the crash (when the devices no longer answer, or after the
 * fake's raid_abandon), but while the volume still exists: the flusher and the reaper end in it. Yields.
 */
void fs_abandon(struct fs *fs);

struct fs_cred {
	uint32_t uid, gid;
	uint32_t umask;
};

struct fs_attr {
	uint64_t ino;
	uint32_t generation;
	uint64_t size, blocks512;
	struct timespec atime, mtime, ctime, btime;
	uint32_t mode, links, uid, gid;
	uint32_t rdev_major, rdev_minor;
};

/* Names are NUL-terminated; longer than FS_NAME_BYTES_MAX: -ENAMETOOLONG in every call. */

/*
 * References: each success of a call marked [+1] (lookup, create ...) takes one reference on the inode, as FUSE counts
 * lookups. An inode without links lives until its last reference is put.
 */
void fs_ref(struct fs *fs, uint64_t ino);                 /* never yields */
void fs_unref(struct fs *fs, uint64_t ino, uint64_t count); /* never yields; freeing goes on in the background */

int fs_lookup(struct fs *fs, uint64_t parent, const char *name, struct fs_attr *ret); /* [+1]; "." and ".." too */
int fs_getattr(struct fs *fs, uint64_t ino, struct fs_attr *ret);
enum {
	FS_SET_MODE = 1 << 0,
	FS_SET_UID = 1 << 1,
	FS_SET_GID = 1 << 2,
	FS_SET_SIZE = 1 << 3,
	FS_SET_ATIME = 1 << 4,
	FS_SET_MTIME = 1 << 5,
	FS_SET_ATIME_NOW = 1 << 6,
	FS_SET_MTIME_NOW = 1 << 7,
	FS_SET_CTIME = 1 << 8,
	FS_SET_KILL_SUIDGID = 1 << 9,
};
int fs_setattr(struct fs *fs, uint64_t ino, const struct fs_attr *attr, unsigned set, struct fs_attr *ret);
int fs_readlink(struct fs *fs, uint64_t ino, char *ret, size_t cap); /* NUL-terminated; cap >= 4096 */

/* Regular files, device nodes, fifos, sockets. mode has the type; umask is applied here. [+1] */
int fs_mknod(struct fs *fs, uint64_t parent, const char *name, uint32_t mode, uint32_t rdev_major,
	     uint32_t rdev_minor, const struct fs_cred *cred, struct fs_attr *ret);
int fs_mkdir(struct fs *fs, uint64_t parent, const char *name, uint32_t mode, const struct fs_cred *cred,
	     struct fs_attr *ret); /* [+1] */
int fs_symlink(struct fs *fs, uint64_t parent, const char *name, const char *target, const struct fs_cred *cred,
	       struct fs_attr *ret); /* [+1] */
/* An unnamed regular file, on the orphan list until linked. [+1] */
int fs_tmpfile(struct fs *fs, uint64_t parent, uint32_t mode, const struct fs_cred *cred, struct fs_attr *ret);
int fs_link(struct fs *fs, uint64_t ino, uint64_t parent, const char *name, struct fs_attr *ret); /* [+1] */
int fs_unlink(struct fs *fs, uint64_t parent, const char *name);
int fs_rmdir(struct fs *fs, uint64_t parent, const char *name);
/* flags: RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT of linux/fs.h; others -EINVAL. Data of a file that replaces another
 * is written out first, so that after a crash the name has the old content or the new. */
int fs_rename(struct fs *fs, uint64_t parent, const char *name, uint64_t new_parent, const char *new_name,
	      unsigned flags);

/*
 * Entries from `cookie` on (0: start), "." and ".." first, until emit returns false. The cookie given to emit is where to
 * go on after that entry; cookies stay valid over changes and mounts and fit 63 bits. attr is NULL unless want_attr; with it, each
 * emitted entry that is neither "." nor ".." has taken a reference [+1] if emit returned true.
 */
typedef bool fs_emit(void *arg, const char *name, uint64_t ino, unsigned dtype, uint64_t cookie_next,
		     const struct fs_attr *attr);
int fs_readdir(struct fs *fs, uint64_t ino, uint64_t cookie, bool want_attr, fs_emit *emit, void *arg);

/*
 * data is pool memory, block-aligned, with room for the covering blocks: BLOCK_BYTES more than len rounded up. The bytes asked for
 * start at *ret_data (inside data). *ret_len is short only at the end of the file.
 * -EAGAIN: a hung device may still write into the memory: put it and call again with other memory.
 */
int fs_read(struct fs *fs, uint64_t ino, uint64_t off, size_t len, void *data, void **ret_data, size_t *ret_len);
enum {
	FS_WRITE_KILL_PRIV = 1,  /* clear suid, sgid and capabilities */
	FS_WRITE_KEEP_TIMES = 2, /* from a cache whose owner sets the times itself */
};
/*
 * Copied into the write buffer before it returns. O_APPEND is the caller's (kernel's). -ENOSPC now rather than later: what was
 * accepted can be written. After an error the beginning may have been written.
 */
int fs_write(struct fs *fs, uint64_t ino, uint64_t off, const void *data, size_t len, unsigned flags);
enum {
	FS_FALLOC_KEEP_TIMES = 1 << 30, /* as FS_WRITE_KEEP_TIMES; not a bit of fallocate(2) */
};
/*
 * mode: 0, FALLOC_FL_KEEP_SIZE, or PUNCH_HOLE | KEEP_SIZE, or ZERO_RANGE [| KEEP_SIZE]; others -EOPNOTSUPP. With any of them
 * FS_FALLOC_KEEP_TIMES.
 */
int fs_fallocate(struct fs *fs, uint64_t ino, int mode, uint64_t off, uint64_t len);
int fs_lseek(struct fs *fs, uint64_t ino, uint64_t off, int whence, uint64_t *ret); /* SEEK_DATA, SEEK_HOLE; -ENXIO */
/* datasync makes no difference to what is safe, only to what must be written. An earlier write error of the file is reported once
 * to each `struct fs_errseq` holder. -ESTALE: there is no such file, whose data would be safe. */
struct fs_errseq {
	uint64_t seen;
};
void fs_errseq_sample(struct fs *fs, uint64_t ino, struct fs_errseq *ret); /* at open; never yields */
int fs_fsync(struct fs *fs, uint64_t ino, bool datasync, struct fs_errseq *err);
/* close(2): starts writing; reports write errors. */
int fs_flush(struct fs *fs, uint64_t ino, struct fs_errseq *err);
int fs_sync(struct fs *fs);

/* Names in user., trusted., security., system. (posix_acl). value NULL and cap 0: ask for the size. -ERANGE, -ENODATA. */
int fs_getxattr(struct fs *fs, uint64_t ino, const char *name, void *value, size_t cap, size_t *ret_len);
int fs_listxattr(struct fs *fs, uint64_t ino, char *list, size_t cap, size_t *ret_len);
int fs_setxattr(struct fs *fs, uint64_t ino, const char *name, const void *value, size_t len, int flags);
int fs_removexattr(struct fs *fs, uint64_t ino, const char *name);

struct fs_stat {
	uint64_t blocks, blocks_free, blocks_avail; /* BLOCK_BYTES each */
	uint64_t files, files_free;
	uint64_t dirty_bytes;
};
/* From memory, never yields, never waits for a device. */
void fs_statfs(struct fs *fs, struct fs_stat *ret);

/* What the cleaner has done since the mount. From memory, never yields. */
struct fs_cleaned {
	uint64_t moved_blocks;
	uint64_t stripe_blocks; /* of the stripes that were emptied by that, or would have been without what came in between */
};
void fs_cleaned(const struct fs *fs, struct fs_cleaned *ret);

/* "/a/b" of an inode, by its parent hint; falls back to "inode N". Never fails. */
void fs_path(struct fs *fs, uint64_t ino, char *ret, size_t cap);

/*
 * fsck of an opened (RAID_OPEN_CHECK) but not mounted volume: tree, keys, names, link counts, space, back-references against live
 * blocks. Writes nothing. Each problem goes to report with its permanent id (fault.h). Returns the number of problems or -errno.
 */
struct fs_check_stats {
	uint64_t inodes, directories, files, data_blocks, meta_blocks;
};
int64_t fs_check(struct raid *raid, void (*report)(void *arg, const char *id, const char *text), void *arg,
		 struct fs_check_stats *ret);

#endif
