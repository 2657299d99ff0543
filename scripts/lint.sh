#!/usr/bin/env bash
# Style and static checks; whatever is found ends this with 1, a missing tool is named and left out.
#   scripts/lint.sh format       clang-format 14 on all sources, changing nothing; exit code 77 where it is missing
#   scripts/lint.sh [<revision>] the same, shellcheck on the scripts, and clang-tidy on the sources that differ from
#                                <revision> (HEAD, that is what is not committed yet)
#   scripts/lint.sh all          the same with clang-tidy on all sources of the rooms: some minutes
# To format sources: clang-format -i <file ...>. What clang-tidy checks is in .clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."

rooms=(base tensor nn comm parallel model optimizer data checkpoint plan megatron_cpp)
findings=0
found() {
  echo "$1" >&2
  findings=1
}

# Other versions lay out some lines otherwise.
clang_format=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
    clang_format=$candidate
    break
  fi
done

check_format() {
  find "${rooms[@]}" tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 "$clang_format" --dry-run -Werror || found "some sources are not formatted: run clang-format -i on them"
}

check_scripts() {
  find scripts tests bench .ci -type f \( -name '*.sh' -o -name '*.sbatch' -o -name run \) -exec shellcheck --external-sources {} + ||
    found "shellcheck found something"
}

# The sources of the rooms that clang-tidy is to see; for a header, the source of the same name.
sources_since() {
  if [ "$1" = all ]; then
    find "${rooms[@]}" -name '*.cpp' -print0 | sort -z
    return
  fi
  { git diff --name-only --diff-filter=d "$1" -- "${rooms[@]}" && git ls-files --others --exclude-standard -- "${rooms[@]}"; } |
    sed -n 's/\.\(h\|cpp\)$/.cpp/p' | sort -u | while read -r file; do
    [ ! -f "$file" ] || printf '%s\0' "$file"
  done
}

check_with_clang_tidy() {
  cmake --preset release -B build/lint -DMCPP_TOGETHER=OFF >/dev/null # with a command for each source
  sources_since "$1" | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy -p build/lint --quiet \
    2> >(grep -v 'warnings\? generated' >&2) || found "clang-tidy found something"
}

if [ "${1:-}" = format ]; then
  [ -n "$clang_format" ] || {
    echo "clang-format 14 is missing"
    exit 77
  }
  check_format
  exit "$findings"
fi

if [ -n "$clang_format" ]; then check_format; else echo "clang-format 14 is missing: formatting is not checked" >&2; fi
if command -v shellcheck >/dev/null; then check_scripts; else echo "shellcheck is missing: scripts are not checked" >&2; fi
if command -v clang-tidy >/dev/null; then
  check_with_clang_tidy "${1:-HEAD}"
else
  echo "clang-tidy is missing: sources are not checked" >&2
fi
exit "$findings"
