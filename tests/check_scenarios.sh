#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# tests/scenarios.txt tells the truth: each file and word that it names is there, and each test of test_scenarios.c is named.
cd "$(dirname "$0")" || exit 1
bad=0
complain()
{
	echo "scenarios.txt: $*"
	bad=1
}

while IFS='|' read -r title where; do
	case "$title" in '#'* | '') continue ;; esac
	where=${where# }
	case "$where" in
	'waits: '* | 'none: '*) continue ;;
	'') complain "$title: says nothing"; continue ;;
	esac
	while IFS= read -r -d ';' one; do
		one=${one# }
		file=${one%%: *} word=${one#*: }
		[ -f "$file" ] || { complain "$title: no file $file"; continue; }
		grep -qF -- "$word" "$file" || complain "$title: $file does not speak of '$word'"
	done <<<"$where;"
done <scenarios.txt
for t in $(grep -oE 'cmocka_unit_test\(scenario_[a-z0-9_]+' test_scenarios.c | sed 's/.*(//'); do
	grep -qw "$t" scenarios.txt || complain "$t is not named"
done
waiting=$(grep -cE '\| waits: ' scenarios.txt)
echo "$(grep -cE '^[0-9]' scenarios.txt) scenarios, of which $waiting wait for what is not built"
exit $bad
