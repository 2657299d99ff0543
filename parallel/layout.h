// The rules that tie a layout to the model and the batch.
#pragma once
#include <string>
#include <vector>

#include "parallel/pp/stages.h"
#include "parallel/topology.h"

namespace mcpp {

/// What is to be laid out. A size of 0, or a world of 0 ranks, is not known yet, and its rules are left out.
struct LayoutRules {
  i64 world_size = 1;
  ParallelSizes sizes;
  StageSplit stages;  ///< but for its pipeline_model_parallel_size, which `sizes` has
  bool sequence_parallel = false;

  i64 num_attention_heads = 0;
  i64 num_query_groups = 0;
  i64 ffn_hidden_size = 0;
  i64 padded_vocab_size = 0;
  i64 seq_length = 0;
  i64 num_experts = 0;
  i64 moe_ffn_hidden_size = 0;
  i64 micro_batch_size = 0;
  i64 global_batch_size = 0;
};

/// What seq_length must be a multiple of. Each context-parallel rank takes a piece from the front and one from the
/// back, so that causal attention is even; sequence parallelism cuts what it has once more.
i64 sequence_step(i64 context_parallel, i64 tensor_parallel, bool sequence_parallel);

/// Every rule that does not hold, each with the nearest values that would do: "tensor_model_parallel_size = 3 does not
/// divide num_attention_heads = 16; the nearest that do are 2 and 4". Empty when the layout is good.
std::vector<std::string> layout_conflicts(const LayoutRules& rules);

}  // namespace mcpp
