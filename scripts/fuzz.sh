#!/usr/bin/env bash
# Fuzzes all readers of files and settings for a limited time.
#
#   scripts/fuzz.sh [seconds] [target ...]   fuzzes these targets (default: all), each for this many seconds (default 60)
#   scripts/fuzz.sh merge                    adds new inputs to tests/fuzz/found/ that reach code which no stored input reaches
#   scripts/fuzz.sh minimize                 reduces tests/fuzz/found/ to the fewest inputs that reach the same code
#
# Each input must be accepted or rejected as bad input, with allocations of at most 256 MiB and within 5 seconds (sanitizers
# make everything several times slower). Otherwise the exit code is 1 and the input is written to build/fuzz/findings/.
# Fuzzing starts from tests/fuzz/corpus/<target>/, which is written by hand, and tests/fuzz/found/<target>.tar.gz, which
# was found by fuzzing; fuzz_tests reads both. New inputs that reach more code are written to build/fuzz/corpus/.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(clang libclang-rt-14-dev)
scripts/install_dependencies.sh "${packages[@]}"
scripts/build.sh fuzz

scratch=$(mktemp -d -p "$(if [ -w /dev/shm ]; then echo /dev/shm; else echo /tmp; fi)")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan_suppressions.txt:print_suppressions=0
# Use a small quarantine, so that the sanitizer's own memory does not exceed the limit.
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=0:detect_odr_violation=0
limits=(-timeout=5 -malloc_limit_mb=256 -rss_limit_mb=1024 -max_len=16384)

targets=()
for folder in tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done

for target in "${targets[@]}"; do
  mkdir -p "$scratch/found/$target" "build/fuzz/corpus/$target"
  [ ! -f "tests/fuzz/found/$target.tar.gz" ] || tar -xzf "tests/fuzz/found/$target.tar.gz" -C "$scratch/found/$target"
done

# keep <target> <folder ...>: archives a minimal set of inputs from these folders that reach code which those written by
# hand do not. The archive is reproducible.
keep() {
  local target=$1 kept=$scratch/kept input
  shift
  rm -rf "$kept"
  cp -r "tests/fuzz/corpus/$target" "$kept"
  "build/fuzz/fuzz_$target" -merge=1 -set_cover_merge=1 -use_counters=0 "${limits[@]}" "$kept" "$@" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log" >&2 && exit 1; }
  for input in "tests/fuzz/corpus/$target"/*; do rm "$kept/${input##*/}"; done
  rm -f "tests/fuzz/found/$target.tar.gz"
  [ -z "$(ls "$kept")" ] || tar --sort=name --mtime=@0 --mode=a=rX,u+w --owner=0 --group=0 --numeric-owner -C "$kept" -cf - . |
    gzip -9n >"tests/fuzz/found/$target.tar.gz"
  printf '%-20s %5d inputs found\n' "$target" "$(find "$kept" -type f | wc -l)"
}

case ${1:-} in
  merge) for target in "${targets[@]}"; do keep "$target" "$scratch/found/$target" "build/fuzz/corpus/$target"; done && exit ;;
  minimize | minimise) for target in "${targets[@]}"; do keep "$target" "$scratch/found/$target"; done && exit ;;
esac

seconds=${1:-60}
shift || true
[ $# -eq 0 ] || targets=("$@")
# fuzz <target>: fuzzes one target and prints a line of statistics.
fuzz() {
  local target=$1 new=build/fuzz/corpus/$1 findings=build/fuzz/findings/$1 log=$scratch/$1.log executions coverage input
  mkdir -p "$new" "$findings"
  if "build/fuzz/fuzz_$target" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$findings/" "$new" "tests/fuzz/corpus/$target" "$scratch/found/$target" >"$log" 2>&1; then
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 branches, \2 features/p' "$log" | tail -1)
    printf '%-20s %9d executions, %s\n' "$target" "$executions" "$coverage"
  else
    grep -aE '^finding:|^SUMMARY:|^==[0-9]*==ERROR|runtime error:|^ALARM' "$log" | head -5 >&2 || tail -20 "$log" >&2
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    echo "$target: failed; reproduce with: build/fuzz/fuzz_$target ${limits[*]} ${input:-(no input was written; see above)}" >&2
    return 1
  fi
}

# One target per core at a time.
failed=0
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
for (( ; running > 0; --running)); do wait -n || failed=1; done
exit $failed
