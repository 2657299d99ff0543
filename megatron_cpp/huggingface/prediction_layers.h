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
  i64 count = 0;
  i64 absent = 0;                         ///< number that config.json states although the file has none
  std::vector<std::string> skipped = {};  ///< prefixes of tensors that are not imported
};

/// Chooses all layers of the file or, if given, the first `requested` ones. `num_layers`: layers of the model;
/// `stated`: number in config.json. Throws BadInput if the file has fewer than requested or, without a request, another
/// number than stated, except none.
PredictionLayers choose_prediction_layers(const SafetensorsReader& file, const Family& family, i64 num_layers,
                                          std::optional<i64> stated, std::optional<i64> requested,
                                          const std::string& folder);

}  // namespace mcpp
