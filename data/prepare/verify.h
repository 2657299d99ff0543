// Looking at datasets: a full check of a .bin/.idx pair, and what a sample or an iteration reads.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "data/read/dataset.h"
#include "data/read/dataset_info.h"
#include "data/read/index/indexed_dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

struct DatasetSummary {
  std::string prefix;
  TokenType token_type{};
  i64 documents = 0, sequences = 0, tokens = 0;
  i64 empty_sequences = 0;
  i64 shortest = 0, longest = 0;  ///< tokens of a sequence
  i32 smallest_id = 0, largest_id = 0;
  i64 distinct_ids = 0;
  i64 documents_with_eod = 0;       ///< whose last token is eod, when the .json file says what that is
  std::optional<DatasetInfo> info;  ///< of the .json file, if there is one
};

/// Reads every token once, in constant memory beyond one count per id. BadInput, naming file, document and offset, for
/// damage, for ids outside [0, vocab_size) (vocab_size 0 = that of the .json file, else unchecked), and when the .json
/// file disagrees with what is found.
DatasetSummary data_verify(const Path& prefix, i64 vocab_size, const Log& log);
std::string to_text(const DatasetSummary& summary);

struct SampleView {
  i64 sample = 0;
  SampleOrigin origin;
  std::vector<i32> tokens;  ///< [seq_length + 1]
  std::string text;         ///< decoded, when a tokenizer was given
};

SampleView data_show(const Dataset& dataset, i64 sample, const Tokenizer* tokenizer);
/// The samples of the global batch that begins after `consumed_samples`.
std::vector<SampleView> data_show_batch(const Dataset& dataset, i64 consumed_samples, i64 global_batch_size,
                                        const Tokenizer* tokenizer);
/// One line per part, then the text if there is one.
std::string to_text(const SampleView& view);

}  // namespace mcpp
