#!/usr/bin/env bash
# Flips single bits of checkpoints, one after another, anywhere in any of their files: each must be found and its file named
# by `checkpoint verify`. A training that resumes must name it too and go on from the checkpoint before, unless the bit lies
# between the numbers, where loading does not look; either way it must end in the bits of one that was left alone. A JSON line on
# standard output; exit code 1 when a flip goes unnoticed or a bit differs.
#   bench/flips.sh [count]     flips (default 300)
#   SEED=n bench/flips.sh      other bits; MEGATRON_CPP names another program than build/release/megatron_cpp
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-300}
# shellcheck source=bench/lib/interrupted.sh
source bench/lib/interrupted.sh
settings+=(--training.train_iters=16)

# flip <file> <byte> <bit>
flip() {
  local value
  value=$(od -An -tu1 -j "$2" -N 1 "$1")
  # shellcheck disable=SC2059 # the format is the byte
  printf "\\x$(printf %02x $((value ^ (1 << $3))))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# complain <what>: shows what was said.
complain() {
  echo "flip $flips: bit $bit of byte $byte in $file: $1" >&2
  cat "$folder/log" >&2
}

machine_json "\"seed\": ${SEED:-1}"
begin=$SECONDS
train_whole 1
train 1 "$folder/begun" --training.exit_interval=14 && wait "$job" # its checkpoints: 7 and 14
newest=iter_0000014 found=0 fell_back=0 unread=0 same=0
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
  if [ $code -eq 2 ] && grep -q "$file" "$folder/log"; then found=$((found + 1)); else complain "not found, or not named"; fi
  train 1 "$save"
  wait "$job" || true
  if grep -q "$newest.*damaged" "$folder/log" && grep -q "resuming from .*iter_0000007" "$folder/log"; then
    fell_back=$((fell_back + 1))
  elif [[ $file == *.h5 ]] && grep -q "resuming from .*$newest" "$folder/log"; then
    unread=$((unread + 1))
  else
    complain "did not fall back"
  fi
  if same_bits "$folder/whole_1" "$save"; then same=$((same + 1)); else complain "other bits"; fi
done
printf '{"flips": %d, "in_files": %d, "found_and_named": %d, "fallen_back_from": %d, "between_numbers": %d, "with_the_same_bits_in_the_end": %d, "seconds": %d}\n' \
  "$count" ${#files[@]} $found $fell_back $unread $same $((SECONDS - begin))
[ $((found + fell_back + unread + same)) -eq $((3 * count)) ]
