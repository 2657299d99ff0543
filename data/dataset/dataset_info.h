// Metadata of a dataset in <prefix>.json, next to .bin and .idx, which records how the dataset was made. Training
// verifies its tokenizer against it; evaluation uses it to convert loss per token to loss per word and per byte.
// Datasets made by other programs have no such file.
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
  i64 tokens = 0;        ///< including the <eod> of each document
  i64 source_bytes = 0;  ///< bytes of UTF-8 text that were tokenized
  i64 source_words = 0;  ///< whitespace-separated words
  i64 targets = -1;      ///< tokens with a loss, if the dataset has a loss mask; -1 = all, without a mask

  bool has_loss_mask() const { return targets >= 0; }
};

Path info_path(const Path& prefix);
/// Returns the prefix of the loss mask of a dataset (see data/dataset/loss_mask.h).
Path loss_mask_prefix(const Path& prefix);
/// Returns true if the .json file of a dataset states that it has a loss mask.
bool has_loss_mask(const Path& prefix);
std::string info_to_json(const DatasetInfo& info);
DatasetInfo info_from_json(const std::string& text,
                           const Path& file);                          ///< throws BadInput, naming the file, if damaged
void write_dataset_info(const Path& prefix, const DatasetInfo& info);  ///< atomic
/// Reads the metadata of a dataset. Returns std::nullopt if there is no such file; throws BadInput if it is damaged.
std::optional<DatasetInfo> read_dataset_info(const Path& prefix);

/// Returns the expected length, in tokens, of the document that contains a random token, averaged over datasets.
/// `weights` are blend weights, or empty if each dataset is read once. Returns 0 if a dataset has no metadata file;
/// throws BadInput if one is damaged.
double mean_document_tokens(std::span<const std::string> prefixes, std::span<const double> weights);

// Fingerprint that detects when a dataset was replaced under the same name.

/// Returns the number of sequences, documents and tokens, and a checksum of each of the two files, and the same for the
/// loss mask, if there is one. A file up to 4 MiB is checksummed entirely; a larger one is sampled in 256 evenly spaced
/// blocks of 16 KiB, including the first and the last, so that the cost does not grow with file size. Throws BadInput
/// if a file is missing or is not an .idx file; other damage is left to IndexedDataset.
std::string dataset_identity(const Path& prefix);

}  // namespace mcpp
