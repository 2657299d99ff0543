// Which part of the model each pipeline stage holds.
#pragma once
#include <string>
#include <vector>

#include "parallel/pp/schedule.h"

namespace mcpp {

/// Layers [first_layer, end_layer) of the whole model, perhaps none, and the ends that a stage has.
struct StageContents {
  i64 first_layer = 0, end_layer = 0;
  bool has_embedding = true;
  bool has_output = true;

  i64 num_layers() const { return end_layer - first_layer; }
  bool operator==(const StageContents&) const = default;
};

/// How the layers are given to the stages of a pipeline. Names and meaning are Megatron-LM's.
///
/// Without the three keys at the end every stage gets the same number of layers. decoder_first_pipeline_num_layers and
/// decoder_last_pipeline_num_layers are the layers of the first and last pipeline rank, all its chunks together; the
/// other ranks share the rest evenly, and so do the chunks of each rank.
///
/// A layout string names what each stage holds, in the order in which a microbatch visits them: E embedding, t
/// transformer layer, L output layer and loss, | border between stages. x*3 and (...)*3 stand for three of them; commas
/// and spaces mean nothing. "Et*3|(tt|)*2tL" is embedding and 3 layers; 2; 2; 1 layer and output. A stage may be empty.
struct StageSplit {
  i64 num_layers = 0;
  i64 pipeline_model_parallel_size = 1;
  i64 virtual_stages = 1;                     ///< num_virtual_stages_per_pipeline_rank
  i64 decoder_first_pipeline_num_layers = 0;  ///< 0 = an even share
  i64 decoder_last_pipeline_num_layers = 0;
  std::string pipeline_model_parallel_layout = {};  ///< not with the two above; "" = none
  StagePlacement placement = StagePlacement::Loop;  ///< which stages the first and last rank have
};

/// Contents of stages 0, 1, ... Throws BadInput with every reason why they cannot be (all at once), and the nearest
/// values that could.
std::vector<StageContents> split_stages(const StageSplit& split);
/// The reasons alone; empty when the split is good.
std::vector<std::string> stage_conflicts(const StageSplit& split);

}  // namespace mcpp
