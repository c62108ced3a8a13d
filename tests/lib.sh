# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: GPL-2.0-or-later
#
# What the scripts in tests/real share: members, mounts, checks, and cleaning up on every way out.
#
# A script sources this, calls `check`, `pass` and `fail`, and ends with `finish`. Each check prints
# one line, "PASS name" or "FAIL name: reason"; the exit code is 0, 1, or 77 for a skip.
#
#   TRUSSFS_BIN   directory with the four programs (default: found under build/)
#   TRUSSFS_TMP   where members and mounts go (default: TMPDIR or /tmp)
#   TRUSSFS_OPTIONS  more mount options
#   TRUSSFS_KEEP  1: leave everything behind for a look
#   TRUSSFS_SCALE divides the amounts of work (default 1; sanitized runs set it higher)
#
# There is no sleep to synchronise here: `until_true` polls a condition and gives up at a bound.

set -u
export LC_ALL=C
umask 022

lib_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
src_dir=$(dirname "$lib_dir")
real_dir=$lib_dir/real
test_name=$(basename "$0" .sh)
TRUSSFS_SCALE=${TRUSSFS_SCALE:-1}
fails=0
mounts=()
loops=()
children=()
daemon_pid=
mount_log=

if [ -x /usr/bin/python3 ]; then PY=/usr/bin/python3; else PY=python3; fi

pass()
{
	printf 'PASS %s\n' "$*"
}

# fail NAME REASON...
fail()
{
	local name=$1
	shift
	printf 'FAIL %s: %s\n' "$name" "$*"
	fails=$((fails + 1))
}

skip()
{
	printf 'SKIP %s: %s\n' "$test_name" "$*"
	exit 77
}

# What cannot go on.
die()
{
	fail "$test_name" "$*"
	exit 1
}

# check NAME COMMAND...: passes when the command does; shows the end of its output when not.
check()
{
	local name=$1 rc=0
	shift
	"$@" >"$work/check.out" 2>&1 || rc=$?
	if [ "$rc" -eq 0 ]; then
		pass "$name"
		return 0
	fi
	fail "$name" "exit $rc: $*"
	tail -n 15 "$work/check.out" | sed 's/^/    /'
	return 1
}

# check_rc NAME WANTED-EXIT PATTERN COMMAND...: the exit code and what the messages must contain
# (extended regular expression; '' for anything). WANTED may be a list: "1|32".
check_rc()
{
	local name=$1 want=$2 pattern=$3 rc=0
	shift 3
	timeout 120 "$@" >"$work/check.out" 2>&1 </dev/null || rc=$?
	case "|$want|" in
	*"|$rc|"*) ;;
	*)
		fail "$name" "exit $rc, expected $want: $*"
		tail -n 15 "$work/check.out" | sed 's/^/    /'
		return 1
		;;
	esac
	if [ -n "$pattern" ] && ! grep -Eqi -- "$pattern" "$work/check.out"; then
		fail "$name" "no /$pattern/ in the output of: $*"
		tail -n 15 "$work/check.out" | sed 's/^/    /'
		return 1
	fi
	pass "$name"
}

# check_eq NAME GOT EXPECTED
check_eq()
{
	if [ "$2" = "$3" ]; then
		pass "$1"
	else
		fail "$1" "got '$2', expected '$3'"
		return 1
	fi
}

# relay COMMAND...: a helper that prints PASS and FAIL lines itself.
relay()
{
	local rc=0 n
	"$@" >"$work/relay.out" 2>&1 || rc=$?
	cat "$work/relay.out"
	n=$(grep -c '^FAIL ' "$work/relay.out")
	fails=$((fails + n))
	if [ "$rc" -ne 0 ] && [ "$n" -eq 0 ]; then
		fail "$(basename "$2")" "exit $rc"
	fi
	[ "$rc" -eq 0 ]
}

# until_true SECONDS COMMAND...: polls until the command succeeds, at most that long.
until_true()
{
	local end=$((SECONDS + $1))
	shift
	while ! "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -ge "$end" ] && return 1
		sleep 0.05
	done
}

# ---- members ----

# make_members COUNT SIZE: sparse image files $work/dev/m0 m1 ..., in the array `members`.
make_members()
{
	local i
	members=()
	mkdir -p "$work/dev"
	for ((i = 0; i < $1; i++)); do
		rm -f "$work/dev/m$i"
		truncate -s "$2" "$work/dev/m$i" || die "cannot make a member of $2"
		members+=("$work/dev/m$i")
	done
}

# make_loop SIZE SECTOR-BYTES: one loop device over a sparse file; its path in ret_loop.
make_loop()
{
	local file dev
	file=$work/loop.${#loops[@]}
	truncate -s "$1" "$file" || die "cannot make a member of $1"
	dev=$(losetup --find --show --sector-size "$2" --direct-io=on "$file" 2>"$work/losetup.err" ||
		losetup --find --show --sector-size "$2" "$file" 2>"$work/losetup.err") ||
		die "losetup: $(cat "$work/losetup.err")"
	loops+=("$dev")
	ret_loop=$dev
}

# A process that was killed holds its members until the kernel has put its I/O away.
unlocked()
{
	local m
	for m in "$@"; do
		flock -n "$m" true || return 1
	done
}

joined()
{
	local IFS=:
	echo "$*"
}

# ---- mounting ----

is_mounted()
{
	awk -v d="$1" '$5 == d { found = 1 } END { exit !found }' /proc/self/mountinfo
}

daemon_gone()
{
	! kill -0 "$1" 2>/dev/null
}

mount_settled()
{
	is_mounted "$1" || daemon_gone "$2"
}

# try_mount SOURCE DIR [OPTIONS]: in the foreground of a background job, so that its process is
# known and its messages (and those of the sanitizers) are kept. 0 when mounted and answering.
# Sets daemon_pid and mount_log.
try_mount()
{
	local source=$1 dir=$2 opts=${3:-} n
	opts=$opts${TRUSSFS_OPTIONS:+${opts:+,}$TRUSSFS_OPTIONS}
	mkdir -p "$dir" "$work/log"
	n=$(find "$work/log" -name 'daemon.*' | wc -l)
	mount_log=$work/log/daemon.$n
	"$TRUSSFS_BIN/mount.trussfs" "$source" "$dir" -f ${opts:+-o "$opts"} >"$mount_log" 2>&1 </dev/null &
	daemon_pid=$!
	if ! until_true 120 mount_settled "$dir" "$daemon_pid"; then
		kill -KILL "$daemon_pid" 2>/dev/null
		wait "$daemon_pid"
		daemon_pid=
		return 1
	fi
	if ! is_mounted "$dir"; then
		mount_rc=0
		wait "$daemon_pid" || mount_rc=$?
		daemon_pid=
		return 1
	fi
	mounts+=("$dir:$daemon_pid")
	timeout 60 stat -f "$dir" >/dev/null
}

# mount_fs [SOURCE [DIR [OPTIONS]]]: the same, and nothing goes on without it.
mount_fs()
{
	local source=${1:-${members[0]}}
	if ! try_mount "$source" "${2:-$mnt}" "${3:-}"; then
		fail "mount" "mount.trussfs $source failed"
		tail -n 20 "$mount_log" | sed 's/^/    /'
		exit 1
	fi
}

# umount_fs [DIR]: returns when the daemon has ended; its exit code must be 0.
umount_fs()
{
	local dir=${1:-$mnt} m pid='' rest=() rc=0
	for m in "${mounts[@]}"; do
		if [ "${m%:*}" = "$dir" ]; then pid=${m##*:}; else rest+=("$m"); fi
	done
	if ! timeout 300 umount "$dir" 2>"$work/umount.err"; then
		fail umount "$(cat "$work/umount.err")"
		return 1
	fi
	mounts=("${rest[@]+"${rest[@]}"}")
	if ! until_true 300 daemon_gone "$pid"; then
		fail umount "the daemon $pid has not ended"
		kill -KILL "$pid"
	fi
	wait "$pid" || rc=$?
	if [ "$rc" -ne 0 ]; then
		fail umount "the daemon ended with $rc"
		tail -n 20 "$mount_log" | sed 's/^/    /'
		return 1
	fi
}

# crash_fs [DIR]: kill -9, and the mount is cleared away.
crash_fs()
{
	local dir=${1:-$mnt} m pid='' rest=()
	for m in "${mounts[@]}"; do
		if [ "${m%:*}" = "$dir" ]; then pid=${m##*:}; else rest+=("$m"); fi
	done
	kill -KILL "$pid"
	wait "$pid" 2>/dev/null
	umount "$dir" 2>/dev/null || umount -l "$dir"
	mounts=("${rest[@]+"${rest[@]}"}")
	until_true 30 unlocked "${members[@]}" || fail crash "members are still locked"
}

# reap PID: a writer whose filesystem has died ends by itself; its exit code.
reap()
{
	if ! until_true 60 daemon_gone "$1"; then
		echo "writer $1 has not ended"
		kill -KILL "$1"
	fi
	wait "$1"
}

# fsck_clean NAME [MEMBER...]
fsck_clean()
{
	local name=$1
	shift
	[ $# -gt 0 ] || set -- "${members[@]}"
	check "$name" timeout 900 "$TRUSSFS_BIN/fsck.trussfs" -n "$@"
}

drop_caches()
{
	sync
	echo 3 2>/dev/null >/proc/sys/vm/drop_caches || true
}

# ---- the daemon's answers ----

# json PATH: the value at a dotted path of the JSON on stdin, as text; nothing where there is none.
json()
{
	"$PY" -c '
import json, sys
v = json.load(sys.stdin)
for k in sys.argv[1].split("."):
    if isinstance(v, list):
        v = v[int(k)] if int(k) < len(v) else None
    else:
        v = v.get(k) if isinstance(v, dict) else None
    if v is None:
        break
print("" if v is None else str(v).lower() if isinstance(v, bool) else v)' "$1"
}

# status PATH [DIR]
status()
{
	timeout 60 "$TRUSSFS_BIN/trussfs" status "${2:-$mnt}" --json | json "$1"
}

# info PATH [DIR]
info()
{
	timeout 60 "$TRUSSFS_BIN/trussfs" info "${2:-$mnt}" --json | json "$1"
}

status_is()
{
	[ "$(status "$1")" = "$2" ]
}

rebuild_over()
{
	status_is rebuild.running false && status_is state optimal
}

# Until full redundancy is there again.
wait_rebuild()
{
	until_true "${1:-600}" rebuild_over || {
		"$TRUSSFS_BIN/trussfs" status "$mnt" 2>&1 | sed 's/^/    /'
		return 1
	}
}

scrub_over()
{
	status_is scrub.running false
}

# Scrubs and leaves what it found, repaired and lost in scrub_found, scrub_repaired, scrub_lost.
run_scrub()
{
	timeout 60 "$TRUSSFS_BIN/trussfs" scrub start "$mnt" >/dev/null || return 1
	until_true 900 scrub_over || return 1
	scrub_found=$(status scrub.found)
	scrub_repaired=$(status scrub.repaired)
	scrub_lost=$(status scrub.lost)
	scrub_error=$(status scrub.last_error)
}

# ---- files ----

# fill DIR SEED COUNT BYTES-MAX: files with content that only the seed decides; sums in DIR.sums.
fill()
{
	"$PY" "$real_dir/files.py" write "$1" "$2" "$3" "$4"
}

# same DIR SEED COUNT BYTES-MAX
same()
{
	"$PY" "$real_dir/files.py" verify "$1" "$2" "$3" "$4"
}

# listing DIR: every name with what stat says, but sizes and times of directories.
listing()
{
	(cd "$1" && find . -mindepth 1 \( -type d -printf '%p %y %m %U %G\n' \) -o \
		-printf '%p %y %m %U %G %s %T@ %n %l\n' | sort)
}

# ---- ending ----

cleanup()
{
	local rc=$? m p dir
	trap - EXIT
	trap '' INT TERM HUP
	for p in "${children[@]+"${children[@]}"}"; do
		kill -KILL "$p" 2>/dev/null
	done
	for m in "${mounts[@]+"${mounts[@]}"}"; do
		dir=${m%:*}
		p=${m##*:}
		if ! timeout 60 umount "$dir" 2>/dev/null || ! until_true 60 daemon_gone "$p"; then
			kill -KILL "$p" 2>/dev/null
		fi
		wait "$p" 2>/dev/null
		if is_mounted "$dir"; then umount -l "$dir" 2>/dev/null; fi
	done
	if [ -n "$daemon_pid" ] && kill -0 "$daemon_pid" 2>/dev/null; then
		kill -KILL "$daemon_pid" 2>/dev/null
		wait "$daemon_pid" 2>/dev/null
	fi
	if declare -F cleanup_more >/dev/null; then cleanup_more; fi
	for p in "${loops[@]+"${loops[@]}"}"; do
		losetup -d "$p" 2>/dev/null
	done
	# Reports of the sanitizers fail the test, whoever wrote them.
	for p in "$work"/san.*; do
		[ -e "$p" ] || continue
		printf 'FAIL sanitizer: %s\n' "$(basename "$p")"
		head -n 60 "$p" | sed 's/^/    /'
		rc=1
	done
	if [ "$rc" -ne 0 ] && [ "$rc" -ne 77 ]; then
		for p in $(find "$work/log" -name 'daemon.*' -size +0 2>/dev/null | sort -V | tail -n 2); do
			printf -- '-- the end of %s\n' "$(basename "$p")"
			tail -n 25 "$p" | sed 's/^/    /'
		done
	fi
	if [ "${TRUSSFS_KEEP:-0}" = 1 ]; then
		printf 'kept: %s\n' "$work"
	else
		rm -rf --one-file-system "$work"
	fi
	exit "$rc"
}

finish()
{
	[ "$fails" -eq 0 ] || exit 1
	exit 0
}

# ---- beginning ----

if [ -z "${TRUSSFS_BIN:-}" ]; then
	found=$(find "$src_dir/build" -type f -name mkfs.trussfs 2>/dev/null | head -n 1)
	[ -n "$found" ] || { echo "FAIL $test_name: nothing built: run tests/run, or meson and ninja"; exit 1; }
	# The programs may lie in several directories of the build.
	TRUSSFS_BIN=$src_dir/build/bin
	mkdir -p "$TRUSSFS_BIN"
	for p in mkfs.trussfs mount.trussfs fsck.trussfs trussfs umount.trussfs; do
		found=$(find "$src_dir/build" -path "$TRUSSFS_BIN" -prune -o -type f -name "$p" -perm -100 -print |
			head -n 1)
		if [ -n "$found" ]; then ln -sf "$found" "$TRUSSFS_BIN/$p"; fi
	done
fi
[ "$(id -u)" -eq 0 ] || skip "needs root"
[ -c /dev/fuse ] || skip "no /dev/fuse"

work=$(mktemp -d "${TRUSSFS_TMP:-${TMPDIR:-/tmp}}/trussfs-$test_name.XXXXXX") || exit 1
mnt=$work/mnt
# Lock files and sockets of this test's daemons lie apart from those of the system.
export TRUSSFS_RUNDIR=$work/run
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
export ASAN_OPTIONS="log_path=$work/san.asan:detect_leaks=${TRUSSFS_LEAKS:-1}:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="log_path=$work/san.ubsan:print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}"
