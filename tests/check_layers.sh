#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Includes point down only. raid/ knows disks, fs/ knows files, tools/ knows people:
#   raid/ includes nothing of fs/ or tools/;
#   fs/ sees of raid/ what raid.h shows, and the vocabulary below it; only the daemon's main and the
#   front end see io_uring; nothing in fs/ includes tools/;
#   libfuse stands in fs/fuse_ops.h, the front end's own, and fs/main.c, liburing in raid/uring.c, isa-l in raid/parity.c;
#   what runs on the simulated clock and devices asks no real ones.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0

# wrong RULE LINES
wrong()
{
	[ -n "$2" ] || { echo "PASS layers: $1"; return; }
	echo "FAIL layers: $1:"
	printf '%s\n' "$2" | sed 's/^/    /'
	bad=1
}

includes()
{
	grep -HnE '^[[:space:]]*#[[:space:]]*include' "$@" 2>/dev/null
}

shopt -s nullglob
raid=(raid/*.[ch])
fs=(fs/*.[ch])
all=(raid/*.[ch] fs/*.[ch] tools/*.[ch] tests/*.[ch] tests/sim/*.[ch])
[ ${#raid[@]} -gt 0 ] && [ ${#fs[@]} -gt 0 ] || { echo "FAIL layers: no sources"; exit 1; }

wrong "raid/ knows nothing of files, tools or tests" \
	"$(includes "${raid[@]}" | grep -E '"(\.\./)*(fs|tools|tests)/|"\.\./')"

# What raid.h includes, and so on.
public=" base.h buf.h co.h loop.h io.h raid.h xxh3.h"
grew=1
while [ "$grew" = 1 ]; do
	grew=0
	for h in $public; do
		# Names of headers have no blanks.
		# shellcheck disable=SC2013
		for i in $(sed -nE 's/^#include "(raid\/)?([a-z_]+\.h)".*/\2/p' "raid/$h"); do
			case "$public " in *" $i "*) ;; *) public="$public $i" grew=1 ;; esac
		done
	done
done
allowed=$(printf '%s' "$public" | sed 's/^ //; s/\./\\./g; s/ /|/g')
wrong "fs/ sees raid/ through raid.h and the vocabulary below it" \
	"$(includes "${fs[@]}" | grep -E '"(\.\./)?raid/' | grep -vE "\"(\.\./)?raid/($allowed)\"" |
		grep -vE '^fs/(fuse(_ops|_file)?|main|control)\.[ch]:.*"raid/uring\.h"')"
wrong "fs/ knows nothing of tools or tests" \
	"$(includes "${fs[@]}" | grep -E '"(\.\./)*(tools|tests)/')"
wrong "libfuse in the front end and the daemon's main alone" \
	"$(includes "${all[@]}" | grep -E '<(fuse3?/)?fuse[a-z_]*\.h>|"fuse_lowlevel' |
		grep -vE '^fs/(fuse_ops\.h|main\.c):|<linux/fuse\.h>')"
wrong "liburing in raid/uring.c and its test alone" \
	"$(includes "${all[@]}" | grep -E '<liburing' | grep -vE '^(raid/uring|tests/test_uring)\.c:')"
wrong "isa-l in raid/parity.c alone" "$(includes "${all[@]}" | grep -E '<isa-l|<raid\.h>|<erasure_code' | grep -v '^raid/parity\.c:')"
wrong "tools/ is included by nobody but tools and tests" \
	"$(includes "${raid[@]}" "${fs[@]}" | grep -E '"(\.\./)*tools/')"

# A circle inside a layer shows as a header that is reached from itself.
circle=$(
	for d in raid fs tools; do
		for h in "$d"/*.h; do
			sed -nE "s|^#include \"($d/)?([a-z_]+\.h)\".*|$h $d/\2|p" "$h"
		done
	done | tsort 2>&1 >/dev/null
)
wrong "no header includes itself through others" "$circle"

# Everything in raid/ but its two real worlds runs under the simulator.
wrong "no clocks, sleeps, threads or random numbers outside raid/uring.c" \
	"$(grep -nE '\b(clock_gettime|gettimeofday|time|nanosleep|usleep|sleep|rand|random|getrandom|pthread_[a-z_]+)[[:space:]]*\(' \
		"${raid[@]}" | grep -vE '^raid/(uring|image)\.c:' | grep -vE ':[[:space:]]*(\*|/\*|//)' |
		grep -vE '\(\*[a-z_]+\)|loop_random|uint64_t \(\*random\)|->random\(|\.random\(')"

exit "$bad"
