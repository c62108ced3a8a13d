/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Client of the control socket: one connection a request.
 */
#include "client.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX (4u << 20)

int client_find(const char *name, struct rundir_entry *ret)
{
	struct uuid fs;

	if (!strncmp(name, "UUID=", 5))
		return uuid_parse_text(name + 5, &fs) < 0 ? -ENOENT
							  : rundir_find_uuid(&fs, ret, NULL);
	if (!strncmp(name, "LABEL=", 6))
		return rundir_find_name(name + 6, ret, NULL);
	if (uuid_parse_text(name, &fs) == 0)
		return rundir_find_uuid(&fs, ret, NULL);
	if (!strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
		int r = rundir_find_name(name, ret, NULL);
		if (r != -ENOENT)
			return r;
	}
	/* As the daemon knows it first: the path may hang or be dead. */
	if (rundir_find_mount(name, ret, NULL) == 0)
		return 0;
	char *path = realpath(name, NULL);
	int r = path ? rundir_find_mount(path, ret, NULL) : -ENOENT;
	free(path);
	return r;
}

static int client_connect(const struct rundir_entry *e)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[PATH_MAX];
	int fd;

	rundir_socket_path(&e->fs, path);
	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

static int send_line(int fd, const json_t *request)
{
	char *text = json_dumps(request, JSON_COMPACT);
	int r = 0;

	if (!text)
		return -ENOMEM;
	size_t len = strlen(text);
	text[len] = '\n'; /* in place of the NUL */
	if (send(fd, text, len + 1, MSG_NOSIGNAL) != (ssize_t)len + 1)
		r = -errno;
	free(text);
	return r;
}

static json_t *receive_line(int fd)
{
	size_t used = 0, cap = 0;
	char *text = NULL;
	json_t *answer = NULL;

	for (;;) {
		if (used + 1 >= cap) {
			cap = cap ? cap * 2 : 65536;
			char *more = cap <= ANSWER_BYTES_MAX ? realloc(text, cap) : NULL;
			if (!more) {
				errno = ENOMEM;
				break;
			}
			text = more;
		}
		ssize_t n = recv(fd, text + used, cap - used - 1, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		if (n == 0) {
			errno = ECONNRESET;
			break;
		}
		used += (size_t)n;
		if (text[used - 1] == '\n') {
			answer = json_loadb(text, used, 0, NULL);
			errno = EPROTO;
			break;
		}
	}
	free(text);
	return answer;
}

json_t *client_ask(const struct rundir_entry *e, json_t *request)
{
	int fd = client_connect(e), r;
	json_t *answer = NULL;

	if (fd < 0) {
		json_decref(request);
		errno = -fd;
		return NULL;
	}
	r = send_line(fd, request);
	json_decref(request);
	if (r == 0)
		answer = receive_line(fd);
	else
		errno = -r;
	int error = errno;
	close(fd);
	errno = error;
	return answer;
}
