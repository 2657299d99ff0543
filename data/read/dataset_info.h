// <prefix>.json beside .bin and .idx: how the dataset was made. Training compares the tokenizer with it, evaluation
// turns loss per token into loss per word and per byte. Datasets made by other programs have none.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "base/file.h"

namespace mcpp {

struct DatasetInfo {
  std::string tokenizer_checksum;  ///< Tokenizer::checksum()
  i64 vocab_size = 0;
  i64 eod = 0;
  bool append_eod = true;
  i64 documents = 0;
  i64 tokens = 0;        ///< with the <eod> of each document
  i64 source_bytes = 0;  ///< of UTF-8 text that became tokens
  i64 source_words = 0;  ///< whitespace-separated
};

Path info_path(const Path& prefix);
std::string info_to_json(const DatasetInfo& info);
DatasetInfo info_from_json(const std::string& text, const Path& file);  ///< BadInput, naming the file, when damaged
void write_dataset_info(const Path& prefix, const DatasetInfo& info);   ///< atomic
/// None when there is no such file; BadInput when it is damaged.
std::optional<DatasetInfo> read_dataset_info(const Path& prefix);

/// Tokens of a document that a token of a blend is part of, on average over datasets; `weights` as a blend has them,
/// none where datasets are read once. 0 where one has no such file; BadInput when one is damaged.
double mean_document_tokens(std::span<const std::string> prefixes, std::span<const double> weights);

}  // namespace mcpp
