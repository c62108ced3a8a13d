/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the kernel asks of names, inodes, directories and attributes: each handler translates, calls
 * fs.h and replies. Those of open files are in fuse_file.c, the session in fuse.c.
 *
 * Two requests that libfuse 3.14 has no handler for are decoded here: TMPFILE (O_TMPFILE) and STATX
 * (birth time).
 *
 * On purpose without a handler, so that the kernel does it and stops asking: access
 * (default_permissions), locks (there is only this kernel), ioctl, bmap, poll, copy_file_range
 * (falls back to splicing).
 */
#include "fuse_ops.h"
#include "raid/buf.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

/* Newer than the oldest kernel headers we build with. */
#define OPCODE_TMPFILE 51
#define OPCODE_STATX   52

struct statx_time_out {
	int64_t s;
	uint32_t ns;
	int32_t reserved;
};
/* struct fuse_statx_in and fuse_statx_out of protocol 7.39. */
struct statx_in {
	uint32_t getattr_flags, reserved;
	uint64_t fh;
	uint32_t sx_flags, sx_mask;
};
struct statx_out {
	uint64_t attr_valid;
	uint32_t attr_valid_ns, flags;
	uint64_t spare0[2];
	uint32_t mask, blksize;
	uint64_t attributes;
	uint32_t nlink, uid, gid;
	uint16_t mode, spare1;
	uint64_t ino, size, blocks, attributes_mask;
	struct statx_time_out atime, btime, ctime, mtime;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t spare2[14];
};
static_assert(sizeof(struct statx_out) == 32 + 256, "protocol");

/* ---- translation ---- */

static void attr_to_stat(const struct fs_attr *a, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = a->ino;
	st->st_mode = a->mode;
	st->st_nlink = a->links;
	st->st_uid = a->uid;
	st->st_gid = a->gid;
	st->st_rdev = makedev(a->rdev_major, a->rdev_minor);
	st->st_size = (off_t)a->size;
	st->st_blocks = (blkcnt_t)a->blocks512;
	st->st_blksize = BLOCK_BYTES;
	st->st_atim = a->atime;
	st->st_mtim = a->mtime;
	st->st_ctim = a->ctime;
}

void front_entry(const struct fs_attr *a, struct fuse_entry_param *e)
{
	memset(e, 0, sizeof(*e));
	e->ino = a->ino;
	e->generation = a->generation;
	e->attr_timeout = TIMEOUT_S;
	e->entry_timeout = TIMEOUT_S;
	attr_to_stat(a, &e->attr);
}

/* For the requests that libfuse does not decode. */
static void attr_to_wire(const struct fs_attr *a, struct fuse_attr *w)
{
	memset(w, 0, sizeof(*w));
	w->ino = a->ino;
	w->size = a->size;
	w->blocks = a->blocks512;
	w->atime = (uint64_t)a->atime.tv_sec;
	w->mtime = (uint64_t)a->mtime.tv_sec;
	w->ctime = (uint64_t)a->ctime.tv_sec;
	w->atimensec = (uint32_t)a->atime.tv_nsec;
	w->mtimensec = (uint32_t)a->mtime.tv_nsec;
	w->ctimensec = (uint32_t)a->ctime.tv_nsec;
	w->mode = a->mode;
	w->nlink = a->links;
	w->uid = a->uid;
	w->gid = a->gid;
	w->rdev = (uint32_t)makedev(a->rdev_major, a->rdev_minor);
	w->blksize = BLOCK_BYTES;
}

struct fs_cred front_cred(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	return (struct fs_cred){.uid = ctx->uid, .gid = ctx->gid, .umask = ctx->umask};
}

void front_error(fuse_req_t req, int r)
{
	/* Bytes that are wrong, members that are gone or do not answer: one thing to a program. */
	if (r == -EBADMSG || r == -ETIMEDOUT || r == -EAGAIN)
		r = -EIO;
	/* A reply fails only if the request is no longer there: then nobody waits for it. */
	(void)fuse_reply_err(req, -r);
}

/* Answers with an entry that carries a reference, and takes the reference back if nobody received
 * it. */
static void reply_entry(fuse_req_t req, int r, const struct fs_attr *a)
{
	struct fs_fuse *f = front_of(req);
	struct fuse_entry_param e;

	if (r < 0) {
		front_error(req, r);
		return;
	}
	front_entry(a, &e);
	if (fuse_reply_entry(req, &e) < 0)
		fs_unref(f->fs, a->ino, 1);
}

/* -o dirsync, -o sync: a change of names is durable before it is answered. */
static int names_done(struct fs_fuse *f, int r)
{
	if (r < 0 || !(f->options.mount_flags & (MS_DIRSYNC | MS_SYNCHRONOUS)))
		return r;
	return fs_fsync(f->fs, FS_ROOT_INO, false, NULL);
}

/* The same for what has got a name and a reference. */
int front_made(struct fs_fuse *f, int r, const struct fs_attr *a)
{
	int done = names_done(f, r);

	if (r == 0 && done < 0)
		fs_unref(f->fs, a->ino, 1);
	return done;
}

/* ---- names and inodes ---- */

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_attr a;
	int r = fs_lookup(front_of(req)->fs, parent, name, &a);

	if (r == -ENOENT) {
		/* Remembered by the kernel as absent. */
		struct fuse_entry_param e = {.entry_timeout = TIMEOUT_S};
		(void)fuse_reply_entry(req, &e); /* see front_error */
		return;
	}
	reply_entry(req, r, &a);
}

static void forget_one(struct fs_fuse *f, uint64_t ino, uint64_t count)
{
	if (ino != FS_ROOT_INO && count)
		fs_unref(f->fs, ino, count);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count)
{
	forget_one(front_of(req), ino, count);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		forget_one(front_of(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_attr a;
	struct stat st;
	int r = fs_getattr(front_of(req)->fs, ino, &a);

	if (r < 0) {
		front_error(req, r);
		return;
	}
	attr_to_stat(&a, &st);
	(void)fuse_reply_attr(req, &st, TIMEOUT_S); /* see front_error */
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		       struct fuse_file_info *fi)
{
	static const struct {
		int fuse;
		unsigned fs;
	} map[] = {
	    {FUSE_SET_ATTR_MODE, FS_SET_MODE},
	    {FUSE_SET_ATTR_UID, FS_SET_UID},
	    {FUSE_SET_ATTR_GID, FS_SET_GID},
	    {FUSE_SET_ATTR_SIZE, FS_SET_SIZE},
	    {FUSE_SET_ATTR_ATIME, FS_SET_ATIME},
	    {FUSE_SET_ATTR_MTIME, FS_SET_MTIME},
	    {FUSE_SET_ATTR_ATIME_NOW, FS_SET_ATIME_NOW},
	    {FUSE_SET_ATTR_MTIME_NOW, FS_SET_MTIME_NOW},
	    {FUSE_SET_ATTR_CTIME, FS_SET_CTIME},
	};
	struct fs_fuse *f = front_of(req);
	const struct fuse_setattr_in *in =
	    (const void *)(f->current->msg + sizeof(struct fuse_in_header));
	struct fs_attr a = {
	    .mode = st->st_mode,
	    .uid = st->st_uid,
	    .gid = st->st_gid,
	    .size = (uint64_t)st->st_size,
	    .atime = st->st_atim,
	    .mtime = st->st_mtim,
	    .ctime = st->st_ctim,
	};
	struct fs_attr now;
	struct stat out;
	unsigned set = 0;

	for (size_t i = 0; i < ARRAY_SIZE(map); i++) {
		if (to_set & map[i].fuse)
			set |= map[i].fs;
	}
	/* The kernel sends both bits of a time that is to be the present one. */
	if (set & FS_SET_ATIME_NOW)
		set &= ~FS_SET_ATIME;
	if (set & FS_SET_MTIME_NOW)
		set &= ~FS_SET_MTIME;
	if (in->valid & FATTR_KILL_SUIDGID)
		set |= FS_SET_KILL_SUIDGID;
	int r = fs_setattr(f->fs, ino, &a, set, &now);
	if (r < 0) {
		front_error(req, r);
		return;
	}
	attr_to_stat(&now, &out);
	(void)fuse_reply_attr(req, &out, TIMEOUT_S); /* see front_error */
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char *target = buf_get_wait(BLOCK_BYTES);
	int r = fs_readlink(front_of(req)->fs, ino, target, BLOCK_BYTES);

	if (r < 0)
		front_error(req, r);
	else
		(void)fuse_reply_readlink(req, target); /* see front_error */
	buf_put(target);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	struct fs_cred cred = front_cred(req);
	struct fs_attr a;
	int r =
	    fs_mknod(front_of(req)->fs, parent, name, mode, major(rdev), minor(rdev), &cred, &a);

	reply_entry(req, front_made(front_of(req), r, &a), &a);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fs_cred cred = front_cred(req);
	struct fs_attr a;
	int r = fs_mkdir(front_of(req)->fs, parent, name, mode, &cred, &a);

	reply_entry(req, front_made(front_of(req), r, &a), &a);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	struct fs_cred cred = front_cred(req);
	struct fs_attr a;
	int r = fs_symlink(front_of(req)->fs, parent, name, target, &cred, &a);

	reply_entry(req, front_made(front_of(req), r, &a), &a);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	struct fs_attr a;
	int r = fs_link(front_of(req)->fs, ino, parent, name, &a);

	reply_entry(req, front_made(front_of(req), r, &a), &a);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_fuse *f = front_of(req);

	front_error(req, names_done(f, fs_unlink(f->fs, parent, name)));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_fuse *f = front_of(req);

	front_error(req, names_done(f, fs_rmdir(f->fs, parent, name)));
}

/* ---- directories ---- */

struct dir_fill {
	fuse_req_t req;
	char *data;
	size_t used, cap;
	bool plus;
};

static bool dir_emit(void *arg, const char *name, uint64_t ino, unsigned dtype,
		     uint64_t cookie_next, const struct fs_attr *attr)
{
	struct dir_fill *d = arg;
	size_t left = d->cap - d->used, need;

	if (d->plus) {
		struct fuse_entry_param e;
		if (attr) {
			front_entry(attr, &e);
		} else {
			memset(&e, 0, sizeof(e)); /* inode 0: "." and ".." carry no reference */
		}
		e.attr.st_ino = ino;
		e.attr.st_mode = attr ? attr->mode : (mode_t)DTTOIF(dtype);
		if (!strcmp(name, ".") || !strcmp(name, ".."))
			e.ino = 0;
		need = fuse_add_direntry_plus(d->req, d->data + d->used, left, name, &e,
					      (off_t)cookie_next);
	} else {
		struct stat st = {.st_ino = ino, .st_mode = (mode_t)DTTOIF(dtype)};
		need = fuse_add_direntry(d->req, d->data + d->used, left, name, &st,
					 (off_t)cookie_next);
	}
	if (need > left)
		return false;
	d->used += need;
	return true;
}

/* Nobody received the entries: gives their references back. */
static void dir_unref(struct fs_fuse *f, const struct dir_fill *d)
{
	size_t off = 0;

	while (off + FUSE_NAME_OFFSET_DIRENTPLUS <= d->used) {
		const struct fuse_direntplus *p = (const void *)(d->data + off);
		if (p->entry_out.nodeid)
			forget_one(f, p->entry_out.nodeid, 1);
		off += FUSE_DIRENTPLUS_SIZE(p);
	}
}

static void dir_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, bool plus)
{
	struct fs_fuse *f = front_of(req);
	struct dir_fill d = {.req = req, .cap = MIN(size, (size_t)WRITE_BYTES_MAX), .plus = plus};

	d.data = buf_get_wait(d.cap);
	int r = fs_readdir(f->fs, ino, (uint64_t)off, plus, dir_emit, &d);
	/* An error after some entries comes up again at the next call, which starts there. */
	if (r < 0 && d.used == 0)
		front_error(req, r);
	else if (fuse_reply_buf(req, d.data, d.used) < 0 && plus)
		dir_unref(f, &d);
	buf_put(d.data);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	dir_read(req, ino, size, off, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	dir_read(req, ino, size, off, true);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->fh = 0;
	(void)fuse_reply_open(req, fi); /* see front_error */
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	front_error(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	front_error(req, fs_fsync(front_of(req)->fs, ino, datasync, NULL));
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
		      const char *new_name, unsigned flags)
{
	struct fs_fuse *f = front_of(req);
	int r = flags & (RENAME_NOREPLACE | RENAME_EXCHANGE)
		    ? 0
		    : fuse_file_launder_for_rename(f, parent, name, new_parent, new_name);

	if (r == 0)
		r = fs_rename(f->fs, parent, name, new_parent, new_name, flags);
	front_error(req, names_done(f, r));
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs_stat s;

	fs_statfs(front_of(req)->fs, &s);
	struct statvfs v = {
	    .f_bsize = BLOCK_BYTES,
	    .f_frsize = BLOCK_BYTES,
	    .f_blocks = s.blocks,
	    .f_bfree = s.blocks_free,
	    .f_bavail = s.blocks_avail,
	    .f_files = s.files,
	    .f_ffree = s.files_free,
	    .f_favail = s.files_free,
	    .f_namemax = FS_NAME_BYTES_MAX,
	};
	(void)fuse_reply_statfs(req, &v); /* see front_error */
}

/* ---- extended attributes ---- */

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
			size_t size, int flags)
{
	/*
	 * Without FUSE_POSIX_ACL the kernel stores ACLs through us and enforces none: an entry that
	 * takes a right away must not seem to.
	 */
	if (!strncmp(name, "system.posix_acl_", strlen("system.posix_acl_"))) {
		front_error(req, -EOPNOTSUPP);
		return;
	}
	front_error(req, fs_setxattr(front_of(req)->fs, ino, name, value, size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	front_error(req, fs_removexattr(front_of(req)->fs, ino, name));
}

/* name NULL: the list of names. size 0: only how long it is. */
static void xattr_read(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs *fs = front_of(req)->fs;
	size_t cap = MIN(size, (size_t)FS_XATTR_VALUE_BYTES_MAX), len = 0;
	char *value = cap ? buf_get_wait(cap) : NULL;
	int r = name ? fs_getxattr(fs, ino, name, value, cap, &len)
		     : fs_listxattr(fs, ino, value, cap, &len);

	if (r < 0)
		front_error(req, r);
	else if (!size)
		(void)fuse_reply_xattr(req, len); /* see front_error */
	else
		(void)fuse_reply_buf(req, value, len); /* see front_error */
	buf_put(value);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	xattr_read(req, ino, name, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	xattr_read(req, ino, NULL, size);
}

/* ---- what libfuse does not decode ---- */

void front_reply_raw(struct fs_fuse *f, uint64_t unique, int r, const void *body, size_t len,
		     int *ret_error)
{
	struct fuse_out_header head = {
	    .len = (uint32_t)(sizeof(head) + (r < 0 ? 0 : len)),
	    .error = r,
	    .unique = unique,
	};
	struct iovec iov[2] = {
	    {.iov_base = &head, .iov_len = sizeof(head)},
	    {.iov_base = (void *)(uintptr_t)body, .iov_len = len},
	};
	ssize_t n = writev(f->fd, iov, r < 0 || !len ? 1 : 2);

	if (ret_error)
		*ret_error = n < 0 ? -errno : 0;
}

static void raw_tmpfile(struct fs_fuse *f, const struct fuse_in_header *in, size_t len)
{
	const struct fuse_create_in *arg = (const void *)(in + 1);
	struct {
		struct fuse_entry_out entry;
		struct fuse_open_out open;
	} out = {0};
	uint64_t unique = in->unique;
	struct fs_attr a;
	uint32_t flags;
	int r;

	if (len < sizeof(*in) + sizeof(*arg)) {
		front_reply_raw(f, unique, -EINVAL, NULL, 0, NULL);
		return;
	}
	struct fs_cred cred = {.uid = in->uid, .gid = in->gid, .umask = arg->umask};
	flags = arg->flags;
	r = fs_tmpfile(f->fs, in->nodeid, (arg->mode & ~(uint32_t)S_IFMT) | S_IFREG, &cred, &a);
	if (r < 0) {
		front_reply_raw(f, unique, r, NULL, 0, NULL);
		return;
	}
	struct handle *h = handle_new(f, a.ino, (int)flags);
	if (!h) {
		fs_unref(f->fs, a.ino, 1);
		front_reply_raw(f, unique, -ENOMEM, NULL, 0, NULL);
		return;
	}
	out.entry.nodeid = a.ino;
	out.entry.generation = a.generation;
	out.entry.entry_valid = out.entry.attr_valid = (uint64_t)TIMEOUT_S;
	attr_to_wire(&a, &out.entry.attr);
	out.open.fh = (uintptr_t)h;
	out.open.open_flags = FOPEN_KEEP_CACHE;
	front_reply_raw(f, unique, 0, &out, sizeof(out), &r);
	if (r < 0) {
		handle_free(h);
		fs_unref(f->fs, a.ino, 1);
	}
}

static struct statx_time_out statx_time(const struct timespec *t)
{
	return (struct statx_time_out){.s = t->tv_sec, .ns = (uint32_t)t->tv_nsec};
}

static void raw_statx(struct fs_fuse *f, const struct fuse_in_header *in, size_t len)
{
	struct fs_attr a;
	uint64_t unique = in->unique;
	int r = len < sizeof(*in) + sizeof(struct statx_in) ? -EINVAL
							    : fs_getattr(f->fs, in->nodeid, &a);

	if (r < 0) {
		front_reply_raw(f, unique, r, NULL, 0, NULL);
		return;
	}
	struct statx_out out = {
	    .attr_valid = (uint64_t)TIMEOUT_S,
	    .mask = STATX_BASIC_STATS | STATX_BTIME,
	    .blksize = BLOCK_BYTES,
	    .nlink = a.links,
	    .uid = a.uid,
	    .gid = a.gid,
	    .mode = (uint16_t)a.mode,
	    .ino = a.ino,
	    .size = a.size,
	    .blocks = a.blocks512,
	    .atime = statx_time(&a.atime),
	    .btime = statx_time(&a.btime),
	    .ctime = statx_time(&a.ctime),
	    .mtime = statx_time(&a.mtime),
	    .rdev_major = a.rdev_major,
	    .rdev_minor = a.rdev_minor,
	};
	front_reply_raw(f, unique, 0, &out, sizeof(out), NULL);
}

bool front_raw(struct fs_fuse *f, const struct fuse_in_header *in, size_t len)
{
	if (in->opcode == OPCODE_TMPFILE)
		raw_tmpfile(f, in, len);
	else if (in->opcode == OPCODE_STATX)
		raw_statx(f, in, len);
	else
		return false;
	return true;
}

/* ---- the table ---- */

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs_fuse *f = userdata;
	unsigned want = FUSE_CAP_ASYNC_READ | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_READDIRPLUS |
			FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
			FUSE_CAP_CACHE_SYMLINKS;

	if (f->options.writeback_cache)
		want |= FUSE_CAP_WRITEBACK_CACHE;
	/*
	 * Exactly these. Not wanted though libfuse offers them: splice (slower here),
	 * ATOMIC_O_TRUNC (the kernel then truncates by SETATTR, which we have anyway),
	 * AUTO_INVAL_DATA (nobody else writes), HANDLE_KILLPRIV (version 2 instead, see
	 * custom_writev), POSIX_ACL.
	 */
	conn->want = conn->capable & want;
	conn->max_write = WRITE_BYTES_MAX;
	conn->max_read = 0;
	conn->max_readahead = UINT32_MAX;
	conn->max_background = BACKGROUND_MAX;
	conn->congestion_threshold = BACKGROUND_MAX / 4 * 3;
	conn->time_gran = 1;
}

const struct fuse_lowlevel_ops fuse_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = fuse_file_open,
    .create = fuse_file_create,
    .read = fuse_file_read,
    .write = fuse_file_write,
    .flush = fuse_file_flush,
    .release = fuse_file_release,
    .fsync = fuse_file_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsyncdir,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .fallocate = fuse_file_fallocate,
    .lseek = fuse_file_lseek,
};
