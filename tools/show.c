/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Status text.
 */
#include "show.h"
#include "args.h"
#include "raid/raid.h"
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#define BAR_CELLS      30
#define MESSAGES_SHOWN 5

static uint64_t number(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

const struct priority_name priority_names[PRIORITY_NAMES] = {
    {"host", 0},
    {"balanced", RAID_PRIORITY_MAX / 2},
    {"rebuild", RAID_PRIORITY_MAX},
};

const char *priority_text(unsigned priority, char out[PRIORITY_TEXT_BYTES])
{
	for (size_t i = 0; i < PRIORITY_NAMES; i++) {
		if (priority_names[i].value == priority)
			return priority_names[i].name;
	}
	snprintf(out, PRIORITY_TEXT_BYTES, "%u", priority);
	return out;
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "?";
}

bool job_running(const json_t *status, const char *job)
{
	return json_is_true(json_object_get(json_object_get(status, job), "running"));
}

/* Percent with one digit, never 100.0 before the end. */
static double job_percent(const json_t *j)
{
	uint64_t done = number(j, "done_bytes"), total = number(j, "total_bytes");
	double p = total ? 100.0 * (double)done / (double)total : 0;

	return p > 99.9 ? 99.9 : p;
}

static void progress_text(const json_t *j, char *out, size_t cap)
{
	char done[SIZE_TEXT_BYTES], total[SIZE_TEXT_BYTES], eta[SIZE_TEXT_BYTES],
	    bar[BAR_CELLS + 1];
	double percent = job_percent(j);
	int filled = (int)(percent / 100 * BAR_CELLS);
	bool known = json_is_integer(json_object_get(j, "eta_s"));

	for (int i = 0; i < BAR_CELLS; i++)
		bar[i] = i < filled ? '#' : '.';
	bar[BAR_CELLS] = 0;
	snprintf(out, cap, "[%s] %5.1f %%  %s of %s%s%s", bar, percent,
		 size_text(number(j, "done_bytes"), done),
		 size_text(number(j, "total_bytes"), total), known ? ", ends in " : "",
		 known ? duration_text(number(j, "eta_s"), eta) : "");
}

void show_progress(const json_t *status, const char *job)
{
	char line[256];

	progress_text(json_object_get(status, job), line, sizeof(line));
	printf("\r%s: %s\033[K", job, line);
	fflush(stdout);
}

void show_job(const json_t *status, const char *job)
{
	const json_t *j = json_object_get(status, job);
	char line[256];

	if (job_running(status, job)) {
		progress_text(j, line, sizeof(line));
		printf("%s %s\n", !strcmp(job, "scrub") ? "Scrub:   " : "Rebuild: ", line);
	} else if (number(j, "last_error")) {
		printf("%s stopped: %s\n", !strcmp(job, "scrub") ? "Scrub:   " : "Rebuild: ",
		       strerror((int)number(j, "last_error")));
	} else if (number(j, "last_end")) {
		time_t t = (time_t)number(j, "last_end");
		struct tm tm;
		strftime(line, sizeof(line), "%F %T", localtime_r(&t, &tm));
		printf("%s ended %s\n", !strcmp(job, "scrub") ? "Scrub:   " : "Rebuild: ", line);
	} else if (number(j, "total_bytes")) {
		printf("%s ended\n", !strcmp(job, "scrub") ? "Scrub:   " : "Rebuild: ");
	} else if (!strcmp(job, "scrub")) {
		printf("Scrub:    none has run yet\n");
	} else {
		return;
	}
	if (number(j, "found") || number(j, "lost"))
		printf("          found %" PRIu64 " bad blocks, repaired %" PRIu64 ", lost %" PRIu64
		       "\n",
		       number(j, "found"), number(j, "repaired"), number(j, "lost"));
}

static void show_member(const json_t *m)
{
	const json_t *e = json_object_get(m, "errors");
	char size[SIZE_TEXT_BYTES], errors[160] = "";
	static const char *const kinds[] = {"read", "write", "checksum", "lost", "hung"};
	size_t used = 0;

	if (!strcmp(text(m, "state"), "removed"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		uint64_t n = number(e, kinds[i]);
		if (n && used < sizeof(errors))
			used += (size_t)snprintf(errors + used, sizeof(errors) - used,
						 "%s%" PRIu64 " %s", used ? ", " : "", n, kinds[i]);
	}
	printf("  %3" PRIu64 "  %-10s %10s  %s%s%s%s%s\n", number(m, "index"), text(m, "state"),
	       size_text(number(m, "size_bytes"), size), text(m, "path"),
	       json_is_true(json_object_get(m, "read_only")) ? "  (read-only)" : "", used ? "  (errors: " : "",
	       errors, used ? ")" : "");
}

static void show_list(const char *title, const json_t *list)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		printf("%s %s\n", i ? "         " : title,
		       json_string_value(json_array_get(list, i)));
}

/* The last few; all of them are in --json and in the system's log. */
static void show_messages(const json_t *list)
{
	size_t count = json_array_size(list);

	for (size_t i = count > MESSAGES_SHOWN ? count - MESSAGES_SHOWN : 0; i < count; i++) {
		const json_t *m = json_array_get(list, i);
		time_t t = (time_t)number(m, "time");
		char when[32];
		struct tm tm;
		strftime(when, sizeof(when), "%F %T", localtime_r(&t, &tm));
		printf("Log:      %s %s: %s\n", when, text(m, "level"), text(m, "text"));
	}
}

void show_status(const json_t *s)
{
	const json_t *members = json_object_get(s, "members"), *space = json_object_get(s, "space");
	uint64_t total = number(space, "total_bytes"), left = number(space, "free_bytes");
	char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], p[PRIORITY_TEXT_BYTES], q[PRIORITY_TEXT_BYTES];
	uint64_t more = number(s, "redundancy");

	printf("State:    %s%s\n", text(s, "state"),
	       json_is_true(json_object_get(s, "read_only")) ? ", read-only" : "");
	printf("Mounted:  %s, RAID %" PRIu64 "%s%s\n", text(s, "mount"), number(s, "level"),
	       text(s, "label")[0] ? ", label " : "", text(s, "label"));
	if (more)
		printf("Safety:   %" PRIu64 " more member%s may be lost\n", more,
		       more == 1 ? "" : "s");
	else
		printf("Safety:   no further member may be lost\n");
	printf("Space:    %s used of %s\n", size_text(total - MIN(left, total), a),
	       size_text(total, b));
	printf("Members:\n");
	for (size_t i = 0; i < json_array_size(members); i++)
		show_member(json_array_get(members, i));
	printf("Spares:   a replacement must have at least %" PRIu64 " bytes (%s)\n",
	       number(s, "member_bytes_min"), size_text(number(s, "member_bytes_min"), a));
	show_job(s, "rebuild");
	show_job(s, "scrub");
	printf("Priority: rebuild %s, scrub %s\n",
	       priority_text((unsigned)number(json_object_get(s, "rebuild"), "priority"), p),
	       priority_text((unsigned)number(json_object_get(s, "scrub"), "priority"), q));
	show_messages(json_object_get(s, "messages"));
	show_list("Happened:", json_object_get(s, "happened"));
	show_list("Next:    ", json_object_get(s, "next"));
}
