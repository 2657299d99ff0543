// Validity rules of a layout: divisibility requirements, and settings that exclude each other.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"
#include "parallel/layout.h"

namespace mcpp {

/// Sizes of a model that its layout divides. Rules for sizes of 0 are skipped. Lists have an entry for each distinct
/// kind of layer instead of for each layer.
struct ModelSizes {
  i64 num_layers = 0;
  i64 mtp_num_layers = 0;
  PerLayer<i64> num_attention_heads = 0;
  PerLayer<i64> num_query_groups = 0;
  PerLayer<i64> ffn_hidden_size = 0;
  i64 linear_num_key_heads = 0;
  i64 mamba_num_groups = 0;
  i64 padded_vocab_size = 0;
  i64 seq_length = 0;
  i64 num_experts = 0;
  i64 moe_ffn_hidden_size = 0;
  bool ties_embeddings = false;

  /// Returns true if `ranks` context-parallel ranks can exchange the heads of all layers, after tensor parallelism has
  /// sharded them.
  bool can_exchange_heads(i64 ranks, i64 tp) const;
};

/// Returns the number that must divide seq_length. Each context-parallel rank takes a chunk from the front and one from
/// the back to balance causal attention; sequence parallelism divides its share once more.
i64 sequence_step(i64 cp, i64 tp, bool sequence_parallel);

/// Unknown number of ranks. Rules that depend on it are not checked.
inline constexpr int kAnyWorld = 0;
/// Returns every violated rule in terms of configuration keys, with the nearest valid values:
/// "tensor_model_parallel_size = 3 does not divide num_attention_heads = 16; the nearest that do are 2 and 4". Empty if
/// the layout is valid for `world_size` ranks, which replaces layout.dp. Rules for a global batch size or
/// layout.micro_batch_size of 0 are skipped.
std::vector<std::string> layout_conflicts(const ModelSizes& model, const Layout& layout, i64 world_size,
                                          i64 global_batch_size = 0);

}  // namespace mcpp
