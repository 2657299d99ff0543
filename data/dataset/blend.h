// Blending of several datasets in given proportions, as Megatron-LM's BlendedDataset.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "data/dataset/dataset.h"
#include "data/dataset/index/index_cache.h"

namespace mcpp {

/// Weights of the datasets of a blend. They may change linearly from the first sample to the last.
struct BlendWeights {
  BlendWeights() = default;
  /// Constant weights.
  BlendWeights(std::vector<double> weights) : start(std::move(weights)) {}  // NOLINT(google-explicit-constructor)
  BlendWeights(std::vector<double> first, std::vector<double> last) : start(std::move(first)), end(std::move(last)) {}

  bool is_constant() const { return end.empty(); }
  /// Returns the mean of the weights over all samples, for weights that are normalized.
  std::vector<double> mean() const;
  /// Returns the weights divided by their sums (see normalize_weights).
  BlendWeights normalized() const;
  bool operator==(const BlendWeights&) const = default;

  std::vector<double> start;
  std::vector<double> end;  ///< weights at the end; empty if they are constant
};

/// Parsed data_path: prefixes and, if given, their weights.
struct BlendList {
  std::vector<std::string> prefixes;
  BlendWeights weights;  ///< without values: each dataset is read once, in proportion to its size

  bool has_weights() const { return !weights.start.empty(); }
};

/// Parses either prefixes alone or alternating weights and prefixes. A weight is a number, or "0.8:0.2" if it changes
/// from 0.8 to 0.2. Throws BadInput, naming `key`, otherwise.
BlendList parse_blend_list(const std::vector<std::string>& entries, std::string_view key);

/// Returns the weights divided by their sum. Adds in numpy's order because the last bit can decide which dataset a
/// sample comes from.
std::vector<double> normalize_weights(std::span<const double> weights);

/// Return the number of samples that a weighted dataset contributes, ceil(n * w), and the number built for it: 0.5 %
/// more, since rounding may draw a few extra.
i64 blend_target(i64 num_samples, double normalized_weight);
i64 blend_target_with_surplus(i64 num_samples, double normalized_weight);

/// Dataset of each of `size` samples and the sample's index within that dataset. Chosen greedily: sample i comes from
/// the dataset whose share so far is furthest below weight * max(i, 1); ties go to the first. `weights` must sum to 1.
/// For weights that change, weight * i is replaced by the integral of the weight over the samples before i.
struct BlendIndices {
  std::vector<u32> dataset_index, dataset_sample_index;
};
BlendIndices build_blend_indices(const BlendWeights& weights, i64 size, const IndexBuildOptions& options = {});

/// Returns how many of the first `size` samples of the blend come from each dataset, [weights]. `weights` must sum
/// to 1. Loads the counts from the cache in `folder`, or computes and stores them. Collective over `ranks`.
std::vector<i64> count_blend_samples(const BlendWeights& weights, i64 size, const Path& folder, const Log& log,
                                     const IndexRanks& ranks = SingleIndexRank());

class BlendedDataset : public Dataset {
 public:
  /// Collective over `ranks`. `weights` need not be normalized. `split_name` is used in messages.
  BlendedDataset(std::vector<std::unique_ptr<Dataset>> parts, const BlendWeights& weights, i64 size,
                 const std::string& split_name, const Path& cache_folder, const Log& log,
                 const IndexRanks& ranks = SingleIndexRank());

  i64 size() const override { return static_cast<i64>(dataset_index().size()); }
  i64 seq_length() const override { return parts_.front()->seq_length(); }
  void read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const override;
  SampleOrigin origin(i64 sample) const override;

  const Dataset& part(i64 i) const { return *parts_[static_cast<std::size_t>(i)]; }
  std::span<const u32> dataset_index() const { return indices_[0]; }         ///< [size]
  std::span<const u32> dataset_sample_index() const { return indices_[1]; }  ///< [size]

 private:
  std::vector<std::unique_ptr<Dataset>> parts_;
  IndexArrays indices_;
};

}  // namespace mcpp
