// Assignment of model layers to pipeline stages.
#pragma once
#include <string>
#include <vector>

#include "parallel/layout.h"

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
/// "Et*3|(tt|)*2tL" is embedding and 3 layers; 2; 2; 1 layer and output. A stage may be empty. All m must directly
/// precede L and be in the same stage.
std::vector<StageContents> split_stages(const Layout& layout, i64 num_layers);
/// Returns the layers of multi-token prediction in Layout::stages, which must be valid.
i64 count_mtp_layers(const Layout& layout);
/// Returns every conflict; empty if the layers can be divided.
std::vector<std::string> stage_conflicts(const Layout& layout, i64 num_layers);

}  // namespace mcpp
