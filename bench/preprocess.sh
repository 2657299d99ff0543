#!/usr/bin/env bash
# Measures the speedup of `preprocess` on two hosts over one. Hosts are namespaces on one physical host with an address,
# memory, processes and one core each, which share the file system (tests/multi_node/hosts.sh). Alternates one rank on
# one host, two ranks on two hosts, whose output must be identical, and two independent processes with half of the text
# each, the upper limit for this hardware. Needs root and two cores without other load.
#
#   bench/preprocess.sh [--rounds=3] [--size=200000000] [--document_lines=100] [--vocab_size=8192] [text ...]
#
#   text              repeated until there are --size bytes (default data/tinyshakespeare.txt)
#   --document_lines  lines per document, each a line of JSON; 100 lines are about 2.7 KB, the size of web pages
#
# Prints JSON lines on standard output: the environment, each run, and the medians.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 3600 "ssh dropbear taskset" "$0" "$@"

rounds=3 size=200000000 document_lines=100 vocab_size=8192
texts=()
for argument in "$@"; do
  case $argument in
    --rounds=*) rounds=${argument#*=} ;;
    --size=*) size=${argument#*=} ;;
    --document_lines=*) document_lines=${argument#*=} ;;
    --vocab_size=*) vocab_size=${argument#*=} ;;
    --*) echo "unknown option $argument; see the header of $0" >&2 && exit 2 ;;
    *) texts+=("$(realpath "$argument")") ;;
  esac
done
[ ${#texts[@]} -gt 0 ] || texts=("$root/data/tinyshakespeare.txt")

# preprocess <output> <text> <core> <host ...>: runs one rank per host, on consecutive cores beginning with <core>.
preprocess() {
  local output=$1 text=$2 core=$3 hosts
  shift 3
  hosts=$(printf '%s:1,' "$@")
  launch_ranks $# --bind-to none --host "${hosts%,}"
  # shellcheck disable=SC2016 # the rank's shell expands it
  on_host "$1" "${launch[@]}" -x MEGATRON_CPP -x FIRST_CORE="$core" bash -c \
    'exec taskset -c "$((FIRST_CORE + OMPI_COMM_WORLD_RANK))" "$MEGATRON_CPP" "$@"' rank \
    preprocess "$scratch/$text" --output_prefix="$scratch/$output" --tokenizer_model="$scratch/tokenizer.model" \
    --workers=1 >"$output.log" 2>&1 </dev/null || { cat "$output.log" >&2 && return 1; }
}
independent() {
  local first
  preprocess half_a half_00.jsonl 0 a &
  first=$!
  preprocess half_b half_01.jsonl 1 b
  wait "$first"
}
# timed <name> <command ...>: appends the seconds of the command to <name>.seconds and prints them.
timed() {
  local name=$1 seconds TIMEFORMAT='%R'
  shift
  { time "$@"; } 2>clock || { cat clock >&2 && exit 1; }
  seconds=$(tail -n 1 clock)
  echo "$seconds" >>"$name.seconds"
  echo "{\"run\": \"$name\", \"bytes\": $bytes, \"seconds\": $seconds}"
}

cd "$scratch"
# shellcheck disable=SC2016 # awk expands it
documents='{ gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/[[:cntrl:]]/, " "); text = text $0 "\\n" }
  NR % lines == 0 { print "{\"text\": \"" text "\"}"; text = "" }'
while cat "${texts[@]}"; do :; done 2>/dev/null | head -c "$size" | iconv -c -f utf-8 -t utf-8 |
  awk -v lines="$document_lines" "$documents" >text.jsonl || true
bytes=$(stat -c %s text.jsonl)
head -c 2000000 <(cat "${texts[@]}") | iconv -c -f utf-8 -t utf-8 >part.txt || true
"$MEGATRON_CPP" tokenizer train --input=part.txt --output=tokenizer.model --vocab_size="$vocab_size" >log
make_network a b
for host in a b; do start_host "$host"; done
environment_json "\"texts\": \"${texts[*]##*/}\"" "\"document_lines\": $document_lines" "\"vocab_size\": $vocab_size"
split -n l/2 -d --additional-suffix=.jsonl text.jsonl half_
for ((round = 0; round < rounds; ++round)); do
  timed one_host preprocess on_1 text.jsonl 0 a
  timed two_hosts preprocess on_2 text.jsonl 0 a b
  timed two_independent independent
  for ending in bin idx; do cmp "on_1_text_document.$ending" "on_2_text_document.$ending" >&2; done
done
awk -v one="$(median <one_host.seconds)" -v two="$(median <two_hosts.seconds)" -v independent="$(median <two_independent.seconds)" \
  'BEGIN { printf "{\"one_host_seconds\": %s, \"two_hosts_seconds\": %s, \"two_independent_seconds\": %s, ", one, two, independent
    printf "\"speedup\": %.3f, \"independent_speedup\": %.3f}\n", one / two, one / independent }'
