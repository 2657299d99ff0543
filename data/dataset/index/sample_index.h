// Document, sample and shuffle indices of Megatron-LM, bit-exact (megatron/core/datasets/gpt_dataset.py of Megatron
// Core 0.16.1).
//
// The sequences of a split, repeated for as many epochs as needed, are shuffled and concatenated. Sample k consists of
// seq_length + 1 tokens, starting at token k * seq_length: the last label of a sample is the first input of the next.
// The samples are then visited in shuffled order.
#pragma once
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "data/dataset/index/index_cache.h"
#include "data/dataset/index/indexed_dataset.h"

namespace mcpp {

/// Bit-exact subset of numpy.random.RandomState for Megatron-LM's data order: seeding and shuffle.
class RandomState {
 public:
  /// Seeds the generator. Throws BadInput unless 0 <= seed < 2^32, as in numpy.
  explicit RandomState(i64 seed);

  /// Shuffles like RandomState.shuffle of a one-dimensional array (Fisher-Yates from the end). Periodically calls
  /// `check`, which may throw.
  template <class T, class Check>
  void shuffle(std::span<T> values, const Check& check) {
    constexpr u64 kCheckInterval = 1 << 16;
    for (u64 i = values.size(); i-- > 1;) {
      if (i % kCheckInterval == 0) check();
      std::swap(values[i], values[interval(i)]);
    }
  }
  template <class T>
  void shuffle(std::span<T> values) {
    shuffle(values, [] {});
  }

  /// Returns a uniform value in [0, max]: draws masked to the next power of two until one fits (numpy's legacy
  /// random_interval).
  u64 interval(u64 max);

 private:
  std::mt19937 generator_;
};

/// Range of sequences [begin, end).
struct SequenceRange {
  i64 begin = 0, end = 0;
  i64 size() const { return end - begin; }
};

struct EpochPlan {
  i64 tokens_per_epoch = 0;
  i64 epochs = 1;
  i64 samples = 0;  ///< samples in all epochs; at least the number requested
  /// If little of the last epoch is needed, it is shuffled separately, so that this fraction is not spread over the
  /// entire run: samples [0, samples_sans_final_epoch) come first.
  bool separate_final_epoch = false;
  i64 samples_sans_final_epoch = 0;
};

/// Plans the number of epochs. `num_samples` = std::nullopt means one epoch.
EpochPlan plan_epochs(i64 tokens_per_epoch, i64 seq_length, std::optional<i64> num_samples);

/// Indices of the samples of a dataset. document_index is [epochs * sequences]. sample_index is [samples + 1] flat
/// pairs (position in document_index, token offset). shuffle_index is [samples].
struct SampleIndices {
  std::vector<u32> document_index, sample_index, shuffle_index;
};

i64 count_tokens(const IndexedDataset& source, SequenceRange range);
/// Builds the three indices. Throws BadInput if the host lacks memory for `options.copies` copies.
SampleIndices build_sample_indices(const IndexedDataset& source, SequenceRange range, i64 seq_length, i64 seed,
                                   const EpochPlan& plan, const IndexBuildOptions& options = {});

// Samples of a run with stages. Each epoch of a split is shuffled separately, so that the endless concatenation of all
// epochs does not depend on the number of samples or on their length. A stage reads a range of its tokens.

/// Range of tokens that a stage reads: `samples` samples of seq_length tokens, which begin at token `first_token` of
/// the concatenated epochs, and the label of the last one.
struct TokenRange {
  i64 first_token = 0, samples = 0;
  i64 end(i64 seq_length) const { return first_token + samples * seq_length + 1; }
};

/// Builds the three indices of the samples in `tokens`. document_index contains the sequences that overlap the range,
/// in the order of the concatenation. The samples are visited in an order that is shuffled within the range. Throws
/// BadInput if the host lacks memory for `options.copies` copies.
SampleIndices build_range_indices(const IndexedDataset& source, SequenceRange range, i64 seq_length, i64 seed,
                                  const TokenRange& tokens, const IndexBuildOptions& options = {});

}  // namespace mcpp
