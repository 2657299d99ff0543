// Dataset interface of the training loop: indexed samples of seq_length + 1 tokens.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Consecutive tokens of one sequence.
struct SamplePart {
  i64 document = 0;  ///< index in the dataset
  i64 sequence = 0;  ///< index in the dataset; equals `document` unless documents were split into sentences
  i64 offset = 0;    ///< first token, relative to the sequence
  i64 length = 0;    ///< number of tokens
};

/// Source of the tokens of one sample.
struct SampleOrigin {
  std::string prefix;             ///< path prefix of the .bin/.idx pair
  i64 dataset = 0;                ///< index of the dataset in the blend
  i64 dataset_sample = 0;         ///< index of the sample in that dataset, before shuffling
  i64 shuffled_sample = 0;        ///< index of the sample after shuffling, i.e. in the concatenation of all documents
  std::vector<SamplePart> parts;  ///< ordered; seq_length + 1 tokens in total
  bool is_rearranged = false;     ///< the tokens of the parts were rearranged (see data/dataset/fim.h)
};

/// Read-only dataset. All methods are thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual i64 size() const = 0;        ///< number of samples
  virtual i64 seq_length() const = 0;  ///< a sample has one more token: the label of its last position
  /// Writes the tokens of `sample` to `tokens`, [seq_length + 1]. Writes to `targets`, of the same size or empty, 1 for
  /// a token that the model learns to predict and 0 for one without a loss.
  virtual void read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const = 0;
  /// Writes the tokens of `sample` to `tokens`, [seq_length + 1].
  void at(i64 sample, std::span<i32> tokens) const { read(sample, tokens, {}); }
  virtual SampleOrigin origin(i64 sample) const = 0;
};

}  // namespace mcpp
