#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU, in at most ten minutes, with what scripts/build.sh cuda built:
#
#   scripts/gpu_check.sh [--output FOLDER] [--seconds N] [build/cuda | PACK]
#   scripts/gpu_check.sh --pack PACK.tar.xz [build/cuda]
#
# Runs facts about the GPU, all tests of the CUDA backend, compute-sanitizer on kernels, trainings on one rank and on
# several that share the GPU, the same training twice, and the benches; prints a table: check, result, seconds. What says
# most comes first and fits the time even where every check takes all that it may; of the others those that the time does
# not suffice for are left out, and named at the end.
#   --output FOLDER  gets the table (table.txt), all output (log.txt) and the benches' JSON (bench.json); default $OUT, or
#                    build/gpu_check
#   --seconds N      in all; default 570
#   --pack FILE      instead packs the stripped programs, and the libraries they need beside CUDA's, to carry to another
#                    machine, where this script, in the same repository, takes the file in place of a build folder
# Exit code: 0 all passed or had a reason to be left out, 1 something failed, 2 it cannot run here, 77 no GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
programs=(megatron_cpp tensor_tests model_tests comm_tests checkpoint_tests megatron_cpp_tests)
budget=570 # seconds in all

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  echo "scripts/gpu_check.sh: $*" >&2
  exit 2
}

# What is not taken along: the C library, the driver, and CUDA's own libraries, which a machine with a GPU has.
left_behind='/(ld-linux|libc\.|libm\.|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s|libcuda|libcublas|libcudnn|libcudart|libnccl|libnv)'

# pack FILE BUILD
pack() {
  local folder program
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$folder'" EXIT
  mkdir "$folder/lib"
  for program in "${programs[@]}"; do strip -o "$folder/$program" "$2/$program"; done
  for program in "${programs[@]}"; do ldd "$2/$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev "$left_behind" | xargs cp -L -t "$folder/lib"
  (cd "$folder" && stat -c '%s %n' -- *) | awk '$2 != "lib"'
  echo "$(du -sb "$folder/lib" | cut -f1) lib, of $(find "$folder/lib" -type f | wc -l) files"
  tar -C "$folder" --owner=0 --group=0 -cf - . | xz -T0 -6 >"$1"
  echo "$(stat -c %s "$1") $1"
}

output=${OUT:-$here/build/gpu_check} pack_to="" build=""
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --output | --pack | --seconds) [ $# -ge 2 ] || fail "$1 needs a value" ;;&
    --output) output=$2 && shift ;;
    --seconds) budget=$2 && shift ;;
    --pack) pack_to=$2 && shift ;;
    -*) fail "$1: no such option; see --help" ;;
    *) [ -z "$build" ] || fail "$1: one build folder is enough" && build=$1 ;;
  esac
  shift
done
build=${build:-$here/build/cuda}

if [ -n "$pack_to" ]; then
  for program in "${programs[@]}"; do [ -x "$build/$program" ] || fail "$build/$program is not there; run scripts/build.sh cuda"; done
  pack "$pack_to" "$build"
  exit 0
fi

if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "no GPU: nvidia-smi lists none here; nothing was checked"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$build" ]; then
  mkdir "$work/build" && tar -C "$work/build" -xf "$build"
  build=$work/build
fi
build=$(cd "$build" 2>/dev/null && pwd) || fail "$build: no such folder; run scripts/build.sh cuda"
for program in "${programs[@]}"; do [ -x "$build/$program" ] || fail "$build/$program is not there; run scripts/build.sh cuda"; done

missing_libraries() { for program in "${programs[@]}"; do ldd "$build/$program"; done | awk '/not found/ { print $1 }' | sort -u; }
[ ! -d "$build/lib" ] || export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ -n "$(missing_libraries)" ]; then # where the toolkit and Python's packages of cuDNN and NCCL have them
  for folder in /usr/local/cuda/lib64 $(python3 -c 'import nvidia; print(*[p + "/*/lib" for p in nvidia.__path__])' 2>/dev/null); do
    [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
  done
  export LD_LIBRARY_PATH
  [ -z "$(missing_libraries)" ] || fail "libraries are missing: $(missing_libraries | xargs)"
fi
[ ! -d /usr/local/cuda/bin ] || export PATH=$PATH:/usr/local/cuda/bin # compute-sanitizer
mkdir -p "$output"
output=$(cd "$output" && pwd)
: >"$output/log.txt"
: >"$output/bench.json"
export build work output here MCPP_SOURCE_DIR=$here MCPP_BINARY_DIR=$build OMP_WAIT_POLICY=passive

# Each check is a function that prints what it does, as the last line what came of it, and returns 0, 77 (left out) or
# another code (failed). They run in a shell of their own, which can be stopped.

facts() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv
  "$build/megatron_cpp" --version
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
}

# tests PROGRAM FILTER
tests() {
  local log=$work/tests.log code=0
  "$build/$1" --gtest_filter="$2" --gtest_brief=1 2>&1 | tee "$log" || code=$?
  local passed skipped failed
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  failed=$(grep '^\[  FAILED  \]' "$log" | awk '{ print $4 }' | sort -u | grep -v 'tests\?' | head -n 3 | xargs || true)
  [ "$code" -eq 0 ] || { echo "${passed:-0} passed; failed: ${failed:-ended with code $code}" && return 1; }
  [ -z "$skipped" ] || { echo "$skipped tests were skipped, though there is a GPU" && return 1; }
  [ "${passed:-0}" -gt 0 ] || { echo "no such tests" && return 77; }
  echo "$passed tests"
}

# sanitized TOOL FILTER
sanitized() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is missing" && return 77; }
  compute-sanitizer --tool "$1" --error-exitcode 9 "$build/tensor_tests" --gtest_filter="$2" --gtest_brief=1 2>&1 |
    tee "$work/sanitizer.log" | tail -n 200
  grep '^========= .*SUMMARY' "$work/sanitizer.log" | tail -n 1
}

data() {
  local m=$build/megatron_cpp
  "$m" tokenizer train --input="$here/data/tinyshakespeare.txt" --output="$work/tokenizer.model" --vocab_size=1024
  "$m" preprocess --input="$here/data/tinyshakespeare.txt" --output_prefix="$work/train" \
    --tokenizer_model="$work/tokenizer.model" --text_document=paragraph
}

# on_ranks N ARGUMENT...: the program on so many ranks.
on_ranks() {
  local ranks=$1 launcher=()
  shift
  if [ "$ranks" -gt 1 ]; then
    command -v mpirun >/dev/null || { echo "mpirun is missing" >&2 && return 77; }
    launcher=(mpirun --oversubscribe --allow-run-as-root --bind-to none -n "$ranks")
  fi
  "${launcher[@]}" "$build/megatron_cpp" "$@"
}

# pretrain NAME RANKS STEPS [argument ...]: a small Llama on the GPU; its metrics and checkpoints are in $work/NAME.
pretrain() {
  local name=$1 ranks=$2 steps=$3
  shift 3
  on_ranks "$ranks" pretrain "$here/configs/quickstart.toml" --device.device=cuda \
    "--data.train_data_path=[\"$work/train_text_document\"]" --data.valid_data_path=[] --training.eval_iters=0 \
    --data.tokenizer_model="$work/tokenizer.model" --training.train_iters="$steps" --optimizer.lr_warmup_iters=5 \
    --training.micro_batch_size=8 --logging.log_interval=1 --logging.show_progress=false --checkpoint.save="$work/$name" "$@"
}
losses() { sed -n 's/.*"type":"train".*"lm_loss":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl"; }

# What this check printed so far has no warning of attention in the own kernel. Quiet, as grep reads nothing that it writes
# to.
on_cudnn() { ! grep -q 'several times slower than cuDNN' "$work/log" || { echo "attention ran in the own kernel" && return 1; }; }

# The loss falls, and nothing is skipped.
learns() {
  pretrain learns 1 100
  on_cudnn
  losses learns | awk 'NR == 1 { first = $1 } { last = $1 } END { print "loss", first, "to", last; exit !(last < 0.8 * first) }'
}

# The same in fp8, where the GPU has it, as low as in bf16 but for what fp8 loses.
learns_in_fp8() {
  local code=0
  pretrain in_fp8 1 100 --training.fp8=hybrid >"$work/in_fp8.log" 2>&1 || code=$?
  cat "$work/in_fp8.log"
  ! grep -q 'products in fp8 need' "$work/in_fp8.log" || return 77
  [ "$code" -eq 0 ] || return "$code"
  paste <(losses learns) <(losses in_fp8) | awk '{ bf16 = $1; fp8 = $2 }
    END { d = fp8 / bf16 - 1; print "loss", fp8, "after", NR, "steps, in bf16", bf16; exit !(NR == 100 && d < 0.02 && d > -0.02) }'
}

# The same in fp16, whose scale comes down from one at which gradients overflow.
learns_in_fp16() {
  pretrain in_fp16 1 100 --training.precision=fp16 --optimizer.initial_loss_scale=16777216
  local skipped
  skipped=$(grep -c 'the gradient overflows' "$work/log" || true)
  losses in_fp16 | awk -v skipped="$skipped" 'NR == 1 { first = $1 } { last = $1 }
    END { print "loss", first, "to", last ", " skipped, "steps skipped"; exit !(last < 0.8 * first) }'
}

# GPT-2's MLP with and without cuBLASLt's epilogues, whose losses are the same but for rounding.
gelu_epilogues() {
  local gpt=(--model.activation_func=gelu --model.add_bias_linear)
  pretrain gelu_apart 1 20 "${gpt[@]}"
  pretrain gelu_epilogues 1 20 "${gpt[@]}" --device.gelu_epilogue
  same_losses gelu_apart gelu_epilogues 0.01
}

same_bits_twice() {
  pretrain first 1 20
  pretrain second 1 20
  "$build/megatron_cpp" checkpoint diff "$work/first" "$work/second"
  diff <(losses first) <(losses second)
  echo "losses of 20 steps and all weights are the same"
}

# layout RANKS ARGUMENT...: losses within 1e-4 of those of one rank, in fp32.
layout() {
  local ranks=$1 name=ranks_$1
  shift
  [ -d "$work/one_rank" ] || pretrain one_rank 1 20 --training.precision=fp32
  rm -rf "${work:?}/$name"
  pretrain "$name" "$ranks" 20 --training.precision=fp32 "$@" || return $?
  same_losses one_rank "$name"
}
# same_losses NAME NAME [BOUND]
same_losses() {
  paste <(losses "$1") <(losses "$2") | awk -v bound="${3:-1e-4}" '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d }
    END { print NR, "steps, losses differ by at most", most + 0; exit !(NR == 20 && most < bound) }'
}

# near_first RANKS ARGUMENT...: losses near those of one rank in bf16, for what rounds or adds up in another way.
near_first() {
  [ -d "$work/first" ] || pretrain first 1 20
  rm -rf "${work:?}/near_first"
  pretrain near_first "$1" 20 "${@:2}" || return $?
  same_losses first near_first 0.01
}

# continuation RANKS DEVICE: the likeliest one by a model in fp32, with keys and values kept, its layers shared by ranks.
continuation() {
  on_ranks "$1" generate --load="$work/one_rank" --device="$2" --parallel.pipeline_model_parallel_size="$1" \
    --prompt="ROMEO:" --temperature=0 --max_new_tokens=32
}

# generates RANKS: on the GPU the text that the CPU has.
generates() {
  [ -d "$work/one_rank" ] || pretrain one_rank 1 20 --training.precision=fp32
  continuation "$1" cuda >"$work/text_cuda"
  continuation 1 cpu >"$work/text_cpu"
  diff "$work/text_cuda" "$work/text_cpu"
  echo "$(wc -w <"$work/text_cuda") words, the same as on the CPU"
}

# Attention forward and backward over 32768 tokens, four query heads to a key head: no pass may keep 32768 x 32768 numbers,
# nor run in the own kernel.
long_attention() {
  "$build/megatron_cpp" bench attention "$here/bench/gpt2_long.toml" --device.device=cuda --training.precision=bf16 \
    --model.seq_length=32768 --model.num_query_groups=2 --repeats=2 | tail -n 1
  on_cudnn
}

# on_disk ARGUMENT...: layout, with what is away on the disk of $work.
on_disk() {
  [ "$(stat -f -c %T "$work")" != tmpfs ] || { echo "$work lies in memory, not on a disk" && return 77; }
  layout "$@" --optimizer.offload_folder="$work"
}

# The same bits as same_bits_twice has, where activations go to the host and saves are made beside the training.
beside_computing() {
  [ -d "$work/first" ] || pretrain first 1 20
  pretrain beside 1 20 --training.offload_activations=host --checkpoint.async_save --checkpoint.save_interval=5
  diff <(losses first) <(losses beside)
  "$build/megatron_cpp" checkpoint diff "$work/first" "$work/beside"
  echo "losses of 20 steps and all weights are the same"
}

# A mixture of experts on two ranks, losses within 1e-4 of those of one.
experts() {
  local mixture=(--training.precision=fp32 --model.num_experts=4 --model.moe_router_topk=2)
  pretrain experts_1 1 20 "${mixture[@]}"
  pretrain experts_2 2 20 "${mixture[@]}" --parallel.expert_model_parallel_size=2
  same_losses experts_1 experts_2
}

# bench WHAT [argument ...]
bench() {
  local what=$1
  shift
  "$build/megatron_cpp" bench "$what" "$here/configs/gpt2_124m.toml" --device.device=cuda --json \
    --training.global_batch_size=64 "$@" | tee "$work/bench.json"
  cat "$work/bench.json" >>"$output/bench.json"
  sed -n 's/.*"tokens_per_s":\([^,}]*\).*/\1 tokens\/s/p' "$work/bench.json"
}

# check NAME SECONDS FUNCTION [argument ...]
failures=0 table="" not_run=()
check() {
  local name=$1 limit=$2 full=$2 begin=$SECONDS code=0 result remark
  shift 2
  [ $((budget - SECONDS)) -ge "$limit" ] || limit=$((budget - SECONDS))
  printf '\n=== %s: %s\n' "$name" "$*" >>"$output/log.txt"
  if [ "$limit" -lt 3 ]; then
    code=77 && echo "no time left" >"$work/log" && not_run+=("$name")
  else
    # shellcheck disable=SC2016  # for the inner shell
    timeout --kill-after=5 "$limit" bash -c 'set -euo pipefail; "$@"' check "$@" >"$work/log" 2>&1 </dev/null || code=$?
  fi
  cat "$work/log" >>"$output/log.txt"
  remark=$(grep -v '^ *$' "$work/log" | tail -n 1 | cut -c1-100 || true)
  case $code in
    0) result=passed ;;
    77) result="left out" ;;
    124 | 137)
      result=FAILED remark="stopped after $limit s"
      [ "$limit" -eq "$full" ] || { result="left out" remark="the time was up after $limit s" && not_run+=("$name"); }
      ;;
    *) result=FAILED ;;
  esac
  [ "$result" != FAILED ] || failures=$((failures + 1))
  table+=$(printf '%-22s | %-8s | %4d | %s' "$name" "$result" $((SECONDS - begin)) "$remark")$'\n'
  printf '%-22s %s: %s\n' "$name" "$result" "$remark" >&2
}
export -f facts tests sanitized data on_ranks pretrain losses on_cudnn learns learns_in_fp8 learns_in_fp16 gelu_epilogues
export -f same_bits_twice layout on_disk same_losses beside_computing experts bench near_first continuation generates
export -f long_attention

# What says most, in this order: the seconds of all together are below the default of --seconds.
some_kernels='*Attention*Packed*bf16_cuda*:*NormOps*bf16_cuda_aligned:*CrossEntropyOps*Gradient*bf16_cuda*:*Choices.BeyondACapacity*cuda*'
check facts 15 facts
check "op tests" 120 tests tensor_tests '*cuda*'
check "data" 20 data
check "learns in bf16" 40 learns
check "golden training" 40 tests megatron_cpp_tests '*TwelveStepsOfTraining*cuda*'
check "attention of 32k" 25 long_attention
check "tp 2 x pp 2 x dp 2" 60 layout 8 --parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2
check "communicators" 30 tests comm_tests '*cuda*'
check "learns in fp8" 35 learns_in_fp8
check "memcheck of some" 50 sanitized memcheck "$some_kernels"
check "generates" 20 generates 1
check "generates, pp 2" 25 generates 2
check "bench gemm" 25 bench gemm
check "bench ops" 20 bench ops
check "bench step" 30 bench step

# What may be left out: the other tests, one way to train after another, and what takes long.
kernels='*Ops*bf16_cuda*:*Attention*Packed*bf16_cuda*:*Choices.BeyondACapacity*cuda*'
check "model tests" 40 tests model_tests '*cuda*'
check "golden, CPU parity" 90 tests megatron_cpp_tests '*cuda*-*TwelveStepsOfTraining*'
check "same bits twice" 30 same_bits_twice
check "saves" 20 tests checkpoint_tests '*cuda*'
check "tp 2 on one GPU" 30 layout 2 --parallel.tensor_model_parallel_size=2
check "pp 2 on one GPU" 30 layout 2 --parallel.pipeline_model_parallel_size=2
check "dp 2 on one GPU" 30 layout 2 --parallel.zero_stage=1
check "experts, ep 2" 45 experts
check "beside computing" 45 beside_computing
check "learns in fp16" 40 learns_in_fp16
check "any order of sums" 30 near_first 1 --device.deterministic=false
check "cp 2, ring" 30 layout 2 --parallel.context_parallel_size=2
check "cp 2, gathered" 30 layout 2 --parallel.context_parallel_size=2 --parallel.cp_comm_type=all_gather
check "cp 2, heads" 30 layout 2 --parallel.context_parallel_size=2 --parallel.cp_comm_type=a2a
check "dp 4, HSDP" 40 layout 4 --parallel.zero_stage=2 --parallel.num_distributed_optimizer_instances=2
check "dp 2, bf16 gradients" 30 near_first 2 --parallel.zero_stage=2 --optimizer.main_grads_dtype=bf16
check "dp 2, sent in bf16" 30 near_first 2 --parallel.zero_stage=1 --parallel.grad_reduce_dtype=bf16
check "states on the host" 30 layout 1 --optimizer.offload=host
check "states on a disk" 30 on_disk 1 --optimizer.offload=file
check "weights on the host" 30 layout 2 --parallel.zero_stage=3 --optimizer.offload_params=host
check "all on a disk" 30 on_disk 2 --parallel.zero_stage=3 --optimizer.offload=file --optimizer.offload_params=file
check "GELU epilogues" 40 gelu_epilogues
check "bench step, epilogues" 30 bench step --device.gelu_epilogue
check "bench step, fp8" 30 bench step --training.fp8=hybrid
check "racecheck of some" 60 sanitized racecheck "$some_kernels"
check "memcheck" 120 sanitized memcheck "$kernels"
check "racecheck" 120 sanitized racecheck "$kernels"

table=$(printf '%-22s | %-8s | %4s | %s\n%s\n' check result "s" "" "$table")
[ ${#not_run[@]} -eq 0 ] || table+=$(printf '\n%s checks were not run to their end, as the time was up: %s' \
  ${#not_run[@]} "$(printf '%s; ' "${not_run[@]}" | sed 's/; $//')")
printf '\n%s\n' "$table" | tee "$output/table.txt"
[ "$failures" -eq 0 ]
