// Inspection of datasets: full verification of a .bin/.idx pair, and display of a sample or a global batch.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "data/dataset/dataset.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

struct DatasetSummary {
  std::string prefix;
  TokenType token_type{};
  i64 documents = 0, sequences = 0, tokens = 0;
  i64 empty_sequences = 0;
  i64 shortest = 0, longest = 0;  ///< lengths of sequences, in tokens
  i32 smallest_id = 0, largest_id = 0;
  i64 distinct_ids = 0;
  i64 documents_with_eod = 0;       ///< documents that end in eod, if the .json file defines it
  std::optional<DatasetInfo> info;  ///< contents of the .json file, if it exists
  i64 targets = 0;                  ///< tokens with a loss, if the .json file states that there is a loss mask
};

/// Reads and checks every token once. Memory is constant except for one counter per id. If `vocab_size` is 0, uses the
/// vocabulary size in the .json file; without that file, ids are not checked. Throws BadInput, naming file, document
/// and offset, for damage, for ids outside [0, vocab_size), and if the .json file or the loss mask contradicts the
/// data.
DatasetSummary verify_dataset(const Path& prefix, i64 vocab_size, const Log& log);
std::string to_text(const DatasetSummary& summary);

struct SampleView {
  i64 sample = 0;
  SampleOrigin origin;
  std::vector<i32> tokens;  ///< [seq_length + 1]
  std::vector<u8> targets;  ///< [seq_length + 1] 1 for tokens with a loss
  std::string text;         ///< decoded text if a tokenizer was given
};

SampleView show_sample(const Dataset& dataset, i64 sample, const Tokenizer* tokenizer);
/// Returns the samples of the global batch that starts after `consumed_samples`.
std::vector<SampleView> show_batch(const Dataset& dataset, i64 consumed_samples, i64 global_batch_size,
                                   const Tokenizer* tokenizer);
/// Returns one line per part, then the text if present.
std::string to_text(const SampleView& view);

}  // namespace mcpp
