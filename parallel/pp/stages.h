// Assignment of model layers to pipeline stages.
#pragma once
#include <string>
#include <vector>

#include "parallel/pp/schedule.h"

namespace mcpp {

/// Contents of a stage: layers [first_layer, end_layer) of the model, possibly none, the embedding and the output
/// layer.
struct StageContents {
  i64 first_layer = 0, end_layer = 0;
  bool has_embedding = true;
  bool has_output = true;

  i64 num_layers() const { return end_layer - first_layer; }
  bool operator==(const StageContents&) const = default;
};

/// Division of the layers into pipeline stages. Names and semantics are Megatron-LM's.
///
/// By default every stage gets the same number of layers. decoder_first_pipeline_num_layers and
/// decoder_last_pipeline_num_layers set the layers of the first and last pipeline rank, over all its chunks; the other
/// ranks divide the rest evenly, as do the chunks of each rank.
///
/// A layout string lists the contents of the stages in the order in which a microbatch visits them: E embedding, t
/// transformer layer, L output layer and loss, | border between stages. x*3 and (...)*3 repeat three times; commas and
/// spaces are ignored. "Et*3|(tt|)*2tL" is embedding and 3 layers; 2; 2; 1 layer and output. A stage may be empty.
struct StageSplit {
  i64 num_layers = 0;
  i64 pipeline_model_parallel_size = 1;
  i64 virtual_stages = 1;                     ///< num_virtual_stages_per_pipeline_rank
  i64 decoder_first_pipeline_num_layers = 0;  ///< 0 = an even share
  i64 decoder_last_pipeline_num_layers = 0;
  std::string pipeline_model_parallel_layout = {};  ///< excludes the two above; "" = none
  StagePlacement placement = StagePlacement::Loop;  ///< determines the stages of the first and last rank
};

/// Returns the contents of stages 0, 1, ... Throws BadInput with every conflict and the nearest valid values.
std::vector<StageContents> split_stages(const StageSplit& split);
/// Returns the conflicts only; empty if the split is valid.
std::vector<std::string> stage_conflicts(const StageSplit& split);

}  // namespace mcpp
