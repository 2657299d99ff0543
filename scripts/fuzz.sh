#!/usr/bin/env bash
# Feeds everything that reads files or settings with inputs that anybody might have written, until a time is over:
#
#   scripts/fuzz.sh [seconds per target, 60 unless told] [target ...]
#
# An input must be read, or be refused as bad input, within 256 MiB of any one allocation and 5 seconds (sanitizers make all
# several times slower); anything else ends this with 1 and is left in build/fuzz/findings/. Starts from the inputs in
# tests/fuzz/corpus/<target>/, which the ordinary tests read too; new ones that reach more code go to build/fuzz/corpus/.
#
#   scripts/fuzz.sh merge        adds those to tests/fuzz/corpus/ that reach code which its inputs do not
#   scripts/fuzz.sh minimise     keeps of tests/fuzz/corpus/ as few inputs as reach the same code, and all that have a name
#                                of their own, not a checksum for one: those were written by hand
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(clang libclang-rt-14-dev)
scripts/install_dependencies.sh "${packages[@]}"
scripts/build.sh fuzz

scratch=$(mktemp -d -p "$(if [ -w /dev/shm ]; then echo /dev/shm; else echo /tmp; fi)")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan_suppressions.txt:print_suppressions=0
# A small quarantine keeps the memory of the sanitizer itself out of the limit.
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=0:detect_odr_violation=0
limits=(-timeout=5 -malloc_limit_mb=256 -rss_limit_mb=1024 -max_len=16384)

targets=()
for folder in tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done

# add_inputs <target> <folder> <other folder>: to the first, few of the second that reach what its inputs do not.
add_inputs() {
  mkdir -p "$2" "$3"
  "build/fuzz/fuzz_$1" -merge=1 -set_cover_merge=1 -use_counters=0 "${limits[@]}" "$2" "$3" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log" >&2 && exit 1; }
  printf '%-20s %5d inputs, %s bytes\n' "$1" "$(find "$2" -type f | wc -l)" "$(du -bcs "$2" | tail -1 | cut -f1)"
}

if [ "${1:-}" = merge ]; then
  for target in "${targets[@]}"; do add_inputs "$target" "tests/fuzz/corpus/$target" "build/fuzz/corpus/$target"; done
  exit
fi
if [ "${1:-}" = minimise ]; then
  for target in "${targets[@]}"; do
    all=tests/fuzz/corpus/$target few=$scratch/$target
    mkdir "$few"
    find "$all" -type f -regextype posix-extended ! -regex '.*/[0-9a-f]{40}' -exec cp {} "$few" \;
    add_inputs "$target" "$few" "$all"
    rm -r "$all"
    mv "$few" "$all"
  done
  exit
fi

seconds=${1:-60}
shift || true
[ $# -eq 0 ] || targets=("$@")
found=0
for target in "${targets[@]}"; do
  new=build/fuzz/corpus/$target findings=build/fuzz/findings/$target
  mkdir -p "$new" "$findings"
  log=$scratch/$target.log
  if "build/fuzz/fuzz_$target" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$findings/" "$new" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 branches, \2 features/p' "$log" | tail -1)
    printf '%-20s %9d executions, %s\n' "$target" "$executions" "$coverage"
  else
    found=1
    grep -aE '^finding:|^SUMMARY:|^==[0-9]*==ERROR|runtime error:|^ALARM' "$log" | head -5 >&2 || tail -20 "$log" >&2
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    echo "$target: a finding; run it again with: build/fuzz/fuzz_$target ${limits[*]} ${input:-(no input was written, see above)}" >&2
  fi
done
exit $found
