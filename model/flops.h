// What a model costs: parameters, as its layers declare them, and floating-point operations per token.
#pragma once
#include "model/config/config.h"

namespace mcpp {

/// Parameters by part, with the vocabulary padded as it is stored.
struct ParameterCounts {
  i64 word_embeddings = 0;
  i64 position_embeddings = 0;  ///< learned ones
  i64 attention = 0;            ///< QKV and output projections of all layers, biases included
  i64 mlp = 0;                  ///< of all layers, biases and experts included
  i64 experts = 0;              ///< of mlp, those of experts, of which each token uses moe_router_topk
  i64 norms = 0;                ///< of all layers, and the last
  i64 output = 0;               ///< the output matrix, unless it is the word embeddings'
  i64 matrices = 0;             ///< those of attention and mlp that multiply each token (Param::matrices)
  i64 expert_matrices = 0;      ///< of these, those of experts

  i64 total() const { return word_embeddings + position_embeddings + attention + mlp + norms + output; }
  /// What the literature calls the size of a model without its embeddings.
  i64 without_embeddings() const { return attention + mlp + norms; }
};

ParameterCounts count_parameters(const ModelConfig& config);

/// Those that a token uses: all but the experts that do not take it.
i64 active_parameters(const ModelConfig& config);

/// How many keys a query of a layer sees, on average over samples of seq_length tokens: half of them, or of a window
/// and those before it.
double seen_keys(const ModelConfig& config, i64 layer);

/// Floating-point operations of training on one token, forward and backward, in samples of seq_length tokens:
/// Megatron-LM's count since 0.12, of matrix products only, with the causal half of attention, and within its window;
/// of experts, those that take the token. Recompute is not counted.
double flops_per_token(const ModelConfig& config);
/// The same for a global batch of `samples`.
double flops_per_batch(const ModelConfig& config, i64 samples);

}  // namespace mcpp
