#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# git on the mount: a clone of a repository with thousands of objects, packed and loose.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh"

command -v git >/dev/null || skip "no git"
export HOME=$work GIT_CONFIG_NOSYSTEM=1
git config --global user.name tests
git config --global user.email tests@localhost
git config --global init.defaultBranch main
git config --global safe.directory '*'
git config --global gc.auto 0

commits=$((60 / TRUSSFS_SCALE + 2))
# 60 commits of 80 changed files each: about 10000 objects.
stream()
{
	"$PY" - "$commits" <<-'PYTHON'
		import random, sys
		rng = random.Random(9)
		out = sys.stdout.buffer
		for c in range(int(sys.argv[1])):
		    msg = b"commit %d" % c
		    out.write(b"commit refs/heads/main\ncommitter t <t@localhost> %d +0000\ndata %d\n%s\n" % (1000000 + c, len(msg), msg))
		    for _ in range(80):
		        i = rng.randrange(2000)
		        data = rng.randbytes(int(40000 ** rng.random()))
		        out.write(b"M 100644 inline d%d/e%d/f%d\ndata %d\n" % (i % 13, i % 7, i, len(data)) + data + b"\n")
	PYTHON
}
git init -q "$work/src" && stream | git -C "$work/src" fast-import --quiet && git -C "$work/src" reset -q --hard ||
	die "cannot make the repository"

make_members 4 1G
check mkfs "$TRUSSFS_BIN/mkfs.trussfs" -r 5 "${members[@]}" || exit 1
mount_fs
check clone git clone -q --no-local "$work/src" "$mnt/clone"
check "fsck of the clone" git -C "$mnt/clone" fsck --full --strict
check_eq "status is clean" "$(git -C "$mnt/clone" status --porcelain)" ""
check "the work tree is the same" diff -r --no-dereference -x .git "$work/src" "$mnt/clone"
# Loose objects: one small file each, created under another name and renamed.
check "unpack into loose objects" bash -c '
	git init -q --bare "$2/loose" && cat "$1"/.git/objects/pack/*.pack | git -C "$2/loose" unpack-objects -q' \
	bash "$work/src" "$mnt"
git -C "$mnt/loose" update-ref refs/heads/main "$(git -C "$work/src" rev-parse HEAD)"
check "fsck of loose objects" git -C "$mnt/loose" fsck --full
loose=$(find "$mnt/loose/objects" -type f | wc -l)
[ "$loose" -ge $((commits * 80)) ] && pass "$loose loose objects" || fail "loose objects" "only $loose"
# Work as people do.
check "branch, commit, merge, rebase" bash -e -c '
	cd "$1"
	git checkout -q -b work
	for i in 1 2 3 4 5; do echo "$i" >"new$i"; git add .; git commit -q -m "new $i"; done
	git mv d1 renamed
	git commit -q -m "a directory renamed"
	git checkout -q main
	echo other >other; git add .; git commit -q -m other
	git merge -q -m merge work
	git stash list
	git rebase -q --no-ff HEAD~1 || git rebase --abort
	git gc -q --prune=now
	git fsck --full' bash "$mnt/clone"
head=$(git -C "$mnt/clone" rev-parse HEAD)
umount_fs
fsck_clean fsck
mount_fs
check_eq "HEAD after a new mount" "$(git -C "$mnt/clone" rev-parse HEAD)" "$head"
check "git fsck after a new mount" git -C "$mnt/clone" fsck --full
check_eq "status after a new mount" "$(git -C "$mnt/clone" status --porcelain)" ""
check "fsck of loose objects after a new mount" git -C "$mnt/loose" fsck --full
umount_fs
finish
