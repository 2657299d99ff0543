#!/usr/bin/env bash
# How many times as fast `preprocess` is on two hosts as on one: namespaces of this machine with an address, memory, processes
# and one core of their own, which share the file system (tests/multi_node/hosts.sh). In turn, one rank on one host and two on
# two; both must give the same bytes. JSON lines on standard output: the machine, then each run, then the medians. Needs root
# and two cores that nobody else uses.
#   bench/preprocess.sh [--rounds=3] [--size=200000000] [--vocab_size=8192] [text ...]
# The texts (default data/tinyshakespeare.txt) are taken again and again until there are so many bytes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export MEGATRON_CPP=${MEGATRON_CPP:-$root/build/release/megatron_cpp}
# shellcheck source=tests/support/namespaces.sh
source "$root/tests/support/namespaces.sh"
# shellcheck source=tests/multi_node/hosts.sh
source "$root/tests/multi_node/hosts.sh"
# shellcheck source=bench/lib/machine.sh
source "$root/bench/lib/machine.sh"

if [ -z "$scratch" ]; then
  [ -x "$MEGATRON_CPP" ] || "$root/scripts/build.sh" release megatron_cpp >/dev/null
  # shellcheck disable=SC2034 # in_namespaces reads it
  reason=$(why_no_namespaces ssh dropbear taskset)
  in_namespaces 3600 "$(realpath "$0")" "$@"
fi

rounds=3 size=200000000 vocab_size=8192
texts=()
for argument in "$@"; do
  case $argument in
    --rounds=*) rounds=${argument#*=} ;;
    --size=*) size=${argument#*=} ;;
    --vocab_size=*) vocab_size=${argument#*=} ;;
    --*) echo "unknown option $argument; see the head of $0" >&2 && exit 2 ;;
    *) texts+=("$(realpath "$argument")") ;;
  esac
done
[ ${#texts[@]} -gt 0 ] || texts=("$root/data/tinyshakespeare.txt")

# preprocess <host ...>: into on_<number>; appends the seconds that it takes to on_<number>.seconds.
preprocess() {
  local prefix=on_$# hosts seconds TIMEFORMAT='%R'
  hosts=$(printf '%s:1,' "$@")
  launch_ranks $# --bind-to none --host "${hosts%,}"
  # shellcheck disable=SC2016 # the rank's shell expands it
  { time on_host "$1" "${launch[@]}" -x MEGATRON_CPP bash -c \
    'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$MEGATRON_CPP" "$@"' rank \
    preprocess "$scratch/text.txt" --output_prefix="$scratch/$prefix" --tokenizer_model="$scratch/tokenizer.model" \
    --text_document=paragraph --workers=1 >"$scratch/log" 2>&1 </dev/null; } 2>"$scratch/clock" || { cat "$scratch/log" >&2 && exit 1; }
  seconds=$(tail -n 1 clock)
  echo "$seconds" >>"$prefix.seconds"
  echo "{\"hosts\": $#, \"bytes\": $bytes, \"seconds\": $seconds}"
}
median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

cd "$scratch"
while cat "${texts[@]}"; do :; done 2>/dev/null | head -c "$size" | iconv -c -f utf-8 -t utf-8 >text.txt || true
bytes=$(stat -c %s text.txt)
head -c 2000000 text.txt | iconv -c -f utf-8 -t utf-8 >part.txt
"$MEGATRON_CPP" tokenizer train --input=part.txt --output=tokenizer.model --vocab_size="$vocab_size" >log
make_network a b
for host in a b; do start_host "$host"; done
machine_json "\"texts\": \"${texts[*]##*/}\"" "\"vocab_size\": $vocab_size"
for ((round = 0; round < rounds; ++round)); do
  preprocess a
  preprocess a b
  for ending in bin idx; do cmp "on_1_text_document.$ending" "on_2_text_document.$ending" >&2; done
done
awk -v one="$(median on_1.seconds)" -v two="$(median on_2.seconds)" \
  'BEGIN { printf "{\"one_host_seconds\": %s, \"two_hosts_seconds\": %s, \"times_as_fast\": %.3f}\n", one, two, one / two }'
