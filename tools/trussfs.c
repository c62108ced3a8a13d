/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * trussfs: what an administrator does with a filesystem that exists.
 *
 * Each command finds the filesystem, asks its daemon, and prints the answer. What is dangerous is
 * checked here as far as it may block (what a new device holds), so that the daemon never waits for
 * a device it does not know.
 */
#include "args.h"
#include "client.h"
#include "fs/log.h"
#include "print.h"
#include "probe.h"
#include "raid/raid.h"
#include "scan.h"
#include "show.h"
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TOOL	      "trussfs"
#define POLL_MS	      500
#define ARGUMENTS_MAX (MEMBERS_MAX + 1)
#define SCAN_DIRS_MAX 16

#define EXIT_USAGE    1
#define EXIT_FAILED   2
#define EXIT_DEGRADED 3
#define EXIT_BROKEN   4

struct cli {
	bool json, wait, force;
	const char *scan_dirs[SCAN_DIRS_MAX];
	unsigned scan_dir_count;
	char **args;
	int arg_count;
};

static const char usage_text[] =
    "Usage: trussfs COMMAND [OPTIONS] ...\n"
    "\n"
    "  list                       filesystems on this machine and their members\n"
    "  status FS                  state, what happened, what to do next\n"
    "  info FS | MEMBER...        geometry; by members also when not mounted\n"
    "  fail FS MEMBER             take a member out of service\n"
    "  replace FS OLD NEW         put the device NEW in place of member OLD\n"
    "  scrub start|status|cancel FS\n"
    "                             read and check everything, repair what can be\n"
    "  rebuild priority FS [VALUE], scrub priority FS [VALUE]\n"
    "                             how much it takes from other requests: host, balanced,\n"
    "                             rebuild or 0-100\n"
    "  sync FS                    write everything to the members\n"
    "\n"
    "FS is a mount point, a label or a UUID. A member is given by its index in status,\n"
    "its path or its UUID.\n"
    "\n"
    "      --json                 answer in JSON\n"
    "  -w, --wait                 status, replace, scrub start: wait for the end of the\n"
    "                             rebuild or scrub\n"
    "  -f, --force                replace: even if NEW holds something\n"
    "      --scan DIR             list: look for image files in DIR too\n"
    "  -h, --help                 show this text\n"
    "  -V, --version              show the version\n"
    "\n"
    "Exit status: 0 done, 1 usage, 2 failed; status: 3 degraded or rebuilding, 4 failed.\n";

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

static void pause_ms(unsigned ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	(void)nanosleep(&t, NULL); /* waking early only looks once more */
}

/* ---- asking ---- */

/* With --json a failure is an answer, too. */
static int fail_json(const struct cli *c, int code, const char *object, const char *why)
{
	fail(code, TOOL, "%s: %s", object, why);
	if (c->json)
		(void)print_json(
		    json_pack("{s:i,s:s}", "version", 1, "error", why)); /* see exit code */
	return code;
}

static int find(const struct cli *c, const char *name, struct rundir_entry *ret)
{
	int r = client_find(name, ret);

	if (r == 0)
		return 0;
	return fail_json(c, EXIT_FAILED, name,
			 r == -EEXIST ? "several filesystems have this label: use the mount point"
				      : "no mounted trussfs filesystem of that name");
}

/* NULL: reported. */
static json_t *ask(const struct cli *c, const struct rundir_entry *e, json_t *request)
{
	json_t *answer = client_ask(e, request);
	const char *error = json_string_value(json_object_get(answer, "error"));

	if (answer && !error)
		return answer;
	(void)fail_json(c, EXIT_FAILED, e->mount,
			error		  ? error
			: errno == ENOENT ? "the daemon does not listen"
			: errno == EACCES ? "only root may ask the daemon"
					  : strerror(errno));
	json_decref(answer);
	return NULL;
}

static json_t *ask_op(const struct cli *c, const struct rundir_entry *e, const char *op)
{
	return ask(c, e, json_pack("{s:s}", "op", op));
}

/* For what has nothing to tell but that it worked. */
static int done(const struct cli *c, json_t *answer, const char *format, ...)
{
	va_list ap;

	if (!answer)
		return EXIT_FAILED;
	if (c->json)
		return print_json(answer) < 0 ? EXIT_FAILED : 0;
	json_decref(answer);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
	return 0;
}

/* Polls until the job has ended; the last status, NULL if that failed (reported). */
static json_t *wait_job(const struct cli *c, const struct rundir_entry *e, const char *job)
{
	bool bar = !c->json && isatty(STDOUT_FILENO);

	/* As long as it takes: the user can interrupt us, and the job goes on. */
	for (;;) {
		json_t *s = ask_op(c, e, "status");
		if (!s || !job_running(s, job)) {
			if (bar)
				printf("\r\033[K");
			return s;
		}
		if (bar)
			show_progress(s, job);
		json_decref(s);
		pause_ms(POLL_MS);
	}
}

/* ---- list ---- */

static int add_mounted(void *arg, const struct rundir_entry *e)
{
	char uuid[UUID_TEXT_BYTES];
	json_t *o = json_pack("{s:s,s:s,s:s}", "uuid", uuid_text(&e->fs, uuid), "label", e->name,
			      "mount", e->mount);
	json_t *status = client_ask(e, json_pack("{s:s}", "op", "status"));

	if (status) {
		/* From the daemon, which knows better than a scan. */
		(void)json_object_update_missing(o, status);
		(void)json_object_del(o, "happened");
		(void)json_object_del(o, "next");
		json_decref(status);
	}
	return json_array_append_new(arg, o);
}

static bool listed(const json_t *list, const char *uuid)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		if (!strcmp(text(json_array_get(list, i), "uuid"), uuid))
			return true;
	}
	return false;
}

/* Also marks them as here: free space is counted on those alone. */
static void member_paths(const struct scan *scan, struct table *t, const char **paths)
{
	static struct dev here;

	for (unsigned i = 0; i < t->member_count; i++) {
		paths[i] = NULL;
		for (unsigned j = 0; j < scan->count; j++) {
			if (uuid_equal(&scan->members[j].label.member, &t->members[i].uuid))
				paths[i] = scan->members[j].path;
		}
		if (paths[i])
			t->members[i].dev = &here;
	}
}

static void add_unmounted(json_t *list, const struct scan *scan)
{
	for (unsigned i = 0; i < scan->count; i++) {
		const struct scan_member *m = scan_newest(scan, &scan->members[i].label.fs);
		const char *paths[MEMBERS_MAX];
		char uuid[UUID_TEXT_BYTES];
		if (!m->label.table || listed(list, uuid_text(&m->label.fs, uuid)))
			continue;
		member_paths(scan, m->label.table, paths);
		json_t *o = print_table_json(m->label.table, paths);
		(void)json_object_set_new(o, "mount", json_null());
		(void)json_array_append_new(list, o);
	}
}

static void show_listed(const json_t *o)
{
	const json_t *members = json_object_get(o, "members");
	const char *mount = json_string_value(json_object_get(o, "mount"));

	printf("%s%s%s  RAID %lld, %s%s\n", text(o, "uuid"), text(o, "label")[0] ? "  " : "",
	       text(o, "label"), (long long)json_integer_value(json_object_get(o, "level")),
	       mount ? "mounted on " : "not mounted", mount ? mount : "");
	for (size_t i = 0; i < json_array_size(members); i++) {
		const json_t *m = json_array_get(members, i);
		if (strcmp(text(m, "state"), "removed") != 0)
			printf("  %3lld  %-10s %s\n",
			       (long long)json_integer_value(json_object_get(m, "index")),
			       text(m, "state"), text(m, "path"));
	}
}

static int cmd_list(const struct cli *c)
{
	json_t *list = json_array();
	struct scan scan;

	scan_init(&scan);
	(void)rundir_for_each(add_mounted, list); /* without memory: fewer lines */
	scan_block_devices(&scan);
	for (unsigned i = 0; i < c->scan_dir_count; i++) {
		int r = scan_directory(&scan, c->scan_dirs[i]);
		if (r < 0)
			fail(r, TOOL, "%s: cannot scan: %s", c->scan_dirs[i], strerror(-r));
	}
	add_unmounted(list, &scan);
	scan_clear(&scan);
	if (c->json)
		return print_json(json_pack("{s:i,s:o}", "version", 1, "filesystems", list)) < 0
			   ? EXIT_FAILED
			   : 0;
	for (size_t i = 0; i < json_array_size(list); i++)
		show_listed(json_array_get(list, i));
	if (!json_array_size(list))
		printf(
		    "No trussfs filesystem found. Image files are looked for with --scan DIR.\n");
	json_decref(list);
	return 0;
}

/* ---- status and info ---- */

static int state_exit(const json_t *status)
{
	const char *state = text(status, "state");

	if (!strcmp(state, "optimal") || !strcmp(state, "closing"))
		return 0;
	return !strcmp(state, "failed") ? EXIT_BROKEN : EXIT_DEGRADED;
}

static int cmd_status(const struct cli *c)
{
	struct rundir_entry e;
	int code;

	if (find(c, c->args[0], &e))
		return EXIT_FAILED;
	json_t *s = ask_op(c, &e, "status");
	if (s && c->wait) {
		const char *job = job_running(s, "rebuild") ? "rebuild" : "scrub";
		json_decref(s);
		s = wait_job(c, &e, job);
	}
	if (!s)
		return EXIT_FAILED;
	code = state_exit(s);
	if (c->json)
		return print_json(s) < 0 ? EXIT_FAILED : code;
	show_status(s);
	json_decref(s);
	return code;
}

static int info_members(const struct cli *c)
{
	struct scan scan;
	struct uuid fs;
	const char *paths[MEMBERS_MAX];

	scan_init(&scan);
	if (scan_sources(&scan, c->args, (unsigned)c->arg_count, &fs) < 0)
		return EXIT_FAILED; /* logged */
	const struct scan_member *m = scan_newest(&scan, &fs);
	if (!m->label.table) {
		scan_clear(&scan);
		return fail(EXIT_FAILED, TOOL, "%s: no valid volume table", c->args[0]);
	}
	member_paths(&scan, m->label.table, paths);
	json_t *info = print_table_json(m->label.table, paths);
	(void)json_object_set_new(info, "mount", json_null());
	scan_clear(&scan);
	if (c->json)
		return print_json(info) < 0 ? EXIT_FAILED : 0;
	print_geometry(stdout, info);
	json_decref(info);
	return 0;
}

/* Mount point, label or UUID of a mounted filesystem first; else members. */
static int cmd_info(const struct cli *c)
{
	struct rundir_entry e;
	struct stat st;

	if (client_find(c->args[0], &e) == 0) {
		json_t *info = ask_op(c, &e, "info");
		if (!info)
			return EXIT_FAILED;
		if (c->json)
			return print_json(info) < 0 ? EXIT_FAILED : 0;
		print_geometry(stdout, info);
		json_decref(info);
		return 0;
	}
	bool tag = !strncmp(c->args[0], "LABEL=", 6) || !strncmp(c->args[0], "UUID=", 5);
	if (!tag && (stat(c->args[0], &st) < 0 || S_ISDIR(st.st_mode)))
		return fail_json(c, EXIT_FAILED, c->args[0],
				 "neither a mounted trussfs filesystem nor a member of one");
	return info_members(c);
}

/* ---- fail and replace ---- */

static bool same_file(const char *a, const char *b)
{
	struct stat x, y;

	if (stat(a, &x) < 0 || stat(b, &y) < 0)
		return false;
	if (S_ISBLK(x.st_mode) && S_ISBLK(y.st_mode))
		return x.st_rdev == y.st_rdev;
	return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The index of the member a user names. -1: reported. */
static int member_index(const struct cli *c, const struct rundir_entry *e, const char *name)
{
	json_t *status = ask_op(c, e, "status");
	const json_t *members = json_object_get(status, "members");
	int found = -1;
	char *end;
	long n = strtol(name, &end, 10);

	if (!status)
		return -1;
	for (size_t i = 0; i < json_array_size(members); i++) {
		const json_t *m = json_array_get(members, i);
		int index = (int)json_integer_value(json_object_get(m, "index"));
		if (!strcmp(text(m, "state"), "removed"))
			continue;
		if ((!*end && *name && n == index) || !strcmp(name, text(m, "uuid")) ||
		    !strcmp(name, text(m, "path")) || same_file(name, text(m, "path")))
			found = index;
	}
	json_decref(status);
	if (found < 0)
		(void)fail_json(c, EXIT_FAILED, name,
				"no member of this filesystem; trussfs status lists them");
	return found;
}

static int cmd_fail(const struct cli *c)
{
	struct rundir_entry e;

	if (find(c, c->args[0], &e))
		return EXIT_FAILED;
	int index = member_index(c, &e, c->args[1]);
	if (index < 0)
		return EXIT_FAILED;
	return done(c, ask(c, &e, json_pack("{s:s,s:i}", "op", "fail", "member", index)),
		    "Member %d is out of service. Next: trussfs replace %s %d NEW", index, e.mount,
		    index);
}

/* Whether a device may be given to replace. 0, or reported. */
static int check_new(const struct cli *c, const char *path)
{
	char found[PROBE_TEXT_BYTES], why[PROBE_TEXT_BYTES + 64];
	struct stat st;

	if (stat(path, &st) < 0)
		return fail_json(c, EXIT_FAILED, path, strerror(errno));
	/* O_EXCL without O_CREAT asks for the exclusive use of a block device, and means nothing
	 * for a file. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | (S_ISBLK(st.st_mode) ? O_EXCL : 0));
	if (fd < 0)
		return fail_json(c, EXIT_FAILED, path, errno == EBUSY ? "in use" : strerror(errno));
	int r = probe_fd(fd, found);
	close(fd);
	if (r < 0)
		return fail_json(c, EXIT_FAILED, path, strerror(-r));
	if (r > 0 && !c->force) {
		snprintf(why, sizeof(why), "refused: found %s; --force overwrites it", found);
		return fail_json(c, EXIT_FAILED, path, why);
	}
	return 0;
}

static int cmd_replace(const struct cli *c)
{
	struct rundir_entry e;

	if (find(c, c->args[0], &e))
		return EXIT_FAILED;
	int index = member_index(c, &e, c->args[1]);
	if (index < 0 || check_new(c, c->args[2]))
		return EXIT_FAILED;
	char *path = realpath(c->args[2], NULL);
	if (!path)
		return fail_json(c, EXIT_FAILED, c->args[2], strerror(errno));
	json_t *answer =
	    ask(c, &e, json_pack("{s:s,s:i,s:s}", "op", "replace", "member", index, "path", path));
	free(path);
	if (!answer || !c->wait)
		return done(c, answer, "Member %d is being replaced. Progress: trussfs status %s",
			    index, e.mount);
	json_decref(answer);
	json_t *s = wait_job(c, &e, "rebuild");
	if (!s)
		return EXIT_FAILED;
	int error =
	    (int)json_integer_value(json_object_get(json_object_get(s, "rebuild"), "last_error"));
	if (error || json_integer_value(json_object_get(s, "chunks_below_target"))) {
		json_decref(s);
		return fail_json(c, EXIT_FAILED, c->args[2],
				 error ? strerror(error)
				       : "the rebuild ended, but redundancy is not complete");
	}
	return done(c, s, "Member %d is replaced.", index);
}

/* ---- scrub and sync ---- */

static int scrub_end(const struct cli *c, json_t *s)
{
	const json_t *j = json_object_get(s, "scrub");
	int code = 0;

	if (!s)
		return EXIT_FAILED;
	if (json_integer_value(json_object_get(j, "last_error")) ||
	    json_integer_value(json_object_get(j, "lost")))
		code = EXIT_FAILED;
	if (c->json)
		return print_json(s) < 0 ? EXIT_FAILED : code;
	show_job(s, "scrub");
	if (!json_integer_value(json_object_get(j, "found")) && !job_running(s, "scrub") && !code)
		printf("          nothing bad found\n");
	json_decref(s);
	return code;
}

/* -1: it is none. */
static int priority_parse(const char *s)
{
	char *end;

	for (size_t i = 0; i < PRIORITY_NAMES; i++) {
		if (!strcmp(s, priority_names[i].name))
			return (int)priority_names[i].value;
	}
	if (*s < '0' || *s > '9')
		return -1;
	errno = 0;
	unsigned long n = strtoul(s, &end, 10);
	return *end || errno || n > RAID_PRIORITY_MAX ? -1 : (int)n;
}

/* priority FS [VALUE] of a job. */
static int cmd_priority(const struct cli *c, const char *op)
{
	json_t *request = json_pack("{s:s}", "op", op);
	char shown[PRIORITY_TEXT_BYTES];
	struct rundir_entry e;

	if (c->arg_count == 3) {
		int n = priority_parse(c->args[2]);
		if (n < 0) {
			json_decref(request);
			return fail(EXIT_USAGE, TOOL,
				    "priority: got \"%s\", expected host, balanced, rebuild or a "
				    "number from 0 to 100",
				    c->args[2]);
		}
		(void)json_object_set_new(request, "value", json_integer(n));
	}
	if (find(c, c->args[1], &e)) {
		json_decref(request);
		return EXIT_FAILED;
	}
	json_t *answer = ask(c, &e, request);
	return done(c, answer, "%s",
		    priority_text((unsigned)json_integer_value(json_object_get(answer, "priority")), shown));
}

static int cmd_rebuild(const struct cli *c)
{
	if (strcmp(c->args[0], "priority") != 0)
		return fail(EXIT_USAGE, TOOL, "rebuild: got \"%s\", expected priority", c->args[0]);
	return cmd_priority(c, "rebuild-priority");
}

static int cmd_scrub(const struct cli *c)
{
	const char *verb = c->args[0];
	struct rundir_entry e;

	if (!strcmp(verb, "priority"))
		return cmd_priority(c, "scrub-priority");
	if (c->arg_count != 2)
		return fail(EXIT_USAGE, TOOL, "scrub %s: got %d arguments, expected: FS", verb,
			    c->arg_count - 1);
	if (find(c, c->args[1], &e))
		return EXIT_FAILED;
	if (!strcmp(verb, "start")) {
		json_t *answer = ask_op(c, &e, "scrub-start");
		if (!answer || !c->wait)
			return done(c, answer, "Scrub started. Progress: trussfs scrub status %s",
				    e.mount);
		json_decref(answer);
		return scrub_end(c, wait_job(c, &e, "scrub"));
	}
	if (!strcmp(verb, "cancel"))
		return done(c, ask_op(c, &e, "scrub-cancel"),
			    "Scrub stopped. It goes on from there with: trussfs scrub start %s",
			    e.mount);
	if (!strcmp(verb, "status"))
		return scrub_end(c, c->wait ? wait_job(c, &e, "scrub") : ask_op(c, &e, "status"));
	return fail(EXIT_USAGE, TOOL, "scrub: got \"%s\", expected start, status, cancel or priority",
		    verb);
}

static int cmd_sync(const struct cli *c)
{
	struct rundir_entry e;

	if (find(c, c->args[0], &e))
		return EXIT_FAILED;
	/* What the kernel holds back first: the daemon does not know of it. */
	int fd = open(e.mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return fail_json(c, EXIT_FAILED, e.mount, strerror(errno));
	int r = syncfs(fd) < 0 ? errno : 0;
	close(fd);
	if (r)
		return fail_json(c, EXIT_FAILED, e.mount, strerror(r));
	return done(c, ask_op(c, &e, "sync"), "Everything is on the members.");
}

static const struct command {
	const char *name;
	int args_min, args_max;
	int (*run)(const struct cli *c);
	const char *args;
} commands[] = {
    {"list", 0, 0, cmd_list, ""},
    {"status", 1, 1, cmd_status, "FS"},
    {"info", 1, MEMBERS_MAX, cmd_info, "FS or MEMBER..."},
    {"fail", 2, 2, cmd_fail, "FS MEMBER"},
    {"replace", 3, 3, cmd_replace, "FS OLD NEW"},
    {"rebuild", 2, 3, cmd_rebuild, "priority FS [VALUE]"},
    {"scrub", 2, 3, cmd_scrub, "start|status|cancel FS, or priority FS [VALUE]"},
    {"sync", 1, 1, cmd_sync, "FS"},
};

/* 1: go on; else *ret_exit. */
static int parse_arguments(struct cli *c, int argc, char **argv, int *ret_exit)
{
	static const struct option options[] = {
	    {"json", no_argument, NULL, 'J'},
	    {"wait", no_argument, NULL, 'w'},
	    {"force", no_argument, NULL, 'f'},
	    {"scan", required_argument, NULL, 'S'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	int o;

	*ret_exit = EXIT_USAGE;
	while ((o = getopt_long(argc, argv, "wfhV", options, NULL)) != -1) {
		switch (o) {
		case 'J':
			c->json = true;
			break;
		case 'w':
			c->wait = true;
			break;
		case 'f':
			c->force = true;
			break;
		case 'S':
			if (c->scan_dir_count == SCAN_DIRS_MAX)
				return fail(0, TOOL, "--scan: more than %d directories",
					    SCAN_DIRS_MAX);
			c->scan_dirs[c->scan_dir_count++] = optarg;
			break;
		case 'h':
			fputs(usage_text, stdout);
			*ret_exit = 0;
			return 0;
		case 'V':
			printf(VERSION_LINE, TOOL);
			*ret_exit = 0;
			return 0;
		default:
			return fail(0, TOOL, "try --help");
		}
	}
	c->args = argv + optind;
	c->arg_count = argc - optind;
	return 1;
}

int main(int argc, char **argv)
{
	struct cli c = {0};
	int code;

	log_to_stderr(TOOL, false);
	if (parse_arguments(&c, argc, argv, &code) != 1)
		return code;
	if (c.arg_count == 0)
		return fail(EXIT_USAGE, TOOL, "no command given; try --help");
	const char *name = *c.args++;
	c.arg_count--;
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		const struct command *m = &commands[i];
		if (strcmp(name, m->name) != 0)
			continue;
		if (c.arg_count < m->args_min || c.arg_count > m->args_max)
			return fail(EXIT_USAGE, TOOL, "%s: got %d arguments, expected: %s", name,
				    c.arg_count, *m->args ? m->args : "none");
		return m->run(&c);
	}
	return fail(EXIT_USAGE, TOOL, "unknown command \"%s\"; try --help", name);
}
