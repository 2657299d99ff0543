#include "megatron_cpp/inference/scoring_memory.h"

#include <algorithm>

#include "base/strings.h"
#include "megatron_cpp/setup/memory_check.h"
#include "model/layer_memory.h"
#include "model/layers/kv_cache.h"

namespace mcpp {
namespace {

/// Attention releases its tensors before the MLP allocates its own.
constexpr double kBlocksPerLayer = 2;

double weight_bytes(GPTModel& stage) {
  i64 weights = 0;
  stage.visit([&](const Param& param, int) { weights += param.value.bytes(); });
  return static_cast<double>(weights);
}

}  // namespace

double scoring_bytes(GPTModel& stage, i64 seq, i64 batch) {
  const ModelContext& context = stage.context();
  ModelConfig config = context.config;
  config.seq_length = seq;
  const ActivationSetup setup{.dtype = context.dtype,
                              .micro_batch_size = batch,
                              .tensor_parallel = context.tp.size(),
                              .sequence_parallel = context.sequence_parallel,
                              .partition = context.cp.partition,
                              .cp_comm_type = context.cp.comm_type,
                              .expert_parallel = context.experts.ep,
                              .expert_tensor_parallel = context.experts.tp};
  double max_bytes = 0;
  for (i64 layer = stage.stage().first_layer; layer < stage.stage().end_layer; ++layer)
    max_bytes =
        std::max(max_bytes, static_cast<double>(layer_activation_bytes(config, setup, layer)) / kBlocksPerLayer);
  if (stage.stage().has_output) max_bytes = std::max(max_bytes, static_cast<double>(output_bytes(config, setup)));
  return weight_bytes(stage) + max_bytes;
}

double generation_bytes(GPTModel& stage, i64 batch) {
  const ModelContext& context = stage.context();
  const ModelConfig& config = context.config;
  const i64 layers = stage.stage().end_layer - stage.stage().first_layer;
  const i64 cached = KvCache::layer_bytes(context, batch, config.max_positions());
  // All ranks get the rows of logits as fp32 values to sample from.
  const i64 logits = batch * config.vocab_size * static_cast<i64>(sizeof(float));
  return weight_bytes(stage) + static_cast<double>(layers) * static_cast<double>(cached) + static_cast<double>(logits);
}

void check_generation_memory(GPTModel& stage, ParallelState& parallel, i64 batch) {
  if (stage.context().device.type() != DeviceType::Cpu) return;
  check_memory(generation_bytes(stage, batch), parallel.world, str(batch, " texts in one batch (--batch_size)"),
               "a smaller --batch_size, a lower --precision, or ranks on more machines that share the model "
               "(--parallel.tensor_model_parallel_size, --parallel.pipeline_model_parallel_size) need less");
}

void check_scoring_memory(GPTModel& stage, ParallelState& parallel, i64 seq, i64 batch) {
  if (stage.context().device.type() != DeviceType::Cpu) return;
  check_memory(scoring_bytes(stage, seq, batch), parallel.world,
               str("passes over ", batch, " windows of ", seq, " tokens (--micro_batch_size)"),
               "a smaller --micro_batch_size or --window, a lower --precision, or ranks on more machines that share "
               "the model (--parallel.tensor_model_parallel_size, --parallel.pipeline_model_parallel_size) need less");
}

}  // namespace mcpp
