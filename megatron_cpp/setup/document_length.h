// How long the documents are that a training reads, as far as is known without reading them.
#pragma once
#include "data/config.h"

namespace mcpp {

/// Tokens of a document, on average over those that are trained on, as the .json files beside the datasets count them;
/// 0 where one has none. BadInput when one is damaged.
double mean_document_tokens(const DataConfig& data);

}  // namespace mcpp
