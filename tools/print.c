/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Geometry as text and as JSON.
 */
#include "print.h"
#include "args.h"
#include "raid/geom.h"
#include <unistd.h>

static const char *member_state_text(const struct member *m, bool present)
{
	switch (m->state) {
	case MEMBER_ACTIVE:
		return present ? "active" : "missing";
	case MEMBER_MISSING:
		return "missing";
	case MEMBER_FAILED:
		return "failed";
	case MEMBER_REMOVED:
		return "removed";
	}
	return "unknown";
}

static json_t *text_or_null(const char *s)
{
	json_t *j = json_string(s);

	return j ? j : json_null(); /* not UTF-8 */
}

json_t *print_table_json(const struct table *t, const char *const *paths)
{
	char uuid[UUID_TEXT_BYTES];
	json_t *members = json_array();

	for (unsigned i = 0; i < t->member_count; i++) {
		const struct member *m = &t->members[i];
		const char *path = paths ? paths[i] : m->hint;
		json_t *o = json_pack("{s:i,s:s,s:o,s:s,s:b,s:I,s:i,s:i}", "index", (int)i, "uuid",
				      uuid_text(&m->uuid, uuid), "path",
				      text_or_null(path ? path : m->hint), "state",
				      member_state_text(m, path), "present", path != NULL,
				      "size_bytes", (json_int_t)m->size_bytes, "slices",
				      (int)m->slice_count, "slices_free", (int)m->slices_free);
		(void)json_array_append_new(members, o);
	}
	return json_pack(
	    "{s:i,s:s,s:o,s:i,s:i,s:i,s:I,s:I,s:I,s:i,s:I,s:I,s:I,s:o}", "version", 1, "uuid",
	    uuid_text(&t->fs, uuid), "label", text_or_null(t->name), "level", (int)t->level,
	    "tolerance", (int)t->tolerance, "groups", (int)t->groups, "strip_bytes",
	    (json_int_t)t->strip_blocks * BLOCK_BYTES, "slice_bytes", (json_int_t)t->slice_bytes,
	    "journal_bytes", (json_int_t)t->journal_bytes, "chunks", (int)t->chunk_count,
	    "generation", (json_int_t)t->gen, "epoch", (json_int_t)t->epoch, "potential_bytes",
	    (json_int_t)(table_potential_blocks(t, CHUNK_DATA) * BLOCK_BYTES), "members", members);
}

static uint64_t number(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "?";
}

/* "4 data + 2 parity", for the members in service. */
static void layout_text(unsigned level, unsigned groups, unsigned members, char *out, size_t cap)
{
	unsigned parity = level == 5 || level == 50 ? 1 : level == 6 || level == 60 ? 2 : 0;

	out[0] = 0;
	switch (level) {
	case 5:
	case 6:
		snprintf(out, cap, ", %u data + %u parity", members - parity, parity);
		break;
	case 50:
	case 60:
		if (groups)
			snprintf(out, cap, ", %u groups of %u data + %u parity", groups,
				 members / groups - parity, parity);
		break;
	case 10:
		snprintf(out, cap, ", %u pairs", members / 2);
		break;
	case 1:
		snprintf(out, cap, ", %u copies", members);
		break;
	default:
		break;
	}
}

void print_geometry(FILE *out, const json_t *info)
{
	char a[SIZE_TEXT_BYTES], layout[96];
	const json_t *members = json_object_get(info, "members");
	unsigned level = (unsigned)number(info, "level"), in_service = 0;
	uint64_t tolerance = number(info, "tolerance");

	for (size_t i = 0; i < json_array_size(members); i++) {
		const char *state = text(json_array_get(members, i), "state");
		in_service += strcmp(state, "removed") != 0;
	}
	layout_text(level, (unsigned)number(info, "groups"), in_service, layout, sizeof(layout));
	fprintf(out, "UUID:     %s\n", text(info, "uuid"));
	if (text(info, "label")[0])
		fprintf(out, "Label:    %s\n", text(info, "label"));
	fprintf(out, "Level:    RAID %u%s\n", level, layout);
	if (tolerance)
		fprintf(out, "Survives: the loss of any %llu member%s\n",
			(unsigned long long)tolerance, tolerance == 1 ? "" : "s");
	else
		fprintf(out, "Survives: no loss of a member\n");
	if (json_object_get(info, "space"))
		fprintf(out, "Data:     %s\n",
			size_text(number(json_object_get(info, "space"), "total_bytes"), a));
	else
		fprintf(out, "Data:     %s free for new chunks\n",
			size_text(number(info, "potential_bytes"), a));
	fprintf(out, "Strip:    %s\n", size_text(number(info, "strip_bytes"), a));
	fprintf(out, "Slice:    %s\n", size_text(number(info, "slice_bytes"), a));
	fprintf(out, "Journal:  %s on each member\n", size_text(number(info, "journal_bytes"), a));
	if (json_object_get(info, "member_bytes_min"))
		fprintf(out, "Smallest replacement: %llu bytes\n",
			(unsigned long long)number(info, "member_bytes_min"));
	fprintf(out, "Members:  %u\n", in_service);
	for (size_t i = 0; i < json_array_size(members); i++) {
		const json_t *m = json_array_get(members, i);
		const char *uuid = text(m, "uuid");
		bool made = uuid[strspn(uuid, "0-")]; /* mkfs -n has none to show */
		fprintf(out, "  %3llu  %-10s %10s  %s%s%s\n",
			(unsigned long long)number(m, "index"), text(m, "state"),
			size_text(number(m, "size_bytes"), a), made ? uuid : "", made ? "  " : "",
			text(m, "path"));
	}
}

int print_json(json_t *value)
{
	int r =
	    value ? json_dumpf(value, stdout, isatty(STDOUT_FILENO) ? JSON_INDENT(2) : JSON_COMPACT)
		  : -1;

	putchar('\n');
	json_decref(value);
	return r < 0 || fflush(stdout) ? -EIO : 0;
}
