#!/usr/bin/env bash
# The program on simulated GPUs: layouts over MPI train like one rank, a killed training continues with bitwise identical
# results or on another layout, and evaluation and generation match the CPU: tests/cuda_simulator/program.sh <megatron_cpp>
set -euo pipefail
export MEGATRON_CPP=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_NUM_THREADS=1 MCPP_SIMULATOR_GPUS=1
steps=6
launcher=(mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1)

head -c 60000 "$root/data/tinyshakespeare.txt" >train.txt
"$MEGATRON_CPP" tokenizer train --input=train.txt --output=tokenizer.model --vocab_size=400 >log 2>&1
"$MEGATRON_CPP" preprocess --input=train.txt --output_prefix=train --tokenizer_model=tokenizer.model \
  --text_document=paragraph >log 2>&1
sed -e "s|@folder@|$folder|" -e 's/^eval_interval = .*/eval_interval = 3/' -e 's/^eval_iters = .*/eval_iters = 1/' \
  -e "s/^train_iters = .*/train_iters = $steps/" -e 's/^save_interval = .*/save_interval = 2/' \
  -e 's/^micro_batch_size = .*/micro_batch_size = 2/' "$root/tests/support/small_training.toml" >run.toml

fail() {
  echo "$*"
  [ ! -f log ] || tail -n 20 log
  exit 1
}
# pretrain <name> <ranks> [argument ...]: trains on GPUs in fp32 and keeps checkpoints and metrics in a folder.
pretrain() {
  local name=$1 ranks=$2
  shift 2
  "${launcher[@]}" -n "$ranks" "$MEGATRON_CPP" pretrain run.toml --device.device=cuda --training.precision=fp32 \
    --checkpoint.save="$name" "$@" >log 2>&1
}
losses() { sed -n 's/.*"type":"\(train\|eval\)".*"iteration":\([0-9]*\).*"lm_loss":\([^,}]*\).*/\1 \2 \3/p' "$1/metrics.jsonl" | sort -u; }
# same_losses <name> <name>: training and evaluation losses differ by at most 1e-5.
same_losses() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk -v steps="$steps" '{ d = ($3 - $6) / $3; if (d < 0) d = -d; if (d > most) most = d
      if ($1 != $4 || $2 != $5) exit 1 }
    END { print "losses differ by at most", most + 0; exit !(NR >= steps && most <= 1e-5) }' >difference ||
    fail "$1 and $2: $(cat difference 2>/dev/null)"
  echo "$1 and $2: $(cat difference)"
}

pretrain one_rank 1 || fail "one rank"
layout=(--parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2 --parallel.sequence_parallel
  --checkpoint.async_save --training.offload_activations=host)
pretrain whole 4 "${layout[@]}" || fail "tp 2 x pp 2"
same_losses one_rank whole
pretrain experts_1 1 --model.num_experts=4 --model.moe_router_topk=2 || fail "experts on one rank"
pretrain experts_4 4 --model.num_experts=4 --model.moe_router_topk=2 --parallel.expert_model_parallel_size=2 \
  --parallel.context_parallel_size=2 --parallel.zero_stage=2 || fail "experts on four ranks"
same_losses experts_1 experts_4

# A rank is killed after the first checkpoint; the training continues on the same layout, and on another.
pretrain killed 4 "${layout[@]}" &
training=$!
until [ -e killed/latest ] || ! kill -0 "$training" 2>/dev/null; do sleep 0.05; done
mpirun_process=$(pgrep -P "$training" mpirun || echo "$training")
kill -KILL "$(pgrep -P "$mpirun_process" megatron_cpp | tail -n 1)" || fail "the training ended before it was killed"
if wait "$training"; then fail "the training ended before it was killed"; fi
cp -r killed moved
pretrain killed 4 "${layout[@]}" || fail "continuation"
"$MEGATRON_CPP" checkpoint diff whole killed >log 2>&1 || fail "the continued training is not bitwise identical"
echo "killed and continued: bitwise identical"
pretrain moved 4 --parallel.zero_stage=3 --parallel.num_distributed_optimizer_instances=2 || fail "another layout"
same_losses one_rank moved

# evaluate <device> <ranks> [argument ...]: prints the loss of a text.
evaluate() {
  "${launcher[@]}" -n "$2" "$MEGATRON_CPP" evaluate --load=whole --text=train.txt --precision=fp32 --device="$1" "${@:3}" \
    2>log | tee evaluation | grep -o '[0-9]*\.[0-9]*' | head -n 1
}
# generate <device> <ranks> [argument ...]: prints a greedy continuation.
generate() {
  "${launcher[@]}" -n "$2" "$MEGATRON_CPP" generate --load=whole --prompt=ROMEO: --temperature=0 --max_new_tokens=16 \
    --precision=fp32 --device="$1" "${@:3}" 2>log
}
head -c 3000 "$root/data/tinyshakespeare.txt" >train.txt
expected_loss=$(evaluate cpu 1)
expected_text=$(generate cpu 1)
for arguments in "1" "2 --parallel.pipeline_model_parallel_size=2" "2 --parallel.tensor_model_parallel_size=2"; do
  # shellcheck disable=SC2086  # several arguments
  loss=$(evaluate cuda $arguments) text=$(generate cuda $arguments)
  awk -v a="$loss" -v b="$expected_loss" 'BEGIN { d = a / b - 1; exit !(a > 0 && d < 1e-4 && d > -1e-4) }' ||
    fail "evaluate on $arguments: $loss, on the CPU $expected_loss"
  [ "$text" = "$expected_text" ] || fail "generate on $arguments: $text, on the CPU $expected_text"
done
echo "evaluation and generation match the CPU"
