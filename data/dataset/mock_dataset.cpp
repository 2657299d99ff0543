#include "data/dataset/mock_dataset.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/philox.h"

namespace mcpp {

MockDataset::MockDataset(MockText text, i64 size, i64 seq_length)
    : text_(std::move(text)),
      key_(philox_key(static_cast<u64>(text_.seed), str("mock data ", text_.split_name))),
      size_(size),
      seq_length_(seq_length) {
  MCPP_CHECK(text_.vocab_size > 1 && text_.eod < text_.vocab_size, "a vocabulary of ", text_.vocab_size, ", eod ",
             text_.eod);
}

void MockDataset::read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const {
  MCPP_CHECK(sample >= 0 && sample < size_, "sample ", sample, " is not in the dataset of ", size_, " samples");
  MCPP_CHECK(static_cast<i64>(tokens.size()) == seq_length_ + 1, "the output has ", tokens.size(),
             " tokens, not seq_length + 1");
  std::ranges::fill(targets, u8{1});
  const auto choices = static_cast<u64>(text_.eod < 0 ? text_.vocab_size : text_.vocab_size - 1);
  auto position = static_cast<u64>(text_.first_token + sample * seq_length_);
  for (i32& token : tokens) {
    const Philox4 bits = philox4x32(key_, {static_cast<u32>(position), static_cast<u32>(position >> 32), 0, 0});
    const auto drawn = static_cast<i64>(u64{bits[0]} * choices >> 32);
    const bool ends_document = text_.eod >= 0 && bits[1] % u64{kMeanMockDocumentTokens} == 0;
    token = static_cast<i32>(ends_document ? text_.eod : drawn + (text_.eod >= 0 && drawn >= text_.eod ? 1 : 0));
    ++position;
  }
}

SampleOrigin MockDataset::origin(i64 sample) const {
  return {.prefix = "mock data",
          .dataset_sample = sample,
          .shuffled_sample = sample,
          .parts = {{.offset = text_.first_token + sample * seq_length_, .length = seq_length_ + 1}}};
}

}  // namespace mcpp
