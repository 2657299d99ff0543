// Assignment of model layers to pipeline stages.
#pragma once
#include <string>
#include <vector>

#include "parallel/layout.h"

namespace mcpp {

/// Contents of a stage: layers [first_layer, end_layer) of the model, possibly none, the embedding, and parts of the
/// output.
struct StageContents {
  i64 first_layer = 0, end_layer = 0;
  bool has_embedding = true;
  bool has_output = true;  ///< output matrix and loss
  /// Final norm, followed by the layers of multi-token prediction if the model has them. They are in the stage of the
  /// output or in the preceding one.
  bool has_final_norm = has_output;

  i64 num_layers() const { return end_layer - first_layer; }
  bool has_output_part() const { return has_output || has_final_norm; }
  /// Returns the contents that follow the layers.
  StageContents output_part() const {
    return {.has_embedding = false, .has_output = has_output, .has_final_norm = has_final_norm};
  }
  /// Return true if the message to the next stage, or from the previous one, consists of the results of the final norm
  /// and, in training, of each layer of multi-token prediction. All other messages are the result of a layer.
  bool sends_predictions() const { return has_final_norm && !has_output; }
  bool receives_predictions() const { return has_output && !has_final_norm; }
  auto operator<=>(const StageContents&) const = default;
};

/// Returns the contents of stages 0, 1, ... in which the layout divides the layers. Throws BadInput with every conflict
/// and the nearest valid values.
///
/// Every stage gets the same number of layers by default. first_layers and last_layers set the number of layers of the
/// first and last pipeline rank, over all chunks of the rank. The remaining layers are divided evenly among the other
/// ranks, and the layers of each rank evenly among its chunks.
///
/// Layout::stages, which cannot be combined with first_layers and last_layers, lists the contents of the stages in the
/// order in which a microbatch visits them: E embedding, t transformer layer, m layer of multi-token prediction, L
/// output layer and loss, | border between stages. x*3 and (...)*3 repeat three times; commas and spaces are ignored.
/// "Et*3|(tt|)*2tL" is embedding and 3 layers; 2; 2; 1 layer and output. A stage may be empty. All m follow the last t,
/// in one stage, which is the stage of L or directly precedes it.
std::vector<StageContents> split_stages(const Layout& layout, i64 num_layers);
/// Returns the layers of multi-token prediction in Layout::stages, which must be valid.
i64 count_mtp_layers(const Layout& layout);
/// Returns the stage with the final norm and multi-token prediction (StageContents::has_final_norm). Layout::stages
/// must be valid.
int final_norm_stage(const Layout& layout);
/// Returns the position in the pipeline of the rank with that stage.
int final_norm_rank(const Layout& layout);
/// Returns every conflict; empty if the layers can be divided.
std::vector<std::string> stage_conflicts(const Layout& layout, i64 num_layers);

}  // namespace mcpp
