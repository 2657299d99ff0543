// Does the tokenizer fit the model, and the data the tokenizer?
#pragma once
#include "base/log.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/world.h"

namespace mcpp {

/// Fills model.vocab_size from data.tokenizer_model where it is open. BadInput when both are given and do not fit, when
/// neither is, and when a dataset was made with another tokenizer. The same for data.eod_token, where it is read.
void resolve_vocabulary(Config& config, const Log& log);

/// The tokenizer of a model that was trained. BadInput when it is another one than that of the checksum `trained_with`
/// ("" = nobody knows), or has more pieces than the model, whose numbers would then mean nothing.
Tokenizer open_tokenizer(const Path& path, const std::string& trained_with, const ModelConfig& model);

/// Which tokenizer the ids are of that a run reads, by the checksum of its file.
struct TokenizerSource {
  std::string file;  ///< that says so: data.tokenizer_model, or else the .json of the first dataset that has one
  std::string checksum;
};
/// Empty when nothing says it. BadInput when data.tokenizer_model cannot be read.
TokenizerSource tokenizer_source(const DataConfig& data);

/// Opens every dataset as a training would, and says how many samples each split has. Nothing when no dataset is named.
void check_data(const Config& config, const World& world, const Log& log);

}  // namespace mcpp
