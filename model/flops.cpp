#include "model/flops.h"

#include <algorithm>

namespace mcpp {
namespace {

/// Channels of the queries, and of the keys or the values.
i64 query_width(const ModelConfig& c) {
  return c.head_dim() * c.num_attention_heads;
}
i64 key_width(const ModelConfig& c) {
  return c.head_dim() * c.query_groups();
}

/// Matrices from hidden_size to ffn and back: a gated MLP has two on the way in.
i64 mlp_matrices(const ModelConfig& c) {
  return c.gated() ? 3 : 2;
}

}  // namespace

ParameterCounts count_parameters(const ModelConfig& c) {
  const i64 h = c.hidden_size, q = query_width(c), qkv = q + 2 * key_width(c);
  const i64 bias = c.mlp_bias() ? 1 : 0;
  const i64 norm = c.normalization == Normalization::LayerNorm ? 2 * h : h;
  ParameterCounts n;
  n.word_embeddings = c.padded_vocab_size() * h;
  n.position_embeddings = c.position_embedding_type == PositionEmbedding::LearnedAbsolute ? c.max_positions() * h : 0;
  n.attention = c.num_layers * (h * qkv + (c.qkv_bias() ? qkv : 0) + q * h + (c.attention_output_bias() ? h : 0));
  n.mlp = c.num_layers * (mlp_matrices(c) * h * c.ffn() + bias * ((mlp_matrices(c) - 1) * c.ffn() + h));
  n.norms = (2 * c.num_layers + 1) * norm;
  n.output = c.untie_embeddings_and_output_weights ? c.padded_vocab_size() * h : 0;
  return n;
}

double seen_keys(const ModelConfig& c, i64 layer) {
  const auto s = static_cast<double>(c.seq_length);
  const i64 window = c.window_of(layer);
  const double w = window == 0 ? s : std::min(s, static_cast<double>(window));
  return w - w * w / (2 * s);  // the first w queries see half as many as the others
}

double flops_per_token(const ModelConfig& c) {
  const auto d = [](i64 x) { return static_cast<double>(x); };
  const double h = d(c.hidden_size), q = d(query_width(c)), k = d(key_width(c));
  const double mlp = d(mlp_matrices(c)) * h * d(c.ffn());
  const double projections = h * (q + 2 * k) + q * h;
  double attention = 0;
  for (i64 layer = 0; layer < c.num_layers; ++layer) attention += 2 * q * seen_keys(c, layer);  // scores and values
  const double output = h * d(c.padded_vocab_size());
  // 6 = forward, gradient of the input, gradient of the weight; each a multiplication and an addition.
  return 6 * (d(c.num_layers) * (mlp + projections) + attention + output);
}

double flops_per_batch(const ModelConfig& c, i64 samples) {
  return flops_per_token(c) * static_cast<double>(c.seq_length) * static_cast<double>(samples);
}

}  // namespace mcpp
