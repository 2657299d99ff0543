#!/usr/bin/env bash
# Style and static checks; whatever is found ends this with 1, a missing tool is named and left out.
#   scripts/lint.sh format       clang-format 14 on all sources, changing nothing; exit code 77 where it is missing
#   scripts/lint.sh comments [<folder ...>]  comments that open in mid-sentence or use words that CONTRIBUTING.md replaces
#   scripts/lint.sh commits      subjects of commits since the last version tag, of at most 65 characters
#   scripts/lint.sh [<revision>] the same, shellcheck on the scripts, and clang-tidy on the sources that differ from
#                                <revision> (HEAD, that is what is not committed yet)
#   scripts/lint.sh all          the same with clang-tidy on all sources of the libraries: some minutes
# To format sources: clang-format -i <file ...>. What clang-tidy checks is in .clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=(base tensor nn comm parallel model optimizer data checkpoint plan megatron_cpp)
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
  find "${libraries[@]}" tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 "$clang_format" --dry-run -Werror || found "some sources are not formatted: run clang-format -i on them"
}

check_scripts() {
  find scripts tests bench .ci -type f \( -name '*.sh' -o -name '*.sbatch' -o -name run \) -exec shellcheck --external-sources {} + ||
    found "shellcheck found something"
}

# Openings that make a fragment of a comment, and words that have a standard term. A comment that continues the line above it
# may begin with any word.
# shellcheck disable=SC2016 # awk's own variables
comment_findings='
  function report(what) { print FILENAME ":" FNR ": " what ": " $0; findings = 1 }
  FNR == 1 { continues = 0 }
  {
    at = match($0, /\/\/+/)
    if (!at || substr($0, 1, at) ~ /["(]/ || $0 ~ /NOLINT|:\/\//) { continues = 0; next }
    text = substr($0, at)
    sub(/^\/\/+[<!]? */, "", text)
    is_whole_line = $0 ~ /^ *\/\//
    if (!(is_whole_line && continues) && text ~ ("^(" openings ") ")) report("a fragment, not a sentence")
    if (tolower(text) ~ ("(^|[^a-z_`])(" words ")([^a-z_(`]|$)")) report("a word with a standard term (CONTRIBUTING.md)")
    continues = is_whole_line
  }
  END { exit findings }'
comment_openings='Of|That|Those|Them|By|What|Whether|Who|Whoever|Whose|The same|Which'
comment_words='is told|are told|owed|owes|put away|lies elsewhere|nobody|somebody|whoever|on paper|slow way|for ever|in vain|under way|on its way|hears of|ladder'

check_comments() { # <folder ...>
  find "$@" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 awk -v openings="$comment_openings" -v words="$comment_words" "$comment_findings" || found "comments to rewrite"
}

check_commits() {
  local last
  last=$(git describe --tags --abbrev=0 2>/dev/null) || last=$(git log --format=%h --grep='^optimizer: keep schedules in place' | tail -n 1)
  [ -n "$last" ] || return 0
  git log --format='%h %P|%s' "$last..HEAD" | awk -F'|' '
    length($2) > 65 || $2 !~ /^[a-z_0-9.][^:]*: / { print "commit " $0; bad = 1 }
    split($1, parents, " ") > 2 { print "merge commit " $0; bad = 1 }
    END { exit bad }' || found "commit subjects: area: imperative subject, at most 65 characters, no merges"
}

# Sources of the libraries that clang-tidy is to see; for a header, the source of the same name.
sources_since() {
  if [ "$1" = all ]; then
    find "${libraries[@]}" -name '*.cpp' -print0 | sort -z
    return
  fi
  { git diff --name-only --diff-filter=d "$1" -- "${libraries[@]}" && git ls-files --others --exclude-standard -- "${libraries[@]}"; } |
    sed -n 's/\.\(h\|cpp\)$/.cpp/p' | sort -u | while read -r file; do
    [ ! -f "$file" ] || printf '%s\0' "$file"
  done
}

check_with_clang_tidy() {
  cmake --preset release -B build/lint -DMCPP_UNITY_BUILD=OFF >/dev/null # with a command for each source
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

if [ "${1:-}" = comments ]; then
  shift
  if [ $# -eq 0 ]; then check_comments "${libraries[@]}"; else check_comments "$@"; fi
  exit "$findings"
fi
if [ "${1:-}" = commits ]; then
  check_commits
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
