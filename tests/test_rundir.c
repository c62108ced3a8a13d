/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The locks in /run by which programs find each other, and where messages go. connect(2) is caught
 * at link time: the system's logger is the test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "fs/log.h"
#include "fs/rundir.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char dir[] = "/tmp/test_rundir.XXXXXX";
static char logger_path[64]; /* in place of /dev/log */

int __real_connect(int fd, const struct sockaddr *a, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *a, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *a, socklen_t len)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	strcpy(to.sun_path, logger_path);
	assert_string_equal(((const struct sockaddr_un *)a)->sun_path, "/dev/log");
	return __real_connect(fd, (struct sockaddr *)&to, sizeof(to));
}

/* ---- names ---- */

static void test_uuid(void **state)
{
	static const char *const wrong[] = {
	    "",
	    "x",
	    "01234567-89ab-cdef-0123-456789abcde",
	    "01234567-89ab-cdef-0123-456789abcdef0",
	    "0123456789abcdef0123456789abcdef",
	    "01234567-89ab-cdef-0123-456789abcdeg",
	    "0123456-789ab-cdef-0123-456789abcdef",
	    "01234567-89ab-cdef-0123456789abcdef-",
	    "01234567-89ab-cdef-0123-456789abcde-",
	};
	char text[UUID_TEXT_BYTES];
	struct uuid u, untouched = {.b = {9}};

	assert_int_equal(uuid_parse_text("01234567-89AB-cdef-0123-456789abcdef", &u), 0);
	assert_string_equal(uuid_text(&u, text), "01234567-89ab-cdef-0123-456789abcdef");
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		u = untouched;
		assert_int_equal(uuid_parse_text(wrong[i], &u), -EINVAL);
		assert_true(uuid_equal(&u, &untouched));
	}
}

static struct rundir_lock *lock_new(uint8_t n, const char *mount, const char *name)
{
	struct rundir_entry e = {.fs = {.b = {n}}, .pid = 100 + n};
	struct rundir_lock *lock;

	snprintf(e.mount, sizeof(e.mount), "%s", mount);
	snprintf(e.source, sizeof(e.source), "/dev/x%u", n);
	snprintf(e.name, sizeof(e.name), "%s", name);
	assert_int_equal(rundir_lock(&e.fs, &lock), 0);
	assert_int_equal(rundir_write(lock, &e), 0);
	return lock;
}

static int count_entry(void *arg, const struct rundir_entry *e)
{
	unsigned *count = arg;

	assert_true(e->pid > 100);
	return ++*count == 10 ? 77 : 0;
}

static void test_find(void **state)
{
	struct rundir_lock *a, *b, *c, *again;
	struct rundir_entry e;
	struct uuid one = {.b = {1}};
	unsigned count = 0;
	char path[PATH_MAX];
	int fd;

	/* Nobody has ever mounted: there is no directory. */
	assert_int_equal(rundir_find_uuid(&one, &e, NULL), -ENOENT);
	assert_int_equal(rundir_for_each(count_entry, &count), 0);
	assert_int_equal(count, 0);

	a = lock_new(1, "/mnt/a", "same");
	b = lock_new(2, "/mnt/b b", "same");
	c = lock_new(3, "/mnt/c", "");
	assert_int_equal(rundir_lock(&one, &again), -EBUSY);
	assert_int_equal(rundir_find_mount("/mnt/b b", &e, NULL), 0);
	assert_int_equal(e.pid, 102);
	assert_int_equal(e.fs.b[0], 2);
	assert_string_equal(e.source, "/dev/x2");
	assert_false(e.closing || e.has_result);
	assert_int_equal(rundir_find_mount("/mnt", &e, NULL), -ENOENT);
	assert_int_equal(rundir_find_name("same", &e, NULL), -EEXIST);
	assert_int_equal(rundir_find_name("", &e, NULL), -ENOENT); /* no label is nobody's label */
	assert_int_equal(rundir_for_each(count_entry, &count), 0);
	assert_int_equal(count, 3);
	count = 9;
	assert_int_equal(rundir_for_each(count_entry, &count), 77);

	/* Its end, seen by whoever found it. */
	assert_int_equal(rundir_find_uuid(&one, &e, &fd), 0);
	assert_int_equal(rundir_append(a, "closing", 1), 0);
	assert_int_equal(rundir_find_uuid(&one, &e, NULL), 0);
	assert_true(e.closing && !e.has_result);
	assert_int_equal(rundir_append(a, "result", -5), 0);
	assert_int_equal(rundir_append(a, "later", 1), 0); /* a word of another version */
	rundir_unlock(a);
	assert_false(rundir_held(fd));
	assert_int_equal(rundir_read(fd, &e), 0);
	assert_true(e.has_result);
	assert_int_equal(e.result, -5);
	close(fd);
	assert_int_equal(rundir_read(-1, &e), -EBADF);
	assert_int_equal(rundir_find_name("same", &e, NULL), 0);
	assert_int_equal(e.fs.b[0], 2);

	/* What a daemon that died left, and what is none of ours: not there. */
	rundir_socket_path(&one, path);
	assert_true(strstr(path, ".sock"));
	strcpy(strstr(path, ".sock"), ".pid");
	fd = open(path, O_CREAT | O_RDWR, 0644);
	assert_int_equal(write(fd, "pid 1\nnonsense\n", 15), 15);
	assert_int_equal(rundir_find_uuid(&one, &e, NULL), -ENOENT);
	close(fd);
	snprintf(path, sizeof(path), "%s/run/x1234567-89ab-cdef-0123-456789abcdef.pid", dir);
	close(open(path, O_CREAT | O_RDWR, 0644));
	assert_int_equal(rundir_find_name("nobody", &e, NULL), -ENOENT);
	a = lock_new(1, "/mnt/a", "x"); /* takes over what was left */
	assert_int_equal(rundir_find_uuid(&one, &e, NULL), 0);
	rundir_unlock(a);
	rundir_unlock(b);
	rundir_unlock(c);
	rundir_unlock(NULL);
}

static void test_lock_fails(void **state)
{
	static struct rundir_entry e;
	struct rundir_lock *lock;
	struct uuid one = {.b = {1}};
	char path[PATH_MAX];

	log_to_stderr("test", false);
	log_mute(true);
	setenv("TRUSSFS_RUNDIR", "/no/such/place", 1);
	assert_int_equal(rundir_lock(&one, &lock), -ENOENT);
	snprintf(path, sizeof(path), "%s/file", dir);
	close(open(path, O_CREAT | O_RDWR, 0644));
	setenv("TRUSSFS_RUNDIR", path, 1);
	assert_int_equal(rundir_lock(&one, &lock), -ENOTDIR);
	mem_fail_after(1, false);
	assert_int_equal(rundir_lock(&one, &lock), -ENOMEM);
	snprintf(path, sizeof(path), "%s/run", dir);
	setenv("TRUSSFS_RUNDIR", path, 1);
	mem_fail_after(1, false);
	assert_int_equal(rundir_find_uuid(&one, &e, NULL), -ENOMEM);
	mem_fail_after(0, false);
	log_mute(false);
	/* The lock's last holder removes the file between the open and the lock of the next: seen
	 * by its name. */
	setenv("TRUSSFS_RUNDIR", "", 1); /* nothing: the usual place */
	rundir_socket_path(&one, path);
	assert_true(!strncmp(path, "/run/trussfs/", 13));
	snprintf(path, sizeof(path), "%s/run", dir);
	setenv("TRUSSFS_RUNDIR", path, 1);
}

/* ---- messages ---- */

static char heard[4][512];
static void remember(void *arg, enum log_level level, int64_t time_s, const char *text)
{
	unsigned *n = arg;

	assert_true(time_s > 0 && level <= LOG_LEVEL_WARNING);
	if (*n < 4)
		snprintf(heard[*n], sizeof(heard[0]), "%s", text);
	++*n;
}

static int logger_new(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(a.sun_path, logger_path);
	(void)unlink(logger_path);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static const char *logged(int fd)
{
	static char line[2048];
	ssize_t n = recv(fd, line, sizeof(line) - 1, 0);

	line[n < 0 ? 0 : n] = 0;
	return line;
}

static void test_log(void **state)
{
	unsigned n = 0, before;
	int fd;

	log_to_syslog("truss-test"); /* no logger runs: kept all the same */
	before = log_count();
	log_error("%s: first", "/dev/a");
	log_warning("second about /dev/a");
	log_info("third");
	assert_int_equal(log_count(), before + 2);
	assert_string_equal(log_error_since(before, "/dev/a"), "/dev/a: first");
	assert_null(log_error_since(before, "/dev/b"));
	assert_null(log_error_since(before + 1, "/dev/a")); /* a warning is no reason */
	/* One that starts later, and one that is started anew. */
	for (int i = 0; i < 2; i++) {
		fd = logger_new();
		log_error("heard");
		assert_non_null(strstr(logged(fd), "truss-test["));
		log_warning("heard");
		assert_true(!strncmp(logged(fd), "<28>", 4)); /* daemon, warning */
		log_info("heard");
		assert_true(!strncmp(logged(fd), "<30>", 4));
		log_debug("not heard");
		assert_string_equal(logged(fd), "");
		/* It does not read: messages are dropped, nobody waits. */
		for (int k = 0; k < 3000; k++)
			log_info("much");
		close(fd);
	}
	log_mute(true);
	before = log_count();
	log_error("unheard");
	log_mute(false);
	assert_int_equal(log_count(), before);
	for (int i = 0; i < LOG_KEPT + 5; i++)
		log_error("number %d", i);
	log_recent(remember, &n);
	assert_int_equal(n, LOG_KEPT);
	assert_string_equal(heard[0], "number 5"); /* oldest first */
	/* Too long ago to be known. */
	assert_null(log_error_since(0, "number 4"));
	assert_non_null(log_error_since(0, "number 36"));
}

static void stderr_of(void (*fn)(void), char *text, size_t cap)
{
	int old = dup(2), fds[2];

	fflush(stderr);
	assert_int_equal(pipe(fds), 0);
	dup2(fds[1], 2);
	close(fds[1]);
	fn();
	fflush(stderr);
	dup2(old, 2);
	close(old);
	ssize_t n = read(fds[0], text, cap - 1);
	text[n < 0 ? 0 : n] = 0;
	close(fds[0]);
}

static void say_all(void)
{
	log_error("one");
	log_warning("two");
	log_info("three");
	log_debug("four");
}

static void test_stderr(void **state)
{
	char text[512];

	log_to_stderr("tool", false);
	stderr_of(say_all, text, sizeof(text));
	assert_string_equal(text, "tool: one\ntool: warning: two\n");
	log_to_stderr("tool", true);
	stderr_of(say_all, text, sizeof(text));
	assert_string_equal(text, "tool: one\ntool: warning: two\ntool: three\ntool: four\n");
}

static int setup_all(void **state)
{
	char run[64];

	if (!mkdtemp(dir))
		return -1;
	snprintf(run, sizeof(run), "%s/run", dir);
	snprintf(logger_path, sizeof(logger_path), "%s/log", dir);
	return setenv("TRUSSFS_RUNDIR", run, 1);
}

static int teardown_all(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_uuid),       cmocka_unit_test(test_find),
	    cmocka_unit_test(test_lock_fails), cmocka_unit_test(test_log),
	    cmocka_unit_test(test_stderr),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
