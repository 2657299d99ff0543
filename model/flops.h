// Cost of a model: parameter counts, as declared by its layers, and floating-point operations per token.
#pragma once
#include "model/config/block_spec.h"

namespace mcpp {

/// Parameter counts of the parts of a model. Counts include the padding of the vocabulary.
struct ParameterCounts {
  i64 word_embeddings = 0;
  i64 position_embeddings = 0;  ///< learned position embeddings
  i64 attention = 0;            ///< QKV and output projections of all layers, including biases
  i64 mlp = 0;                  ///< MLPs of all layers, including biases and experts
  i64 experts = 0;   ///< part of `mlp` and `mtp` that belongs to experts; each token uses moe_router_topk experts
  i64 norms = 0;     ///< norms of all layers, and the final norm
  i64 output = 0;    ///< output matrix, unless it is tied to the word embeddings
  i64 mtp = 0;       ///< multi-token prediction, excluding matrices shared with the model
  i64 matrices = 0;  ///< part of `attention`, `mlp` and `mtp` in matrices that multiply each token (Param::matrices)
  i64 expert_matrices = 0;  ///< part of `matrices` that belongs to experts

  i64 total() const { return word_embeddings + position_embeddings + attention + mlp + norms + output + mtp; }
};

ParameterCounts count_parameters(const ModelConfig& config);

/// Returns the number of parameters that process one token. Of each layer's experts, it counts moe_router_topk.
i64 active_parameters(const ModelConfig& config);

/// Returns the number of keys that a query attends to, averaged over samples of seq_length tokens. A window of 0 means
/// no window.
double attended_keys(i64 window, i64 seq_length);

/// Returns the forward floating-point operations per token in attention's two GEMMs, which do not involve weights,
/// summed over all blocks.
double attention_flops_per_token(const ModelConfig& config);
/// Returns the floating-point operations of training on one token, forward and backward, in samples of seq_length
/// tokens. Counts like Megatron-LM since 0.12: GEMMs only, the causal half of attention within its window, and only the
/// experts that process the token. Recomputation is not counted.
double flops_per_token(const ModelConfig& config);
/// Returns flops_per_token() times the tokens of a global batch of `samples` samples.
double flops_per_batch(const ModelConfig& config, i64 samples);

}  // namespace mcpp
