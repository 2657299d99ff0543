// What the training loop sees of text: numbered samples of seq_length + 1 tokens.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Consecutive tokens of one sequence.
struct SamplePart {
  i64 document = 0;  ///< of the dataset
  i64 sequence = 0;  ///< of the dataset; the same number unless documents were cut into sentences
  i64 offset = 0;    ///< first token, counted within the sequence
  i64 length = 0;    ///< tokens
};

/// Where the tokens of one sample come from.
struct SampleOrigin {
  std::string prefix;             ///< of the .bin/.idx pair
  i64 dataset = 0;                ///< its number within a blend
  i64 dataset_sample = 0;         ///< the number of the sample within that dataset, before its shuffle
  i64 shuffled_sample = 0;        ///< and after it: the position in the line of documents
  std::vector<SamplePart> parts;  ///< in order; together seq_length + 1 tokens
};

/// Read-only; all methods may be called by several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual i64 size() const = 0;        ///< samples
  virtual i64 seq_length() const = 0;  ///< a sample has one token more: the label of its last position
  /// out: [seq_length + 1]
  virtual void at(i64 sample, std::span<i32> out) const = 0;
  virtual SampleOrigin origin(i64 sample) const = 0;
};

}  // namespace mcpp
