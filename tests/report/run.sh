#!/usr/bin/env bash
# Tests the pages of `megatron_cpp report` and `plan --html` in a real browser: run.sh PROGRAM [FOLDER for screenshots]
# Every chart must be drawn without console messages, for long, resumed and broken runs and runs of other versions.
# Skips (77) if there is no Chromium.
set -euo pipefail
program=$1 pictures=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo "skipped: chromium is missing"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "report: $*" >&2; exit 1; }

# steps FIRST LAST SHIFT: prints lines of a run, with occasional spikes and non-finite losses.
steps() {
  awk -v first="$1" -v last="$2" -v shift="$3" 'BEGIN { for (i = first; i <= last; ++i) {
    loss = 3 + shift + 6 / sqrt(i) + 0.2 * sin(i * 12.9898) * sin(i * 4.1414)
    if (i % 9973 == 0) loss = "null"
    printf "{\"type\":\"train\",\"iteration\":%d,\"consumed_samples\":%d,\"global_batch_size\":8,\"learning_rate\":%.9g,", i, 8 * i, 1e-3 * (1 - i / (last + 1))
    printf "\"lm_loss\":%s,\"loss_scale\":1.0,\"grad_norm\":%.6g,\"skipped_iterations\":%d,\"nan_iterations\":0,", loss, 1 + 0.5 * sin(i) + (i % 5003 == 0 ? 30 : 0), i % 9973 == 0
    printf "\"elapsed_ms\":%.5g,\"tokens_per_second\":%.6g,\"tflops\":0.31,\"mfu\":%.4g,", 500 + 40 * sin(i / 50), 9000 + 300 * cos(i / 50), 0.4 + 0.02 * cos(i / 50)
    printf "\"time\":\"2026-11-%02dT%02d:%02d:%02d.000Z\"}\n", 1 + int(i / 172800) % 28, int(i / 7200) % 24, int(i / 120) % 60, int(i / 2) % 60 } }'
}

# look NAME ADDRESS_SUFFIX [flag ...]: stores the page after its scripts as $work/NAME.dom; the console must stay empty.
look() {
  local name=$1 suffix=$2
  shift 2
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1400,1000 --enable-logging=stderr \
    --user-data-dir="$work/profile" "$@" "file://$work/$name.html$suffix" >"$work/$name.dom" 2>"$work/$name.err" || {
    cat "$work/$name.err" >&2
    fail "the browser failed on $name"
  }
  if grep -E ':CONSOLE|Uncaught|Refused to' "$work/$name.err" >&2; then fail "$name$suffix: there are console messages"; fi
}

# check NAME [DRIVER]: appends tests/report/driver.js to the page, which uses it like a reader and checks the results.
check() {
  sed '/<\/body>/,$d' "$work/$1.html" >"$work/$1_driven.html"
  { echo "<script>"; cat "$here/${2:-driver.js}"; echo "</script></body></html>"; } >>"$work/$1_driven.html"
  look "$1_driven" "" --dump-dom
  local verdict
  verdict=$(grep -o 'data-verdict="[^"]*"' "$work/$1_driven.dom") || fail "$1: the scripts did not finish"
  [ "$verdict" = 'data-verdict="good"' ] || fail "$1: $verdict"
  grep -o 'data-milliseconds="[0-9]*"' "$work/$1_driven.dom" | tr -dc '0-9\n' | sed "s/.*/$1: drawn in & ms/"
}

# picture NAME FILE [flag ...]: takes a screenshot.
picture() {
  [ -n "$pictures" ] || return 0
  look "$1" "" --screenshot="$pictures/$2" "${@:3}"
}

mkdir -p "$work/long" "$work/resumed" "$work/empty" "$work/one"
steps 1 100000 0 >"$work/long/metrics.jsonl"
config='[model]\nseq_length = 64\nhidden_size = \"</script><img src=x onerror=alert(1)>\"\n[optimizer]\nlr = 0.001\n'
{
  echo '{"type":"run","iteration":0,"train_iters":100,"world_size":4,"host":"a","program":"megatron_cpp 0.1","device":"cpu","config":"'"$config"'","time":"2026-11-01T00:00:00.000Z"}'
  echo '{"type":"validation-a/\"b) <i>","iteration":0,"lm_loss":9.5,"tokens":100}'
  steps 1 80 0.3
  echo '{"type":"run","iteration":50,"train_iters":120,"world_size":2,"host":"b","program":"megatron_cpp 0.1","device":"cpu","config":"'"${config/0.001/0.002}"'","time":"2026-11-01T00:10:00.000Z"}'
  steps 51 100 0.4
  echo '{"type":"validation","iteration":100,"lm_loss":3.5,"perplexity":33,"tokens":100,"time":"2026-11-01T00:20:00.000Z"}'
  echo '{"type":"validation-a/\"b) <i>","iteration":100,"lm_loss":3.25,"tokens":100}'
  echo '{"type":"event","iteration":70,"event":"roll back","text":"</script><script>alert(1)</script>","time":"2026-11-01T00:15:00.000Z"}'
  echo '{"type":"sample","iteration":100,"prompt":"<b>","text":"</script><script>alert(1)</script>"}'
  for i in 60 100; do
    echo '{"type":"ranks","iteration":'$i',"peak_memory_bytes":[100e6,90e6],"bubble":[0.1,0.3],"exposed_communication":[0.05,0.1],"peak_by_class":{"parameters":[50e6,40e6],"activations":[50e6,50e6]}}'
  done
  echo '{"type":"train","iteration":101,"lm_loss":3.4,"experts":[{"layer":1,"tokens_per_expert":[3,1,null,4],"largest_load":1.5}]}'
  printf '{"type":"train","iteration":102,"lm_lo'
} >"$work/resumed/metrics.jsonl"
: >"$work/empty/metrics.jsonl"
echo '{"type":"train","iteration":7,"lm_loss":null,"new_number":3,"grad_norm":0}' >"$work/one/metrics.jsonl"

report() { "$program" report "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "report $*"; }; }
report "$work/long" --output="$work/long.html"
report "$work/resumed" "$work/long" "$work/one" "$work/empty" --output="$work/several.html"
report "$work/empty" --output="$work/empty.html"
report "$work/one/metrics.jsonl" --output="$work/one.html" --title='<script>alert(1)</script>'
for page in long several empty one; do check $page; done
look several '#x=date&smoothing=0.9&log=1&cuts=1&zoom=1,5&hidden=1,77' --dump-dom
look several '#x=nonsense&smoothing=-3&zoom=a,b&hidden=x' --dump-dom

plan() { "$program" plan "$@" --hardware_folder="$here/../../configs/hardware" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "plan $*"; }; }
plan "$here/../../configs/llama_70b.toml" --hardware=h100_sxm --world_size=128 --pp=4 --cp=1 --html="$work/pipeline.html"
plan "$here/../../configs/mixtral_8x7b.toml" --hardware=a100_80gb --world_size=64 --ep=8 --pp=1 --html="$work/experts.html"
plan "$here/../../bench/gpt2_14m.toml" --hardware=h100_sxm --world_size=1 --predict --html="$work/small.html"
for page in pipeline experts small; do check $page plan_driver.js; done
picture pipeline plan_step.png --window-size=1400,1000

picture several several_light.png --window-size=1400,2600
picture several several_dark.png --window-size=1400,2600 --blink-settings=preferredColorScheme=0 --force-dark-mode
picture long long_light.png --window-size=1400,1400
echo "the page passes"
