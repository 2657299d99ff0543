// Consistency of tokenizer, model vocabulary and datasets.
#pragma once
#include "base/log.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/world.h"

namespace mcpp {

/// Fills in model.vocab_size from data.tokenizer_model if it is unset, and data.eod_token if it is needed. Throws
/// BadInput if both are set and inconsistent, if neither is set, or if a dataset was made with a different
/// tokenizer.
void resolve_vocabulary(Config& config, const Log& log);

/// Opens the tokenizer of a trained model. Throws BadInput if its checksum is not `trained_with` ("" = unknown), or if
/// it has more pieces than the model's vocabulary.
Tokenizer open_tokenizer(const Path& path, const std::string& trained_with, const ModelConfig& model);

/// Tokenizer that produced the token ids of a run, identified by the checksum of its file.
struct TokenizerSource {
  /// source of this information: data.tokenizer_model, or the .json of the first dataset that has one
  std::string file;
  std::string checksum;
};
/// Returns the tokenizer of a run; empty if unknown. Throws BadInput if data.tokenizer_model cannot be read.
TokenizerSource tokenizer_source(const DataConfig& data);

/// Opens every dataset as training would and logs the number of samples in each split. Does nothing without datasets.
void check_data(const Config& config, const World& world, const Log& log);

}  // namespace mcpp
