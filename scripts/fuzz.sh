#!/usr/bin/env bash
# Feeds everything that reads files or settings with inputs that anybody might have written, until a time is over:
#
#   scripts/fuzz.sh [seconds per target, 60 unless told] [target ...]
#
# An input must be read, or be refused as bad input, within 256 MiB of any one allocation and 5 seconds (sanitizers make all
# several times slower); anything else ends this with 1 and is left in build/fuzz/findings/. Starts from the inputs in
# tests/fuzz/corpus/<target>/, which were written by hand, and in tests/fuzz/found/<target>.tar.gz, which fuzzing found; the
# ordinary tests read both. New ones that reach more code go to build/fuzz/corpus/.
#
#   scripts/fuzz.sh merge        adds those to tests/fuzz/found/ that reach code which no input kept does
#   scripts/fuzz.sh minimise     keeps in tests/fuzz/found/ as few inputs as reach the same code
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

for target in "${targets[@]}"; do
  mkdir -p "$scratch/found/$target" "build/fuzz/corpus/$target"
  [ ! -f "tests/fuzz/found/$target.tar.gz" ] || tar -xzf "tests/fuzz/found/$target.tar.gz" -C "$scratch/found/$target"
done

# keep <target> <folder> ...: of the inputs in these folders few that reach what those written by hand do not. The same
# inputs make the same archive.
keep() {
  local target=$1 few=$scratch/few input
  shift
  rm -rf "$few"
  cp -r "tests/fuzz/corpus/$target" "$few"
  "build/fuzz/fuzz_$target" -merge=1 -set_cover_merge=1 -use_counters=0 "${limits[@]}" "$few" "$@" >"$scratch/log" 2>&1 ||
    { tail -n 20 "$scratch/log" >&2 && exit 1; }
  for input in "tests/fuzz/corpus/$target"/*; do rm "$few/${input##*/}"; done
  rm -f "tests/fuzz/found/$target.tar.gz"
  [ -z "$(ls "$few")" ] || tar --sort=name --mtime=@0 --mode=a=rX,u+w --owner=0 --group=0 --numeric-owner -C "$few" -cf - . |
    gzip -9n >"tests/fuzz/found/$target.tar.gz"
  printf '%-20s %5d inputs found\n' "$target" "$(find "$few" -type f | wc -l)"
}

case ${1:-} in
  merge) for target in "${targets[@]}"; do keep "$target" "$scratch/found/$target" "build/fuzz/corpus/$target"; done && exit ;;
  minimise) for target in "${targets[@]}"; do keep "$target" "$scratch/found/$target"; done && exit ;;
esac

seconds=${1:-60}
shift || true
[ $# -eq 0 ] || targets=("$@")
# fuzz <target>: one line about it.
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
    echo "$target: a finding; run it again with: build/fuzz/fuzz_$target ${limits[*]} ${input:-(no input was written, see above)}" >&2
    return 1
  fi
}

# As many at once as there are cores.
found=0
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || found=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
for (( ; running > 0; --running)); do wait -n || found=1; done
exit $found
