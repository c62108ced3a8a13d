#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What --help names and what OPTIONS of the man page names are the same options; so are the commands of
# trussfs. Usage: check_help.sh [DIRECTORY-WITH-THE-PROGRAMS]
set -u
cd "$(dirname "$0")/.." || exit 1
bin=${1:-${TRUSSFS_BIN:-build/bin}}
bad=0

# Of mdoc on stdin, the section OPTIONS (and COMMANDS): one option a line, with its dashes.
page_options()
{
	awk '/^\.Sh / { on = ($2 == "OPTIONS" || $2 == "COMMANDS") }
	on && /^\.It / {
		for (i = 2; i <= NF; i++) if ($i == "Fl") {
			o = $(i + 1)
			if (o == "Fl" ) { o = "-" $(i + 2); i++ }
			print "-" o
		}
	}' | sed 's/^--*\([^-]\)$/-\1/' | sort -u
}

help_options()
{
	grep -oE '(^|[][ ,|(])--?[a-zA-Z][a-zA-Z-]*' | grep -oE -- '--?[a-zA-Z][a-zA-Z-]*' |
		grep -E -- '^(-[a-zA-Z]|--[a-z][a-z-]+)$' | sort -u
}

for page in man/*.8; do
	p=$(basename "$page" .8)
	if ! "$bin/$p" --help >/tmp/help.$$ 2>&1; then
		echo "FAIL help: $p --help does not exit with 0"
		bad=1
		continue
	fi
	page_options <"$page" >/tmp/page.$$
	help_options </tmp/help.$$ >/tmp/opts.$$
	if [ -s /tmp/opts.$$ ] && out=$(diff /tmp/opts.$$ /tmp/page.$$); then
		echo "PASS help: options of $p"
	else
		echo "FAIL help: options of $p: only in --help (<), only in the page (>):"
		printf '%s\n' "$out" | grep '^[<>]' | sed 's/^/    /'
		bad=1
	fi
	if [ "$p" = trussfs ]; then
		for c in list status info fail replace rebuild scrub sync; do
			grep -qw "$c" /tmp/help.$$ || { echo "FAIL help: $p --help does not name $c"; bad=1; }
			grep -qE "^\.It (Ic|Cm) $c" "$page" || { echo "FAIL help: $page does not explain $c"; bad=1; }
		done
	fi
done
rm -f /tmp/help.$$ /tmp/page.$$ /tmp/opts.$$
exit "$bad"
