#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# The man pages: mandoc has nothing to say, and every page has the sections that people look for.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v mandoc >/dev/null || { echo "SKIP man: no mandoc"; exit 77; }
bad=0
for page in man/*.[1-9]; do
	if out=$(mandoc -Tlint -W warning "$page" 2>&1); then
		echo "PASS man: lint of $page"
	else
		echo "FAIL man: lint of $page:"
		printf '%s\n' "$out" | head -n 20 | sed 's/^/    /'
		bad=1
	fi
	sections=(NAME DESCRIPTION 'SEE ALSO')
	case "$page" in *.8 | *.1) sections+=(SYNOPSIS OPTIONS 'EXIT STATUS' EXAMPLES) ;; esac
	for s in "${sections[@]}"; do
		grep -qx "\.Sh $s" "$page" || { echo "FAIL man: $page has no section $s"; bad=1; }
	done
	grep -q "'$(basename "$page")'" man/meson.build || { echo "FAIL man: $page is not installed"; bad=1; }
done
exit "$bad"
