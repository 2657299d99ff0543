#!/usr/bin/env bash
# Tests that the pictures of the documentation match the current output of scripts/draw_pictures.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
scripts/draw_pictures.sh "$scratch"
for picture in "$scratch"/*.svg; do
  cmp "$picture" "docs/images/${picture##*/}" || {
    echo "docs/images/${picture##*/} is out of date: run scripts/draw_pictures.sh"
    exit 1
  }
done
