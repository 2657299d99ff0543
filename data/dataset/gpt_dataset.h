// Samples of one split of a .bin/.idx pair, in Megatron-LM's order or, for a stage, in the order of its range of
// tokens.
#pragma once
#include <optional>

#include "base/log.h"
#include "base/stored_ref.h"
#include "data/dataset/dataset.h"
#include "data/dataset/index/index_cache.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/dataset/index/sample_index.h"

namespace mcpp {

/// Parameters that determine the tokens of every sample.
struct GptDatasetSpec {
  SequenceRange range;     ///< sequences of the split
  std::string split_name;  ///< "train", "valid" or "test", for messages
  i64 seq_length = 0;
  i64 seed = 0;
  std::optional<i64> num_samples;  ///< requested number of samples; std::nullopt = one epoch
  /// Token of the concatenated epochs at which the num_samples samples of a stage begin; std::nullopt = Megatron-LM's
  /// order.
  std::optional<i64> first_token = {};
  const IndexedDataset* loss_mask = nullptr;  ///< null = all tokens have a loss
};

class GptDataset : public Dataset {
 public:
  /// Collective over `ranks`. Throws BadInput if the split has no documents or fewer tokens than one sample needs.
  GptDataset(StoredRef<IndexedDataset> source, const GptDatasetSpec& spec, const Path& cache_folder, const Log& log,
             const IndexRanks& ranks = SingleIndexRank());

  i64 size() const override { return static_cast<i64>(shuffle_index().size()); }
  i64 seq_length() const override { return spec_.seq_length; }
  void read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const override;
  SampleOrigin origin(i64 sample) const override;

  const EpochPlan& plan() const { return plan_; }
  std::span<const u32> document_index() const { return indices_[0]; }  ///< [epochs * sequences]
  std::span<const u32> sample_index() const { return indices_[1]; }    ///< [size + 1, 2]
  std::span<const u32> shuffle_index() const { return indices_[2]; }   ///< [size]
  bool is_cached() const { return indices_.is_mapped(); }

 private:
  /// Calls visit(sequence, offset, length) for each part of the sample.
  template <class Visit>
  void for_each_part(i64 sample, Visit&& visit) const;
  std::string description() const;

  const IndexedDataset& source_;
  GptDatasetSpec spec_;
  EpochPlan plan_;
  IndexArrays indices_;
};

}  // namespace mcpp
