#!/usr/bin/env bash
# Tests cmake/Commit.cmake: the commit that --version prints, of clones with and without changes, and of other folders.
# Skips (77) if Git is missing.
set -euo pipefail
command -v git >/dev/null || { echo "skipped: git is missing"; exit 77; }
script=$(cd "$(dirname "$0")/../.." && pwd)/cmake/Commit.cmake
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
export GIT_CEILING_DIRECTORIES=$work GIT_CONFIG_GLOBAL=/dev/null

# expect <text> <folder>: compares the text that the script writes for the sources in a folder.
expect() {
  local found
  cmake -DSOURCE="$2" -DOUTPUT="$work/commit.cpp" -P "$script"
  found=$(sed -n 's/^  return "\(.*\)";$/\1/p' "$work/commit.cpp")
  [ "$found" = "$1" ] || { echo "$2: \"$found\" instead of \"$1\"" >&2 && exit 1; }
}

mkdir -p "$work/plain" "$work/clone/inner"
expect "" "$work/plain"
cd "$work/clone"
git init -q
echo one >file
expect "" "$work/clone" # without commits
git add file
git -c user.name=a -c user.email=a@b commit -q -m one
commit=$(git rev-parse --short=12 HEAD)
expect "$commit" "$work/clone"
touch --date=2000-01-01 "$work/commit.cpp"
expect "$commit" "$work/clone"
[ "$(stat -c %Y "$work/commit.cpp")" -lt 1000000000 ] || { echo "an unchanged source is written again" >&2 && exit 1; }
echo untracked >other
expect "$commit" "$work/clone"
expect "" "$work/clone/inner" # sources below another project's clone
echo two >file
expect "$commit, modified" "$work/clone"
echo "the commit follows the clone"
