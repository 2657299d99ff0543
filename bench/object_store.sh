#!/usr/bin/env bash
# Measures sequential reads of an object over the loopback interface in alternation with reads of a local file of the
# same size, which bypass the page cache. The server (bench/object_store_server.py) has the object in the page cache, so
# the read of the object measures the client, HTTP and the network, not the server's disk.
#
#   bench/object_store.sh [--megabytes=N] [--rounds=N] [--folder=DIR] [--program=PATH]
#
#   --folder=DIR  a folder on the disk to measure (default: a temporary folder)
#
# Prints JSON lines on standard output, and on standard error the medians of the rates and their ratios.
set -euo pipefail
cd "$(dirname "$0")/.."

megabytes=1024
rounds=7
folder=
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options megabytes rounds folder program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
folder=$(mktemp -d "${folder:-${TMPDIR:-/tmp}}/object_store.XXXXXX")
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT

mkdir -p "$folder/store/bucket"
head -c "${megabytes}M" /dev/urandom >"$folder/store/bucket/object"
cp "$folder/store/bucket/object" "$folder/file"
sync "$folder/file" "$folder/store/bucket/object"
python3 bench/object_store_server.py "$folder/store" >"$folder/port" &
server=$!
until [ -s "$folder/port" ]; do sleep 0.1; done
cat "$folder/store/bucket/object" >/dev/null # into the page cache

AWS_ENDPOINT_URL_S3="http://127.0.0.1:$(cat "$folder/port")"
export AWS_ENDPOINT_URL_S3 AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none MEGATRON_CPP_CACHE="$folder/cache"
environment_json
"$program" bench object_store s3://bucket/object "$folder/file" --rounds="$rounds" --json | tee "$folder/results"
for metric in file_s object_s copy_s; do
  seconds=$(sed -n "s/.*\"$metric\":\([0-9.e-]*\).*/\1/p" "$folder/results" | median)
  [ "$metric" != file_s ] || file_seconds=$seconds
  awk -v name="$metric" -v s="$seconds" -v f="$file_seconds" -v mb="$megabytes" \
    'BEGIN { printf "%-10s %8.0f MB/s, %.2f of the file\n", name, mb * 1.048576 / s, f / s }' >&2
done
