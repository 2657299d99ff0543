// Validity rules that relate a parallel layout to the model and the batch.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"
#include "parallel/pp/stages.h"
#include "parallel/topology.h"

namespace mcpp {

/// Layout to validate. A size of 0, or a world of 0 ranks, is unknown, and rules that need it are skipped.
struct LayoutRules {
  i64 world_size = 1;
  ParallelSizes sizes;
  StageSplit stages;  ///< its pipeline_model_parallel_size is ignored in favor of `sizes`
  bool sequence_parallel = false;

  // Lists have an entry for each distinct kind of layer instead of for each layer.
  PerLayer<i64> num_attention_heads = 0;
  PerLayer<i64> num_query_groups = 0;
  PerLayer<i64> ffn_hidden_size = 0;
  i64 padded_vocab_size = 0;
  i64 seq_length = 0;
  i64 num_experts = 0;
  i64 moe_ffn_hidden_size = 0;
  i64 micro_batch_size = 0;
  i64 global_batch_size = 0;
};

/// Returns the number of which seq_length must be a multiple. Each context-parallel rank takes a piece from the front
/// and one from the back to balance causal attention; sequence parallelism divides its share once more.
i64 sequence_step(i64 context_parallel, i64 tensor_parallel, bool sequence_parallel);

/// Returns every violated rule with the nearest valid values: "tensor_model_parallel_size = 3 does not divide
/// num_attention_heads = 16; the nearest that do are 2 and 4". Empty if the layout is valid.
std::vector<std::string> layout_conflicts(const LayoutRules& rules);

}  // namespace mcpp
