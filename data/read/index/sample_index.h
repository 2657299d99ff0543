// Which tokens make sample i: Megatron-LM's document, sample and shuffle indices (megatron/core/datasets/gpt_dataset.py
// of Megatron Core 0.16.1), bit for bit.
//
// The sequences of a split, repeated for as many epochs as needed, are shuffled and laid end to end. Sample k is the
// seq_length + 1 tokens from token k * seq_length of that line on, so that neighbours share one token: the last label
// of one is the first input of the next. The samples are then visited in shuffled order.
#pragma once
#include <optional>
#include <vector>

#include "base/types.h"
#include "data/read/index/index_ranks.h"
#include "data/read/index/indexed_dataset.h"

namespace mcpp {

/// A range of sequences [begin, end).
struct SequenceRange {
  i64 begin = 0, end = 0;
  i64 size() const { return end - begin; }
};

struct EpochPlan {
  i64 tokens_per_epoch = 0;
  i64 epochs = 1;
  i64 samples = 0;  ///< that the epochs hold, at least those asked for
  /// The last epoch is shuffled apart when little of it is needed, so that what is read of it is not spread thinly over
  /// the whole run: samples [0, samples_sans_final_epoch) come first.
  bool separate_final_epoch = false;
  i64 samples_sans_final_epoch = 0;
};

/// `num_samples` none = one epoch.
EpochPlan plan_epochs(i64 tokens_per_epoch, i64 seq_length, std::optional<i64> num_samples);

/// document_index [epochs * sequences], sample_index [samples + 1] pairs (position in document_index, token offset),
/// flat, shuffle_index [samples].
struct SampleIndices {
  std::vector<u32> document_index, sample_index, shuffle_index;
};

i64 count_tokens(const IndexedDataset& source, SequenceRange range);
/// BadInput when the machine has no memory for as many copies as `how` says.
SampleIndices build_sample_indices(const IndexedDataset& source, SequenceRange range, i64 seq_length, i64 seed,
                                   const EpochPlan& plan, const IndexBuild& how = {});

}  // namespace mcpp
