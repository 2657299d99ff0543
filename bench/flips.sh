#!/usr/bin/env bash
# Flips single bits anywhere in the files of a checkpoint. `checkpoint verify` must report each flip and name the file.
# A resuming training must report it too and fall back to the previous checkpoint, unless the bit is between tensors,
# where loading does not read. In all cases the run must end bitwise identical to an undisturbed run.
#
#   bench/flips.sh [count]     number of flips (default 300)
#   SEED=n bench/flips.sh      chooses different bits; MEGATRON_CPP names a program other than build/release/megatron_cpp
#
# Prints a JSON line on standard output. Exit code 1: a flip was not detected or a result differs.
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-300}
# shellcheck source=bench/lib/interrupted.sh
source bench/lib/interrupted.sh
settings+=(--training.train_iters=16)

# flip <file> <byte> <bit>: flips a bit in place.
flip() {
  local value
  value=$(od -An -tu1 -j "$2" -N 1 "$1")
  # shellcheck disable=SC2059 # the format is the byte
  printf "\\x$(printf %02x $((value ^ (1 << $3))))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# report <message>: prints the message and the log.
report() {
  echo "flip $flips: bit $bit of byte $byte in $file: $1" >&2
  cat "$folder/log" >&2
}

environment_json "\"seed\": ${SEED:-1}"
start=$SECONDS
train_uninterrupted 1
train 1 "$folder/begun" --training.exit_interval=14 && wait "$job" # has checkpoints 7 and 14
newest=iter_0000014 found=0 fell_back=0 unread=0 identical=0
mapfile -t files < <(cd "$folder/begun/$newest" && find . -type f -printf '%P\n' | sort)
for ((flips = 1; flips <= count; ++flips)); do
  save=$folder/flipped
  rm -rf "$save"
  cp -r "$folder/begun" "$save"
  file=${files[RANDOM % ${#files[@]}]} bit=$((RANDOM % 8))
  byte=$(((RANDOM * 32768 + RANDOM) % $(stat -c %s "$save/$newest/$file")))
  flip "$save/$newest/$file" $byte $bit
  code=0
  "$program" checkpoint verify "$save/$newest" >"$folder/log" 2>&1 || code=$?
  if [ $code -eq 2 ] && grep -q "$file" "$folder/log"; then found=$((found + 1)); else report "not detected, or the file is not named"; fi
  train 1 "$save"
  wait "$job" || true
  if grep -q "$newest.*damaged" "$folder/log" && grep -q "resuming from .*iter_0000007" "$folder/log"; then
    fell_back=$((fell_back + 1))
  elif [[ $file == *.h5 ]] && grep -q "resuming from .*$newest" "$folder/log"; then
    unread=$((unread + 1))
  else
    report "did not fall back"
  fi
  if is_identical "$folder/uninterrupted_1" "$save"; then identical=$((identical + 1)); else report "result differs"; fi
done
printf '{"flips": %d, "in_files": %d, "detected_and_named": %d, "fallbacks": %d, "between_tensors": %d, "identical_results": %d, "seconds": %d}\n' \
  "$count" ${#files[@]} $found $fell_back $unread $identical $((SECONDS - start))
[ $((found + fell_back + unread + identical)) -eq $((3 * count)) ]
