#include "model/memory.h"

#include <algorithm>
#include <cmath>

#include "model/flops.h"

namespace mcpp {
namespace {

/// Elements per token that one layer keeps. The names are those of the modules that save them.
double kept_per_token(const ModelConfig& config, const Recompute& recompute) {
  const double h = static_cast<double>(config.hidden_size), ffn = static_cast<double>(config.ffn());
  const double heads = static_cast<double>(config.num_attention_heads * config.head_dim());
  const double kv = static_cast<double>(config.query_groups() * config.head_dim());
  const double norm_inputs = 2 * h, norm_outputs = recompute.layernorm ? 0 : 2 * h;
  const double qkv = heads + 2 * kv, attention_output = recompute.core_attn ? 0 : heads;
  const double up = (config.gated() ? 2 : 1) * ffn, activated = recompute.mlp_act ? 0 : ffn;
  return norm_inputs + norm_outputs + qkv + attention_output + up + activated;
}

double activation_elements(const ModelConfig& config, const Recompute& recompute, double tokens) {
  const double layers = static_cast<double>(config.num_layers), h = static_cast<double>(config.hidden_size);
  const double layer = kept_per_token(config, recompute) * tokens, input = h * tokens;
  if (recompute.granularity != Recompute::Granularity::Full) return layers * layer;
  const double group = static_cast<double>(std::min(recompute.num_layers, config.num_layers));
  if (recompute.method == Recompute::Method::Uniform) return std::ceil(layers / group) * input + group * layer;
  return group * input + (layers - group) * layer + (layers > group ? 0 : layer);
}

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, DType dtype, const Recompute& recompute, i64 micro_batch_size,
                               int states_per_param) {
  const ParameterCounts counts = count_parameters(config);
  const double params = static_cast<double>(counts.total()), element = static_cast<double>(size_of(dtype));
  const double tokens = static_cast<double>(micro_batch_size * config.seq_length);
  const double logits = tokens * static_cast<double>(config.padded_vocab_size());
  const double ends =
      4 * tokens * static_cast<double>(config.hidden_size);  // embedding, final norm and their gradients
  // The output layer's part of a shared weight's gradient is kept apart.
  const double shared = config.untie_embeddings_and_output_weights ? 0 : static_cast<double>(counts.word_embeddings);
  const double master = dtype == DType::BF16 ? 4 : 0;
  return {.params = params * element,
          .grads = (params + shared) * 4,
          .optimizer_state = params * (master + 4.0 * states_per_param),
          .activations = (activation_elements(config, recompute, tokens) + logits + ends) * element};
}

}  // namespace mcpp
