/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The oracle.
 *
 * Names and attributes are *facts*, lines of text such as "n 2/name -> 17" or "i 17 file 644 links
 * 2". Each operation adds and removes some. A state of one worker's objects is the set of its
 * facts, known by the sum of their hashes, so the hash after each prefix of its operations costs
 * one addition for each fact. What is found after a crash is put into facts by the same words, and
 * must have the hash of some prefix.
 *
 * Several prefixes can look the same, and each worker has its own; they are reconciled by time: an
 * operation took effect between its call and its return, the filesystem came back to one instant T,
 * so worker i's prefix of k operations is possible only if call(op k) <= T < return(op k + 1). One
 * T must serve all. This needs no knowledge of where the transactions were cut. T is not before the
 * last promise (the floor).
 *
 * Data and sizes follow their own rule, since a write buffer is no journal: each 4 KiB block, and
 * the size, is at any version from its floor on. fsync of the file and sync raise that floor; so
 * does a rename that replaced something, if it is in the prefix.
 *
 * Operations under way at the crash are in the list with no return. An object whose creation has
 * not returned has no inode number yet; it gets the one found under its name.
 */
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#define FAIL_BYTES   512
#define DUMP_OPS_MAX 60
#define NEVER	     UINT64_MAX

static void *xgrow(void *p, unsigned *cap, unsigned count, size_t item)
{
	if (count < *cap)
		return p;
	*cap = MAX(8, 2 * *cap);
	p = realloc(p, *cap * item);
	if (!p)
		abort();
	return p;
}

static void *xcopy(const void *data, size_t len)
{
	void *p = malloc(len ? len : 1);

	if (!p)
		abort();
	memcpy(p, data, len);
	return p;
}

static char *xprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *xprintf(const char *format, ...)
{
	va_list ap;
	char *s;

	va_start(ap, format);
	if (vasprintf(&s, format, ap) < 0)
		abort();
	va_end(ap);
	return s;
}

static void fail(struct model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct model *m, const char *format, ...)
{
	char text[FAIL_BYTES];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	m->fail(m->fail_arg, text);
	abort();
}

static const char *type_text(enum mtype type)
{
	static const char *const names[] = {"file", "dir", "symlink", "fifo", "chr"};

	return names[type];
}

/* ---- objects ---- */

static struct mobj *obj_new(struct model *m, unsigned worker, enum mtype type)
{
	struct mobj *o = calloc(1, sizeof(*o));

	if (!o)
		abort();
	o->worker = worker;
	o->type = type;
	o->pick_index = -1;
	if (m->obj_count == m->obj_cap) {
		m->obj_cap = MAX(64, 2 * m->obj_cap);
		m->objs = realloc(m->objs, m->obj_cap * sizeof(*m->objs));
		if (!m->objs)
			abort();
	}
	m->objs[m->obj_count++] = o;
	return o;
}

/* Empty arrays are NULL, which memmove must not be given. */
static void drop_front(void *array, unsigned n, unsigned *count, size_t item)
{
	if (!n)
		return;
	*count -= n;
	memmove(array, (char *)array + n * item, *count * item);
}

static void versions_drop(struct mblock *b, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		free(b->v[i].data);
	drop_front(b->v, n, &b->count, sizeof(*b->v));
}

static void obj_free(struct mobj *o)
{
	for (unsigned i = 0; i < o->block_count; i++) {
		versions_drop(&o->blocks[i], o->blocks[i].count);
		free(o->blocks[i].v);
	}
	for (unsigned i = 0; i < o->xattr_count; i++) {
		free(o->xattrs[i].name);
		free(o->xattrs[i].value);
	}
	free(o->blocks);
	free(o->sizes);
	free(o->xattrs);
	free(o->entries);
	free(o->target);
	free(o);
}

static void exist_add(struct model *m, struct mobj *o)
{
	struct mworker *w = &m->workers[o->worker];

	if (o->pick_index >= 0)
		return;
	w->exist = xgrow(w->exist, &w->exist_cap, w->exist_count, sizeof(struct mobj *));
	o->pick_index = (int)w->exist_count;
	w->exist[w->exist_count++] = o;
}

static void exist_remove(struct model *m, struct mobj *o)
{
	struct mworker *w = &m->workers[o->worker];
	struct mobj *last;

	if (o->pick_index < 0)
		return;
	last = w->exist[--w->exist_count];
	w->exist[o->pick_index] = last;
	last->pick_index = o->pick_index;
	o->pick_index = -1;
}

void model_ref(struct model *m, struct mobj *obj, int by)
{
	obj->refs += (unsigned)by;
	if (obj->refs)
		exist_add(m, obj);
	else if (!obj->links)
		exist_remove(m, obj);
}

struct mobj *model_lookup(const struct mobj *dir, const char *name)
{
	for (unsigned i = 0; i < dir->entry_count; i++) {
		if (!strcmp(dir->entries[i].name, name))
			return dir->entries[i].obj;
	}
	return NULL;
}

struct mobj *model_by_ino(const struct model *m, uint64_t ino)
{
	for (size_t i = 0; i < m->obj_count; i++) {
		if (m->objs[i]->ino == ino)
			return m->objs[i];
	}
	return NULL;
}

bool model_below(const struct mobj *dir, const struct mobj *obj)
{
	while (dir && dir != obj)
		dir = dir->parent;
	return dir;
}

const struct mxattr *model_xattr(const struct mobj *obj, const char *name)
{
	for (unsigned i = 0; i < obj->xattr_count; i++) {
		if (!strcmp(obj->xattrs[i].name, name))
			return &obj->xattrs[i];
	}
	return NULL;
}

static void entry_add(struct mobj *dir, const char *name, struct mobj *obj)
{
	dir->entries =
	    xgrow(dir->entries, &dir->entry_cap, dir->entry_count, sizeof(*dir->entries));
	snprintf(dir->entries[dir->entry_count].name, MODEL_NAME_BYTES, "%s", name);
	dir->entries[dir->entry_count++].obj = obj;
	if (obj->type == M_DIR)
		obj->parent = dir;
}

static void entry_remove(struct mobj *dir, const char *name)
{
	for (unsigned i = 0; i < dir->entry_count; i++) {
		if (strcmp(dir->entries[i].name, name))
			continue;
		dir->entries[i] = dir->entries[--dir->entry_count];
		return;
	}
	abort();
}

/* ---- facts ---- */

static void fact_render(const struct mfact *f, char *out, size_t cap)
{
	unsigned long long a = f->a->ino, b = f->b ? f->b->ino : 0;

	switch (f->kind) {
	case F_NAME:
		snprintf(out, cap, "n %llu/%s -> %llu", a, f->text, b);
		break;
	case F_INODE:
		snprintf(out, cap, "i %llu %s", a, f->text);
		break;
	case F_XATTR:
		snprintf(out, cap, "x %llu %s", a, f->text);
		break;
	case F_TARGET:
		snprintf(out, cap, "t %llu %s", a, f->text);
		break;
	}
}

static uint64_t fact_hash(const struct mfact *f)
{
	static char text[8192];

	fact_render(f, text, sizeof(text));
	return XXH3_64bits(text, strlen(text));
}

/* A set of facts that grows: of an operation, or of a state. */
struct fact_list {
	struct mfact *facts;
	unsigned count, cap;
};

static void fact_add(struct fact_list *l, int sign, enum mfact_kind kind, struct mobj *a,
		     struct mobj *b, char *text)
{
	l->facts = xgrow(l->facts, &l->cap, l->count, sizeof(*l->facts));
	l->facts[l->count++] =
	    (struct mfact){.sign = sign, .kind = kind, .a = a, .b = b, .text = text};
}

static void facts_inode(struct fact_list *l, int sign, struct mobj *o, uint32_t mode,
			uint32_t links)
{
	if (o->type == M_DIR)
		fact_add(l, sign, F_INODE, o, NULL, xprintf("dir %o", mode));
	else
		fact_add(
		    l, sign, F_INODE, o, NULL,
		    xprintf("%s %o links %u rdev %u", type_text(o->type), mode, links, o->rdev));
}

static void facts_xattr(struct fact_list *l, int sign, struct mobj *o, const char *name,
			const void *value, size_t len)
{
	fact_add(l, sign, F_XATTR, o, NULL,
		 xprintf("%s=%zu:%016llx", name, len, (unsigned long long)XXH3_64bits(value, len)));
}

/* All that is said of an object besides its names. */
static void facts_object(struct fact_list *l, int sign, struct mobj *o, uint32_t links)
{
	facts_inode(l, sign, o, o->mode, links);
	for (unsigned i = 0; i < o->xattr_count; i++)
		facts_xattr(l, sign, o, o->xattrs[i].name, o->xattrs[i].value, o->xattrs[i].len);
	if (o->target)
		fact_add(l, sign, F_TARGET, o, NULL, xprintf("%s", o->target));
}

static void facts_name(struct fact_list *l, int sign, struct mobj *dir, const char *name,
		       struct mobj *o)
{
	fact_add(l, sign, F_NAME, dir, o, xprintf("%s", name));
}

static void facts_free(struct fact_list *l)
{
	for (unsigned i = 0; i < l->count; i++)
		free(l->facts[i].text);
	free(l->facts);
	*l = (struct fact_list){0};
}

static uint64_t facts_hash(const struct mfact *facts, unsigned count)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++) {
		uint64_t h = fact_hash(&facts[i]);

		sum += facts[i].sign > 0 ? h : -h;
	}
	return sum;
}

static bool is_fixed(const struct model *m, const struct mobj *o)
{
	return o == m->root || o->shared || o == m->workers[o->worker].home;
}

/* All facts of one worker's objects as they are now. */
static void facts_of_state(const struct model *m, unsigned worker, struct fact_list *l)
{
	for (size_t i = 0; i < m->obj_count; i++) {
		struct mobj *o = m->objs[i];

		if (o != m->root) {
			for (unsigned j = 0; j < o->entry_count; j++) {
				if (o->entries[j].obj->worker == worker)
					facts_name(l, 1, o, o->entries[j].name, o->entries[j].obj);
			}
		}
		if (o->worker == worker && !is_fixed(m, o) && o->links)
			facts_object(l, 1, o, o->links);
	}
}

/* ---- operations on names and attributes ---- */

uint64_t model_tick(struct model *m)
{
	return ++m->tick;
}

struct mop *model_begin(struct model *m, unsigned worker, const char *format, ...)
{
	struct mworker *w = &m->workers[worker];
	struct mop *op = calloc(1, sizeof(*op));
	va_list ap;

	if (!op)
		abort();
	op->m = m;
	op->worker = worker;
	op->call = model_tick(m);
	va_start(ap, format);
	vsnprintf(op->what, sizeof(op->what), format, ap);
	va_end(ap);
	w->ops = xgrow(w->ops, &w->op_cap, w->op_count, sizeof(struct mop *));
	w->ops[w->op_count++] = op;
	return op;
}

static void touch(struct mop *op, struct mobj *o)
{
	assert(op->touched_count < MODEL_OP_TOUCH_MAX);
	op->touched[op->touched_count++] = o;
}

static struct mact *act_add(struct mop *op, enum mact_kind kind, struct mobj *obj)
{
	assert(op->act_count < MODEL_OP_ACTS_MAX);
	op->acts[op->act_count] = (struct mact){.kind = kind, .obj = obj};
	touch(op, obj);
	return &op->acts[op->act_count++];
}

static void act_name(struct mop *op, enum mact_kind kind, struct mobj *obj, struct mobj *dir,
		     const char *name, bool moved)
{
	struct mact *a = act_add(op, kind, obj);

	a->dir = dir;
	a->moved = moved;
	snprintf(a->name, sizeof(a->name), "%s", name);
}

static void op_fact_list(struct mop *op, struct fact_list *l)
{
	*l = (struct fact_list){.facts = op->facts, .count = op->fact_count, .cap = op->fact_cap};
}

static void op_facts_take(struct mop *op, const struct fact_list *l)
{
	op->facts = l->facts;
	op->fact_count = l->count;
	op->fact_cap = l->cap;
}

struct mobj *model_create(struct mop *op, struct mobj *dir, const char *name, enum mtype type,
			  uint32_t mode, uint32_t rdev, const char *target)
{
	struct mobj *o = obj_new(op->m, op->worker, type);
	struct fact_list l;

	o->mode = mode;
	o->rdev = rdev;
	o->target = target ? xprintf("%s", target) : NULL;
	if (type == M_REG) {
		o->sizes = xgrow(NULL, &o->size_cap, 0, sizeof(*o->sizes));
		o->sizes[o->size_count++] = (struct msize){.call = op->call, .ret = op->call};
	}
	if (!dir) {
		o->unnamed = true;
		touch(op, o);
		return o;
	}
	o->born_dir = dir;
	snprintf(o->born_name, sizeof(o->born_name), "%s", name);
	op_fact_list(op, &l);
	facts_name(&l, 1, dir, name, o);
	facts_object(&l, 1, o, 1);
	op_facts_take(op, &l);
	act_name(op, ACT_ENTER, o, dir, name, false);
	touch(op, dir);
	return o;
}

void model_link(struct mop *op, struct mobj *obj, struct mobj *dir, const char *name)
{
	struct fact_list l;

	op_fact_list(op, &l);
	if (obj->links) {
		facts_inode(&l, -1, obj, obj->mode, obj->links);
		facts_inode(&l, 1, obj, obj->mode, obj->links + 1);
	} else {
		facts_object(&l, 1, obj, 1);
	}
	facts_name(&l, 1, dir, name, obj);
	op_facts_take(op, &l);
	act_name(op, ACT_ENTER, obj, dir, name, false);
	touch(op, dir);
}

static void leave(struct mop *op, struct mobj *dir, const char *name)
{
	struct mobj *obj = model_lookup(dir, name);
	struct fact_list l;

	op_fact_list(op, &l);
	facts_name(&l, -1, dir, name, obj);
	if (obj->links > 1) {
		facts_inode(&l, -1, obj, obj->mode, obj->links);
		facts_inode(&l, 1, obj, obj->mode, obj->links - 1);
	} else {
		facts_object(&l, -1, obj, obj->links);
	}
	op_facts_take(op, &l);
	act_name(op, ACT_LEAVE, obj, dir, name, false);
}

void model_unlink(struct mop *op, struct mobj *dir, const char *name)
{
	leave(op, dir, name);
	touch(op, dir);
}

/* The name moves; the object stays as it is. */
static void move(struct mop *op, struct mobj *obj, struct mobj *dir, const char *name,
		 struct mobj *new_dir, const char *new_name)
{
	struct fact_list l;

	op_fact_list(op, &l);
	facts_name(&l, -1, dir, name, obj);
	facts_name(&l, 1, new_dir, new_name, obj);
	op_facts_take(op, &l);
	(void)new_dir;
}

void model_rename(struct mop *op, struct mobj *dir, const char *name, struct mobj *new_dir,
		  const char *new_name)
{
	struct mobj *obj = model_lookup(dir, name);

	if (model_lookup(new_dir, new_name)) {
		leave(op, new_dir, new_name);
		if (obj->type == M_REG)
			op->data_first = obj;
	}
	move(op, obj, dir, name, new_dir, new_name);
	act_name(op, ACT_LEAVE, obj, dir, name, true);
	op->touched_count--; /* once is enough */
	act_name(op, ACT_ENTER, obj, new_dir, new_name, true);
	touch(op, dir);
	touch(op, new_dir);
}

void model_exchange(struct mop *op, struct mobj *dir, const char *name, struct mobj *new_dir,
		    const char *new_name)
{
	struct mobj *a = model_lookup(dir, name), *b = model_lookup(new_dir, new_name);

	move(op, a, dir, name, new_dir, new_name);
	move(op, b, new_dir, new_name, dir, name);
	act_name(op, ACT_LEAVE, a, dir, name, true);
	act_name(op, ACT_LEAVE, b, new_dir, new_name, true);
	op->touched_count -= 2;
	act_name(op, ACT_ENTER, a, new_dir, new_name, true);
	act_name(op, ACT_ENTER, b, dir, name, true);
	touch(op, dir);
	touch(op, new_dir);
}

void model_chmod(struct mop *op, struct mobj *obj, uint32_t mode)
{
	struct mact *a = act_add(op, ACT_MODE, obj);
	struct fact_list l;

	a->mode = mode;
	if (!obj->links)
		return;
	op_fact_list(op, &l);
	facts_inode(&l, -1, obj, obj->mode, obj->links);
	facts_inode(&l, 1, obj, mode, obj->links);
	op_facts_take(op, &l);
}

void model_setxattr(struct mop *op, struct mobj *obj, const char *name, const void *value,
		    size_t len)
{
	const struct mxattr *old = model_xattr(obj, name);
	struct mact *a = act_add(op, ACT_XATTR, obj);
	struct fact_list l;

	snprintf(a->name, sizeof(a->name), "%s", name);
	a->value = value ? xcopy(value, len) : NULL;
	a->len = len;
	if (!obj->links)
		return;
	op_fact_list(op, &l);
	if (old)
		facts_xattr(&l, -1, obj, name, old->value, old->len);
	if (value)
		facts_xattr(&l, 1, obj, name, value, len);
	op_facts_take(op, &l);
}

static void xattr_set(struct mobj *o, const char *name, uint8_t *value, size_t len)
{
	struct mxattr *x = (struct mxattr *)(uintptr_t)model_xattr(o, name);

	if (!value) {
		if (!x)
			return;
		free(x->name);
		free(x->value);
		*x = o->xattrs[--o->xattr_count];
		return;
	}
	if (x) {
		free(x->value);
	} else {
		o->xattrs = realloc(o->xattrs, (o->xattr_count + 1) * sizeof(*o->xattrs));
		if (!o->xattrs)
			abort();
		x = &o->xattrs[o->xattr_count++];
		x->name = xprintf("%s", name);
	}
	x->value = value;
	x->len = len;
}

static void act_carry_out(struct model *m, struct mact *a)
{
	struct mobj *o = a->obj;

	switch (a->kind) {
	case ACT_ENTER:
		entry_add(a->dir, a->name, o);
		if (!a->moved)
			o->links++;
		o->unnamed = false;
		exist_add(m, o);
		break;
	case ACT_LEAVE:
		entry_remove(a->dir, a->name);
		if (!a->moved && !--o->links && !o->refs)
			exist_remove(m, o);
		break;
	case ACT_MODE:
		o->mode = a->mode;
		break;
	case ACT_XATTR:
		xattr_set(o, a->name, a->value, a->len);
		a->value = NULL;
		break;
	}
}

static void op_free(struct mop *op)
{
	struct fact_list l;

	op_fact_list(op, &l);
	facts_free(&l);
	for (unsigned i = 0; i < op->act_count; i++)
		free(op->acts[i].value);
	free(op);
}

void model_end(struct mop *op, bool done)
{
	struct model *m = op->m;
	struct mworker *w = &m->workers[op->worker];

	assert(w->ops[w->op_count - 1] == op);
	if (!done) {
		w->op_count--;
		op_free(op);
		return;
	}
	/* Who leaves, leaves before others come to his place. */
	for (unsigned i = 0; i < op->act_count; i++) {
		if (op->acts[i].kind == ACT_LEAVE)
			act_carry_out(m, &op->acts[i]);
	}
	for (unsigned i = 0; i < op->act_count; i++) {
		if (op->acts[i].kind != ACT_LEAVE)
			act_carry_out(m, &op->acts[i]);
	}
	for (unsigned i = 0; i < op->touched_count; i++)
		op->touched[i]->last_call = op->call;
	op->ret = model_tick(m);
	op->ret_ns = m->now_ns;
	op->ended = true;
}

/* ---- data ---- */

/* Position of the block, or where it would be. */
static unsigned block_at(const struct mobj *file, uint64_t index)
{
	unsigned lo = 0, hi = file->block_count;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (file->blocks[mid].index < index)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct mblock *block_find(const struct mobj *file, uint64_t index)
{
	unsigned at = block_at(file, index);

	return at < file->block_count && file->blocks[at].index == index ? &file->blocks[at] : NULL;
}

static const uint8_t *block_newest(const struct mobj *file, uint64_t index)
{
	const struct mblock *b = block_find(file, index);

	return b ? b->v[b->count - 1].data : NULL;
}

/* Takes over data. */
static void block_push(struct mobj *file, uint64_t index, uint64_t call, uint64_t ret,
		       uint8_t *data)
{
	unsigned at = block_at(file, index);
	struct mblock *b;

	if (at == file->block_count || file->blocks[at].index != index) {
		file->blocks =
		    xgrow(file->blocks, &file->block_cap, file->block_count, sizeof(*file->blocks));
		memmove(&file->blocks[at + 1], &file->blocks[at],
			(file->block_count - at) * sizeof(*file->blocks));
		file->block_count++;
		file->blocks[at] = (struct mblock){.index = index};
		b = &file->blocks[at];
		/* Before, it was zeros. */
		b->v = xgrow(b->v, &b->cap, b->count, sizeof(*b->v));
		b->v[b->count++] = (struct mversion){0};
	}
	b = &file->blocks[at];
	b->v = xgrow(b->v, &b->cap, b->count, sizeof(*b->v));
	b->v[b->count++] = (struct mversion){.call = call, .ret = ret, .data = data};
}

uint64_t model_size(const struct mobj *file)
{
	return file->size_count ? file->sizes[file->size_count - 1].size : 0;
}

static void size_push(struct mobj *file, uint64_t call, uint64_t size)
{
	if (size == model_size(file))
		return;
	file->sizes = xgrow(file->sizes, &file->size_cap, file->size_count, sizeof(*file->sizes));
	file->sizes[file->size_count++] = (struct msize){.call = call, .size = size};
}

void model_read(const struct mobj *file, uint64_t off, uint8_t *out, size_t len)
{
	while (len) {
		size_t at = off % BLOCK_BYTES, n = MIN(len, BLOCK_BYTES - at);
		const uint8_t *data = block_newest(file, off / BLOCK_BYTES);

		if (data)
			memcpy(out, data + at, n);
		else
			memset(out, 0, n);
		off += n;
		out += n;
		len -= n;
	}
}

bool model_written(const struct mobj *file, uint64_t off, uint64_t len)
{
	for (uint64_t i = off / BLOCK_BYTES; i <= (off + len - 1) / BLOCK_BYTES; i++) {
		if (!block_newest(file, i))
			return false;
	}
	return true;
}

/* The newest version of a block with some bytes replaced; bytes NULL: zeroed. */
static void block_edit(struct mobj *file, uint64_t index, uint64_t call, size_t at,
		       const uint8_t *bytes, size_t n)
{
	const uint8_t *old = block_newest(file, index);
	uint8_t *data = NULL;

	if (!bytes && (!old || n == BLOCK_BYTES)) {
		if (!old)
			return;
	} else {
		data = calloc(1, BLOCK_BYTES);
		if (!data)
			abort();
		if (old)
			memcpy(data, old, BLOCK_BYTES);
		if (bytes)
			memcpy(data + at, bytes, n);
		else
			memset(data + at, 0, n);
	}
	block_push(file, index, call, 0, data);
}

static void range_edit(struct mobj *file, uint64_t call, uint64_t off, const uint8_t *bytes,
		       uint64_t len)
{
	while (len) {
		size_t at = off % BLOCK_BYTES, n = MIN(len, (uint64_t)BLOCK_BYTES - at);

		block_edit(file, off / BLOCK_BYTES, call, at, bytes, n);
		off += n;
		len -= n;
		if (bytes)
			bytes += n;
	}
}

void model_write(struct model *m, struct mobj *file, uint64_t off, const uint8_t *data, size_t len)
{
	uint64_t call = model_tick(m);

	range_edit(file, call, off, data, len);
	size_push(file, call, MAX(model_size(file), off + len));
}

void model_zero(struct model *m, struct mobj *file, uint64_t off, uint64_t len)
{
	range_edit(file, model_tick(m), off, NULL, len);
}

void model_extend(struct model *m, struct mobj *file, uint64_t size)
{
	size_push(file, model_tick(m), MAX(size, model_size(file)));
}

void model_truncate(struct model *m, struct mobj *file, uint64_t size)
{
	uint64_t call = model_tick(m);

	if (size % BLOCK_BYTES)
		block_edit(file, size / BLOCK_BYTES, call, size % BLOCK_BYTES, NULL,
			   BLOCK_BYTES - size % BLOCK_BYTES);
	for (unsigned i = block_at(file, DIV_ROUND_UP(size, BLOCK_BYTES)); i < file->block_count;
	     i++)
		block_edit(file, file->blocks[i].index, call, 0, NULL, BLOCK_BYTES);
	size_push(file, call, size);
}

void model_data_end(struct model *m, struct mobj *file)
{
	uint64_t ret = model_tick(m);

	for (unsigned i = 0; i < file->block_count; i++) {
		struct mversion *v = &file->blocks[i].v[file->blocks[i].count - 1];

		if (v->call && !v->ret) {
			v->ret = ret;
			v->ret_ns = m->now_ns;
		}
	}
	for (unsigned i = 0; i < file->size_count; i++) {
		if (file->sizes[i].call && !file->sizes[i].ret) {
			file->sizes[i].ret = ret;
			file->sizes[i].ret_ns = m->now_ns;
		}
	}
}

static bool version_equal(const struct mversion *v, const uint8_t *data, size_t n)
{
	static const uint8_t zeros[BLOCK_BYTES];

	return !memcmp(v->data ? v->data : zeros, data, n);
}

void model_data_settle(struct model *m, struct mobj *file, uint64_t off, const uint8_t *data,
		       size_t len, uint64_t size)
{
	uint64_t call = model_tick(m);

	assert(off % BLOCK_BYTES == 0);
	for (size_t at = 0; at < len; at += BLOCK_BYTES) {
		size_t n = MIN(len - at, (size_t)BLOCK_BYTES);
		struct mblock *b = block_find(file, (off + at) / BLOCK_BYTES);
		static const uint8_t zeros[BLOCK_BYTES];
		uint8_t *copy = calloc(1, BLOCK_BYTES);
		bool legal = false;

		if (!copy)
			abort();
		memcpy(copy, data + at, n);
		/* The last two: before the write that failed, and after. */
		for (unsigned i = b ? b->count - MIN(b->count, 2u) : 0; b && i < b->count; i++)
			legal |= version_equal(&b->v[i], copy, n);
		if (!legal && b)
			fail(m, "file %llu: a write that failed left something else at %llu",
			     (unsigned long long)file->ino, (unsigned long long)(off + at));
		/* Zeros may be a hole still: it must not count as written (model_written). */
		if (!memcmp(copy, zeros, BLOCK_BYTES)) {
			free(copy);
			copy = NULL;
		}
		block_push(file, (off + at) / BLOCK_BYTES, call, 0, copy);
	}
	/* Behind the end nothing has been written either. */
	for (unsigned i = 0; i < file->block_count; i++) {
		struct mblock *b = &file->blocks[i];

		if (b->index >= DIV_ROUND_UP(size, BLOCK_BYTES) && b->v[b->count - 1].data)
			block_push(file, b->index, call, 0, NULL);
	}
	size_push(file, call, size);
	model_data_end(m, file);
}

/* ---- promises ---- */

static void file_floor(struct mobj *file, uint64_t call)
{
	unsigned n = 0;

	for (unsigned i = 0; i < file->block_count; i++) {
		struct mblock *b = &file->blocks[i];

		n = 0;
		for (unsigned j = 0; j < b->count; j++) {
			if (b->v[j].ret && b->v[j].ret <= call)
				n = j;
		}
		versions_drop(b, n);
	}
	n = 0;
	for (unsigned i = 0; i < file->size_count; i++) {
		if (file->sizes[i].ret && file->sizes[i].ret <= call)
			n = i;
	}
	drop_front(file->sizes, n, &file->size_count, sizeof(*file->sizes));
}

/* The first n operations of a worker are certain. */
static void ops_fold(struct model *m, struct mworker *w, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct mop *op = w->ops[i];

		w->base_hash += facts_hash(op->facts, op->fact_count);
		if (op->data_first)
			file_floor(op->data_first, op->call);
		m->floor = MAX(m->floor, op->call);
		op_free(op);
	}
	drop_front(w->ops, n, &w->op_count, sizeof(struct mop *));
}

/* Everything up to the instant `tick`; `self` (or none) also what was called by then. */
static void ops_floor(struct model *m, uint64_t tick, int self)
{
	for (unsigned i = 0; i < m->worker_count; i++) {
		struct mworker *w = &m->workers[i];
		unsigned n = 0;

		while (n < w->op_count && w->ops[n]->ended &&
		       (w->ops[n]->ret <= tick || ((int)i == self && w->ops[n]->call <= tick)))
			n++;
		ops_fold(m, w, n);
	}
	m->floor = MAX(m->floor, tick);
}

void model_synced(struct model *m, uint64_t call)
{
	if (m->kept)
		return;
	ops_floor(m, call, -1);
	for (size_t i = 0; i < m->obj_count; i++)
		file_floor(m->objs[i], call);
}

void model_fsynced(struct model *m, struct mobj *obj, uint64_t call)
{
	if (m->kept)
		return;
	if (obj->type == M_REG)
		file_floor(obj, call);
	if (obj->last_call > m->floor)
		ops_floor(m, obj->last_call, (int)obj->worker);
}

void model_aged(struct model *m, uint64_t before_ns)
{
	uint64_t tick = 0;

	if (m->kept)
		return;
	for (unsigned i = 0; i < m->worker_count; i++) {
		for (unsigned j = 0; j < m->workers[i].op_count; j++) {
			const struct mop *op = m->workers[i].ops[j];

			if (op->ended && op->ret_ns <= before_ns)
				tick = MAX(tick, op->ret);
		}
	}
	if (tick)
		ops_floor(m, tick, -1);
	for (size_t i = 0; i < m->obj_count; i++) {
		struct mobj *o = m->objs[i];

		tick = 0;
		for (unsigned j = 0; j < o->block_count; j++) {
			for (unsigned k = 0; k < o->blocks[j].count; k++) {
				const struct mversion *v = &o->blocks[j].v[k];

				if (v->ret && v->ret_ns <= before_ns)
					tick = MAX(tick, v->ret);
			}
		}
		for (unsigned j = 0; j < o->size_count; j++) {
			if (o->sizes[j].ret && o->sizes[j].ret_ns <= before_ns)
				tick = MAX(tick, o->sizes[j].ret);
		}
		if (tick)
			file_floor(o, tick);
	}
}

/* ---- what was found ---- */

struct mobj *model_found(struct model *found, unsigned worker, struct mobj *dir, const char *name,
			 uint64_t ino, enum mtype type, uint32_t mode, uint32_t rdev,
			 uint32_t links, const char *target, bool *ret_new)
{
	struct mobj *o = model_by_ino(found, ino);

	*ret_new = !o;
	if (!o) {
		o = obj_new(found, worker, type);
		o->ino = ino;
		o->mode = mode;
		o->rdev = rdev;
		o->links = type == M_DIR ? 1 : links; /* theirs are counted as filesystems like */
		o->target = target ? xprintf("%s", target) : NULL;
		if (!dir)
			found->root = o;
	}
	if (dir)
		entry_add(dir, name, o);
	return o;
}

void model_found_xattr(struct model *found, struct mobj *obj, const char *name, const void *value,
		       size_t len)
{
	(void)found;
	xattr_set(obj, name, xcopy(value, len), len);
}

void model_found_size(struct mobj *file, uint64_t size)
{
	file->sizes = xgrow(NULL, &file->size_cap, 0, sizeof(*file->sizes));
	file->sizes[0] = (struct msize){.size = size};
	file->size_count = 1;
}

void model_found_block(struct mobj *file, uint64_t index, const uint8_t *data)
{
	block_push(file, index, 0, 0, xcopy(data, BLOCK_BYTES));
	versions_drop(block_find(file, index), 1);
}

void model_found_lost(struct mobj *file, uint64_t index)
{
	block_push(file, index, 0, 0, NULL);
	block_find(file, index)->lost = true;
}

void model_found_end(struct model *found)
{
	if (!found->root)
		fail(found, "no root");
	for (unsigned i = 0; i < found->root->entry_count; i++) {
		struct mentry *e = &found->root->entries[i];
		unsigned number;

		if (!strcmp(e->name, "shared")) {
			found->shared = e->obj;
			e->obj->shared = true;
		} else if (sscanf(e->name, "w%u", &number) == 1 && number < found->worker_count) {
			found->workers[number].home = e->obj;
			e->obj->worker = number;
		} else {
			fail(found, "a stranger in the root: %s", e->name);
		}
	}
	if (found->root->vague)
		return;
	for (unsigned i = 0; i < found->worker_count; i++) {
		if (!found->workers[i].home)
			fail(found, "w%u is gone", i);
	}
	if (!found->shared)
		fail(found, "the shared directory is gone");
}

/* ---- judging ---- */

static int fact_text_cmp(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static char **facts_texts(const struct fact_list *l)
{
	char **texts = calloc(l->count + 1, sizeof(char *)), text[8192];

	if (!texts)
		abort();
	for (unsigned i = 0; i < l->count; i++) {
		fact_render(&l->facts[i], text, sizeof(text));
		texts[i] = xprintf("%.300s", text);
	}
	qsort(texts, l->count, sizeof(char *), fact_text_cmp);
	return texts;
}

/* For people: what is there and was not last, what was last and is not there, and what was done. */
static void dump(struct model *m, struct model *found, unsigned worker)
{
	struct fact_list a = {0}, b = {0};
	struct mworker *w = &m->workers[worker];
	unsigned i = 0, j = 0;
	char **have, **want;

	facts_of_state(found, worker, &a);
	facts_of_state(m, worker, &b);
	have = facts_texts(&a);
	want = facts_texts(&b);
	fprintf(stderr, "worker %u: found (+) and not as of the last operation (-):\n", worker);
	while (i < a.count || j < b.count) {
		int c = i == a.count ? 1 : j == b.count ? -1 : strcmp(have[i], want[j]);

		if (c < 0)
			fprintf(stderr, "  + %s\n", have[i]);
		else if (c > 0)
			fprintf(stderr, "  - %s\n", want[j]);
		i += c <= 0;
		j += c >= 0;
	}
	fprintf(stderr, "operations since the floor at %llu:\n", (unsigned long long)m->floor);
	for (i = w->op_count > DUMP_OPS_MAX ? w->op_count - DUMP_OPS_MAX : 0; i < w->op_count;
	     i++) {
		struct mop *op = w->ops[i];
		char text[400];

		fprintf(stderr, "  %llu-%llu %s\n", (unsigned long long)op->call,
			(unsigned long long)op->ret, op->what);
		for (j = 0; j < op->fact_count; j++) {
			fact_render(&op->facts[j], text, sizeof(text));
			fprintf(stderr, "      %c %s\n", op->facts[j].sign > 0 ? '+' : '-', text);
		}
	}
}

/* Objects whose creation was under way get the number that is found under their name. */
static void resolve_unborn(struct model *m, struct model *found)
{
	for (unsigned i = 0; i < m->worker_count; i++) {
		struct mworker *w = &m->workers[i];
		struct mop *op = w->op_count ? w->ops[w->op_count - 1] : NULL;

		if (!op || op->ended)
			continue;
		for (unsigned j = 0; j < op->act_count; j++) {
			struct mobj *o = op->acts[j].obj, *dir, *there;

			if (o->ino || !o->born_dir)
				continue;
			dir = model_by_ino(found, o->born_dir->ino);
			there = dir && dir->type == M_DIR ? model_lookup(dir, o->born_name) : NULL;
			if (there && there->type == o->type && !model_by_ino(m, there->ino))
				o->ino = there->ino;
		}
	}
}

struct window {
	uint64_t lo, hi; /* lo <= T < hi */
	unsigned k;
};
struct windows {
	struct window *list;
	unsigned count, cap;
};

/* Every prefix of the worker's operations that looks like what was found. */
static void find_windows(struct model *m, struct model *found, unsigned worker, struct windows *ret)
{
	struct mworker *w = &m->workers[worker];
	uint64_t hash = w->base_hash, want;
	struct fact_list l = {0};

	facts_of_state(found, worker, &l);
	want = facts_hash(l.facts, l.count);
	facts_free(&l);
	for (unsigned k = 0; k <= w->op_count; k++) {
		if (k)
			hash += facts_hash(w->ops[k - 1]->facts, w->ops[k - 1]->fact_count);
		if (hash != want)
			continue;
		ret->list = xgrow(ret->list, &ret->cap, ret->count, sizeof(*ret->list));
		ret->list[ret->count++] = (struct window){
		    .lo = k ? w->ops[k - 1]->call : 0,
		    .hi = k < w->op_count && w->ops[k]->ended ? w->ops[k]->ret : NEVER,
		    .k = k,
		};
	}
	if (!ret->count) {
		dump(m, found, worker);
		fail(m, "names and attributes of worker %u are those of no point in time", worker);
	}
}

static bool windows_have(const struct windows *w, uint64_t t, unsigned *ret_k)
{
	for (unsigned i = 0; i < w->count; i++) {
		if (w->list[i].lo <= t && t < w->list[i].hi) {
			*ret_k = w->list[i].k;
			return true;
		}
	}
	return false;
}

static bool all_have(const struct model *m, const struct windows *w, uint64_t t, unsigned *ret_k)
{
	for (unsigned i = 0; i < m->worker_count; i++) {
		if (!windows_have(&w[i], t, &ret_k[i]))
			return false;
	}
	return true;
}

/* The earliest instant that explains all workers, and how many of each one's operations had
 * happened. */
static void judge_names(struct model *m, struct model *found, unsigned *ret_k)
{
	struct windows w[MODEL_WORKERS_MAX] = {0};
	uint64_t best = NEVER;

	for (unsigned i = 0; i < m->worker_count; i++)
		find_windows(m, found, i, &w[i]);
	if (all_have(m, w, m->floor, ret_k))
		best = m->floor;
	for (unsigned i = 0; i < m->worker_count && best != m->floor; i++) {
		for (unsigned j = 0; j < w[i].count; j++) {
			uint64_t t = w[i].list[j].lo;

			if (t >= m->floor && t < best && all_have(m, w, t, ret_k))
				best = t;
		}
	}
	if (best == NEVER) {
		for (unsigned i = 0; i < m->worker_count; i++) {
			dump(m, found, i);
			for (unsigned j = 0; j < w[i].count; j++)
				fprintf(stderr, "worker %u may have come back to %llu .. %llu\n", i,
					(unsigned long long)w[i].list[j].lo,
					(unsigned long long)w[i].list[j].hi);
		}
		fail(m, "no one point in time, at or after %llu, explains all workers",
		     (unsigned long long)m->floor);
	}
	(void)all_have(m, w, best, ret_k);
	for (unsigned i = 0; i < m->worker_count; i++)
		free(w[i].list);
}

static void block_dump(const struct mblock *b, const uint8_t *data)
{
	static const uint8_t zeros[BLOCK_BYTES];
	unsigned at;

	for (unsigned i = 0; i < b->count; i++) {
		const uint8_t *v = b->v[i].data ? b->v[i].data : zeros;

		for (at = 0; at < BLOCK_BYTES && v[at] == data[at]; at++)
			;
		fprintf(stderr, "  version %llu-%llu%s differs from byte %u on:",
			(unsigned long long)b->v[i].call, (unsigned long long)b->v[i].ret,
			b->v[i].data ? "" : " (zeros)", at);
		for (unsigned j = at & ~7u; j < MIN((at & ~7u) + 16, BLOCK_BYTES); j++)
			fprintf(stderr, " %02x/%02x", v[j], data[j]);
		fprintf(stderr, "\n");
	}
}

static void judge_block(struct model *m, const struct mobj *file, const struct mblock *b,
			const uint8_t *data, uint64_t size)
{
	uint64_t off = b->index * BLOCK_BYTES;
	size_t n;

	if (off >= size)
		return;
	n = MIN(size - off, (uint64_t)BLOCK_BYTES);
	for (unsigned i = 0; i < b->count; i++) {
		if (version_equal(&b->v[i], data, n))
			return;
	}
	block_dump(b, data);
	fail(m, "file %llu of worker %u, size %llu: block %llu is neither old nor new",
	     (unsigned long long)file->ino, file->worker, (unsigned long long)size,
	     (unsigned long long)b->index);
}

static void judge_file(struct model *m, const struct mobj *file, const struct mobj *found)
{
	static const uint8_t zeros[BLOCK_BYTES];
	uint64_t size = model_size(found);
	bool legal = false;

	for (unsigned i = 0; i < file->size_count; i++) {
		legal |= file->sizes[i].size == size;
		/* What made the file longer may have got there in part, in whole blocks. */
		if (i && size % BLOCK_BYTES == 0 && file->sizes[i - 1].size < size &&
		    size < file->sizes[i].size)
			legal = true;
	}
	if (!legal) {
		for (unsigned i = 0; i < file->size_count; i++)
			fprintf(stderr, "  size %llu at %llu-%llu\n",
				(unsigned long long)file->sizes[i].size,
				(unsigned long long)file->sizes[i].call,
				(unsigned long long)file->sizes[i].ret);
		fail(m, "file %llu of worker %u: size %llu is none it had",
		     (unsigned long long)file->ino, file->worker, (unsigned long long)size);
	}
	for (unsigned i = 0; i < file->block_count; i++) {
		const uint8_t *data = block_newest(found, file->blocks[i].index);
		const struct mblock *there = block_find(found, file->blocks[i].index);

		if (there ? there->lost : found->vague)
			continue;
		judge_block(m, file, &file->blocks[i], data ? data : zeros, size);
	}
	for (unsigned i = 0; i < found->block_count; i++) {
		const uint8_t *data = found->blocks[i].v[0].data;

		if (data && !block_find(file, found->blocks[i].index) && memcmp(data, zeros, BLOCK_BYTES))
			fail(m, "file %llu of worker %u: data in block %llu that was never written",
			     (unsigned long long)file->ino, file->worker,
			     (unsigned long long)found->blocks[i].index);
	}
}

/* The sums that operations gave and the state they led to must agree: the oracle's own check. */
static void self_check(struct model *m)
{
	for (unsigned i = 0; i < m->worker_count; i++) {
		struct mworker *w = &m->workers[i];
		uint64_t hash = w->base_hash, want;
		struct fact_list l = {0};

		for (unsigned k = 0; k < w->op_count; k++) {
			if (w->ops[k]->ended)
				hash += facts_hash(w->ops[k]->facts, w->ops[k]->fact_count);
		}
		facts_of_state(m, i, &l);
		want = facts_hash(l.facts, l.count);
		facts_free(&l);
		if (hash != want)
			fail(m, "the oracle contradicts itself about worker %u", i);
	}
}

void model_judge(struct model *m, struct model *found)
{
	unsigned k[MODEL_WORKERS_MAX];

	self_check(m);
	resolve_unborn(m, found);
	judge_names(m, found, k);
	for (unsigned i = 0; i < m->worker_count; i++) {
		for (unsigned j = 0; j < k[i]; j++) {
			const struct mop *op = m->workers[i].ops[j];

			if (op->data_first)
				file_floor(op->data_first, op->call);
		}
	}
	for (size_t i = 0; i < found->obj_count; i++) {
		const struct mobj *file;

		if (found->objs[i]->type != M_REG)
			continue;
		file = model_by_ino(m, found->objs[i]->ino);
		if (!file)
			fail(m, "file %llu was never made",
			     (unsigned long long)found->objs[i]->ino);
		judge_file(m, file, found->objs[i]);
	}
	model_adopt(m, found);
}

bool model_block_legal(const struct mobj *file, uint64_t index, const uint8_t *data, size_t n)
{
	static const struct mversion zeros;
	const struct mblock *b = block_find(file, index);

	for (unsigned i = 0; b && i < b->count; i++) {
		if (version_equal(&b->v[i], data, n))
			return true;
	}
	return !b && version_equal(&zeros, data, n);
}

/* ---- judging what is left when more was lost than is tolerated ---- */

void model_keep(struct model *m)
{
	struct fact_list l = {0};

	for (unsigned i = 0; i < m->worker_count; i++)
		facts_of_state(m, i, &l);
	m->kept = true;
	m->kept_facts = l.facts;
	m->kept_count = l.count;
	m->kept_cap = l.cap;
}

struct hashes {
	uint64_t *list;
	unsigned count, cap;
};

static void hashes_add(struct hashes *h, const struct mfact *f)
{
	h->list = xgrow(h->list, &h->cap, h->count, sizeof(*h->list));
	h->list[h->count++] = fact_hash(f);
}

static int hash_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static bool hashes_have(const struct hashes *h, const struct mfact *f)
{
	uint64_t x = fact_hash(f);

	return h->count && bsearch(&x, h->list, h->count, sizeof(x), hash_cmp);
}

static void hashes_sort(struct hashes *h)
{
	if (h->count)
		qsort(h->list, h->count, sizeof(*h->list), hash_cmp);
}

static _Noreturn void fail_fact(struct model *m, const struct mfact *f, const char *what)
{
	char text[400];

	fact_render(f, text, sizeof(text));
	fail(m, "%s: %s", what, text);
	abort();
}

/* A fact that nobody touched must be there, if that of which it is one was read without a gap. */
static void judge_kept(struct model *m, struct model *found, const struct hashes *touched,
		       const struct hashes *there)
{
	for (unsigned i = 0; i < m->kept_count; i++) {
		const struct mfact *f = &m->kept_facts[i];
		const struct mobj *o = model_by_ino(found, f->a->ino);

		if (!o || o->vague || hashes_have(touched, f) || hashes_have(there, f))
			continue;
		fail_fact(m, f, "gone without anything that could not be read");
	}
}

void model_judge_beyond(struct model *m, struct model *found)
{
	struct hashes legal = {0}, touched = {0}, there = {0};
	struct fact_list l = {0};

	resolve_unborn(m, found);
	for (unsigned i = 0; i < m->kept_count; i++)
		hashes_add(&legal, &m->kept_facts[i]);
	for (unsigned i = 0; i < m->worker_count; i++) {
		facts_of_state(found, i, &l);
		for (unsigned j = 0; j < m->workers[i].op_count; j++) {
			const struct mop *op = m->workers[i].ops[j];

			for (unsigned k = 0; k < op->fact_count; k++)
				hashes_add(op->facts[k].sign > 0 ? &legal : &touched, &op->facts[k]);
		}
	}
	hashes_sort(&legal);
	hashes_sort(&touched);
	for (unsigned i = 0; i < l.count; i++) {
		if (!hashes_have(&legal, &l.facts[i]))
			fail_fact(m, &l.facts[i], "found what never was");
		hashes_add(&there, &l.facts[i]);
	}
	hashes_sort(&there);
	judge_kept(m, found, &touched, &there);
	for (size_t i = 0; i < found->obj_count; i++) {
		const struct mobj *file = model_by_ino(m, found->objs[i]->ino);

		if (found->objs[i]->type == M_REG && file)
			judge_file(m, file, found->objs[i]);
	}
	facts_free(&l);
	free(legal.list);
	free(touched.list);
	free(there.list);
	model_exit(found);
}

static void state_free(struct model *m)
{
	for (unsigned i = 0; i < MODEL_WORKERS_MAX; i++) {
		struct mworker *w = &m->workers[i];

		for (unsigned j = 0; j < w->op_count; j++)
			op_free(w->ops[j]);
		free(w->ops);
		free(w->exist);
		*w = (struct mworker){0};
	}
	for (size_t i = 0; i < m->obj_count; i++)
		obj_free(m->objs[i]);
	free(m->objs);
	m->objs = NULL;
	m->obj_count = m->obj_cap = 0;
	m->root = m->shared = NULL;
	for (unsigned i = 0; i < m->kept_count; i++)
		free(m->kept_facts[i].text);
	free(m->kept_facts);
	m->kept_facts = NULL;
	m->kept_count = m->kept_cap = 0;
}

void model_adopt(struct model *m, struct model *found)
{
	state_free(m);
	m->objs = found->objs;
	m->obj_count = found->obj_count;
	m->obj_cap = found->obj_cap;
	m->root = found->root;
	m->shared = found->shared;
	memcpy(m->workers, found->workers, sizeof(m->workers));
	found->objs = NULL;
	found->obj_count = found->obj_cap = 0;
	memset(found->workers, 0, sizeof(found->workers));
	m->floor = m->tick;
	for (unsigned i = 0; i < m->worker_count; i++) {
		struct fact_list l = {0};

		facts_of_state(m, i, &l);
		m->workers[i].base_hash = facts_hash(l.facts, l.count);
		facts_free(&l);
	}
	for (size_t i = 0; i < m->obj_count; i++) {
		if (!is_fixed(m, m->objs[i]))
			exist_add(m, m->objs[i]);
	}
}

void model_init(struct model *m, unsigned workers, void (*fail_fn)(void *arg, const char *text),
		void *arg)
{
	*m = (struct model){.worker_count = workers, .fail = fail_fn, .fail_arg = arg};
}

void model_exit(struct model *m)
{
	state_free(m);
}
