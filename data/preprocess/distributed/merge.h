// Concatenation of several datasets.
#pragma once
#include <string>
#include <vector>

#include "base/log.h"
#include "data/preprocess/preprocess.h"

namespace mcpp {

/// Writes the dataset `output` (a prefix without .bin/.idx) with the documents of `inputs` in order. The result is
/// byte-identical to preprocessing all of their texts together and becomes visible only when complete. A .json file is
/// written if all inputs have one. Throws BadInput if there are fewer than two inputs, if an input is missing, damaged
/// or identical to the output, or if inputs differ in tokenizer, token type or end-of-document tokens.
PreprocessOutput merge_datasets(const std::vector<std::string>& inputs, const std::string& output, const Log& log);

}  // namespace mcpp
