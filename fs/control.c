/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control socket.
 *
 * A client sends a line and gets a line. What can be told from memory is answered at once, in loop
 * context; the rest runs in a coroutine, during which this client is not listened to (one request
 * at a time each). Clients, line lengths and requests are bounded, and a client that does not read
 * its answers is dropped: it can never hold up the loop.
 *
 * `status` answers three questions: what is so ("state"), what happened, what to type next. The
 * sentences are made here and not in the tool, so that whoever reads the JSON gets them too.
 */
#include "control.h"
#include "log.h"
#include "raid/co.h"
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CLIENTS_MAX  32u
#define LINE_BYTES   8192u
#define SEND_BYTES   (1 << 20)
#define ACCEPT_ROUND 8

struct control {
	struct fs *fs;
	struct raid *raid;
	struct loop *loop;
	struct uring *uring;
	char *socket_path, *mount_point, *source;
	int fd;
	struct uring_watch *watch;
	struct list clients;
	unsigned client_count, busy_count;
	bool closing;
	struct co_cond idle;
};

struct client {
	struct control *control;
	struct list node;
	int fd;
	struct uring_watch *watch;
	json_t *request; /* being worked on by a coroutine */
	size_t used;
	char line[LINE_BYTES];
};

/* ---- answers ---- */

static json_t *answer_new(void)
{
	return json_pack("{s:i}", "version", CONTROL_VERSION);
}

static json_t *answer_error(int r, const char *text)
{
	return json_pack("{s:i,s:s,s:i}", "version", CONTROL_VERSION, "error",
			 text ? text : strerror(-r), "errno", -r);
}

static void set_u64(json_t *o, const char *key, uint64_t value)
{
	/* Out of memory here and below leaves a field out; the answer stays valid. */
	(void)json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void set_text(json_t *o, const char *key, const char *value)
{
	/* Paths and names may be anything but UTF-8. */
	json_t *s = json_string(value);
	char clean[512];

	if (!s) {
		size_t n = 0;
		for (; value[n] && n < sizeof(clean) - 1; n++)
			clean[n] = (unsigned char)value[n] < 0x80 ? value[n] : '?';
		clean[n] = 0;
		s = json_string(clean);
	}
	(void)json_object_set_new(o, key, s);
}

static void set_uuid(json_t *o, const char *key, const struct uuid *u)
{
	char text[UUID_TEXT_BYTES];

	set_text(o, key, uuid_text(u, text));
}

static const char *state_text(enum raid_state state)
{
	switch (state) {
	case RAID_OPTIMAL:
		return "optimal";
	case RAID_DEGRADED:
		return "degraded";
	case RAID_REBUILDING:
		return "rebuilding";
	case RAID_FAILED:
		return "failed";
	}
	return "unknown";
}

static const char *member_text(const struct raid_member_info *m)
{
	switch (m->state) {
	case MEMBER_ACTIVE:
		if (!m->present)
			return "missing";
		return m->columns_stale ? "rebuilding" : "active";
	case MEMBER_MISSING:
		return m->present ? "stale" : "missing";
	case MEMBER_FAILED:
		return "failed";
	case MEMBER_REMOVED:
		return "removed";
	}
	return "unknown";
}

static json_t *member_json(unsigned index, const struct raid_member_info *m)
{
	json_t *o = json_object(), *e = json_object();

	set_u64(o, "index", index);
	set_uuid(o, "uuid", &m->uuid);
	set_text(o, "path", m->path);
	set_text(o, "serial", m->serial);
	set_text(o, "state", member_text(m));
	(void)json_object_set_new(o, "present", json_boolean(m->present));
	(void)json_object_set_new(o, "read_only", json_boolean(m->read_only));
	set_u64(o, "size_bytes", m->size_bytes);
	set_u64(o, "slices", m->slices);
	set_u64(o, "slices_free", m->slices_free);
	set_u64(o, "columns", m->columns);
	set_u64(o, "columns_stale", m->columns_stale);
	(void)json_object_set_new(o, "replaces",
				  m->replaces >= 0 ? json_integer(m->replaces) : json_null());
	set_u64(e, "read", m->errors_read);
	set_u64(e, "write", m->errors_write);
	set_u64(e, "checksum", m->errors_sum);
	set_u64(e, "lost", m->errors_lost);
	set_u64(e, "hung", m->errors_hung);
	(void)json_object_set_new(o, "errors", e);
	return o;
}

static json_t *members_json(const struct raid *raid, unsigned count)
{
	json_t *a = json_array();

	for (unsigned i = 0; i < count; i++) {
		struct raid_member_info m;
		if (raid_member_info(raid, i, &m) == 0)
			(void)json_array_append_new(a, member_json(i, &m));
	}
	return a;
}

static json_t *job_json(const struct raid_job_info *j, unsigned priority, uint64_t now_ns)
{
	json_t *o = json_object();

	(void)json_object_set_new(o, "running", json_boolean(j->running));
	set_u64(o, "priority", priority);
	set_u64(o, "done_bytes", j->done_blocks * BLOCK_BYTES);
	set_u64(o, "total_bytes", j->total_blocks * BLOCK_BYTES);
	set_u64(o, "found", j->found);
	set_u64(o, "repaired", j->repaired);
	set_u64(o, "lost", j->lost);
	set_u64(o, "elapsed_s",
		j->running && now_ns > j->started_ns ? (now_ns - j->started_ns) / NS_PER_S : 0);
	(void)json_object_set_new(
	    o, "eta_s",
	    j->running && j->eta_ns > now_ns
		? json_integer((json_int_t)DIV_ROUND_UP(j->eta_ns - now_ns, NS_PER_S))
		: json_null());
	set_u64(o, "last_end", j->last_end_s);
	set_u64(o, "last_error", (uint64_t)-j->last_error);
	return o;
}

static json_t *space_json(struct fs *fs, struct raid *raid)
{
	json_t *o = json_object();
	struct fs_stat s;
	struct raid_space r;

	fs_statfs(fs, &s);
	raid_space(raid, &r);
	set_u64(o, "total_bytes", s.blocks * BLOCK_BYTES);
	set_u64(o, "free_bytes", s.blocks_free * BLOCK_BYTES);
	set_u64(o, "available_bytes", s.blocks_avail * BLOCK_BYTES);
	set_u64(o, "files", s.files);
	set_u64(o, "dirty_bytes", s.dirty_bytes);
	set_u64(o, "data_total_bytes", r.data_total * BLOCK_BYTES);
	set_u64(o, "data_free_bytes", r.data_free * BLOCK_BYTES);
	set_u64(o, "data_reserve_bytes", r.data_reserve * BLOCK_BYTES);
	set_u64(o, "data_clean_bytes", r.data_clean * BLOCK_BYTES);
	set_u64(o, "metadata_total_bytes", r.meta_total * BLOCK_BYTES);
	set_u64(o, "metadata_free_bytes", r.meta_free * BLOCK_BYTES);
	return o;
}

static json_t *cleaner_json(const struct fs *fs)
{
	json_t *o = json_object();
	struct fs_cleaned c;

	fs_cleaned(fs, &c);
	set_u64(o, "moved_bytes", c.moved_blocks * BLOCK_BYTES);
	set_u64(o, "cleaned_bytes", c.stripe_blocks * BLOCK_BYTES);
	return o;
}

/* ---- what happened, what to type next ---- */

__attribute__((format(printf, 2, 3))) static void say(json_t *list, const char *format, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	for (char *p = text; *p; p++) {
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	}
	(void)json_array_append_new(list, json_string(text));
}

/* Somebody is taking over from it already: nothing to type. */
static bool has_heir(const struct control *c, unsigned index, unsigned member_count)
{
	struct raid_member_info m;

	for (unsigned i = 0; i < member_count; i++) {
		if (raid_member_info(c->raid, i, &m) == 0 && m.replaces == (int)index &&
		    m.state == MEMBER_ACTIVE && m.present)
			return true;
	}
	return false;
}

static void explain_member(const struct control *c, unsigned index,
			   const struct raid_member_info *m, const struct raid_info *info,
			   json_t *happened, json_t *next)
{
	const char *state = member_text(m);
	bool heir = has_heir(c, index, info->member_count);
	uint64_t errors =
	    m->errors_read + m->errors_write + m->errors_sum + m->errors_lost + m->errors_hung;

	if (!strcmp(state, "missing")) {
		say(happened, "member %u (%s) is missing", index, m->path);
		if (!heir)
			say(next,
			    "reconnect member %u and mount again, or: trussfs replace %s %u NEW",
			    index, c->mount_point, index);
	} else if (!strcmp(state, "failed")) {
		say(happened, "member %u (%s) was taken out of service", index, m->path);
		if (!heir)
			say(next, "trussfs replace %s %u NEW  (NEW of at least %llu bytes)",
			    c->mount_point, index, (unsigned long long)info->member_bytes_min);
	} else if (!strcmp(state, "stale")) {
		say(happened, "member %u (%s) missed changes and is not trusted", index, m->path);
	} else if (!strcmp(state, "rebuilding")) {
		say(happened, "member %u (%s) is being rebuilt", index, m->path);
	}
	if (errors && m->state != MEMBER_REMOVED) {
		say(happened,
		    "member %u (%s) had errors: %llu read, %llu write, %llu checksum, %llu lost "
		    "writes, %llu hung",
		    index, m->path, (unsigned long long)m->errors_read,
		    (unsigned long long)m->errors_write, (unsigned long long)m->errors_sum,
		    (unsigned long long)m->errors_lost, (unsigned long long)m->errors_hung);
		if (m->state == MEMBER_ACTIVE && !info->scrub.running && !info->rebuild.running)
			say(next,
			    "trussfs scrub start %s  (and look at the device: smartctl -a %s)",
			    c->mount_point, m->path);
	}
}

static void explain(const struct control *c, const struct raid_info *info, json_t *answer)
{
	json_t *happened = json_array(), *next = json_array();

	for (unsigned i = 0; i < info->member_count; i++) {
		struct raid_member_info m;
		if (raid_member_info(c->raid, i, &m) == 0)
			explain_member(c, i, &m, info, happened, next);
	}
	if (info->error) {
		say(happened, "writing stopped: %s", strerror(-info->error));
		say(next, "umount %s, reconnect the members, and mount again", c->mount_point);
	}
	if (info->rebuild.running)
		say(next, "wait for the rebuild: trussfs status --wait %s", c->mount_point);
	else if (info->rebuild.last_error)
		say(happened, "the last rebuild stopped: %s", strerror(-info->rebuild.last_error));
	if (info->rebuild.lost || info->scrub.lost)
		say(happened, "%llu blocks could not be recovered; the log names the files",
		    (unsigned long long)(info->rebuild.lost + info->scrub.lost));
	if (info->chunks_damaged) {
		say(happened, "%u chunks, the first of them chunk %u, lost bitmap or checksum pages: "
		    "data there cannot be read, everything else can",
		    info->chunks_damaged, info->chunk_damaged);
		say(next, "trussfs scrub start %s  (the log then names the files: restore them from a backup)",
		    c->mount_point);
	}
	if (info->chunks_below_target && !info->rebuild.running && !info->error)
		say(happened, "%llu chunks have less redundancy than they should",
		    (unsigned long long)info->chunks_below_target);
	(void)json_object_set_new(answer, "happened", happened);
	(void)json_object_set_new(answer, "next", next);
}

static void add_message(void *arg, enum log_level level, int64_t time_s, const char *text)
{
	json_t *o = json_object();

	set_text(o, "level", level == LOG_LEVEL_ERROR ? "error" : "warning");
	set_u64(o, "time", (uint64_t)time_s);
	set_text(o, "text", text);
	(void)json_array_append_new(arg, o);
}

static json_t *answer_status(struct control *c, bool with_geometry)
{
	uint64_t now_ns = loop_now_ns(c->loop);
	struct raid_info i;
	json_t *o = answer_new();

	raid_info(c->raid, &i);
	set_uuid(o, "uuid", &i.fs);
	set_text(o, "label", i.name);
	set_text(o, "mount", c->mount_point);
	set_text(o, "source", c->source);
	set_u64(o, "level", i.level);
	set_text(o, "state", c->closing ? "closing" : i.error ? "failed" : state_text(i.state));
	set_u64(o, "tolerance", i.tolerance);
	set_u64(o, "redundancy", i.redundancy);
	set_u64(o, "chunks_below_target", i.chunks_below_target);
	(void)json_object_set_new(o, "read_only", json_boolean(i.read_only));
	set_u64(o, "write_error", (uint64_t)-i.error);
	set_u64(o, "member_bytes_min", i.member_bytes_min);
	if (with_geometry) {
		set_u64(o, "groups", i.groups);
		set_u64(o, "strip_bytes", i.strip_bytes);
		set_u64(o, "slice_bytes", i.slice_bytes);
		set_u64(o, "journal_bytes", i.journal_bytes);
		set_u64(o, "chunks", i.chunk_count);
		set_u64(o, "generation", i.gen);
		set_u64(o, "epoch", i.epoch);
		set_u64(o, "journal_seq", i.journal_seq);
		set_u64(o, "journal_tail", i.journal_tail);
	}
	(void)json_object_set_new(o, "members", members_json(c->raid, i.member_count));
	(void)json_object_set_new(o, "space", space_json(c->fs, c->raid));
	(void)json_object_set_new(o, "cleaner", cleaner_json(c->fs));
	(void)json_object_set_new(o, "rebuild", job_json(&i.rebuild, i.rebuild_priority, now_ns));
	(void)json_object_set_new(o, "scrub", job_json(&i.scrub, i.scrub_priority, now_ns));
	explain(c, &i, o);
	json_t *messages = json_array();
	log_recent(add_message, messages);
	(void)json_object_set_new(o, "messages", messages);
	return o;
}

/* ---- requests that wait ---- */

/* The reason as it was logged since, by whoever knew it best; else what the number says. */
static json_t *answer_why(int r, unsigned log_before, const char *about)
{
	return answer_error(r, log_error_since(log_before, about));
}

static int request_member(const struct control *c, json_t *request, struct raid_member_info *ret)
{
	json_t *member = json_object_get(request, "member");

	if (!json_is_integer(member) || json_integer_value(member) < 0 ||
	    json_integer_value(member) >= MEMBERS_MAX)
		return -EINVAL;
	int index = (int)json_integer_value(member);
	return raid_member_info(c->raid, (unsigned)index, ret) < 0 ? -EINVAL : index;
}

static json_t *do_fail(struct control *c, json_t *request)
{
	struct raid_member_info m;
	unsigned before = log_count();
	int index = request_member(c, request, &m);

	if (index < 0)
		return answer_error(-EINVAL, "fail: no such member");
	int r = raid_fail(c->raid, (unsigned)index);
	return r < 0 ? answer_why(r, before, m.path) : answer_new();
}

static json_t *do_replace(struct control *c, json_t *request)
{
	const char *path = json_string_value(json_object_get(request, "path"));
	int index;
	struct raid_member_info m;
	unsigned before = log_count();
	struct dev *dev;

	if (!path || path[0] != '/')
		return answer_error(-EINVAL, "replace: the new device must be an absolute path");
	index = request_member(c, request, &m);
	if (index < 0)
		return answer_error(-EINVAL, "replace: no such member");
	int r = uring_dev_open(c->uring, c->loop, path, 0, &dev);
	if (r < 0)
		return answer_why(r, before, path);
	r = raid_replace(c->raid, (unsigned)index, dev);
	if (r == 0)
		return answer_new();
	dev_close(dev);
	return answer_why(r, before, log_error_since(before, path) ? path : m.path);
}

static json_t *do_scrub_start(struct control *c, json_t *request)
{
	int r = raid_scrub_start(c->raid);

	if (r == -EALREADY)
		return answer_error(r, "a scrub is already running");
	if (r == -EBUSY)
		return answer_error(r, "a rebuild is running: scrub when it has ended");
	return r < 0 ? answer_error(r, NULL) : answer_new();
}

static json_t *do_scrub_cancel(struct control *c, json_t *request)
{
	int r = raid_scrub_cancel(c->raid);

	if (r == -EALREADY || r == -ENOENT || r == -ESRCH)
		return answer_error(r, "no scrub is running");
	return r < 0 ? answer_error(r, NULL) : answer_new();
}

/* Sets it where there is a value, and tells what it is. */
static json_t *do_priority(struct control *c, json_t *request, enum raid_job job)
{
	json_t *value = json_object_get(request, "value");
	struct raid_info i;

	if (value) {
		json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;
		if (n < 0 || n > (json_int_t)RAID_PRIORITY_MAX)
			return answer_error(-EINVAL, "a priority is a number from 0 to 100");
		int r = raid_set_priority(c->raid, job, (unsigned)n);
		if (r < 0)
			return answer_error(r, NULL);
	}
	raid_info(c->raid, &i);
	json_t *answer = answer_new();
	set_u64(answer, "priority",
		job == RAID_JOB_SCRUB ? i.scrub_priority : i.rebuild_priority);
	return answer;
}

static json_t *do_rebuild_priority(struct control *c, json_t *request)
{
	return do_priority(c, request, RAID_JOB_REBUILD);
}

static json_t *do_scrub_priority(struct control *c, json_t *request)
{
	return do_priority(c, request, RAID_JOB_SCRUB);
}

static json_t *do_sync(struct control *c, json_t *request)
{
	int r = fs_sync(c->fs);

	return r < 0 ? answer_error(r, NULL) : answer_new();
}

static const struct {
	const char *op;
	json_t *(*run)(struct control *c, json_t *request);
} operations[] = {
    {"fail", do_fail},
    {"replace", do_replace},
    {"scrub-start", do_scrub_start},
    {"scrub-cancel", do_scrub_cancel},
    {"rebuild-priority", do_rebuild_priority},
    {"scrub-priority", do_scrub_priority},
    {"sync", do_sync},
};

/* ---- clients ---- */

static void client_ready(void *arg);

static void client_close(struct client *k)
{
	struct control *c = k->control;

	if (k->watch)
		uring_unwatch(c->uring, k->watch);
	(void)shutdown(k->fd, SHUT_RDWR); /* the ring may hold the socket a little longer */
	close(k->fd);
	list_del(&k->node);
	c->client_count--;
	json_decref(k->request);
	mem_free(k);
}

/* Takes over the answer. False: the client is gone (and freed). */
static bool client_answer(struct client *k, json_t *answer)
{
	char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
	bool ok = false;

	json_decref(answer);
	if (text) {
		size_t len = strlen(text);
		text[len] = '\n'; /* in place of the NUL: sent with its length */
		ok = send(k->fd, text, len + 1, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len + 1;
		text[len] = 0;
		free(text);
	}
	if (!ok)
		client_close(k);
	return ok;
}

static void client_run(void *arg)
{
	struct client *k = arg;
	struct control *c = k->control;
	const char *op = json_string_value(json_object_get(k->request, "op"));
	json_t *answer = NULL;

	for (size_t i = 0; i < ARRAY_SIZE(operations); i++) {
		if (!strcmp(op, operations[i].op))
			answer = operations[i].run(c, k->request);
	}
	json_decref(k->request);
	k->request = NULL;
	if (--c->busy_count == 0)
		co_cond_wake_all(&c->idle);
	if (client_answer(k, answer) &&
	    uring_watch(c->uring, k->fd, client_ready, k, &k->watch) < 0) {
		k->watch = NULL;
		client_close(k);
	}
}

static bool needs_wait(const char *op)
{
	for (size_t i = 0; i < ARRAY_SIZE(operations); i++) {
		if (!strcmp(op, operations[i].op))
			return true;
	}
	return false;
}

/* Loop context. False: the client is gone, or not listened to until its request is done. */
static bool client_request(struct client *k, const char *line)
{
	struct control *c = k->control;
	json_error_t error;
	json_t *request = json_loads(line, 0, &error);
	const char *op = json_string_value(json_object_get(request, "op"));
	bool go_on;

	if (!op) {
		go_on = client_answer(k, answer_error(-EINVAL, "not a JSON object with an op"));
	} else if (!strcmp(op, "ping")) {
		go_on = client_answer(k, answer_new());
	} else if (!strcmp(op, "status") || !strcmp(op, "info")) {
		go_on = client_answer(k, answer_status(c, !strcmp(op, "info")));
	} else if (!needs_wait(op)) {
		go_on = client_answer(k, answer_error(-EINVAL, "unknown op"));
	} else if (c->closing) {
		go_on = client_answer(k, answer_error(-ESHUTDOWN, "being unmounted"));
	} else {
		uring_unwatch(c->uring, k->watch);
		k->watch = NULL;
		k->request = request;
		c->busy_count++;
		if (co_spawn(c->loop, client_run, k) == 0)
			return false;
		c->busy_count--;
		client_close(k);
		return false;
	}
	json_decref(request);
	return go_on;
}

static void client_ready(void *arg)
{
	struct client *k = arg;
	ssize_t n = recv(k->fd, k->line + k->used, LINE_BYTES - 1 - k->used, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		client_close(k);
		return;
	}
	k->used += (size_t)n;
	char *end = memchr(k->line, '\n', k->used);
	if (!end) {
		if (k->used == LINE_BYTES - 1)
			client_close(k); /* no request is that long */
		return;
	}
	*end = 0;
	/* One line at a time: what a client sends before it has its answer is dropped. */
	k->used = 0;
	(void)client_request(k, k->line); /* the client looks after itself */
}

static void listen_ready(void *arg)
{
	struct control *c = arg;

	for (int i = 0; i < ACCEPT_ROUND; i++) {
		int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK),
		    size = SEND_BYTES;
		if (fd < 0)
			return;
		struct client *k = c->client_count < CLIENTS_MAX ? mem_zalloc(sizeof(*k)) : NULL;
		if (!k) {
			close(fd);
			continue;
		}
		/* A status of MEMBERS_MAX members fits even without it. */
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
		k->control = c;
		k->fd = fd;
		list_add_tail(&c->clients, &k->node);
		c->client_count++;
		if (uring_watch(c->uring, fd, client_ready, k, &k->watch) < 0) {
			k->watch = NULL;
			client_close(k);
		}
	}
}

/* ---- opening and closing ---- */

static int control_listen(struct control *c)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(c->socket_path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, c->socket_path);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return -errno;
	(void)unlink(c->socket_path); /* of a daemon that died: we hold the lock beside it */
	mode_t old = umask(0177);
	int r = bind(c->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	umask(old);
	if (r == 0 && listen(c->fd, (int)CLIENTS_MAX) < 0)
		r = -errno;
	return r;
}

int control_open(struct fs *fs, struct raid *raid, struct loop *loop, struct uring *uring,
		 const struct control_options *options, struct control **ret)
{
	struct control *c = mem_zalloc(sizeof(*c));
	int r = -ENOMEM;

	if (!c)
		return -ENOMEM;
	c->fd = -1;
	c->fs = fs;
	c->raid = raid;
	c->loop = loop;
	c->uring = uring;
	list_init(&c->clients);
	co_cond_init(&c->idle);
	c->socket_path = mem_strdup(options->socket_path);
	c->mount_point = mem_strdup(options->mount_point);
	c->source = mem_strdup(options->source);
	if (c->socket_path && c->mount_point && c->source)
		r = control_listen(c);
	if (r == 0)
		r = uring_watch(uring, c->fd, listen_ready, c, &c->watch);
	if (r < 0) {
		log_error("%s: cannot listen: %s", options->socket_path, strerror(-r));
		control_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

void control_drain(struct control *c)
{
	c->closing = true;
	while (c->busy_count)
		co_cond_wait(&c->idle);
}

void control_close(struct control *c)
{
	struct client *k, *next;

	if (!c)
		return;
	assert(c->busy_count == 0);
	list_for_each_safe (k, next, &c->clients, node)
		client_close(k);
	if (c->watch)
		uring_unwatch(c->uring, c->watch);
	if (c->fd >= 0)
		close(c->fd);
	mem_free(c->socket_path);
	mem_free(c->mount_point);
	mem_free(c->source);
	mem_free(c);
}
