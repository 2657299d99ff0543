#!/usr/bin/env bash
# Checks style and runs static analysis. Prints findings and exits with 1 if there are any.
#
#   scripts/lint.sh [REVISION]            format, comments, shellcheck, and clang-tidy on sources that differ from REVISION
#                                         (default HEAD: uncommitted changes)
#   scripts/lint.sh all                   the same, with clang-tidy on all sources of the libraries, which takes minutes
#   scripts/lint.sh format                only the format of all sources, with clang-format 14
#   scripts/lint.sh comments [FOLDER...]  only comments and messages (C++, JavaScript, Python, scripts): fragments, and words that CONTRIBUTING.md replaces
#   scripts/lint.sh docs                  only C++ excerpts in docs, which must be lines of the sources
#   scripts/lint.sh scripts               only shell scripts, with shellcheck
#   scripts/lint.sh commits [REVISION]    only commit subjects since REVISION (default: the last change
#                                         of the project version)
#
# Checks without their tool are skipped with a message; a single check then exits with code 77. To format sources, run
# clang-format-14 -i FILE. .clang-tidy selects the checks of clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=(base tensor nn comm parallel model optimizer data checkpoint plan megatron_cpp)
findings=0
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
skip() {
  echo "$1"
  exit 77
}
report() {
  echo "$1" >&2
  findings=1
}

# Other versions of clang-format format some lines differently.
clang_format=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
    clang_format=$candidate
    break
  fi
done

check_format() {
  find "${libraries[@]}" tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 "$clang_format" --dry-run -Werror || report "some sources are not formatted; run clang-format-14 -i on them"
}

check_script_comments() {
  find CMakeLists.txt cmake configs scripts bench tests .ci -type f \( -name '*.sh' -o -name '*.sbatch' -o -name run \
    -o -name '*.cmake' -o -name CMakeLists.txt -o -name '*.toml' -o -name '*.py' \) -print0 |
    xargs -0 awk -v openings="$comment_openings" -v words="$comment_words" "$script_comment_findings" ||
    report "comments of scripts have findings"
}

check_scripts() {
  find scripts tests bench .ci -type f \( -name '*.sh' -o -name '*.sbatch' -o -name run \) -exec shellcheck --external-sources {} + ||
    report "shellcheck has findings"
}

# Finds comments that open with words of a fragment, or use words for which there is a standard term. A comment that
# continues the line above may begin with any word.
# shellcheck disable=SC2016 # variables of awk
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

# Finds such openings and words in full-line # comments of scripts, CMake files and configurations.
# shellcheck disable=SC2016 # variables of awk
script_comment_findings='
  function report(what) { print FILENAME ":" FNR ": " what ": " $0; findings = 1 }
  FNR == 1 || !/^ *# / { continues = 0 }
  /^ *# / {
    text = $0
    sub(/^ *# +/, "", text)
    if (!continues && text ~ ("^(" openings ") ")) report("a fragment, not a sentence")
    if (tolower(text) ~ ("(^|[^a-z_`])(" words ")([^a-z_(`]|$)")) report("a word with a standard term (CONTRIBUTING.md)")
    continues = 1
  }
  END { exit findings }'

# Finds such words in string literals that contain a space: messages and help texts, but not keys of configurations and
# JSON outputs.
# shellcheck disable=SC2016 # variables of awk
message_findings='
  function report(what) { print FILENAME ":" FNR ": " what ": " $0; findings = 1 }
  /"/ {
    rest = $0
    gsub(/\047"\047|\047\\"\047/, "", rest) # character literals
    while (match(rest, /"(\\.|[^"\\])*"|\/\//)) {
      literal = tolower(substr(rest, RSTART, RLENGTH))
      if (literal == "//") break
      rest = substr(rest, RSTART + RLENGTH)
      gsub(/there (is|are) no |(is|are) no (longer|more|less) /, "", literal)
      if (literal ~ / / && literal ~ ("(^|[^a-z_`])(" words ")([^a-z_(`]|$)")) report("a word with a standard term (CONTRIBUTING.md)")
    }
  }
  END { exit findings }'
message_words="$comment_words|goes on|gone on|given up|gives up|elsewhere|beside|meanwhile|is there twice|which is not there|anew"
message_words+='|expected were|allowed are|would do|(is|are) no [a-z]+'

check_comments() { # <folder ...>
  local sources=(\( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.js' \) -print0)
  find "$@" "${sources[@]}" |
    xargs -0 awk -v openings="$comment_openings" -v words="$comment_words" "$comment_findings" || report "comments have findings"
  find "$@" "${sources[@]}" | xargs -0 awk -v words="$message_words" "$message_findings" || report "messages have findings"
}

# Reports lines of C++ excerpts in docs that do not occur in any source file, ignoring indentation.
check_docs() {
  find "${libraries[@]}" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 cat |
    awk '
      { sub(/^ +/, "") }
      FNR == NR { lines[$0]; next }
      FNR == 1 { is_excerpt = 0 }
      /^```/ { is_excerpt = /^```cpp/; next }
      is_excerpt && NF && !($0 in lines) { print FILENAME ":" FNR ": no source has this line: " $0; findings = 1 }
      END { exit findings }' - docs/*.md || report "docs have findings"
}

# Reports defects of mutations.tsv whose text no longer occurs in the source file.
check_mutations() {
  awk -F '\t' '
    /^#/ || !NF { next }
    {
      source = ""
      while ((getline line < $2) > 0) source = source line "\n"
      close($2)
      at = index(source, $3)
      if (at && index(substr(source, at), $4)) next
      print FILENAME ":" FNR ": " $2 " does not have \"" $4 "\" after \"" $3 "\""
      findings = 1
    }
    END { exit findings }' tests/cuda_simulator/mutations.tsv || report "seeded defects have findings"
}

# check_commits [revision]: checks the commits since a revision, by default since the project version last changed.
# Needs a clone with history.
check_commits() {
  local since=${1:-}
  if [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" != false ]; then
    skip "this is not a git clone with full history: commits are not checked"
  fi
  [ -n "$since" ] || since=$(git log -1 --format=%H -G'project\(megatron_cpp VERSION' -- CMakeLists.txt)
  git log --format='%h%x09%P%x09%s' "$since..HEAD" | awk -F'\t' '
    length($3) > 65 { print $1 ": subject has " length($3) " characters; the maximum is 65: " $3; bad = 1 }
    $3 !~ /^[a-z_0-9.][^:]*: / { print $1 ": subject is not of the form \"area: imperative subject\": " $3; bad = 1 }
    split($2, parents, " ") > 1 { print $1 ": merge commit: " $3; bad = 1 }
    END { exit bad }' || report "commit subjects have findings; see CONTRIBUTING.md"
}

# sources_since <revision>|all: prints the sources for clang-tidy; for a changed header, the source of the same name.
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
  cmake --preset release -B build/lint -DMCPP_UNITY_BUILD=OFF >/dev/null # so that there is a command for each source
  sources_since "$1" | xargs -0 -r -n 1 -P "$(nproc)" clang-tidy -p build/lint --quiet \
    2> >(grep -v 'warnings\? generated' >&2) || report "clang-tidy has findings"
}

case ${1:-} in
  -h | --help)
    usage
    exit 0
    ;;
  format)
    [ -n "$clang_format" ] || skip "clang-format 14 is missing: format is not checked"
    check_format
    ;;
  comments)
    if [ $# -gt 1 ]; then
      check_comments "${@:2}"
    else
      check_comments "${libraries[@]}"
      check_script_comments
    fi
    ;;
  docs)
    check_docs
    check_mutations
    ;;
  scripts)
    command -v shellcheck >/dev/null || skip "shellcheck is missing: scripts are not checked"
    check_scripts
    ;;
  commits) check_commits "${@:2}" ;;
  *)
    if [ -n "$clang_format" ]; then check_format; else echo "clang-format 14 is missing: format is not checked" >&2; fi
    check_comments "${libraries[@]}"
    check_script_comments
    check_docs
    check_mutations
    if command -v shellcheck >/dev/null; then check_scripts; else echo "shellcheck is missing: scripts are not checked" >&2; fi
    if command -v clang-tidy >/dev/null; then
      check_with_clang_tidy "${1:-HEAD}"
    else
      echo "clang-tidy is missing: sources are not analyzed" >&2
    fi
    ;;
esac
exit "$findings"
