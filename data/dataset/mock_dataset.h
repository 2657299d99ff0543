// Synthetic dataset for measuring training speed without data files.
#pragma once
#include <string>

#include "data/dataset/dataset.h"

namespace mcpp {

/// Distribution of the tokens of a mock dataset.
struct MockText {
  i64 seed = 0;
  std::string split_name;  ///< "train", "valid" or "test"; each split has its own text
  i64 vocab_size = 0;      ///< tokens are uniform in [0, vocab_size)
  i64 eod = -1;            ///< ends documents of kMeanMockDocumentTokens tokens on average; -1 = one endless document
  i64 first_token = 0;     ///< token of the text at which the first sample begins
};

inline constexpr i64 kMeanMockDocumentTokens = 1024;

/// Samples of one endless text; as in other datasets, the last token of a sample is the first of the next. A token
/// depends only on the text's parameters and its position.
class MockDataset : public Dataset {
 public:
  MockDataset(MockText text, i64 size, i64 seq_length);

  i64 size() const override { return size_; }
  i64 seq_length() const override { return seq_length_; }
  void read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const override;
  SampleOrigin origin(i64 sample) const override;

 private:
  MockText text_;
  u64 key_;
  i64 size_, seq_length_;
};

}  // namespace mcpp
