#!/usr/bin/env bash
# Draws the pictures of the documentation from the sources, so that they stay up to date.
#
#   scripts/draw_pictures.sh [FOLDER]    writes pipeline.svg, libraries.svg and schedule.svg (default docs/images)
#
# libraries.svg needs the sources, schedule.svg the program (MEGATRON_CPP, or build/release/megatron_cpp).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-docs/images}
program=${MEGATRON_CPP:-build/release/megatron_cpp}
mkdir -p "$folder"

# Libraries from the highest layer to the lowest. Libraries on one line do not include each other.
layers=("megatron_cpp" "plan" "model optimizer data checkpoint" "parallel" "nn comm" "tensor" "base")

svg_begin() { # <width> <height>
  echo "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"$1\" height=\"$2\" viewBox=\"0 0 $1 $2\" font-family=\"sans-serif\" font-size=\"14\">"
  echo '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>'
  echo "<rect width=\"$1\" height=\"$2\" fill=\"white\"/>"
}
svg_box() { # <x> <y> <width> <height> <text> [<second line>]
  echo "<rect x=\"$1\" y=\"$2\" width=\"$3\" height=\"$4\" rx=\"6\" fill=\"#eef3fb\" stroke=\"#3a6ea5\"/>"
  local center=$(($1 + $3 / 2)) middle=$(($2 + $4 / 2 + 5))
  if [ -n "${6:-}" ]; then
    echo "<text x=\"$center\" y=\"$((middle - 8))\" text-anchor=\"middle\">$5</text>"
    echo "<text x=\"$center\" y=\"$((middle + 10))\" text-anchor=\"middle\" font-size=\"11\" fill=\"#555\">$6</text>"
  else
    echo "<text x=\"$center\" y=\"$middle\" text-anchor=\"middle\">$5</text>"
  fi
}
svg_arrow() { echo "<line x1=\"$1\" y1=\"$2\" x2=\"$3\" y2=\"$4\" stroke=\"#888\" marker-end=\"url(#arrow)\"/>"; }

draw_pipeline() {
  svg_begin 900 90
  local x=10 boxes=("text|.txt, .jsonl, .zst" "tokens|.bin, .idx" "pretrain|any layout of ranks" "checkpoint|sharded, verified" "evaluate|perplexity, tasks")
  local commands=("preprocess" "pretrain" "save" "load") i
  for i in "${!boxes[@]}"; do
    svg_box "$x" 20 130 50 "${boxes[i]%%|*}" "${boxes[i]##*|}"
    if [ "$i" -lt 4 ]; then
      svg_arrow $((x + 130)) 45 $((x + 186)) 45
      echo "<text x=\"$((x + 158))\" y=\"38\" text-anchor=\"middle\" font-size=\"10\" fill=\"#555\">${commands[i]}</text>"
    fi
    x=$((x + 188))
  done
  echo "</svg>"
}

# includes <library>: prints the libraries that its sources include.
includes() {
  find "$1" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -exec grep -hoE '^#include "[a-z_]+/' {} + |
    sed 's/.*"\(.*\)\//\1/' | sort -u | { grep -vx -e "$1" -e hwy || true; }
}

# is_implied <library> <other>: succeeds if a library that <library> includes also includes <other>. Reads `used`.
is_implied() {
  local between
  for between in ${used[$1]}; do
    [[ "${used[$between]:-}" != *" $2 "* ]] || return 0
  done
  return 1
}

draw_libraries() {
  declare -A x=() y=()
  local row column names library other width=150 height=40
  svg_begin 700 $((${#layers[@]} * 80 + 10))
  for row in "${!layers[@]}"; do
    read -r -a names <<<"${layers[row]}"
    for column in "${!names[@]}"; do
      x[${names[column]}]=$(((700 - ${#names[@]} * 170) / 2 + column * 170 + 10))
      y[${names[column]}]=$((row * 80 + 10))
    done
  done
  declare -A used=()
  for library in "${!x[@]}"; do used[$library]=" $(includes "$library" | tr '\n' ' ')"; done
  for library in "${!x[@]}"; do
    for other in ${used[$library]}; do
      if [ -n "${y[$other]:-}" ] && ! is_implied "$library" "$other"; then
        svg_arrow $((x[$library] + width / 2)) $((y[$library] + height)) $((x[$other] + width / 2)) "${y[$other]}"
      fi
    done
  done | sort
  for library in "${!x[@]}"; do echo "$library"; done | sort | while read -r library; do
    svg_box "${x[$library]}" "${y[$library]}" $width $height "$library"
  done
  echo "</svg>"
}

# One cell per unit of time: forward blue, backward green, weight gradient orange, idle white.
draw_schedule() {
  "$program" schedule "$1" --pipeline_model_parallel_size=4 --num_microbatches=6 | awk '
    /^rank +[0-9]+ +\|/ {
      split($0, parts, "|")
      row[++rows] = parts[2]
      if (length(parts[2]) > columns) columns = length(parts[2])
    }
    END {
      width = columns * 20 + 90
      height = rows * 24 + 20
      printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n", width, height, width, height
      printf "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", width, height
      for (r = 1; r <= rows; r++) {
        printf "<text x=\"10\" y=\"%d\">rank %d</text>\n", r * 24 + 4, r - 1
        for (c = 1; c <= length(row[r]); c++) {
          cell = substr(row[r], c, 1)
          color = cell ~ /[0-9]/ ? "#9dc3f0" : cell ~ /[a-j]/ ? "#a5d6a7" : cell ~ /[A-J]/ ? "#ffcc80" : "#f5f5f5"
          label = cell ~ /[0-9]/ ? cell + 1 : cell ~ /[a-j]/ ? index("abcdefghij", cell) : cell ~ /[A-J]/ ? index("ABCDEFGHIJ", cell) : ""
          printf "<rect x=\"%d\" y=\"%d\" width=\"20\" height=\"20\" fill=\"%s\" stroke=\"#ddd\"/>", 70 + (c - 1) * 20, r * 24 - 10, color
          if (label != "") printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>", 80 + (c - 1) * 20, r * 24 + 4, label
          printf "\n"
        }
      }
      print "</svg>"
    }'
}

draw_pipeline >"$folder/pipeline.svg"
draw_libraries >"$folder/libraries.svg"
draw_schedule 1f1b >"$folder/schedule.svg"
