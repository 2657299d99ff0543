// Tokens that no file holds, to try out how fast a training is.
#pragma once
#include <string>

#include "data/read/dataset.h"

namespace mcpp {

/// What the tokens of a mock dataset are drawn by.
struct MockText {
  i64 seed = 0;
  std::string split_name;  ///< "train", "valid" or "test": each has a text of its own
  i64 vocab_size = 0;      ///< tokens are below it, each as likely as the others
  i64 eod = -1;            ///< ends documents, which are kMockDocument tokens long on average; -1 = one without end
};

inline constexpr i64 kMockDocument = 1024;

/// Samples of one endless text, as those of other datasets are: the last token of one is the first of the next. A
/// token depends on the text and on where it stands in it alone.
class MockDataset : public Dataset {
 public:
  MockDataset(MockText text, i64 size, i64 seq_length);

  i64 size() const override { return size_; }
  i64 seq_length() const override { return seq_length_; }
  void at(i64 sample, std::span<i32> out) const override;
  SampleOrigin origin(i64 sample) const override;

 private:
  MockText text_;
  u64 key_;
  i64 size_, seq_length_;
};

}  // namespace mcpp
