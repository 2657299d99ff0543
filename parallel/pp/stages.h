// Which part of the model each pipeline stage holds.
#pragma once
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Layers [first_layer, end_layer) of the whole model, perhaps none, and the ends that a stage has.
struct StageContents {
  i64 first_layer = 0, end_layer = 0;
  bool has_embedding = true;
  bool has_output = true;

  i64 num_layers() const { return end_layer - first_layer; }
  bool operator==(const StageContents&) const = default;
};

/// How the layers are given to the stages of a pipeline. Names are Megatron-LM's.
struct StageSplit {
  i64 num_layers = 0;
  i64 pipeline_model_parallel_size = 1;
  i64 virtual_stages = 1;                      ///< chunks per pipeline rank
  i64 decoder_first_pipeline_num_layers = 0;   ///< layers on the first pipeline rank; 0 = an even share of the rest
  i64 decoder_last_pipeline_num_layers = 0;    ///< on the last one
  std::string pipeline_model_parallel_layout;  ///< "Et*3|(tt|)*2tL": see parse; not with the two above
};

/// Contents of stages 0, 1, ... in the order in which a microbatch visits them. Throws BadInput with every reason why
/// they cannot be (all at once), and the nearest values that could.
std::vector<StageContents> split_stages(const StageSplit& split);
/// The reasons alone; empty when the split is good.
std::vector<std::string> stage_conflicts(const StageSplit& split);

}  // namespace mcpp
