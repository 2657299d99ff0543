// Several datasets joined to one.
#pragma once
#include <string>
#include <vector>

#include "base/log.h"
#include "data/prepare/preprocess.h"

namespace mcpp {

/// Writes the dataset `output`, without .bin/.idx, of the documents of `inputs` in order: the same bytes as of
/// preprocessing their texts at once. Nothing is visible before all of it is there. It gets a .json file when each of
/// them has one. BadInput when there are fewer than two, when one is missing or damaged, or is the output itself, and
/// when they were made with different tokenizers, types of tokens or ends of documents.
PreprocessOutput merge_datasets(const std::vector<std::string>& inputs, const std::string& output, const Log& log);

}  // namespace mcpp
