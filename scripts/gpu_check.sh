#!/usr/bin/env bash
# Checks the CUDA backend on a host with a GPU, within ten minutes, using the build of scripts/build.sh cuda.
#
#   scripts/gpu_check.sh [--output FOLDER] [--seconds N] [build/cuda | PACK]
#   scripts/gpu_check.sh --pack PACK.tar.xz [build/cuda]
#   scripts/gpu_check.sh --simulated [--output FOLDER] [--seconds N] [build/cuda-sim]
#
#   --output FOLDER  receives the table (table.txt), all output (log.txt) and the results of benchmarks (bench.json);
#                    default $OUT, or build/gpu_check
#   --seconds N      total time limit; default 570
#   --pack FILE      archives the stripped programs and the libraries they need, except CUDA's, instead of checking. On
#                    a different host, this script of the same repository accepts the file in place of a build folder
#   --simulated      runs the same checks on a simulated GPU (docs/cuda.md), with smaller models, fewer steps and longer
#                    limits. Skips benchmarks and compute-sanitizer, and checks that take longer than their limit. The
#                    default of --seconds is 3600
#
# Prints information about the GPU, then runs the tests of the CUDA backend, compute-sanitizer, training on one rank
# and on several ranks that share the GPU, a reproducibility check, and benchmarks. Prints a table of check, result and
# seconds. The most important checks come first and fit into the time limit even if each uses its whole limit.
# Other checks that do not fit are skipped and listed at the end.
#
# Exit code: 0 all checks passed or were skipped, 1 a check failed, 2 the checks cannot run here, 77 no GPU.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
programs=(megatron_cpp tensor_tests model_tests comm_tests checkpoint_tests megatron_cpp_tests)
budget=570 # total seconds
simulated="" # or "yes"

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  echo "scripts/gpu_check.sh: $*" >&2
  exit 2
}

# Libraries that are not archived: the C library, the driver, and CUDA's libraries, which hosts with a GPU have.
excluded_libraries='/(ld-linux|libc\.|libm\.|libdl|libpthread|librt|libresolv|libstdc\+\+|libgcc_s|libcuda|libcublas|libcudnn|libcudart|libnccl|libnv)'

# pack FILE BUILD
pack() {
  local folder program
  folder=$(mktemp -d)
  # shellcheck disable=SC2064  # expands $folder now
  trap "rm -rf '$folder'" EXIT
  mkdir "$folder/lib"
  for program in "${programs[@]}"; do strip -o "$folder/$program" "$2/$program"; done
  for program in "${programs[@]}"; do ldd "$2/$program"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev "$excluded_libraries" | xargs cp -L -t "$folder/lib"
  (cd "$folder" && stat -c '%s %n' -- *) | awk '$2 != "lib"'
  echo "$(du -sb "$folder/lib" | cut -f1) lib, $(find "$folder/lib" -type f | wc -l) files"
  tar -C "$folder" --owner=0 --group=0 -cf - . | xz -T0 -6 >"$1"
  echo "$(stat -c %s "$1") $1"
}

output=${OUT:-$root/build/gpu_check} pack_to="" build="" seconds=""
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --output | --pack | --seconds) [ $# -ge 2 ] || fail "$1 needs a value" ;;&
    --output) output=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --pack) pack_to=$2 && shift ;;
    --simulated) simulated=yes ;;
    -*) fail "$1: unknown option; see --help" ;;
    *) [ -z "$build" ] || fail "$1: only one build folder is allowed" && build=$1 ;;
  esac
  shift
done
preset=cuda${simulated:+-sim}
build=${build:-$root/build/$preset}
[ -z "$simulated" ] || budget=3600
budget=${seconds:-$budget}

if [ -n "$pack_to" ]; then
  for program in "${programs[@]}"; do [ -x "$build/$program" ] || fail "$build/$program does not exist; run scripts/build.sh $preset"; done
  pack "$pack_to" "$build"
  exit 0
fi

if [ -z "$simulated" ] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "no GPU: nvidia-smi lists none; nothing was checked"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$build" ]; then
  mkdir "$work/build" && tar -C "$work/build" -xf "$build"
  build=$work/build
fi
build=$(cd "$build" 2>/dev/null && pwd) || fail "$build: folder does not exist; run scripts/build.sh $preset"
for program in "${programs[@]}"; do [ -x "$build/$program" ] || fail "$build/$program does not exist; run scripts/build.sh $preset"; done

missing_libraries() { for program in "${programs[@]}"; do ldd "$build/$program"; done | awk '/not found/ { print $1 }' | sort -u; }
[ ! -d "$build/lib" ] || export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ -n "$(missing_libraries)" ]; then # search the toolkit and the Python packages of cuDNN and NCCL
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
long=100 short=20 # steps of trainings
learned=0.8       # largest ratio of the last to the first loss of a run of $long steps
[ -z "$simulated" ] || { export MCPP_SIMULATOR_GPUS=1 OMP_NUM_THREADS=1 && long=60 short=6 learned=0.85; }
export long short learned build work output root simulated MCPP_SOURCE_DIR=$root MCPP_BINARY_DIR=$build OMP_WAIT_POLICY=passive

# Each check is a function that prints its output and, as the last line, its result, and returns 0, 77 (skipped) or
# another code (failed). It runs in a separate shell, which can be terminated.

gpu_info() {
  [ -z "$simulated" ] || { "$build/megatron_cpp" --version && echo "simulated" && return 0; }
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv
  "$build/megatron_cpp" --version
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
}

# tests PROGRAM FILTER: runs gtest cases.
tests() {
  local log=$work/tests.log code=0
  "$build/$1" --gtest_filter="$2" --gtest_brief=1 2>&1 | tee "$log" || code=$?
  local passed skipped failed
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  failed=$(grep '^\[  FAILED  \]' "$log" | awk '{ print $4 }' | sort -u | grep -v 'tests\?' | head -n 3 | xargs || true)
  [ "$code" -eq 0 ] || { echo "${passed:-0} passed; failed: ${failed:-exit code $code}" && return 1; }
  [ -z "$skipped" ] || { echo "$skipped tests were skipped although there is a GPU" && return 1; }
  [ "${passed:-0}" -gt 0 ] || { echo "no tests match" && return 77; }
  echo "$passed tests"
}

# sanitized TOOL FILTER: runs op tests under compute-sanitizer.
sanitized() {
  [ -z "$simulated" ] || { echo "simulated GPUs check every access" && return 77; }
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is missing" && return 77; }
  compute-sanitizer --tool "$1" --error-exitcode 9 "$build/tensor_tests" --gtest_filter="$2" --gtest_brief=1 2>&1 |
    tee "$work/sanitizer.log" | tail -n 200
  grep '^========= .*SUMMARY' "$work/sanitizer.log" | tail -n 1
}

data() {
  local m=$build/megatron_cpp
  "$m" tokenizer train --input="$root/data/tinyshakespeare.txt" --output="$work/tokenizer.model" --vocab_size=1024
  "$m" preprocess --input="$root/data/tinyshakespeare.txt" --output_prefix="$work/train" \
    --tokenizer_model="$work/tokenizer.model" --text_document=paragraph
}

# on_ranks N ARGUMENT...: runs the program on N ranks.
on_ranks() {
  local ranks=$1 launcher=()
  shift
  if [ "$ranks" -gt 1 ]; then
    command -v mpirun >/dev/null || { echo "mpirun is missing" >&2 && return 77; }
    launcher=(mpirun --oversubscribe --allow-run-as-root --bind-to none -n "$ranks")
  fi
  "${launcher[@]}" "$build/megatron_cpp" "$@"
}

# pretrain_on DEVICE NAME RANKS STEPS [ARGUMENT...]: trains a small Llama. Metrics and checkpoints are in $work/NAME.
pretrain_on() {
  local device=$1 name=$2 ranks=$3 steps=$4 small=()
  shift 4
  [ -z "$simulated" ] || small=(--model.num_layers=2 --model.hidden_size=64 --model.ffn_hidden_size=128
    --model.num_attention_heads=2 --model.seq_length=32 --training.global_batch_size=32 --optimizer.lr=1e-2)
  on_ranks "$ranks" pretrain "$root/configs/quickstart.toml" --device.device="$device" \
    "--data.train_data_path=[\"$work/train_text_document\"]" --data.valid_data_path=[] --training.eval_iters=0 \
    --data.tokenizer_model="$work/tokenizer.model" --training.train_iters="$steps" --optimizer.lr_warmup_iters=5 \
    --training.micro_batch_size=8 --logging.log_interval=1 --logging.show_progress=false --checkpoint.save="$work/$name" "${small[@]}" "$@"
}
pretrain() { pretrain_on cuda "$@"; }
losses() { sed -n 's/.*"type":"train".*"lm_loss":\([^,}]*\).*/\1/p' "$work/$1/metrics.jsonl"; }

# Fails if attention used the fallback kernel, for which the output of this check so far has a warning.
uses_cudnn() { ! grep -q 'several times slower than cuDNN' "$work/log" || { echo "attention used the fallback kernel" && return 1; }; }

# The loss decreases.
learns() {
  pretrain learns 1 "$long"
  uses_cudnn
  losses learns | awk -v learned="$learned" 'NR == 1 { first = $1 } { last = $1 }
    END { print "loss", first, "to", last; exit !(last < learned * first) }'
}

# With fp8, on GPUs that support it, the loss is within 2 % of bf16.
learns_in_fp8() {
  local code=0
  pretrain fp8 1 "$long" --training.fp8=hybrid >"$work/fp8.log" 2>&1 || code=$?
  cat "$work/fp8.log"
  ! grep -q 'GEMMs in fp8 need' "$work/fp8.log" || return 77
  [ "$code" -eq 0 ] || return "$code"
  paste <(losses learns) <(losses fp8) | awk -v long="$long" '{ bf16 = $1; fp8 = $2 }
    END { d = fp8 / bf16 - 1; print "loss", fp8, "after", NR, "steps, in bf16", bf16; exit !(NR == long && d < 0.02 && d > -0.02) }'
}

# learns_in_recipe NAME ARGUMENT...: with a low-precision recipe, multiplied or emulated, the loss is within 3 % of bf16.
learns_in_recipe() {
  local name=$1
  shift
  pretrain "$name" 1 "$long" "$@" | tee "$work/$name.log"
  local how=multiplied
  ! grep -q 'is emulated' "$work/$name.log" || how=emulated
  paste <(losses learns) <(losses "$name") | awk -v long="$long" -v how="$how" '{ bf16 = $1; low = $2 }
    END { d = low / bf16 - 1; print how ", loss", low, "after", NR, "steps, in bf16", bf16; exit !(NR == long && d < 0.03 && d > -0.03) }'
}
blockwise() { learns_in_recipe blockwise --training.fp8=e4m3 --training.fp8_recipe=blockwise; }
mxfp8() { learns_in_recipe mxfp8 --training.fp8=hybrid --training.fp8_recipe=mxfp8; }
nvfp4() { learns_in_recipe nvfp4 '--training.low_precision=[{modules = "decoder.*", recipe = "nvfp4"}]'; }

# With fp16 the loss scale decreases from a value at which gradients overflow. Skipped steps have no loss.
learns_in_fp16() {
  pretrain fp16 1 "$long" --training.precision=fp16 --optimizer.initial_loss_scale=16777216
  local skipped
  skipped=$(grep -c 'the gradient overflows' "$work/log" || true)
  losses fp16 | grep -v null | awk -v skipped="$skipped" -v learned="$learned" 'NR == 1 { first = $1 } { last = $1 }
    END { print "loss", first, "to", last ", " skipped, "steps skipped"; exit !(last < learned * first) }'
}

# The MLP of GPT-2 with and without cuBLASLt's epilogues: losses agree within rounding errors.
gelu_epilogues() {
  local gpt=(--model.activation_func=gelu --model.add_bias_linear)
  pretrain gelu_separate 1 "$short" "${gpt[@]}"
  pretrain gelu_epilogues 1 "$short" "${gpt[@]}" --device.gelu_epilogue
  close_losses gelu_separate gelu_epilogues 0.01
}

# Two identical runs are bitwise identical.
reproducible() {
  pretrain first 1 "$short"
  pretrain second 1 "$short"
  "$build/megatron_cpp" checkpoint diff "$work/first" "$work/second"
  diff <(losses first) <(losses second)
  echo "losses of $short steps and all weights are bitwise identical"
}

# Runs with and without CUDA graphs are bitwise identical.
cuda_graphs() {
  pretrain no_graphs 1 "$short" --model.hidden_dropout=0.1
  pretrain graphs 1 "$short" --model.hidden_dropout=0.1 --device.cuda_graph_impl=local
  "$build/megatron_cpp" checkpoint diff "$work/no_graphs" "$work/graphs"
  diff <(losses no_graphs) <(losses graphs)
  echo "losses of $short steps and all weights are bitwise identical"
}

# layout RANKS ARGUMENT...: losses in fp32 are within 1e-4 of the losses of one rank.
layout() {
  local ranks=$1 name=ranks_$1
  shift
  [ -d "$work/one_rank" ] || pretrain one_rank 1 "$short" --training.precision=fp32
  rm -rf "${work:?}/$name"
  pretrain "$name" "$ranks" "$short" --training.precision=fp32 "$@" || return $?
  close_losses one_rank "$name"
}
# close_losses NAME NAME [BOUND]: relative differences of the losses are below the bound.
close_losses() {
  paste <(losses "$1") <(losses "$2") | awk -v bound="${3:-1e-4}" -v short="$short" '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > max) max = d }
    END { print NR, "steps, losses differ by at most", max + 0; exit !(NR == short && max < bound) }'
}

# close_to_bf16 RANKS ARGUMENT...: losses are within 1 % of one rank's losses in bf16, for options that change rounding
# or the order of summation.
close_to_bf16() {
  [ -d "$work/first" ] || pretrain first 1 "$short"
  rm -rf "${work:?}/close_to_bf16"
  pretrain close_to_bf16 "$1" "$short" "${@:2}" || return $?
  close_losses first close_to_bf16 0.01
}

# continuation RANKS DEVICE: prints the greedy continuation of a prompt by a model in fp32, with one pipeline stage per
# rank.
continuation() {
  on_ranks "$1" generate --load="$work/one_rank" --device="$2" --parallel.pipeline_model_parallel_size="$1" \
    --prompt="ROMEO:" --temperature=0 --max_new_tokens=32
}

# generates RANKS: the GPU generates the same text as the CPU.
generates() {
  [ -d "$work/one_rank" ] || pretrain one_rank 1 "$short" --training.precision=fp32
  continuation "$1" cuda >"$work/text_cuda"
  continuation 1 cpu >"$work/text_cpu"
  diff "$work/text_cuda" "$work/text_cpu"
  echo "$(wc -w <"$work/text_cuda") words, identical to the CPU"
}

# Golden models and training runs, and training runs that are compared with the CPU.
golden_tests() {
  [ -z "$simulated" ] || { echo "too long for a simulation; run by ctest -L cuda-sim" && return 77; }
  tests megatron_cpp_tests '*cuda*-*TwelveSteps*'
}

# Attention forward and backward over 32768 tokens with four query heads per key head: it must not allocate a matrix of
# 32768 x 32768 elements nor use the fallback kernel.
long_attention() {
  [ -z "$simulated" ] || { echo "too long for a simulation" && return 77; }
  "$build/megatron_cpp" bench attention "$root/bench/gpt2_long.toml" --device.device=cuda --training.precision=bf16 \
    --model.seq_length=32768 --model.num_query_groups=2 --repeats=2 | tail -n 1
  uses_cudnn
}

# on_disk ARGUMENT...: layout with tensors offloaded to the disk of $work.
on_disk() {
  [ "$(stat -f -c %T "$work")" != tmpfs ] || { echo "$work is in memory, not on a disk" && return 77; }
  layout "$@" --optimizer.offload_folder="$work"
}

# Offloaded activations and asynchronous saves do not change results.
async_transfers() {
  [ -d "$work/first" ] || pretrain first 1 "$short"
  pretrain async 1 "$short" --training.offload_activations=host --checkpoint.async_save --checkpoint.save_interval=5
  diff <(losses first) <(losses async)
  "$build/megatron_cpp" checkpoint diff "$work/first" "$work/async"
  echo "losses of $short steps and all weights are bitwise identical"
}

# Mixture of experts with expert parallelism: losses are within 1e-4 of the losses of one rank.
experts() {
  local mixture=(--training.precision=fp32 --model.num_experts=4 --model.moe_router_topk=2)
  pretrain experts_1 1 "$short" "${mixture[@]}"
  pretrain experts_2 2 "$short" "${mixture[@]}" --parallel.expert_model_parallel_size=2
  close_losses experts_1 experts_2
}

# architecture NAME ARGUMENT...: losses in fp32 are within 1e-4 of the CPU's.
architecture() {
  pretrain_on cpu "$1_cpu" 1 "$short" --training.precision=fp32 "${@:2}"
  pretrain "$1" 1 "$short" --training.precision=fp32 "${@:2}"
  close_losses "$1_cpu" "$1"
}

# bench WHAT [ARGUMENT...]: runs a benchmark of GPT-2 124M.
bench() {
  [ -z "$simulated" ] || { echo "simulated GPUs have no speed" && return 77; }
  local what=$1
  shift
  "$build/megatron_cpp" bench "$what" "$root/configs/gpt2_124m.toml" --device.device=cuda --json \
    --training.global_batch_size=64 "$@" | tee "$work/bench.json"
  cat "$work/bench.json" >>"$output/bench.json"
  sed -n 's/.*"tokens_per_s":\([^,}]*\).*/\1 tokens\/s/p' "$work/bench.json"
}

# check NAME SECONDS FUNCTION [ARGUMENT...]: runs a check with a time limit and adds a row to the table.
failures=0 table="" not_run=()
check() {
  local name=$1 limit=$2 full=$2 begin=$SECONDS code=0 result remark
  shift 2
  [ -z "$simulated" ] || limit=$((limit * 10)) full=$limit
  [ $((budget - SECONDS)) -ge "$limit" ] || limit=$((budget - SECONDS))
  printf '\n=== %s: %s\n' "$name" "$*" >>"$output/log.txt"
  if [ "$limit" -lt 3 ]; then
    code=77 && echo "time limit reached" >"$work/log" && not_run+=("$name")
  else
    # shellcheck disable=SC2016  # for the inner shell
    timeout --kill-after=5 "$limit" bash -c 'set -euo pipefail; "$@"' check "$@" >"$work/log" 2>&1 </dev/null || code=$?
  fi
  cat "$work/log" >>"$output/log.txt"
  remark=$(grep -v '^ *$' "$work/log" | tail -n 1 | cut -c1-100 || true)
  case $code in
    0) result=passed ;;
    77) result="skipped" ;;
    124 | 137)
      result=FAILED remark="terminated after $limit s"
      [ -z "$simulated" ] || { result="skipped" remark="takes longer than $limit s in the simulation"; }
      [ "$limit" -eq "$full" ] || { result="skipped" remark="time limit reached after $limit s" && not_run+=("$name"); }
      ;;
    *) result=FAILED ;;
  esac
  [ "$result" != FAILED ] || failures=$((failures + 1))
  table+=$(printf '%-22s | %-8s | %4d | %s' "$name" "$result" $((SECONDS - begin)) "$remark")$'\n'
  printf '%-22s %s: %s\n' "$name" "$result" "$remark" >&2
}
op_filter='*cuda*'
[ -z "$simulated" ] || op_filter='*StepOps*cuda*:*OptimizerOps*cuda*:*Fp8*cuda*:*Nvfp4*cuda*:*RopeOps*cuda*'
export -f gpu_info tests sanitized data on_ranks pretrain_on pretrain losses uses_cudnn learns learns_in_fp8 learns_in_fp16 gelu_epilogues
export -f reproducible layout on_disk close_losses async_transfers experts bench close_to_bf16 continuation generates
export -f cuda_graphs long_attention architecture golden_tests learns_in_recipe blockwise mxfp8 nvfp4

# Most important checks. Their limits add up to less than the default of --seconds.
kernel_subset='*Attention*Packed*bf16_cuda*:*NormOps*bf16_cuda_aligned:*CrossEntropyOps*Gradient*bf16_cuda*:*ExpertChoicesTest.DropLowestWeightsBeyondCapacity*cuda*'
check "GPU" 15 gpu_info
check "op tests" 120 tests tensor_tests "$op_filter"
check "data" 20 data
check "learns in bf16" 40 learns
check "golden training" 40 tests megatron_cpp_tests '*TwelveSteps*cuda*'
check "attention, 32k tokens" 25 long_attention
check "tp 2 x pp 2 x dp 2" 60 layout 8 --parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2
check "communicators" 30 tests comm_tests '*cuda*'
check "learns in fp8" 35 learns_in_fp8
check "memcheck, subset" 50 sanitized memcheck "$kernel_subset"
check "generates" 20 generates 1
check "generates, pp 2" 25 generates 2
check "bench gemm" 25 bench gemm
check "bench ops" 20 bench ops
check "bench step" 30 bench step

# Optional checks: the other tests, further training options, and slow checks.
kernels='*Ops*bf16_cuda*:*Attention*Packed*bf16_cuda*:*ExpertChoicesTest.DropLowestWeightsBeyondCapacity*cuda*'
check "model tests" 40 tests model_tests '*cuda*'
check "golden, CPU parity" 90 golden_tests
check "reproducible" 30 reproducible
check "checkpoint tests" 20 tests checkpoint_tests '*cuda*'
check "tp 2 on one GPU" 30 layout 2 --parallel.tensor_model_parallel_size=2
check "pp 2 on one GPU" 30 layout 2 --parallel.pipeline_model_parallel_size=2
check "dp 2 on one GPU" 30 layout 2 --parallel.zero_stage=1
check "experts, ep 2" 45 experts
check "latent attention, MTP" 40 architecture latent --model.multi_latent_attention --model.num_query_groups=0 \
  --model.q_lora_rank=48 --model.kv_lora_rank=32 --model.qk_head_dim=32 --model.qk_pos_emb_head_dim=16 \
  --model.v_head_dim=32 --model.mtp_num_layers=1
check "Gated DeltaNet" 40 architecture gated_delta_net --model.linear_attention_freq=2 \
  --model.linear_num_key_heads=2 --model.linear_num_value_heads=4 --model.linear_key_head_dim=32 \
  --model.linear_value_head_dim=32
check "Kimi Delta Attention" 40 architecture kimi_delta_attention --model.linear_attention_freq=2 \
  --model.linear_attention_type=kimi_delta_attention --model.linear_num_key_heads=2 --model.linear_num_value_heads=4 \
  --model.linear_key_head_dim=32 --model.linear_value_head_dim=32
pattern='M-M*'
[ -z "$simulated" ] || pattern='M*' # one letter per layer
check "Mamba-2" 40 architecture mamba --model.position_embedding_type=none \
  --model.hybrid_layer_pattern="$pattern" --model.mamba_num_groups=2 --model.mamba_num_heads=4 --model.mamba_head_dim=16 \
  --model.mamba_state_dim=32
check "attention sinks" 40 architecture sinks --model.softmax_type=learnable '--model.window_size=[15,0]' \
  --model.window_attn_skip_freq=2
check "learns in blockwise" 40 blockwise
check "learns in mxfp8" 40 mxfp8
check "learns in nvfp4" 40 nvfp4
check "async save, offload" 45 async_transfers
check "learns in fp16" 40 learns_in_fp16
check "nondeterministic" 30 close_to_bf16 1 --device.deterministic=false
check "cp 2, ring" 30 layout 2 --parallel.context_parallel_size=2
check "cp 2, all-gather" 30 layout 2 --parallel.context_parallel_size=2 --parallel.cp_comm_type=all_gather
check "cp 2, all-to-all" 30 layout 2 --parallel.context_parallel_size=2 --parallel.cp_comm_type=a2a
check "dp 4, HSDP" 40 layout 4 --parallel.zero_stage=2 --parallel.num_distributed_optimizer_instances=2
check "dp 2, bf16 gradients" 30 close_to_bf16 2 --parallel.zero_stage=2 --optimizer.main_grads_dtype=bf16
check "dp 2, bf16 reduce" 30 close_to_bf16 2 --parallel.zero_stage=1 --parallel.grad_reduce_dtype=bf16
check "offload states, host" 30 layout 1 --optimizer.offload=host
check "offload states, disk" 30 on_disk 1 --optimizer.offload=file
check "offload weights, host" 30 layout 2 --parallel.zero_stage=3 --optimizer.offload_params=host
check "offload all, disk" 30 on_disk 2 --parallel.zero_stage=3 --optimizer.offload=file --optimizer.offload_params=file
check "CUDA graphs" 40 cuda_graphs
check "bench step, graphs" 30 bench step --device.cuda_graph_impl=local
check "GELU epilogues" 40 gelu_epilogues
check "bench step, epilogues" 30 bench step --device.gelu_epilogue
check "bench step, fp8" 30 bench step --training.fp8=hybrid
check "bench step, blockwise" 30 bench step --training.fp8=e4m3 --training.fp8_recipe=blockwise
check "bench step, mxfp8" 30 bench step --training.fp8=e4m3 --training.fp8_recipe=mxfp8
check "bench step, nvfp4" 30 bench step '--training.low_precision=[{modules = "decoder.*", recipe = "nvfp4"}]'
check "racecheck, subset" 60 sanitized racecheck "$kernel_subset"
check "memcheck" 120 sanitized memcheck "$kernels"
check "racecheck" 120 sanitized racecheck "$kernels"

table=$(printf '%-22s | %-8s | %4s | %s\n%s\n' check result "s" "" "$table")
[ ${#not_run[@]} -eq 0 ] || table+=$(printf '\n%s checks did not finish within the time limit: %s' \
  ${#not_run[@]} "$(printf '%s; ' "${not_run[@]}" | sed 's/; $//')")
printf '\n%s\n' "$table" | tee "$output/table.txt"
[ "$failures" -eq 0 ]
