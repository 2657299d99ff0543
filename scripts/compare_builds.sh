#!/usr/bin/env bash
# Checks that two builds of the program produce bitwise identical results: trains small models with both, with layouts
# from one to eight ranks, and compares the weights and optimizer states of their last checkpoints.
#
#   scripts/compare_builds.sh BEFORE AFTER                  programs, such as build/before/megatron_cpp
#   scripts/compare_builds.sh BEFORE AFTER 'llama .*zero3'  only layouts whose line in the table below matches
#
# Exit code: 0 all layouts are identical, 1 some differ or failed to train, 2 bad arguments.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
[ $# -ge 2 ] || { usage && exit 2; }
before=$(readlink -f "$1") after=$(readlink -f "$2") pattern=${3:-}
for program in "$before" "$after"; do
  [ -x "$program" ] || { echo "scripts/compare_builds.sh: $program is not a program" >&2 && exit 2; }
done

# layouts: prints model, ranks and other settings, one layout per line.
layouts() {
  cat <<'END_OF_LAYOUTS'
gpt2  1
gpt2  1 bf16 recompute=full
llama 1 bf16
llama 1 fp16 sgd recompute=selective
gpt2  1 muon
llama 1 experts bf16
gpt2  2 tp=2
llama 2 tp=2 sp bf16
gpt2  2 pp=2 schedule=gpipe
gpt2  2 pp=2 schedule=zb-h1 bf16
llama 2 pp=2 schedule=zb-v
gpt2  2 zero=0
gpt2  2 zero=1 bf16
llama 2 zero=2
gpt2  2 zero=3 recompute=full
llama 4 tp=4 sp
gpt2  4 pp=4
gpt2  4 pp=2 zero=1
gpt2  4 pp=2 zero=2 bf16
llama 4 tp=2 pp=2 schedule=interleaved sp recompute=selective
gpt2  4 tp=2 zero=3 bf16
gpt2  4 zero=2 instances=2
llama 4 zero=1 instances=2 fp16
gpt2  2 cp=2
llama 2 cp=2 cp_comm_type=all_gather bf16
gpt2  2 cp=2 cp_comm_type=a2a recompute=selective
llama 2 cp=2 documents window=8
llama 4 cp=4 documents bf16
gpt2  4 tp=2 sp cp=2 zero=1
llama 4 pp=2 schedule=zb-v cp=2 documents
gpt2  8 cp=4 hierarchy=2,2 zero=3 documents
gpt2  8 tp=2 pp=2 sp zero=1
gpt2  8 tp=2 pp=2 zero=3 bf16
llama 8 tp=4 pp=2 schedule=interleaved sp
gpt2  8 pp=4 schedule=zb-v zero=1
gpt2  8 tp=2 sp zero=3 instances=2
gpt2  4 tp=2 zero=2 muon
gpt2  4 pp=2 zero=3 muon bf16
llama 2 experts ep=2 zero=1 bf16
llama 4 experts ep=2 tp=2 sp
gpt2  2 zero=1 offload bf16
gpt2  1 fp8=hybrid bf16
llama 4 tp=2 sp zero=1 fp8=e4m3 bf16
gpt2  4 zero=3 zero_quantized_weights zero_quantized_gradients bf16
gpt2  4 zero=2 grad_reduce_dtype=bf16 bf16
llama 2 zero=1 power_sgd_rank=2
END_OF_LAYOUTS
}

# arguments_of <setting ...>: prints the settings of a layout as arguments of pretrain, one per line.
arguments_of() {
  local setting value
  for setting in "$@"; do
    value=${setting#*=}
    case $setting in
      tp=*) echo "--parallel.tensor_model_parallel_size=$value" ;;
      pp=*) echo "--parallel.pipeline_model_parallel_size=$value" ;;
      sp) echo --parallel.sequence_parallel=true ;;
      cp=*) echo "--parallel.context_parallel_size=$value" ;;
      cp_comm_type=*) echo "--parallel.cp_comm_type=$value" ;;
      hierarchy=*)
        echo --parallel.cp_comm_type=a2a+p2p
        echo "--parallel.hierarchical_context_parallel_sizes=[$value]"
        ;;
      documents) printf '%s\n' --data.reset_attention_mask --data.reset_position_ids --data.eod_mask_loss ;;
      window=*) echo "--model.window_size=[$((value - 1)), 0]" ;;
      zero=*) echo "--parallel.zero_stage=$value" ;;
      instances=*) echo "--parallel.num_distributed_optimizer_instances=$value" ;;
      schedule=interleaved | schedule=zb-v)
        echo "--parallel.pipeline_schedule=$value"
        echo --parallel.num_virtual_stages_per_pipeline_rank=2
        ;;
      schedule=*) echo "--parallel.pipeline_schedule=$value" ;;
      bf16) echo --training.precision=bf16 ;;
      fp16)
        echo --training.precision=fp16
        echo --optimizer.initial_loss_scale=4096 # low enough that no step is skipped
        ;;
      recompute=selective)
        echo --training.recompute_granularity=selective
        echo '--training.recompute_modules=["core_attn", "layernorm", "mlp_act"]'
        ;;
      recompute=*) echo "--training.recompute_granularity=$value" ;;
      sgd | muon) echo "--optimizer.optimizer=$setting" ;;
      offload) echo --optimizer.offload=host ;;
      fp8=*) echo "--training.fp8=$value" ;;
      zero_quantized_*) echo "--parallel.$setting=true" ;;
      grad_reduce_dtype=* | power_sgd_rank=*) echo "--parallel.$setting" ;;
      experts) printf '%s\n' --model.num_experts=4 --model.moe_router_topk=2 ;;
      ep=*) printf '%s\n' "--parallel.expert_model_parallel_size=$value" --parallel.expert_tensor_parallel_size=1 ;;
    esac
  done
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

head -c 60000 "$root/data/tinyshakespeare.txt" >train.txt
"$before" tokenizer train --input=train.txt --output=tokenizer.model --vocab_size=400 >log
"$before" preprocess --input=train.txt --output_prefix=train --tokenizer_model=tokenizer.model --text_document=paragraph >log
cat >gpt2.toml <<END
[model]
num_layers = 8
hidden_size = 32
num_attention_heads = 4
seq_length = 32
[training]
micro_batch_size = 1
global_batch_size = 16
train_iters = 6
eval_iters = 0
[parallel]
ddp_bucket_size = 20000
[optimizer]
lr = 1e-3
[data]
data_path = ["$folder/train_text_document"]
tokenizer_model = "$folder/tokenizer.model"
[checkpoint]
save = "checkpoints"
[logging]
peak_tflops = 1
[device]
num_threads = 1
END
sed -e '/^\[training\]/i num_query_groups = 2\nffn_hidden_size = 48\nposition_embedding_type = "rope"\nnormalization = "RMSNorm"' \
  -e '/^\[training\]/i activation_func = "swiglu"\nadd_bias_linear = false\nhidden_dropout = 0.0\nattention_dropout = 0.0' \
  -e '/^\[training\]/i untie_embeddings_and_output_weights = true' gpt2.toml >llama.toml

# train PROGRAM FOLDER MODEL RANKS ARGUMENT...
train() {
  local program=$1 run_folder=$2 model=$3 ranks=$4
  shift 4
  mkdir "$run_folder"
  (cd "$run_folder" && MEGATRON_CPP=$program "$root/scripts/pretrain.sh" "../$model.toml" -n "$ranks" "$@" >log 2>&1) ||
    { tail -5 "$run_folder/log" | sed "s/^/  $run_folder: /" && return 1; }
}

different=0
while read -r model ranks settings; do
  line="$model $ranks $settings"
  [[ $line =~ $pattern ]] || continue
  # shellcheck disable=SC2086 # one argument per setting
  mapfile -t arguments < <(arguments_of $settings)
  verdict="training failed"
  if train "$before" before "$model" "$ranks" "${arguments[@]}" && train "$after" after "$model" "$ranks" "${arguments[@]}"; then
    verdict=$("$after" checkpoint diff before/checkpoints after/checkpoints 2>&1 | grep -m 1 'tensors compared') || verdict="no checkpoint"
  fi
  printf '%-64s %s\n' "$line" "$verdict"
  [[ $verdict =~ ^[1-9][0-9]*\ tensors\ compared,\ 0\ differ ]] || different=$((different + 1))
  rm -rf before after
done < <(layouts)
[ "$different" -eq 0 ] || { echo "$different layouts differ" && exit 1; }
