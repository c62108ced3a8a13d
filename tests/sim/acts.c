/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Acts.
 *
 * Each is one request, told to the oracle: an error means that nothing has happened. Where several calls are needed
 * (opening and mounting), an error of one leads to what a daemon does then. What a read returns is compared as
 * well: a request that succeeds in spite of a failure must be right.
 */
#include "acts.h"
#include "raid/buf.h"
#include "raid/raid.h"

#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BIG_BYTES   300000u
#define NAMES	    40u
#define XATTR_BYTES 3000u

static const struct fs_cred cred;

#define TRY(call)                                                                                  \
	do {                                                                                       \
		int err_ = call;                                                                   \
		if (err_)                                                                          \
			return err_;                                                               \
	} while (0)

static struct mobj *home(struct script *s)
{
	return s->work.model.workers[0].home;
}

static int told(struct script *s, struct mop *op, int err)
{
	s->work.model.now_ns = world_now_ns(s->rig.world);
	model_end(op, !err);
	return err;
}

/* ---- names ---- */

static int do_lookup(struct script *s)
{
	struct fs_attr attr;

	TRY(fs_lookup(s->work.fs, home(s)->ino, "big", &attr));
	rig_must(&s->rig, attr.ino == script_find(s, "big")->ino, "lookup found another file");
	fs_unref(s->work.fs, attr.ino, 1);
	return 0;
}

static int do_lookup_none(struct script *s)
{
	struct fs_attr attr;
	int err = fs_lookup(s->work.fs, home(s)->ino, "none", &attr);

	rig_must(&s->rig, err, "lookup found what is not there");
	return err == -ENOENT ? 0 : err;
}

static int do_getattr(struct script *s)
{
	struct fs_attr attr;

	TRY(fs_getattr(s->work.fs, script_find(s, "big")->ino, &attr));
	rig_must(&s->rig, attr.size == BIG_BYTES, "getattr says %llu bytes", (unsigned long long)attr.size);
	return 0;
}

static int do_chmod(struct script *s)
{
	struct mobj *o = script_find(s, "big");
	struct mop *op = model_begin(&s->work.model, 0, "chmod");
	struct fs_attr attr = {.mode = 0600}, now;

	model_chmod(op, o, 0600);
	return told(s, op, fs_setattr(s->work.fs, o->ino, &attr, FS_SET_MODE, &now));
}

static int do_truncate(struct script *s)
{
	return script_truncate(s, "big", 5000);
}

static int do_extend(struct script *s)
{
	return script_truncate(s, "small", 50000);
}

static int do_create(struct script *s)
{
	return script_create(s, "new");
}

static int make(struct script *s, enum mtype type, const char *target)
{
	struct mop *op = model_begin(&s->work.model, 0, "make %d", (int)type);
	struct mobj *o = model_create(op, home(s), "new", type, type == M_SYMLINK ? 0777 : 0755, 0, target);
	struct fs_attr attr;
	int err;

	if (type == M_DIR)
		err = fs_mkdir(s->work.fs, home(s)->ino, "new", 0755, &cred, &attr);
	else if (type == M_SYMLINK)
		err = fs_symlink(s->work.fs, home(s)->ino, "new", target, &cred, &attr);
	else
		err = fs_mknod(s->work.fs, home(s)->ino, "new", S_IFIFO | 0755, 0, 0, &cred, &attr);
	if (!err) {
		o->ino = attr.ino;
		fs_unref(s->work.fs, attr.ino, 1);
	}
	return told(s, op, err);
}

static int do_mkfifo(struct script *s)
{
	return make(s, M_FIFO, NULL);
}

static int do_mkdir(struct script *s)
{
	return make(s, M_DIR, NULL);
}

static int do_symlink(struct script *s)
{
	char target[2001];

	memset(target, 't', sizeof(target) - 1);
	target[sizeof(target) - 1] = 0;
	return make(s, M_SYMLINK, target);
}

static int do_tmpfile(struct script *s)
{
	struct fs_attr attr;

	TRY(fs_tmpfile(s->work.fs, home(s)->ino, 0600, &cred, &attr));
	fs_unref(s->work.fs, attr.ino, 1);
	return 0;
}

static int do_link(struct script *s)
{
	struct mobj *o = script_find(s, "big");
	struct mop *op = model_begin(&s->work.model, 0, "link");
	struct fs_attr attr;
	int err;

	model_link(op, o, home(s), "second");
	err = fs_link(s->work.fs, o->ino, home(s)->ino, "second", &attr);
	if (!err)
		fs_unref(s->work.fs, attr.ino, 1);
	return told(s, op, err);
}

static int do_unlink(struct script *s)
{
	return script_unlink(s, "big");
}

static int do_rmdir(struct script *s)
{
	struct mop *op = model_begin(&s->work.model, 0, "rmdir");

	model_unlink(op, home(s), "dir");
	return told(s, op, fs_rmdir(s->work.fs, home(s)->ino, "dir"));
}

static int do_rename(struct script *s)
{
	return script_rename(s, "big", "renamed");
}

static int do_rename_over(struct script *s)
{
	return script_rename(s, "small", "big");
}

static int do_exchange(struct script *s)
{
	struct mop *op = model_begin(&s->work.model, 0, "exchange");

	model_exchange(op, home(s), "small", home(s), "big");
	return told(s, op,
		    fs_rename(s->work.fs, home(s)->ino, "small", home(s)->ino, "big", RENAME_EXCHANGE));
}

static int do_readlink(struct script *s)
{
	char target[FS_SYMLINK_BYTES_MAX + 1];

	TRY(fs_readlink(s->work.fs, script_find(s, "link")->ino, target, sizeof(target)));
	rig_must(&s->rig, !strcmp(target, script_find(s, "link")->target), "readlink says %s", target);
	return 0;
}

static bool count_name(void *arg, const char *name, uint64_t ino, unsigned dtype, uint64_t cookie_next,
		       const struct fs_attr *attr)
{
	uint64_t *seen = arg;

	(void)name;
	(void)ino;
	(void)dtype;
	seen[0]++;
	seen[1] = cookie_next;
	if (attr)
		seen[2 + seen[0]] = strcmp(name, ".") && strcmp(name, "..") ? attr->ino : 0;
	return true;
}

static int readdir_all(struct script *s, bool want_attr)
{
	uint64_t seen[NAMES * 2] = {0};
	int err = fs_readdir(s->work.fs, home(s)->ino, 0, want_attr, count_name, seen);

	for (uint64_t i = 0; i <= seen[0]; i++) {
		if (seen[2 + i])
			fs_unref(s->work.fs, seen[2 + i], 1);
	}
	rig_must(&s->rig, err || seen[0] == home(s)->entry_count + 2, "readdir gave %llu names of %u",
		 (unsigned long long)seen[0], home(s)->entry_count + 2);
	return err;
}

static int do_readdir(struct script *s)
{
	return readdir_all(s, false);
}

static int do_readdirplus(struct script *s)
{
	return readdir_all(s, true);
}

/* ---- data ---- */

static int read_file(struct script *s, const char *name, uint64_t off, size_t len)
{
	struct mobj *o = script_find(s, name);
	uint8_t *want = malloc(len), *pool = buf_get(ROUND_UP(len, (size_t)BLOCK_BYTES) + BLOCK_BYTES);
	void *data = NULL;
	size_t got = 0;
	int err;

	if (!want || !pool)
		abort();
	err = fs_read(s->work.fs, o->ino, off, len, pool, &data, &got);
	model_read(o, off, want, len);
	rig_must(&s->rig, err || (got == MIN(len, model_size(o) - off) && !memcmp(data, want, got)),
		 "read something else");
	buf_put(pool);
	free(want);
	return err;
}

static int do_read(struct script *s)
{
	return read_file(s, "big", 1000, BIG_BYTES - 2000);
}

static int do_read_small(struct script *s)
{
	return read_file(s, "small", 0, 100);
}

static int do_write_small(struct script *s)
{
	return script_write(s, "big", 1000, 100, 77);
}

static int do_write_big(struct script *s)
{
	return script_write(s, "big", 5000, 200000, 78);
}

static int do_write_new(struct script *s)
{
	return script_write(s, "small", 0, 100000, 79);
}

static int dirty_prepare(struct script *s)
{
	TRY(script_write(s, "big", 1000, 100, 80));
	TRY(script_write(s, "small", 0, 70000, 81));
	return script_create(s, "fresh");
}

static int do_fsync(struct script *s)
{
	return script_fsync(s, "big");
}

static int do_fsync_big(struct script *s)
{
	return script_fsync(s, "small");
}

static int do_sync(struct script *s)
{
	return script_sync(s);
}

static int do_flush(struct script *s)
{
	struct fs_errseq seq;
	uint64_t ino = script_find(s, "small")->ino;

	fs_errseq_sample(s->work.fs, ino, &seq);
	return fs_flush(s->work.fs, ino, &seq);
}

static int do_write_fsync(struct script *s)
{
	TRY(script_write(s, "big", 1000, 5000, 82));
	return script_fsync(s, "big");
}

static int do_fallocate(struct script *s)
{
	struct mobj *o = script_find(s, "small");

	model_extend(&s->work.model, o, 200000);
	TRY(fs_fallocate(s->work.fs, o->ino, 0, 0, 200000));
	model_data_end(&s->work.model, o);
	return 0;
}

static int do_punch(struct script *s)
{
	struct mobj *o = script_find(s, "big");

	model_zero(&s->work.model, o, 3000, 100000);
	TRY(fs_fallocate(s->work.fs, o->ino, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3000, 100000));
	model_data_end(&s->work.model, o);
	return 0;
}

static int do_lseek(struct script *s)
{
	uint64_t at;

	TRY(fs_lseek(s->work.fs, script_find(s, "big")->ino, 0, SEEK_HOLE, &at));
	rig_must(&s->rig, at == BIG_BYTES, "a hole at %llu", (unsigned long long)at);
	return 0;
}

static int do_statfs(struct script *s)
{
	struct fs_stat st;

	fs_statfs(s->work.fs, &st);
	return 0;
}

/* ---- xattrs ---- */

static int do_getxattr(struct script *s)
{
	struct mobj *o = script_find(s, "big");
	const struct mxattr *x = model_xattr(o, "user.a");
	uint8_t value[XATTR_BYTES];
	size_t len;

	TRY(fs_getxattr(s->work.fs, o->ino, "user.a", value, sizeof(value), &len));
	rig_must(&s->rig, x && x->len == len && !memcmp(x->value, value, len), "another value");
	return 0;
}

static int do_listxattr(struct script *s)
{
	char list[256];
	size_t len;

	TRY(fs_listxattr(s->work.fs, script_find(s, "big")->ino, list, sizeof(list), &len));
	rig_must(&s->rig, len == sizeof("user.a") && !strcmp(list, "user.a"), "another list");
	return 0;
}

static int set_xattr(struct script *s, const char *name, size_t len)
{
	struct mobj *o = script_find(s, "big");
	struct mop *op = model_begin(&s->work.model, 0, "setxattr");
	uint8_t value[XATTR_BYTES];

	memset(value, 'v', len);
	model_setxattr(op, o, name, value, len);
	return told(s, op, fs_setxattr(s->work.fs, o->ino, name, value, len, 0));
}

static int do_setxattr(struct script *s)
{
	return set_xattr(s, "user.b", 20);
}

static int do_setxattr_big(struct script *s)
{
	return set_xattr(s, "user.a", XATTR_BYTES);
}

static int do_removexattr(struct script *s)
{
	struct mobj *o = script_find(s, "big");
	struct mop *op = model_begin(&s->work.model, 0, "removexattr");

	model_setxattr(op, o, "user.a", NULL, 0);
	return told(s, op, fs_removexattr(s->work.fs, o->ino, "user.a"));
}

/* ---- the volume ---- */

/* As the daemon does: what could be opened is closed again. */
static int do_mount(struct script *s)
{
	static const struct raid_options options;
	struct dev *devs[RIG_SPARES_MAX];
	struct rig *g = &s->rig;
	unsigned count = 0;
	int err;

	for (unsigned i = 0; i < g->slot_count; i++) {
		if (!g->slots[i].in)
			continue;
		devs[count] = simdev_open(g->slots[i].dev);
		rig_must(g, devs[count], "no memory");
		count++;
	}
	err = raid_open(g->loop, devs, count, &g->fs, &options, &g->raid);
	if (err) {
		g->raid = NULL;
		for (unsigned i = 0; i < count; i++)
			dev_close(devs[i]);
		return err;
	}
	err = fs_mount(g->raid, &s->fs_options, &s->work.fs);
	if (err) {
		s->work.fs = NULL;
		(void)raid_close(g->raid); /* it is gone, and the error is known */
		g->raid = NULL;
	}
	return err;
}

/* The second time there is nothing left to unmount, and nothing more is promised. */
static int do_unmount(struct script *s)
{
	struct rig *g = &s->rig;
	int err, e;

	if (!s->work.fs)
		return 0;
	err = fs_unmount(s->work.fs);
	s->work.fs = NULL;
	e = g->raid ? raid_close(g->raid) : 0;
	g->raid = NULL;
	for (unsigned i = 0; i < g->slot_count; i++)
		rig_must(g, !simdev_handles(g->slots[i].dev), "%s is still open", simdev_name(g->slots[i].dev));
	if (!err && !e)
		model_synced(&s->work.model, model_tick(&s->work.model));
	return err ? err : e;
}

static int do_mkfs(struct script *s)
{
	int err = script_format(s);

	for (unsigned i = 0; i < s->rig.slot_count; i++)
		rig_must(&s->rig, !simdev_handles(s->rig.slots[i].dev), "a member is still open");
	return err;
}

static void check_line(void *arg, const char *text)
{
	(void)arg;
	log_error("check: %s", text);
}

/* Members that failed are problems, and rightly so. */
static int do_check(struct script *s)
{
	int64_t n = raid_check(s->rig.raid, check_line, NULL);

	return n < 0 ? (int)n : 0;
}

static int do_fsck(struct script *s)
{
	static const struct raid_options options = {.flags = RAID_OPEN_CHECK};
	struct fs_check_stats stats;
	struct dev *devs[RIG_SPARES_MAX];
	struct rig *g = &s->rig;
	struct raid *raid;
	int64_t n;
	int err;

	for (unsigned i = 0; i < g->member_count; i++) {
		devs[i] = simdev_open(g->slots[i].dev);
		rig_must(g, devs[i], "no memory");
	}
	err = raid_open(g->loop, devs, g->member_count, NULL, &options, &raid);
	if (err) {
		for (unsigned i = 0; i < g->member_count; i++)
			dev_close(devs[i]);
		return err;
	}
	n = fs_check(raid, work_check_line, NULL, &stats);
	err = raid_close(raid);
	return n < 0 ? (int)n : err;
}

static int do_scrub(struct script *s)
{
	TRY(raid_scrub_start(s->rig.raid));
	return raid_scrub_wait(s->rig.raid);
}

static int replace_prepare(struct script *s)
{
	struct rig *g = &s->rig;
	struct simdev_params p = {.size_bytes = simdev_size_bytes(g->slots[0].dev),
				  .sector_bytes = 4096,
				  .volatile_cache = true};

	g->slots[g->slot_count++] = (struct slot){.dev = simdev_new(g->world, "blank", &p),
						  .size_bytes = p.size_bytes,
						  .suspect = true,
						  .replaces = 2};
	return 0;
}

static int rebuild_end(struct script *s)
{
	struct raid_info info;
	int err = raid_rebuild_wait(s->rig.raid);

	raid_info(s->rig.raid, &info);
	if (err || !info.chunks_below_target)
		return err;
	return -ENOMEM; /* it gave up without saying so */
}

/* The second time the new member may be there already: then the rebuild goes on by itself, within a while. */
static int do_replace(struct script *s)
{
	struct rig *g = &s->rig;
	struct slot *blank = &g->slots[g->slot_count - 1];
	int err;

	if (blank->in) {
		for (unsigned i = 0; i < 4 && (err = rebuild_end(s)); i++)
			co_sleep_ns(30 * NS_PER_S);
		return err;
	}
	struct dev *dev = simdev_open(blank->dev);

	rig_must(g, dev, "no memory");
	err = raid_replace(g->raid, 2, dev);
	if (err) {
		dev_close(dev);
		return err;
	}
	blank->in = true;
	return rebuild_end(s);
}

static int do_fail(struct script *s)
{
	struct raid_member_info m;
	int err;

	if (raid_member_info(s->rig.raid, 2, &m) || m.state == MEMBER_FAILED)
		return 0;
	s->rig.slots[2].suspect = true;
	err = raid_fail(s->rig.raid, 2);
	return err;
}

const struct act acts[] = {
    {.name = "lookup", .fn = do_lookup},
    {.name = "lookup-none", .fn = do_lookup_none},
    {.name = "getattr", .fn = do_getattr},
    {.name = "chmod", .fn = do_chmod},
    {.name = "truncate", .fn = do_truncate},
    {.name = "extend", .fn = do_extend},
    {.name = "create", .fn = do_create},
    {.name = "mkfifo", .fn = do_mkfifo},
    {.name = "mkdir", .fn = do_mkdir},
    {.name = "symlink", .fn = do_symlink},
    {.name = "tmpfile", .fn = do_tmpfile},
    {.name = "link", .fn = do_link},
    {.name = "unlink", .fn = do_unlink},
    {.name = "rmdir", .fn = do_rmdir},
    {.name = "rename", .fn = do_rename},
    {.name = "rename-over", .fn = do_rename_over},
    {.name = "exchange", .fn = do_exchange},
    {.name = "readlink", .fn = do_readlink},
    {.name = "readdir", .fn = do_readdir},
    {.name = "readdirplus", .fn = do_readdirplus},
    {.name = "read", .fn = do_read},
    {.name = "read-small", .fn = do_read_small},
    {.name = "write-small", .fn = do_write_small},
    {.name = "write-big", .fn = do_write_big},
    {.name = "write-new", .fn = do_write_new},
    {.name = "write-fsync", .fn = do_write_fsync},
    {.name = "fsync", .fn = do_fsync, .prepare = dirty_prepare},
    {.name = "fsync-big", .fn = do_fsync_big, .prepare = dirty_prepare},
    {.name = "sync", .fn = do_sync, .prepare = dirty_prepare},
    {.name = "flush", .fn = do_flush, .prepare = dirty_prepare},
    {.name = "fallocate", .fn = do_fallocate},
    {.name = "punch", .fn = do_punch},
    {.name = "lseek", .fn = do_lseek},
    {.name = "statfs", .fn = do_statfs},
    {.name = "getxattr", .fn = do_getxattr},
    {.name = "listxattr", .fn = do_listxattr},
    {.name = "setxattr", .fn = do_setxattr},
    {.name = "setxattr-big", .fn = do_setxattr_big},
    {.name = "removexattr", .fn = do_removexattr},
    {.name = "mount", .fn = do_mount, .unmounted = true},
    {.name = "unmount", .fn = do_unmount, .prepare = dirty_prepare},
    {.name = "mkfs", .fn = do_mkfs, .unformatted = true, .unmounted = true},
    {.name = "check", .fn = do_check},
    {.name = "fsck", .fn = do_fsck, .unmounted = true},
    {.name = "scrub", .fn = do_scrub},
    {.name = "replace", .fn = do_replace, .prepare = replace_prepare, .spends = true},
    {.name = "fail", .fn = do_fail, .spends = true},
};
const unsigned act_count = ARRAY_SIZE(acts);

int acts_prepare(struct script *s, const struct act *act)
{
	struct mobj *keep;
	struct mop *op;
	char name[16];

	TRY(script_create(s, "big"));
	TRY(script_write(s, "big", 0, BIG_BYTES, 1));
	TRY(script_create(s, "small"));
	TRY(script_write(s, "small", 0, 100, 2));
	TRY(set_xattr(s, "user.a", 30));
	TRY(make(s, M_DIR, NULL));
	op = model_begin(&s->work.model, 0, "rename");
	model_rename(op, home(s), "new", home(s), "dir");
	TRY(told(s, op, fs_rename(s->work.fs, home(s)->ino, "new", home(s)->ino, "dir", 0)));
	TRY(make(s, M_SYMLINK, "a target"));
	keep = script_find(s, "new");
	op = model_begin(&s->work.model, 0, "rename");
	model_rename(op, home(s), "new", home(s), "link");
	TRY(told(s, op, fs_rename(s->work.fs, home(s)->ino, "new", home(s)->ino, "link", 0)));
	rig_must(&s->rig, script_find(s, "link") == keep, "the oracle lost a link");
	for (unsigned i = 0; i < NAMES / 2; i++) {
		snprintf(name, sizeof(name), "name-%u", i);
		TRY(script_create(s, name));
	}
	TRY(script_unmount(s));
	if (act->unmounted)
		return 0;
	TRY(script_mount(s));
	TRY(script_judge(s)); /* numbers as the oracle goes on with */
	TRY(script_unmount(s));
	TRY(script_mount(s));
	return act->prepare ? act->prepare(s) : 0;
}
