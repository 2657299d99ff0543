// Layers for multi-token prediction in the weight files of Hugging Face models.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Layers for multi-token prediction to import.
struct PredictionLayers {
  i64 count = 0;                          ///< number of layers to import
  i64 absent = 0;                         ///< number of layers in config.json if the file has none
  std::vector<std::string> skipped = {};  ///< prefixes of tensors that are not imported
};

/// Chooses the first `requested` layers of the file, or all layers if it is std::nullopt. `num_layers` is the number of
/// layers of the model without multi-token prediction, and `stated` is the number of prediction layers in config.json.
/// Throws BadInput if the file has fewer layers than requested. Without a request, also throws BadInput if the file has
/// prediction layers, but not the stated number of them.
PredictionLayers choose_prediction_layers(const SafetensorsReader& file, const Family& family, i64 num_layers,
                                          std::optional<i64> stated, std::optional<i64> requested,
                                          const std::string& folder);

}  // namespace mcpp
